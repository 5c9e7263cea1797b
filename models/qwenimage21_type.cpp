// Registers Qwen-Image 2.1: its plan, for tensor parallelism only, and the inputs made to expose faults. Source of the
// plan: models specification, section 4.
#include "core/error.h"
#include "core/ops.h"
#include "models/hostile_inputs.h"
#include "models/model_type.h"
#include "models/plan_building.h"
#include "models/qwenimage21.h"

namespace shardproof {
namespace {

TensorParallelPlan qwenimage21_tp_plan() {
  constexpr auto colwise = TensorParallelStyle::colwise, rowwise = TensorParallelStyle::rowwise;
  TensorParallelPlan plan;
  add_to_plan(plan, "transformer_blocks",
              {{"attn.to_q", {colwise}},
               {"attn.to_k", {colwise}},
               {"attn.to_v", {colwise}},
               {"attn.to_out.0", {rowwise}},
               {"img_mlp.proj", {colwise}},
               {"img_mlp.gate_layer", {colwise}},
               {"img_mlp.out", {rowwise}}});
  return plan;
}

constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kTextWidth = 20;

Json qwenimage21_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "QwenImage21Transformer2DModel");
  config.set("in_channels", kChannels);
  config.set("out_channels", 5);
  config.set("num_layers", 2);
  config.set("attention_head_dim", 16);
  config.set("num_attention_heads", 6);
  config.set("context_in_dim", kTextWidth);
  config.set("mlp_ratio", 2);
  config.set("axes_dims_rope", Json::array({8, 4, 4}));
  return config;
}

// `slots` spells the joint sequence: 't' a text row, 'i' an image slot.
struct QwenImage21Sizes {
  std::int64_t batch;
  std::string slots;
  std::vector<std::pair<int, int>> images;  // height, width
};

ModelCase qwenimage21_case(const std::string& name, std::uint64_t seed, Device& host, const QwenImage21Sizes& sizes,
                           Masking masking) {
  const auto draw = [&](const std::string& argument, const Shape& shape) {
    return random_input(host, seed, name + "/" + argument, shape);
  };
  std::int64_t image_tokens = 0;
  std::vector<NestedNumbers> images;
  for (const auto& [height, width] : sizes.images) {
    image_tokens += height * width;
    images.push_back({std::vector<NestedNumbers>{{1.0}, {static_cast<double>(height)}, {static_cast<double>(width)}}});
  }
  std::vector<double> marks;
  for (std::int64_t item = 0; item < sizes.batch; ++item) {
    for (const char slot : sizes.slots) marks.push_back(slot == 'i' ? 1.0 : 0.0);
  }
  const auto slots = static_cast<std::int64_t>(sizes.slots.size());
  // The text rows reach to the last text slot; those of image slots before it are never read.
  const auto text = static_cast<std::int64_t>(sizes.slots.find_last_of('t')) + 1;
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {sizes.batch, image_tokens, kChannels}));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {sizes.batch, text, kTextWidth}));
  if (masking != Masking::none)
    arguments.set("encoder_hidden_states_mask", random_key_mask(host, seed, name, sizes.batch, text, masking));
  arguments.set("timestep", ramp(host, sizes.batch, 0.837, -0.25));
  const std::vector<NestedNumbers> samples(static_cast<std::size_t>(sizes.batch), NestedNumbers{images});
  arguments.set("img_shapes", NestedNumbers{samples});
  arguments.set("img_mask", ops::from_doubles(host, marks, {sizes.batch, slots}, kBool));
  return result;
}

std::vector<ModelCase> qwenimage21_hostile_cases(std::uint64_t seed, Device& host) {
  const QwenImage21Sizes between{2, "tttiitttttiiii", {{2, 4}, {4, 4}}};
  return {
      qwenimage21_case("condition", seed, host, between, Masking::none),
      qwenimage21_case("condition_masked", seed, host, between, Masking::keys),
      qwenimage21_case("target_only", seed, host, {2, "tttttttiii", {{2, 6}}}, Masking::keys),
      qwenimage21_case("uneven", seed, host, {1, "titiitiii", {{1, 4}, {2, 4}, {3, 4}}}, Masking::none),
  };
}

// Four pixels an image slot. With a condition, half of the slots stand between text rows.
ModelCase qwenimage21_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  SHARDPROOF_CHECK(size.image % 4 == 0, config_error, "image={} tokens; expected a multiple of 4", size.image);
  const auto slots = static_cast<std::size_t>(size.image / 4);
  const std::size_t before = size.has("condition") ? (slots + 1) / 2 : 0;
  const std::string text(static_cast<std::size_t>(size.text), 't');
  const auto image = [](std::size_t of_slots) { return std::pair<int, int>{2, 2 * static_cast<int>(of_slots)}; };
  std::vector<std::pair<int, int>> images;
  for (const std::size_t part : {before, slots - before}) {
    if (part > 0) images.push_back(image(part));
  }
  return qwenimage21_case("sized", seed, host,
                          {size.batch, std::string(before, 'i') + text + std::string(slots - before, 'i'), images},
                          masking_of(size));
}

}  // namespace

ModelType qwenimage21_model_type() {
  ModelType type;
  type.class_name = "QwenImage21Transformer2DModel";
  type.short_name = "qwenimage21";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_qwenimage21(qwenimage21_config_from_json(config), context);
  };
  type.timestep_factor = 1000.0;
  type.plans = [](const Json&) {
    return ModelPlans{.shipped_tp = qwenimage21_tp_plan(), .default_tp = qwenimage21_tp_plan()};
  };
  type.attention_heads = [](const Json& config) { return qwenimage21_config_from_json(config).num_attention_heads; };
  type.hostile_config = qwenimage21_hostile_config;
  type.hostile_cases = qwenimage21_hostile_cases;
  type.sized_case = qwenimage21_sized_case;
  type.features = mask_features("encoder_hidden_states_mask");
  type.features.push_back(several_images_feature("condition"));
  return type;
}

}  // namespace shardproof
