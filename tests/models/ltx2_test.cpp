// LTX-2: its configuration, its arguments and its plans. That its numbers are right is shown by the oracle tests, which
// compare it with recorded outputs.
#include "models/ltx2.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/safetensors.h"
#include "models/model_type.h"
#include "parallel/plan_json.h"
#include "tests/models/forward_fixture.h"
#include "tests/models/refusal.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::refusal_of;
using test::thrown_by;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Ltx2Config, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "LTX2VideoTransformer3DModel");
  const Ltx2Config ltx2 = ltx2_config_from_json(config);
  EXPECT_EQ(ltx2.video.width(), 4096);
  EXPECT_EQ(ltx2.audio.width(), 2048);
  EXPECT_EQ(ltx2.video.modulations(), 6);
  EXPECT_EQ(ltx2.num_layers, 48);
  EXPECT_EQ(ltx2.caption_channels, 3840);
  EXPECT_TRUE(ltx2.rope_double_precision);
  EXPECT_FALSE(ltx2.has_split_rope());
  EXPECT_FALSE(ltx2.modulates_prompts());
}

TEST(Ltx2Config, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("ltx2", "audio_base_height", 3), HasSubstr("config.json: unknown field 'audio_base_height'"));
  EXPECT_THAT(refusal_of("ltx2", "cross_attention_dim", 40),
              HasSubstr("key 'cross_attention_dim' is 40, but 'num_attention_heads' times 'attention_head_dim' is 48"));
  EXPECT_THAT(refusal_of("ltx2", "audio_cross_attention_dim", 40), HasSubstr("key 'audio_cross_attention_dim' is 40"));
  EXPECT_THAT(refusal_of("ltx2", "rope_type", "halves"),
              HasSubstr("key 'rope_type' is 'halves'; expected 'interleaved' or 'split'"));
  EXPECT_THAT(refusal_of("ltx2", "patch_size_t", 2), HasSubstr("key 'patch_size_t' is 2; only 1 is offered"));
  EXPECT_THAT(refusal_of("ltx2", "activation_fn", "gelu"), HasSubstr("key 'activation_fn' is 'gelu'"));
  EXPECT_THAT(refusal_of("ltx2", "qk_norm", "layer_norm"), HasSubstr("key 'qk_norm' is 'layer_norm'"));
}

TEST(Ltx2Config, NeedsEvenHeadsAndAsManyOfEitherStreamForSplitTables) {
  Json config = find_model_type("ltx2").hostile_config();
  config.set("audio_num_attention_heads", 3);
  config.set("audio_attention_head_dim", 8);
  const auto refusal = [&] {
    const auto error = thrown_by([&] { ltx2_config_from_json(parse_json(config.dump(), "config.json")); });
    return error ? error->message : "accepted";
  };
  EXPECT_THAT(refusal(), HasSubstr("key 'rope_type' is 'split', but 'num_attention_heads' is 6 and "
                                   "'audio_num_attention_heads' 3; they must be equal"));
  config.set("rope_type", "interleaved");
  EXPECT_EQ(refusal(), "accepted");
  config.set("audio_num_attention_heads", 8);
  config.set("audio_attention_head_dim", 3);
  EXPECT_THAT(refusal(), HasSubstr("key 'audio_attention_head_dim' is 3; it must be even"));
}

TEST(Ltx2Config, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("ltx2", "num_layers", "two"), HasSubstr("key 'num_layers'"));
  EXPECT_THAT(refusal_of("ltx2", "vae_scale_factors", Json::array({8, 32})), HasSubstr("key 'vae_scale_factors'"));
  EXPECT_THAT(refusal_of("ltx2", "timestep_scale_multiplier", 0), HasSubstr("key 'timestep_scale_multiplier'"));
  EXPECT_THAT(refusal_of("ltx2", "gated_attn", 1), HasSubstr("key 'gated_attn'"));
}

class Ltx2Forward : public test::ForwardFixture {
 protected:
  Ltx2Forward() : ForwardFixture("ltx2") {}
};

TEST_F(Ltx2Forward, EveryArgumentChangesTheResult) { expect_every_argument_matters(); }

TEST_F(Ltx2Forward, RefusesAdaptersStructuredResultsAndExplicitCoordinates) {
  EXPECT_THAT(refusal_with("attention_kwargs", true), HasSubstr("'attention_kwargs'"));
  EXPECT_THAT(refusal_with("return_dict", true), HasSubstr("'return_dict'"));
  EXPECT_THAT(refusal_with("video_coords", host_zeros({2, 3, 24, 2})),
              HasSubstr("argument 'video_coords' of LTX2VideoTransformer3DModel must be none"));
}

TEST_F(Ltx2Forward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("audio_hidden_states", device_zeros({1, 12, 5})),
              HasSubstr("argument 'audio_hidden_states' of LTX2VideoTransformer3DModel is float64 [1, 12, 5]"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({2, 10})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("audio_encoder_attention_mask", device_zeros({2, 36})),
              HasSubstr("argument 'audio_encoder_attention_mask'"));
  EXPECT_THAT(refusal_with("sigma", host_zeros({1})), HasSubstr("argument 'sigma'"));
  EXPECT_THAT(refusal_with("timestep", host_zeros({3})), HasSubstr("argument 'timestep'"));
  EXPECT_THAT(refusal_with("audio_timestep", host_zeros({2, 11})),
              HasSubstr("argument 'audio_timestep' of module '' (LTX2VideoTransformer3DModel) has 11 tokens, but "
                        "argument 'audio_hidden_states' has 12"));
  EXPECT_THAT(refusal_with("video_keyframes_mask", device_zeros({2, 24})),
              HasSubstr("argument 'video_keyframes_mask'"));
  EXPECT_THAT(refusal_with("video_self_attention_mask", device_zeros({2, 23, 24})),
              HasSubstr("argument 'video_self_attention_mask'"));
  EXPECT_THAT(refusal_with("perturbation_mask", device_zeros({2, 24, 1})),
              HasSubstr("argument 'perturbation_mask' of LTX2VideoTransformer3DModel is float64 [2, 24, 1]; masks of "
                        "tokens are not offered"));
}

TEST_F(Ltx2Forward, NamesNumbersThatDoNotGiveTheTokens) {
  EXPECT_THAT(refusal_with("height", std::int64_t{2}),
              AllOf(HasSubstr("output 0 of module 'rope' (LTX2AudioVideoRotaryPosEmbed) has 16 tokens"),
                    HasSubstr("argument 'hidden_states' of module '' (LTX2VideoTransformer3DModel) has 24")));
  EXPECT_THAT(refusal_with("audio_num_frames", std::int64_t{9}), HasSubstr("output 0 of module 'audio_rope'"));
  EXPECT_THAT(refusal_with("num_frames", std::monostate{}),
              HasSubstr("argument 'num_frames' of LTX2VideoTransformer3DModel must be a whole number above zero, got "
                        "none"));
  EXPECT_THAT(refusal_with("width", std::int64_t{0}), HasSubstr("must be a whole number above zero, got 0"));
  EXPECT_THAT(refusal_with("fps", -1.0), HasSubstr("argument 'fps'"));
}

TEST_F(Ltx2Forward, RefusesGridsWhoseTablesWouldFillTheMemory) {
  EXPECT_THAT(refusal_with("num_frames", std::int64_t{1} << 40),
              AllOf(HasSubstr("module 'rope' (LTX2AudioVideoRotaryPosEmbed): a grid of 1099511627776 x "),
                    HasSubstr("tokens is given; at most 1048576 tokens are expected")));
  EXPECT_THAT(refusal_with("audio_num_frames", (std::int64_t{1} << 20) + 1),
              HasSubstr("module 'audio_rope' (LTX2AudioVideoRotaryPosEmbed): a grid of 1048577 x 1 x 1 tokens"));
}

TEST_F(Ltx2Forward, NamesBlocksThatAreNotThere) {
  const auto blocks = [](double number) { return NestedNumbers{std::vector{NestedNumbers{number}}}; };
  EXPECT_THAT(refusal_with("spatio_temporal_guidance_blocks", blocks(2.0)),
              HasSubstr("argument 'spatio_temporal_guidance_blocks' of LTX2VideoTransformer3DModel holds 2.0"));
  EXPECT_THAT(refusal_with("spatio_temporal_guidance_blocks", blocks(0.5)), HasSubstr("holds 0.5"));
  EXPECT_THAT(refusal_with("spatio_temporal_guidance_blocks", std::int64_t{1}),
              HasSubstr("must be a list of block numbers, got an integer"));
}

TEST_F(Ltx2Forward, NeedsSigmaWhereItModulates) {
  EXPECT_THAT(refusal_with("sigma", std::monostate{}), HasSubstr("'sigma'"));
}

TEST_F(Ltx2Forward, TakesTheVideosTimesAndSigmaForTheAudioByDefault) {
  Arguments same = prepared(1), by_default = same;
  same.set("audio_timestep", same.tensor("timestep"));
  same.set("audio_sigma", same.tensor("sigma"));
  by_default.set("audio_timestep", std::monostate{});
  by_default.set("audio_sigma", std::monostate{});
  EXPECT_EQ(result_of(by_default), result_of(same));
  EXPECT_NE(result_of(by_default), result_of(prepared(1)));
}

TEST_F(Ltx2Forward, KeepsTheStreamsApartWhenTheyAreIsolated) {
  Arguments isolated = prepared(), other = isolated;
  isolated.set("isolate_modalities", true);
  other.set("isolate_modalities", true);
  other.set("audio_hidden_states", device_zeros(prepared().tensor("audio_hidden_states").shape()));
  EXPECT_EQ(result_of(other), result_of(isolated));
  EXPECT_NE(result_of(isolated), result_of(prepared()));
}

TEST_F(Ltx2Forward, TakesMissingPerturbationMasksForZeros) {
  Arguments zeros = prepared(), missing = zeros;
  zeros.set("perturbation_mask", device_zeros({2}));
  missing.set("perturbation_mask", std::monostate{});
  EXPECT_EQ(result_of(missing), result_of(zeros));
  EXPECT_NE(result_of(missing), result_of(prepared()));
}

std::vector<double> result_with(std::initializer_list<std::pair<const char*, Json>> changes) {
  Json config = find_model_type("ltx2").hostile_config();
  for (const auto& [key, value] : changes) config.set(key, value);
  test::ModelUnderTest model("ltx2", config);
  return model.result_of(model.prepared());
}

TEST(Ltx2Switches, EachChangesTheResult) {
  const std::vector<double> usual = result_with({});
  EXPECT_NE(result_with({{"rope_type", "interleaved"}}), usual);
  EXPECT_NE(result_with({{"gated_attn", false}}), usual);
  EXPECT_NE(result_with({{"audio_gated_attn", true}}), usual);
  EXPECT_NE(result_with({{"cross_attn_mod", true}}), usual);
  EXPECT_NE(result_with({{"audio_cross_attn_mod", false}}), usual);
  EXPECT_NE(result_with({{"use_prompt_adaln_single", false}}), usual);
  EXPECT_NE(result_with({{"perturbed_attn", false}}), usual);
  EXPECT_NE(result_with({{"use_keyframes_abs_pos_embedding", false}}), usual);
  EXPECT_NE(result_with({{"norm_elementwise_affine", true}}), usual);
  EXPECT_NE(result_with({{"causal_offset", 4}}), usual);
  EXPECT_NE(result_with({{"ff_bias", false}}), usual);
  EXPECT_NE(result_with({{"attention_bias", false}}), usual);
  EXPECT_NE(result_with({{"attention_out_bias", false}}), usual);
}

// The tables of the audio at its real width. `seconds` are the midpoints of its tokens, in the precision of the table.
class Ltx2Tables : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<Tensor> ours(TablePrecision precision, DType dtype, const std::vector<double>& seconds) {
    const Json& spec = spec_.at("spec");
    Json config = Json::object();
    config.set("num_layers", 0);
    config.set("rope_type", spec.at("rope_type").as_string());
    config.set("rope_double_precision", spec.at("double_precision").as_bool());
    const auto model =
        find_model_type("ltx2").create(config, {.device = &host_, .dtype = dtype, .table_precision = precision});
    const Tensor coordinates =
        ops::from_doubles(host_, seconds, {static_cast<std::int64_t>(seconds.size()), 1}, kFloat64);
    return model->find_module("audio_rope")->call({{"coords", coordinates}}).tensors;
  }
  test::HostArray recorded(const std::string& kind, std::size_t output) {
    return test::to_host(file_.tensor(kind + "." + std::to_string(output), host_));
  }

  std::string path_ = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/" + GetParam();
  Json spec_ = read_json_file(path_ + ".json");
  SafetensorsFile file_{path_ + ".safetensors"};
  HostDevice host_;
};

// Frames cover [0, 0.01], [0.01, 0.05] and [0.05, 0.09] seconds.
template <class Float>
std::vector<double> audio_seconds() {
  const auto seconds = [](Float frames) { return frames * Float(160) / Float(16000); };
  return {(seconds(0) + seconds(1)) / Float(2), (seconds(1) + seconds(5)) / Float(2),
          (seconds(5) + seconds(9)) / Float(2)};
}

// Bounds of the models specification, section 14: frequencies in double end within a unit of cosine and sine; those in
// float32 differ between math libraries in their last place, which the angle multiplies.
TEST_P(Ltx2Tables, EqualTheRecordedOnesWithinTheLastPlaceOfAFrequency) {
  const auto tables = ours(TablePrecision::float32, kFloat32, audio_seconds<float>());
  constexpr double kLargestAngle = 15707.97;  // 10000 pi / 2
  const bool has_exact_frequencies = spec_.at("spec").at("double_precision").as_bool();
  const double bound = has_exact_frequencies ? std::ldexp(1.0, -24) : 2e-7 + 3.0 * std::ldexp(1.0, -24) * kLargestAngle;
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_LE(max_difference(test::to_host(tables[i]), recorded("fp32", i)), bound) << i;
}

TEST_P(Ltx2Tables, InDoubleEqualTheRecordedExactOnes) {
  const auto tables = ours(TablePrecision::float64, kFloat64, audio_seconds<double>());
  // A few units of the last place of the largest angle.
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_LE(max_difference(test::to_host(tables[i]), recorded("exact", i)), 2e-11) << i;
}

INSTANTIATE_TEST_SUITE_P(Recorded, Ltx2Tables, ::testing::Values("ltx2_audio_split_f64", "ltx2_audio_interleaved_f32"),
                         [](const auto& case_info) { return std::string(case_info.param); });

TEST(Ltx2Plans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("ltx2"); }

// Besides what was proposed, the rows of the mask of the video's self-attention are divided.
TEST(Ltx2Plans, DefaultIsTheCorrectedOneOfTheRecordedPlanData) {
  const Json plans = read_json_file(std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/plans.json");
  const Json& recorded = plans.at("LTX2VideoTransformer3DModel.fixed").at("cp_by_rope_type");
  const ModelType& ltx2 = find_model_type("ltx2");
  for (const char* rope_type : {"interleaved", "split"}) {
    Json config = ltx2.hostile_config();
    config.set("rope_type", rope_type);
    ContextParallelPlan ours = *ltx2.plans(config).default_cp;
    auto& root = std::get<SplitEntries>(ours.entries[0].second);
    ASSERT_EQ(split_key_text(root.back().first), "video_self_attention_mask");
    root.pop_back();
    EXPECT_EQ(ours, context_parallel_plan_from_json(recorded.at(rope_type)));
  }
}

}  // namespace
}  // namespace shardproof
