// Registers FLUX.2: its plans and the inputs made to expose faults. Source of the plans: models specification,
// section 2.
#include "core/ops.h"
#include "models/flux2.h"
#include "models/model_type.h"
#include "models/plan_building.h"

namespace shardproof {
namespace {

// Ids are divided only where they have a batch axis, as the model's users give them.
ContextParallelPlan flux2_cp_plan() {
  return {{{"", SplitEntries{{"hidden_states", kSplitTokens},
                             {"encoder_hidden_states", kSplitTokens},
                             {"img_ids", kSplitTokens},
                             {"txt_ids", kSplitTokens}}},
           {"proj_out", GatherEntry(kGatherTokens)}}};
}

TensorParallelPlan flux2_tp_plan() {
  constexpr auto colwise = TensorParallelStyle::colwise, rowwise = TensorParallelStyle::rowwise;
  const TensorParallelEntry halves{TensorParallelStyle::packed_colwise, std::vector<std::int64_t>{1, 1}};
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
               {"ff.linear_in", halves},
               {"ff.linear_out", {rowwise}},
               {"ff_context.linear_in", halves},
               {"ff_context.linear_out", {rowwise}}});
  add_to_plan(plan, "single_transformer_blocks",
              {{"attn.to_qkv_mlp_proj", {TensorParallelStyle::packed_colwise}},
               {"attn.to_out", {TensorParallelStyle::packed_rowwise}}});
  return plan;
}

constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kTextWidth = 20;

Json flux2_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "Flux2Transformer2DModel");
  config.set("in_channels", kChannels);
  config.set("num_layers", 2);
  config.set("num_single_layers", 2);
  config.set("attention_head_dim", 16);
  config.set("num_attention_heads", 6);
  config.set("joint_attention_dim", kTextWidth);
  config.set("timestep_guidance_channels", 32);
  config.set("mlp_ratio", 2.5);
  config.set("axes_dims_rope", Json::array({4, 2, 4, 6}));
  return config;
}

ModelCase flux2_case(const std::string& name, std::uint64_t seed, Device& host, std::int64_t batch, std::int64_t text,
                     std::int64_t image) {
  const auto draw = [&](const std::string& argument, const Shape& shape, double deviation = 1.0) {
    return random_input(host, seed, name + "/" + argument, shape, deviation);
  };
  std::vector<double> timesteps, guidance;
  for (std::int64_t item = 0; item < batch; ++item) {
    timesteps.push_back(0.837 - 0.25 * static_cast<double>(item));
    guidance.push_back(3.5 + static_cast<double>(item));
  }
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {batch, image, kChannels}));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {batch, text, kTextWidth}));
  arguments.set("timestep", ops::from_doubles(host, timesteps, {batch}, kFloat32));
  arguments.set("img_ids", draw("img_ids", {batch, image, 4}, 5.0));
  arguments.set("txt_ids", draw("txt_ids", {batch, text, 4}, 5.0));
  arguments.set("guidance", ops::from_doubles(host, guidance, {batch}, kFloat32));
  return result;
}

std::vector<ModelCase> flux2_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      flux2_case("even", seed, host, 2, 12, 24),
      flux2_case("uneven", seed, host, 2, 7, 13),
      flux2_case("shortest", seed, host, 1, 4, 5),
  };
}

void flux2_resize(Json& config, const ModelSize& size) {
  config.set("num_attention_heads", size.heads);
  config.set("num_layers", size.layers);
  config.set("num_single_layers", size.layers);
}

}  // namespace

ModelType flux2_model_type() {
  ModelType type;
  type.class_name = "Flux2Transformer2DModel";
  type.short_name = "flux2";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_flux2(flux2_config_from_json(config), context);
  };
  type.timestep_factor = 1000.0;
  type.plans = [](const Json&) {
    return ModelPlans{flux2_cp_plan(), flux2_cp_plan(), flux2_tp_plan(), flux2_tp_plan()};
  };
  type.attention_heads = [](const Json& config) { return flux2_config_from_json(config).num_attention_heads; };
  type.hostile_config = flux2_hostile_config;
  type.hostile_cases = flux2_hostile_cases;
  type.sized_case = [](const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
    return flux2_case("sized", seed, host, size.batch, size.text, size.image);
  };
  type.resize = flux2_resize;
  return type;
}

}  // namespace shardproof
