// Registers Wan: its plan and the inputs made to expose faults, which ChronoEdit shares. Source of the plan: models
// specification, section 5.
#include "core/ops.h"
#include "models/hostile_inputs.h"
#include "models/model_type.h"
#include "models/plan_building.h"
#include "models/wan.h"

namespace shardproof {
namespace {

constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kTextWidth = 10;
constexpr std::int64_t kImageWidth = 9;
constexpr std::int64_t kText = 512;  // as models with image keys have it
constexpr std::int64_t kImageTokens = 5;
constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kHeadDim = 10;

enum class Timesteps : std::uint8_t { per_item, per_token };

// Timesteps of up to 30, so that neighbouring tokens are modulated differently.
ModelCase wan_case(const std::string& name, std::uint64_t seed, Device& host, std::int64_t batch, const Extents& grid,
                   Timesteps timesteps, std::int64_t text = kText) {
  const auto draw = [&](const std::string& argument, const Shape& shape, double deviation = 1.0) {
    return random_input(host, seed, name + "/" + argument, shape, deviation);
  };
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {batch, kChannels, grid[0], 2 * grid[1], 2 * grid[2]}));
  arguments.set("timestep", timesteps == Timesteps::per_token
                                ? draw("timestep", {batch, grid[0] * grid[1] * grid[2]}, 10.0)
                                : ramp(host, batch, 28.0, -11.0));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {batch, text, kTextWidth}));
  arguments.set("encoder_hidden_states_image", draw("encoder_hidden_states_image", {batch, kImageTokens, kImageWidth}));
  return result;
}

}  // namespace

ContextParallelPlan wan_cp_plan(RootTimesteps timesteps) {
  constexpr ContextParallelInput table{.split_dim = 1, .expected_dims = 4, .split_output = true};
  ContextParallelPlan plan{{{"rope", SplitEntries{{0, table}, {1, table}}},
                            {"blocks.0", SplitEntries{{"hidden_states", kSplitTokens}}},
                            {"proj_out", GatherEntry(kGatherTokens)}}};
  if (timesteps == RootTimesteps::divided) {
    constexpr ContextParallelInput per_token{.split_dim = 1, .expected_dims = 2};
    plan.entries.emplace_back("", SplitEntries{{"timestep", per_token}});
  }
  return plan;
}

Json wan_hostile_config(const WanConfig& like) {
  Json config = Json::object();
  config.set("_class_name", like.class_name);
  config.set("patch_size", Json::array({1, 2, 2}));
  config.set("num_attention_heads", kHeads);
  config.set("attention_head_dim", kHeadDim);
  config.set("in_channels", kChannels);
  config.set("out_channels", 2);
  config.set("text_dim", kTextWidth);
  config.set("freq_dim", 32);
  config.set("ffn_dim", 40);
  config.set("num_layers", 2);
  config.set("image_dim", kImageWidth);
  config.set("added_kv_proj_dim", kHeads * kHeadDim);
  config.set("rope_max_seq_len", 32);
  if (like.rope_temporal_skip_len) config.set("rope_temporal_skip_len", *like.rope_temporal_skip_len);
  return config;
}

std::vector<ModelCase> wan_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      wan_case("even", seed, host, 2, {2, 3, 4}, Timesteps::per_item),
      wan_case("even_per_token", seed, host, 2, {3, 2, 4}, Timesteps::per_token),
      wan_case("uneven_per_token", seed, host, 2, {1, 7, 5}, Timesteps::per_token),
      wan_case("shortest", seed, host, 1, {5, 1, 1}, Timesteps::per_item),
  };
}

void add_wan_sizes(ModelType& type) {
  type.sized_case = [](const Json& config, const ModelSize& size, std::uint64_t seed, Device& host) {
    const Json* image_width = config.find("image_dim");
    const bool has_image_keys = image_width != nullptr && !image_width->is_null();
    ModelCase made = wan_case("sized", seed, host, size.batch, {size.image, 1, 1},
                              size.has("per_token") ? Timesteps::per_token : Timesteps::per_item,
                              has_image_keys ? kText : size.text);
    if (!has_image_keys) made.arguments.set("encoder_hidden_states_image", Value());
    return made;
  };
  type.features = {per_token_feature("timestep")};
  type.resize = [](Json& config, const ModelSize& size) {
    config.set("num_attention_heads", size.heads);
    config.set("num_layers", size.layers);
    if (!config.at("added_kv_proj_dim").is_null()) config.set("added_kv_proj_dim", size.heads * kHeadDim);
  };
}

ModelType wan_model_type() {
  ModelType type;
  type.class_name = "WanTransformer3DModel";
  type.short_name = "wan";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_wan(wan_config_from_json(config), context);
  };
  type.plans = [](const Json&) {
    const ContextParallelPlan plan = wan_cp_plan(RootTimesteps::divided);
    return ModelPlans{.shipped_cp = plan, .default_cp = plan};
  };
  type.attention_heads = [](const Json& config) { return wan_config_from_json(config).num_attention_heads; };
  type.hostile_config = [] { return wan_hostile_config({}); };
  type.hostile_cases = wan_hostile_cases;
  add_wan_sizes(type);
  return type;
}

}  // namespace shardproof
