// Registers MiniMax-H3: its plan and the inputs made to expose faults. Source of the plan: models specification,
// section 10.
#include <algorithm>

#include "core/ops.h"
#include "models/hostile_inputs.h"
#include "models/minimax_h3.h"
#include "models/model_type.h"
#include "models/plan_building.h"

namespace shardproof {
namespace {

// The packed rows are divided, whatever their kinds; rows are picked by kind after the gathers.
ContextParallelPlan minimax_h3_cp_plan() {
  constexpr ContextParallelInput table{.split_dim = 0, .expected_dims = 2, .split_output = true};
  constexpr ContextParallelInput per_row{.split_dim = 0, .expected_dims = 1};
  return {{{"rope", SplitEntries{{0, table}, {1, table}}},
           {"transformer_blocks.0", SplitEntries{{"hidden_states", kSplitTokens}}},
           {"transformer_blocks.*", SplitEntries{{"adaln_indices", per_row}}},
           {"norm_out", SplitEntries{{"timestep_indices", per_row}}},
           {"proj_out", GatherEntry(kGatherTokens)},
           {"audio_proj_out", GatherEntry(kGatherTokens)}}};
}

constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kAudioChannels = 5;
constexpr std::int64_t kTextWidth = 10;

Json minimax_h3_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "MiniMaxH3Transformer3DModel");
  config.set("num_attention_heads", 6);
  config.set("attention_head_dim", 14);
  config.set("hidden_size", 26);
  config.set("num_layers", 2);
  config.set("num_refiner_layers", 1);
  config.set("ffn_dim", 40);
  config.set("in_channels", kChannels);
  config.set("audio_in_channels", kAudioChannels);
  config.set("text_dim", kTextWidth);
  config.set("freq_dim", 16);
  config.set("time_embed_hidden_dim", 30);
  config.set("time_embed_dim", 22);
  config.set("rope_freq_dim", 2);
  return config;
}

enum class Packing : std::uint8_t {
  in_blocks,  // text, audio, video: a rank may have rows of one kind only
  dealt,      // one of each kind in turn, as long as there are any
};

struct MiniMaxH3Sizes {
  std::int64_t batch, text, audio, video, times;
};

// The kind of every row: 0 video, 1 text, 2 audio.
std::vector<double> kinds_of(const MiniMaxH3Sizes& sizes, Packing packing) {
  std::vector<double> kinds;
  const std::int64_t longest = std::max({sizes.text, sizes.audio, sizes.video});
  const std::pair<double, std::int64_t> all[] = {{1.0, sizes.text}, {2.0, sizes.audio}, {0.0, sizes.video}};
  if (packing == Packing::in_blocks) {
    for (const auto& [kind, count] : all) kinds.insert(kinds.end(), static_cast<std::size_t>(count), kind);
    return kinds;
  }
  for (std::int64_t i = 0; i < longest; ++i) {
    for (const auto& [kind, count] : all) {
      if (i < count) kinds.push_back(kind);
    }
  }
  return kinds;
}

ModelCase minimax_h3_case(const std::string& name, std::uint64_t seed, Device& host, const MiniMaxH3Sizes& sizes,
                          Packing packing) {
  const auto draw = [&](const std::string& argument, const Shape& shape, double deviation = 1.0) {
    return random_input(host, seed, name + "/" + argument, shape, deviation);
  };
  const auto whole = [&](const std::vector<double>& values) {
    return ops::from_doubles(host, values, {static_cast<std::int64_t>(values.size())}, kInt64);
  };
  const std::vector<double> kinds = kinds_of(sizes, packing);
  std::vector<double> times;
  std::vector<std::vector<double>> rows(3);
  for (std::size_t row = 0; row < kinds.size(); ++row) {
    rows[static_cast<std::size_t>(kinds[row])].push_back(static_cast<double>(row));
    times.push_back(static_cast<double>(row % static_cast<std::size_t>(sizes.times)));
  }
  ModelCase result{name, {}, {"sample", "audio_sample"}};
  Arguments& arguments = result.arguments;
  arguments.set("hidden_states", draw("hidden_states", {sizes.batch, sizes.video, 4 * kChannels}));
  arguments.set("audio_hidden_states", draw("audio_hidden_states", {sizes.batch, sizes.audio, kAudioChannels}));
  arguments.set("encoder_hidden_states", draw("encoder_hidden_states", {sizes.batch, sizes.text, kTextWidth}));
  arguments.set("timestep", ramp(host, sizes.times, 0.837, -0.25));
  arguments.set("timestep_indices", whole(times));
  arguments.set("token_tags", whole(kinds));
  arguments.set("position_ids", draw("position_ids", {static_cast<std::int64_t>(kinds.size()), 3}, 5.0));
  arguments.set("video_indices", whole(rows[0]));
  arguments.set("audio_indices", whole(rows[2]));
  arguments.set("text_indices", whole(rows[1]));
  return result;
}

std::vector<ModelCase> minimax_h3_hostile_cases(std::uint64_t seed, Device& host) {
  return {
      minimax_h3_case("even", seed, host, {2, 7, 9, 20, 3}, Packing::dealt),
      minimax_h3_case("even_in_blocks", seed, host, {1, 12, 12, 12, 2}, Packing::in_blocks),
      minimax_h3_case("uneven", seed, host, {2, 5, 7, 11, 3}, Packing::dealt),
      minimax_h3_case("uneven_in_blocks", seed, host, {1, 3, 9, 7, 1}, Packing::in_blocks),
      minimax_h3_case("shortest", seed, host, {1, 1, 1, 2, 2}, Packing::in_blocks),
  };
}

// Rows of the three kinds in turn, at two times if there are as many rows.
ModelCase minimax_h3_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  return minimax_h3_case("sized", seed, host, {size.batch, size.text, size.image, size.image, 2}, Packing::dealt);
}

}  // namespace

ModelType minimax_h3_model_type() {
  ModelType type;
  type.class_name = "MiniMaxH3Transformer3DModel";
  type.short_name = "minimax_h3";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_minimax_h3(minimax_h3_config_from_json(config), context);
  };
  type.plans = [](const Json&) { return ModelPlans{minimax_h3_cp_plan(), minimax_h3_cp_plan()}; };
  type.attention_heads = [](const Json& config) { return minimax_h3_config_from_json(config).num_attention_heads; };
  type.hostile_config = minimax_h3_hostile_config;
  type.hostile_cases = minimax_h3_hostile_cases;
  type.sized_case = minimax_h3_sized_case;
  return type;
}

}  // namespace shardproof
