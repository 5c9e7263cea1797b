// Registers LTX: its plans, of which the shipped one lacks timesteps of tokens, and the inputs made to expose faults.
// Source of the plans: models specification, section 7.
#include "core/ops.h"
#include "models/hostile_inputs.h"
#include "models/ltx.h"
#include "models/model_type.h"
#include "models/plan_building.h"

namespace shardproof {
namespace {

enum class RootTimesteps : std::uint8_t { as_shipped, divided };

// Both streams are divided at the root, the rotary tables where they are made. The shipped plan leaves timesteps whole,
// so that one a token meets a part of the tokens.
ContextParallelPlan ltx_cp_plan(RootTimesteps timesteps) {
  constexpr ContextParallelInput per_token{.split_dim = 1, .expected_dims = 2};
  constexpr ContextParallelInput table{.split_dim = 1, .expected_dims = 3, .split_output = true};
  SplitEntries root{
      {"hidden_states", kSplitTokens}, {"encoder_hidden_states", kSplitTokens}, {"encoder_attention_mask", per_token}};
  if (timesteps == RootTimesteps::divided) root.emplace_back("timestep", per_token);
  return {{{"", root}, {"rope", SplitEntries{{0, table}, {1, table}}}, {"proj_out", GatherEntry(kGatherTokens)}}};
}

constexpr std::int64_t kChannels = 6;
constexpr std::int64_t kTextWidth = 14;
// A width that six does not divide, so that rotary tables begin with a pair that is not turned.
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kHeadDim = 10;

Json ltx_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "LTXVideoTransformer3DModel");
  config.set("in_channels", kChannels);
  config.set("out_channels", 5);
  config.set("num_attention_heads", kHeads);
  config.set("attention_head_dim", kHeadDim);
  config.set("cross_attention_dim", kHeads * kHeadDim);
  config.set("num_layers", 2);
  config.set("norm_elementwise_affine", true);
  config.set("caption_channels", kTextWidth);
  return config;
}

enum class Timesteps : std::uint8_t { per_item, per_token };
enum class Positions : std::uint8_t { grid, scaled_grid, coordinates };

struct LtxTraits {
  std::int64_t batch, text;
  std::array<std::int64_t, 3> grid;
  Masking masking = Masking::none;
  Timesteps timesteps = Timesteps::per_item;
  Positions positions = Positions::grid;
};

NestedNumbers three_numbers(double frame, double height, double width) {
  return {std::vector<NestedNumbers>{{frame}, {height}, {width}}};
}

ModelCase ltx_case(const std::string& name, std::uint64_t seed, Device& host, const LtxTraits& traits) {
  const auto draw = [&](const std::string& argument, const Shape& shape, double deviation = 1.0) {
    return random_input(host, seed, name + "/" + argument, shape, deviation);
  };
  const std::int64_t batch = traits.batch, tokens = traits.grid[0] * traits.grid[1] * traits.grid[2];
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {batch, tokens, kChannels}));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {batch, traits.text, kTextWidth}));
  arguments.set("timestep", traits.timesteps == Timesteps::per_token ? draw("timestep", {batch, tokens}, 10.0)
                                                                     : ramp(host, batch, 28.0, -11.0));
  if (traits.masking != Masking::none)
    arguments.set("encoder_attention_mask", random_key_mask(host, seed, name, batch, traits.text, traits.masking));
  if (traits.positions == Positions::coordinates) {
    arguments.set("video_coords", draw("video_coords", {batch, 3, tokens}, 40.0));
    return result;
  }
  arguments.set("num_frames", traits.grid[0]);
  arguments.set("height", traits.grid[1]);
  arguments.set("width", traits.grid[2]);
  if (traits.positions == Positions::scaled_grid)
    arguments.set("rope_interpolation_scale", three_numbers(0.32, 32.0, 32.0));
  return result;
}

std::vector<ModelCase> ltx_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      ltx_case("even", seed, host, {.batch = 2, .text = 12, .grid = {2, 3, 4}}),
      ltx_case("even_masked", seed, host,
               {.batch = 2,
                .text = 12,
                .grid = {3, 2, 4},
                .masking = Masking::keys,
                .timesteps = Timesteps::per_token,
                .positions = Positions::scaled_grid}),
      ltx_case("uneven_masked", seed, host,
               {.batch = 2,
                .text = 7,
                .grid = {13, 1, 1},
                .masking = Masking::keys,
                .timesteps = Timesteps::per_token,
                .positions = Positions::coordinates}),
      ltx_case("whole_shard_masked", seed, host,
               {.batch = 2,
                .text = 12,
                .grid = {1, 3, 4},
                .masking = Masking::whole_shard,
                .positions = Positions::coordinates}),
      ltx_case("shortest", seed, host, {.batch = 1, .text = 4, .grid = {1, 5, 1}, .positions = Positions::scaled_grid}),
  };
}

ModelCase ltx_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  return ltx_case("sized", seed, host,
                  {.batch = size.batch,
                   .text = size.text,
                   .grid = {1, size.image, 1},
                   .masking = masking_of(size),
                   .timesteps = size.has("per_token") ? Timesteps::per_token : Timesteps::per_item,
                   .positions = size.has("coordinates") ? Positions::coordinates : Positions::scaled_grid});
}

void ltx_resize(Json& config, const ModelSize& size) {
  config.set("num_attention_heads", size.heads);
  config.set("cross_attention_dim", size.heads * kHeadDim);
  config.set("num_layers", size.layers);
}

}  // namespace

ModelType ltx_model_type() {
  ModelType type;
  type.class_name = "LTXVideoTransformer3DModel";
  type.short_name = "ltx";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_ltx(ltx_config_from_json(config), context);
  };
  // Given coordinates are double in a double model, its frequencies float32: angles of up to 1e5 differ by their
  // rounding.
  type.mixed_table_tolerance = [](const ModelCase& model_case) {
    return model_case.arguments.optional_tensor("video_coords").defined() ? 1e-3 : 0.0;
  };
  type.plans = [](const Json&) {
    return ModelPlans{.shipped_cp = ltx_cp_plan(RootTimesteps::as_shipped),
                      .default_cp = ltx_cp_plan(RootTimesteps::divided)};
  };
  type.attention_heads = [](const Json& config) { return ltx_config_from_json(config).num_attention_heads; };
  type.hostile_config = ltx_hostile_config;
  type.hostile_cases = ltx_hostile_cases;
  type.sized_case = ltx_sized_case;
  type.features = mask_features("encoder_attention_mask");
  type.features.push_back(per_token_feature("timestep"));
  type.features.push_back(feature_by_argument("coordinates", "video_coords"));
  type.resize = ltx_resize;
  return type;
}

}  // namespace shardproof
