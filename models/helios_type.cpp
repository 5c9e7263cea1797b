// Registers Helios: its plans and the inputs made to expose faults. Source of the plans: models specification,
// section 9.
#include "core/ops.h"
#include "models/helios.h"
#include "models/hostile_inputs.h"
#include "models/model_type.h"
#include "models/plan_building.h"

namespace shardproof {
namespace {

constexpr std::int64_t kShippedLayers = 40;

// Every branch of a block is divided and gathered by itself. Gathers are entries of single layers: one wildcard id
// cannot both divide and gather.
ContextParallelPlan helios_cp_plan(std::int64_t layers) {
  ContextParallelPlan plan;
  plan.entries.emplace_back("blocks.*.attn1",
                            SplitEntries{{"hidden_states", kSplitTokens}, {"rotary_emb", kSplitTokens}});
  for (const char* branch : {"attn2", "ffn"})
    plan.entries.emplace_back(std::string("blocks.*.") + branch, SplitEntries{{"hidden_states", kSplitTokens}});
  for (const char* branch : {"attn1", "attn2", "ffn"}) {
    for (std::int64_t i = 0; i < layers; ++i)
      plan.entries.emplace_back("blocks." + std::to_string(i) + "." + branch, GatherEntry(kGatherTokens));
  }
  return plan;
}

constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kTextWidth = 10;

Json helios_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "HeliosTransformer3DModel");
  config.set("num_attention_heads", 6);
  config.set("attention_head_dim", 14);
  config.set("in_channels", kChannels);
  config.set("out_channels", 2);
  config.set("text_dim", kTextWidth);
  config.set("freq_dim", 16);
  config.set("ffn_dim", 40);
  config.set("num_layers", 2);
  config.set("rope_dim", Json::array({6, 4, 4}));
  config.set("is_amplify_history", true);
  return config;
}

struct HeliosSizes {
  std::int64_t batch, text, frames, height, width;
  std::int64_t of_short = 0, of_mid = 0, of_long = 0;  // frames of history
};

ModelCase helios_case(const std::string& name, std::uint64_t seed, Device& host, const HeliosSizes& sizes) {
  const auto draw = [&](const std::string& argument, const Shape& shape) {
    return random_input(host, seed, name + "/" + argument, shape);
  };
  // Consecutive frames; those of the second item begin two later.
  const auto indices = [&](std::int64_t first, std::int64_t frames) {
    std::vector<double> values;
    for (std::int64_t item = 0; item < sizes.batch; ++item) {
      for (std::int64_t frame = 0; frame < frames; ++frame)
        values.push_back(static_cast<double>(first + 2 * item + frame));
    }
    return ops::from_doubles(host, values, {sizes.batch, frames}, kInt64);
  };
  const auto video = [&](std::int64_t frames) {
    return Shape{sizes.batch, kChannels, frames, sizes.height, sizes.width};
  };
  ModelCase result{name, {}, {"sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", video(sizes.frames)));
  arguments.set("timestep", ramp(host, sizes.batch, 37.0, 5.0));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {sizes.batch, sizes.text, kTextWidth}));
  std::int64_t first = 0;
  const auto add_history = [&](const std::string& stream, std::int64_t frames) {
    if (frames == 0) return;
    arguments.set("indices_latents_history_" + stream, indices(first, frames));
    arguments.set("latents_history_" + stream, draw("latents_history_" + stream, video(frames)));
    first += frames;
  };
  add_history("long", sizes.of_long);
  add_history("mid", sizes.of_mid);
  add_history("short", sizes.of_short);
  arguments.set("indices_hidden_states", indices(first, sizes.frames));
  return result;
}

std::vector<ModelCase> helios_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      // 2 + 2 + 8 tokens of history, 24 of now.
      helios_case("even", seed, host, {2, 7, 3, 4, 8, 1, 2, 5}),
      // 1 + 4 + 9 and 9; the padding of history repeats rows, columns and frames.
      helios_case("uneven", seed, host, {2, 5, 1, 6, 6, 1, 2, 3}),
      helios_case("no_history", seed, host, {1, 12, 3, 4, 8}),
      // Some ranks have history only, or none at all.
      helios_case("short_history", seed, host, {1, 3, 1, 4, 4, 1}),
      helios_case("shortest", seed, host, {1, 1, 1, 4, 4}),
  };
}

// One frame of two by two latents a token, and as an extra as many tokens of history of each of the three lengths, so
// that all divide evenly where one does.
ModelCase helios_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  HeliosSizes sizes{size.batch, size.text, size.image, 2, 2};
  if (size.has("history"))
    std::tie(sizes.of_short, sizes.of_mid, sizes.of_long) = std::tuple(size.image, 2 * size.image, 4 * size.image);
  return helios_case("sized", seed, host, sizes);
}

}  // namespace

ModelType helios_model_type() {
  ModelType type;
  type.class_name = "HeliosTransformer3DModel";
  type.short_name = "helios";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_helios(helios_config_from_json(config), context);
  };
  type.plans = [](const Json& config) {
    return ModelPlans{helios_cp_plan(kShippedLayers), helios_cp_plan(helios_config_from_json(config).num_layers)};
  };
  type.attention_heads = [](const Json& config) { return helios_config_from_json(config).num_attention_heads; };
  type.hostile_config = helios_hostile_config;
  type.hostile_cases = helios_hostile_cases;
  type.sized_case = helios_sized_case;
  type.features = {feature_by_argument("history", "latents_history_short")};
  return type;
}

}  // namespace shardproof
