// Registers LTX-2: its plans and the inputs made to expose faults. Source of the plans: models specification,
// section 8.
#include "core/ops.h"
#include "models/hostile_inputs.h"
#include "models/ltx2.h"
#include "models/model_type.h"
#include "models/plan_building.h"

namespace shardproof {
namespace {

constexpr ContextParallelInput kSplitRows{.split_dim = 1, .expected_dims = 2};

SplitEntries both_outputs(const ContextParallelInput& input) { return {{0, input}, {1, input}}; }

// That of LTX: it knows nothing of the audio, nor of the tables over time that both streams need to attend to each
// other.
ContextParallelPlan ltx2_shipped_plan() {
  constexpr ContextParallelInput table{.split_dim = 1, .expected_dims = 3, .split_output = true};
  return {{{"", SplitEntries{{"hidden_states", kSplitTokens},
                             {"encoder_hidden_states", kSplitTokens},
                             {"encoder_attention_mask", kSplitRows}}},
           {"rope", both_outputs(table)},
           {"proj_out", GatherEntry(kGatherTokens)}}};
}

// Everything that has tokens; of the mask of the video's self-attention, the rows of its queries.
ContextParallelPlan ltx2_default_plan(const Ltx2Config& config) {
  const bool has_split_rope = config.has_split_rope();
  const ContextParallelInput table{
      .split_dim = has_split_rope ? 2 : 1, .expected_dims = has_split_rope ? 4 : 3, .split_output = true};
  ContextParallelPlan plan{{{"", SplitEntries{{"hidden_states", kSplitTokens},
                                              {"timestep", kSplitRows},
                                              {"audio_hidden_states", kSplitTokens},
                                              {"audio_timestep", kSplitRows},
                                              {"encoder_hidden_states", kSplitTokens},
                                              {"encoder_attention_mask", kSplitRows},
                                              {"audio_encoder_hidden_states", kSplitTokens},
                                              {"audio_encoder_attention_mask", kSplitRows},
                                              {"video_keyframes_mask", kSplitTokens},
                                              {"video_self_attention_mask", kSplitTokens}}}}};
  for (const char* rope : {"rope", "audio_rope", "cross_attn_rope", "cross_attn_audio_rope"})
    plan.entries.emplace_back(rope, both_outputs(table));
  for (const char* head : {"proj_out", "audio_proj_out"}) plan.entries.emplace_back(head, GatherEntry(kGatherTokens));
  return plan;
}

constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kAudioChannels = 5;
constexpr std::int64_t kTextWidth = 10;

constexpr std::int64_t kHeadDim = 8;
constexpr std::int64_t kAudioHeadDim = 4;

Json ltx2_hostile_config() {
  Json config = Json::object();
  config.set("_class_name", "LTX2VideoTransformer3DModel");
  config.set("in_channels", kChannels);
  config.set("out_channels", 2);
  config.set("num_attention_heads", 6);
  config.set("attention_head_dim", kHeadDim);
  config.set("cross_attention_dim", 6 * kHeadDim);
  config.set("audio_in_channels", kAudioChannels);
  config.set("audio_out_channels", 4);
  config.set("audio_num_attention_heads", 6);
  config.set("audio_attention_head_dim", kAudioHeadDim);
  config.set("audio_cross_attention_dim", 6 * kAudioHeadDim);
  config.set("num_layers", 2);
  config.set("caption_channels", kTextWidth);
  config.set("cross_attn_timestep_scale_multiplier", 10);
  config.set("rope_type", "split");
  config.set("gated_attn", true);
  config.set("audio_cross_attn_mod", true);
  config.set("audio_ff_bias", false);
  config.set("perturbed_attn", true);
  config.set("use_keyframes_abs_pos_embedding", true);
  return config;
}

struct Ltx2Sizes {
  std::int64_t batch, frames, height, width, audio, text, audio_text;
  std::int64_t video() const { return frames * height * width; }
};

enum class Times : std::uint8_t { per_item, per_token };

class Ltx2Case {
 public:
  Ltx2Case(const std::string& name, std::uint64_t seed, Device& host, const Ltx2Sizes& sizes)
      : name_(name), seed_(seed), host_(host), sizes_(sizes), case_{name, {}, {"sample", "audio_sample"}} {
    const std::int64_t batch = sizes.batch;
    draw("hidden_states", {batch, sizes.video(), kChannels});
    draw("audio_hidden_states", {batch, sizes.audio, kAudioChannels});
    draw("encoder_hidden_states", {batch, sizes.text, kTextWidth});
    draw("audio_encoder_hidden_states", {batch, sizes.audio_text, kTextWidth});
    case_.arguments.set("sigma", ramp(host, batch, 0.37, 0.25));
    case_.arguments.set("audio_sigma", ramp(host, batch, 0.81, -0.125));
    case_.arguments.set("num_frames", sizes.frames);
    case_.arguments.set("height", sizes.height);
    case_.arguments.set("width", sizes.width);
    case_.arguments.set("fps", 25.0);
    case_.arguments.set("audio_num_frames", sizes.audio);
  }

  Ltx2Case& times(Times times) {
    const auto of = [&](std::int64_t tokens, double first) {
      if (times == Times::per_item) return ramp(host_, sizes_.batch, first, 20.0);
      const Tensor rows = ramp(host_, sizes_.batch * tokens, first, 1.0);
      return rows.view({sizes_.batch, tokens});
    };
    case_.arguments.set("timestep", of(sizes_.video(), 3.0));
    case_.arguments.set("audio_timestep", of(sizes_.audio, 11.0));
    return *this;
  }

  Ltx2Case& text_masks(Masking masking) {
    mask("encoder_attention_mask", sizes_.text, masking);
    mask("audio_encoder_attention_mask", sizes_.audio_text, masking);
    return *this;
  }

  // Key frames, a mask of queries and keys, and values in place of attention in one block for all but one item.
  Ltx2Case& guided(double block) {
    const std::int64_t video = sizes_.video();
    std::vector<double> keyframes;
    for (std::int64_t token = 0; token < sizes_.batch * video; ++token)
      keyframes.push_back(static_cast<double>(token % 3));
    case_.arguments.set("video_keyframes_mask",
                        ops::from_doubles(host_, keyframes, {sizes_.batch, video, 1}, kFloat32));
    const Tensor rows = random_key_mask(host_, seed_, name_ + "/self", sizes_.batch * video, video, Masking::keys);
    case_.arguments.set("video_self_attention_mask", rows.view({sizes_.batch, video, video}));
    case_.arguments.set("perturbation_mask", ramp(host_, sizes_.batch, 0.25, 0.75));
    case_.arguments.set("spatio_temporal_guidance_blocks", NestedNumbers{std::vector{NestedNumbers{block}}});
    case_.arguments.set("use_cross_timestep", true);
    return *this;
  }

  ModelCase made() const { return case_; }

 private:
  void draw(const std::string& argument, const Shape& shape) {
    case_.arguments.set(argument, random_input(host_, seed_, name_ + "/" + argument, shape));
  }
  void mask(const std::string& argument, std::int64_t tokens, Masking masking) {
    case_.arguments.set(argument, random_key_mask(host_, seed_, name_ + "/" + argument, sizes_.batch, tokens, masking));
  }

  std::string name_;
  std::uint64_t seed_;
  Device& host_;
  Ltx2Sizes sizes_;
  ModelCase case_;
};

// Lengths of the four streams differ, so that none can stand in for another.
std::vector<ModelCase> ltx2_hostile_cases(std::uint64_t seed, Device& host) {
  const Ltx2Sizes even{2, 2, 3, 4, 12, 36, 48}, uneven{2, 1, 3, 7, 13, 5, 6}, shortest{1, 1, 2, 2, 5, 4, 7};
  const auto new_case = [&](const std::string& name, const Ltx2Sizes& sizes) {
    return Ltx2Case(name, seed, host, sizes);
  };
  return {
      new_case("even_guided", even).times(Times::per_token).text_masks(Masking::keys).guided(1.0).made(),
      new_case("even", even).times(Times::per_item).made(),
      new_case("uneven_masked", uneven).times(Times::per_token).text_masks(Masking::keys).made(),
      new_case("whole_shard_masked", even).times(Times::per_item).text_masks(Masking::whole_shard).made(),
      new_case("shortest", shortest).times(Times::per_item).made(),
  };
}

// Twice the text for the audio, so that one stream cannot stand in for the other and both divide evenly where one does.
ModelCase ltx2_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  Ltx2Case made("sized", seed, host, {size.batch, 1, 1, size.image, size.image, size.text, 2 * size.text});
  made.times(size.has("per_token") ? Times::per_token : Times::per_item);
  if (masking_of(size) != Masking::none) made.text_masks(masking_of(size));
  if (size.has("guided")) made.guided(static_cast<double>(size.layers - 1));
  return made.made();
}

void ltx2_resize(Json& config, const ModelSize& size) {
  config.set("num_attention_heads", size.heads);
  config.set("cross_attention_dim", size.heads * kHeadDim);
  config.set("audio_num_attention_heads", size.heads);
  config.set("audio_cross_attention_dim", size.heads * kAudioHeadDim);
  config.set("num_layers", size.layers);
}

}  // namespace

ModelType ltx2_model_type() {
  ModelType type;
  type.class_name = "LTX2VideoTransformer3DModel";
  type.short_name = "ltx2";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_ltx2(ltx2_config_from_json(config), context);
  };
  type.plans = [](const Json& config) {
    return ModelPlans{ltx2_shipped_plan(), ltx2_default_plan(ltx2_config_from_json(config))};
  };
  type.attention_heads = [](const Json& config) { return ltx2_config_from_json(config).video.num_attention_heads; };
  type.hostile_config = ltx2_hostile_config;
  type.hostile_cases = ltx2_hostile_cases;
  type.sized_case = ltx2_sized_case;
  type.features = mask_features("encoder_attention_mask");
  type.features.push_back(per_token_feature("timestep"));
  type.features.push_back(feature_by_argument("guided", "perturbation_mask"));
  type.resize = ltx2_resize;
  return type;
}

}  // namespace shardproof
