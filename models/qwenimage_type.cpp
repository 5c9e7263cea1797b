// Registers Qwen-Image: its plans and the inputs made to expose faults. Source of the plans: models specification,
// section 3.
#include "core/ops.h"
#include "models/hostile_inputs.h"
#include "models/model_type.h"
#include "models/plan_building.h"
#include "models/qwenimage.h"

namespace shardproof {
namespace {

enum class Residuals : std::uint8_t { as_shipped, divided };

// The streams are divided before the first block, masks and indices before every block, the rotary tables where they
// are made.
ContextParallelPlan qwenimage_cp_plan(Residuals residuals) {
  constexpr ContextParallelInput per_token{.split_dim = 1, .expected_dims = 2};
  constexpr ContextParallelInput table{.split_dim = 0, .expected_dims = 2, .split_output = true};
  ContextParallelPlan plan;
  if (residuals == Residuals::divided)
    plan.entries.emplace_back("", SplitEntries{{"controlnet_block_samples", kSplitTokens}});
  plan.entries.emplace_back("transformer_blocks.0",
                            SplitEntries{{"hidden_states", kSplitTokens}, {"encoder_hidden_states", kSplitTokens}});
  plan.entries.emplace_back("transformer_blocks.*",
                            SplitEntries{{"modulate_index", per_token}, {"encoder_hidden_states_mask", per_token}});
  plan.entries.emplace_back("pos_embed", SplitEntries{{0, table}, {1, table}});
  plan.entries.emplace_back("proj_out", GatherEntry(kGatherTokens));
  return plan;
}

TensorParallelPlan qwenimage_tp_plan() {
  constexpr auto colwise = TensorParallelStyle::colwise, rowwise = TensorParallelStyle::rowwise;
  TensorParallelPlan plan;
  add_to_plan(plan, "transformer_blocks",
              {{"attn.to_q", {colwise}},
               {"attn.to_k", {colwise}},
               {"attn.to_v", {colwise}},
               {"attn.to_out.0", {rowwise}},
               {"attn.add_q_proj", {colwise}},
               {"attn.add_k_proj", {colwise}},
               {"attn.add_v_proj", {colwise}},
               {"attn.to_add_out", {rowwise}},
               {"img_mlp.net.0.proj", {colwise}},
               {"img_mlp.net.2", {rowwise}},
               {"txt_mlp.net.0.proj", {colwise}},
               {"txt_mlp.net.2", {rowwise}}});
  return plan;
}

constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kTextWidth = 20;
constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kHeadDim = 16;

Json qwenimage_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "QwenImageTransformer2DModel");
  config.set("in_channels", kChannels);
  config.set("out_channels", 2);
  config.set("num_layers", 2);
  config.set("attention_head_dim", kHeadDim);
  config.set("num_attention_heads", kHeads);
  config.set("joint_attention_dim", kTextWidth);
  config.set("axes_dims_rope", Json::array({8, 4, 4}));
  config.set("zero_cond_t", true);
  return config;
}

using Image = std::initializer_list<double>;

// Sample -> images -> [frames, height, width].
NestedNumbers image_shapes(std::initializer_list<std::initializer_list<Image>> samples) {
  const auto list = [](std::vector<NestedNumbers> items) { return NestedNumbers{std::move(items)}; };
  std::vector<NestedNumbers> result;
  for (const auto& images : samples) {
    std::vector<NestedNumbers> of_sample;
    for (const Image& image : images) {
      std::vector<NestedNumbers> extents;
      for (const double extent : image) extents.push_back(NestedNumbers{extent});
      of_sample.push_back(list(std::move(extents)));
    }
    result.push_back(list(std::move(of_sample)));
  }
  return list(std::move(result));
}

struct QwenImageSizes {
  std::int64_t batch, text, image;
  NestedNumbers shapes;
  std::int64_t heads = kHeads;
};

ModelCase qwenimage_case(const std::string& name, std::uint64_t seed, Device& host, const QwenImageSizes& sizes,
                         Masking masking, int controlnet_samples) {
  const auto draw = [&](const std::string& argument, const Shape& shape) {
    return random_input(host, seed, name + "/" + argument, shape);
  };
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {sizes.batch, sizes.image, kChannels}));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {sizes.batch, sizes.text, kTextWidth}));
  if (masking != Masking::none) {
    arguments.set("encoder_hidden_states_mask", random_key_mask(host, seed, name, sizes.batch, sizes.text, masking));
  }
  arguments.set("timestep", ramp(host, sizes.batch, 0.837, -0.25));
  arguments.set("img_shapes", sizes.shapes);
  if (controlnet_samples > 0) {
    std::vector<Tensor> samples;
    for (int i = 0; i < controlnet_samples; ++i)
      samples.push_back(draw("sample." + std::to_string(i), {sizes.batch, sizes.image, sizes.heads * kHeadDim}));
    arguments.set("controlnet_block_samples", samples);
  }
  return result;
}

// The samples of a batch divide their tokens between images differently, so that their modulations do.
std::vector<ModelCase> qwenimage_hostile_cases(std::uint64_t seed, Device& host) {
  const QwenImageSizes even{2, 12, 24, image_shapes({{{1, 4, 4}, {1, 2, 4}}, {{1, 2, 4}, {1, 4, 4}}})};
  const QwenImageSizes uneven{2, 7, 13, image_shapes({{{1, 3, 3}, {1, 2, 2}}, {{1, 2, 5}, {1, 1, 2}, {1, 1, 1}}})};
  const QwenImageSizes square{2, 12, 12, image_shapes({{{1, 3, 4}}, {{3, 1, 2}, {1, 2, 3}}})};
  return {
      qwenimage_case("even", seed, host, even, Masking::none, 0),
      qwenimage_case("even_masked", seed, host, even, Masking::keys, 0),
      qwenimage_case("uneven_masked", seed, host, uneven, Masking::keys, 0),
      qwenimage_case("whole_shard_masked", seed, host, square, Masking::whole_shard, 0),
      qwenimage_case("controlnet", seed, host, square, Masking::none, 1),
      qwenimage_case("shortest", seed, host, {1, 4, 5, image_shapes({{{1, 1, 5}}})}, Masking::none, 2),
  };
}

// One row of pixels a sample; with two images, the last pixel is the second.
ModelCase qwenimage_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  const bool has_two = size.has("two_images") && size.image > 1;
  const auto row = [](std::int64_t width) {
    return NestedNumbers{std::vector<NestedNumbers>{{1.0}, {1.0}, {static_cast<double>(width)}}};
  };
  const NestedNumbers images{has_two ? std::vector{row(size.image - 1), row(1)} : std::vector{row(size.image)}};
  const NestedNumbers shapes{std::vector<NestedNumbers>(static_cast<std::size_t>(size.batch), images)};
  return qwenimage_case("sized", seed, host, {size.batch, size.text, size.image, shapes, size.heads}, masking_of(size),
                        size.has("controlnet") ? 1 : 0);
}

}  // namespace

ModelType qwenimage_model_type() {
  ModelType type;
  type.class_name = "QwenImageTransformer2DModel";
  type.short_name = "qwenimage";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_qwenimage(qwenimage_config_from_json(config), context);
  };
  type.timestep_factor = 1000.0;
  type.plans = [](const Json&) {
    return ModelPlans{qwenimage_cp_plan(Residuals::as_shipped), qwenimage_cp_plan(Residuals::divided),
                      qwenimage_tp_plan(), qwenimage_tp_plan()};
  };
  type.attention_heads = [](const Json& config) { return qwenimage_config_from_json(config).num_attention_heads; };
  type.hostile_config = qwenimage_hostile_config;
  type.hostile_cases = qwenimage_hostile_cases;
  type.sized_case = qwenimage_sized_case;
  type.features = mask_features("encoder_hidden_states_mask");
  type.features.push_back(feature_by_argument("controlnet", "controlnet_block_samples"));
  type.features.push_back(several_images_feature("two_images"));
  return type;
}

}  // namespace shardproof
