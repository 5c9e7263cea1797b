// Registers FLUX.1: its plans and the inputs made to expose faults. Source of the plans: models specification,
// section 1.
#include <fmt/format.h>

#include "core/ops.h"
#include "models/flux.h"
#include "models/model_type.h"

namespace shardproof {
namespace {

ContextParallelPlan flux_cp_plan(bool with_controlnet) {
  const auto tokens = ContextParallelInput{.split_dim = 1, .expected_dims = 3};
  const auto ids = ContextParallelInput{.split_dim = 0, .expected_dims = 2};
  SplitEntries root{{"hidden_states", tokens}, {"encoder_hidden_states", tokens}, {"img_ids", ids}, {"txt_ids", ids}};
  if (with_controlnet) {
    root.emplace_back("controlnet_block_samples", tokens);
    root.emplace_back("controlnet_single_block_samples", tokens);
  }
  return {{{"", root}, {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1, .expected_dims = 3})}}};
}

TensorParallelPlan flux_tp_plan() {
  TensorParallelPlan plan;
  const auto add = [&](std::string_view layers, std::initializer_list<const char*> names, TensorParallelStyle style) {
    for (const char* name : names)
      plan.entries.emplace_back(fmt::format("{}.*.{}", layers, name), TensorParallelEntry{style});
  };
  add("transformer_blocks",
      {"attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj",
       "attn.to_add_out", "ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"},
      TensorParallelStyle::colwise);
  for (auto& [name, entry] : plan.entries) {
    const bool is_output = name.ends_with("to_out.0") || name.ends_with("to_add_out") || name.ends_with("net.2");
    if (is_output) entry.style = TensorParallelStyle::rowwise;
  }
  add("single_transformer_blocks", {"attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}, TensorParallelStyle::colwise);
  add("single_transformer_blocks", {"proj_out"}, TensorParallelStyle::packed_rowwise);
  return plan;
}

ModelPlans flux_plans(const Json&) { return {flux_cp_plan(false), flux_cp_plan(true), flux_tp_plan(), flux_tp_plan()}; }

constexpr std::int64_t kHeadDim = 16;
constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kTextWidth = 24;
constexpr std::int64_t kPooledWidth = 20;

Json flux_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "FluxTransformer2DModel");
  config.set("in_channels", kChannels);
  config.set("num_layers", 2);
  config.set("num_single_layers", 2);
  config.set("attention_head_dim", kHeadDim);
  config.set("num_attention_heads", kHeads);
  config.set("joint_attention_dim", kTextWidth);
  config.set("pooled_projection_dim", kPooledWidth);
  config.set("guidance_embeds", true);
  config.set("axes_dims_rope", Json::array({4, 4, 8}));
  return config;
}

ModelCase flux_case(const std::string& name, std::uint64_t seed, Device& host, std::int64_t batch, std::int64_t text,
                    std::int64_t image, int controlnet_samples, std::int64_t heads = kHeads) {
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
  arguments.set("pooled_projections", draw("pooled_projections", {batch, kPooledWidth}));
  arguments.set("timestep", ops::from_doubles(host, timesteps, {batch}, kFloat32));
  arguments.set("img_ids", draw("img_ids", {image, 3}, 5.0));
  arguments.set("txt_ids", draw("txt_ids", {text, 3}, 5.0));
  arguments.set("guidance", ops::from_doubles(host, guidance, {batch}, kFloat32));
  if (controlnet_samples > 0) {
    const std::int64_t width = heads * kHeadDim;
    std::vector<Tensor> samples;
    for (int i = 0; i < controlnet_samples; ++i)
      samples.push_back(draw(fmt::format("sample.{}", i), {batch, image, width}));
    arguments.set("controlnet_block_samples", samples);
    arguments.set("controlnet_single_block_samples", std::vector<Tensor>{draw("single", {batch, image, width})});
    arguments.set("controlnet_blocks_repeat", true);
  }
  return result;
}

std::vector<ModelCase> flux_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      flux_case("even", seed, host, 2, 12, 24, 0),
      flux_case("uneven", seed, host, 2, 7, 13, 0),
      flux_case("controlnet", seed, host, 1, 12, 12, 2),
      flux_case("shortest", seed, host, 1, 4, 5, 0),
  };
}

ModelCase flux_sized_case(const Json& config, const ModelSize& size, std::uint64_t seed, Device& host) {
  ModelCase made =
      flux_case("sized", seed, host, size.batch, size.text, size.image, size.has("controlnet") ? 2 : 0, size.heads);
  if (!flux_config_from_json(config).guidance_embeds) made.arguments.set("guidance", Value());
  return made;
}

void flux_resize(Json& config, const ModelSize& size) {
  config.set("num_attention_heads", size.heads);
  config.set("num_layers", size.layers);
  config.set("num_single_layers", size.layers);
}

}  // namespace

ModelType flux_model_type() {
  ModelType type;
  type.class_name = "FluxTransformer2DModel";
  type.short_name = "flux";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_flux(flux_config_from_json(config), context);
  };
  type.timestep_factor = 1000.0;
  type.plans = flux_plans;
  type.attention_heads = [](const Json& config) { return flux_config_from_json(config).num_attention_heads; };
  type.hostile_config = flux_hostile_config;
  type.hostile_cases = flux_hostile_cases;
  type.sized_case = flux_sized_case;
  type.features = {feature_by_argument("controlnet", "controlnet_block_samples")};
  type.resize = flux_resize;
  return type;
}

}  // namespace shardproof
