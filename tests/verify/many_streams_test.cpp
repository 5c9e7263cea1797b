// The models of several streams that are divided apart from each other, on simulated ranks: every configuration is
// verified or refused by a rule; what their shipped plans lack is called by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "tests/verify/sweep.h"

namespace shardproof {
namespace {

using test::AttentionConfiguration;
using test::golden;
using test::kFloat32OnCpu;
using test::sweep;
using test::SweepCounts;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// ---- Helios: stream 1 is the whole sequence, stream 0 the current tokens that alone attend to the text

const test::StreamNames kHeliosStreams{.text = {"argument 'hidden_states' of module 'blocks.0.attn2'"},
                                       .image = {"argument 'hidden_states' of module 'blocks.0.attn1'"}};

// Patches of 1 x 2 x 2; each token of the middle and of the long history stands for 2 or 4 of these a side.
std::int64_t tokens_of(const ModelCase& model_case, const std::string& name, std::int64_t side) {
  const Tensor video = model_case.arguments.optional_tensor(name);
  if (!video.defined()) return 0;
  const auto parts = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
  return parts(video.size(2), side) * parts(video.size(3), 2 * side) * parts(video.size(4), 2 * side);
}

AttentionConfiguration helios_attention_of(const ModelCase& model_case) {
  AttentionConfiguration description;
  description.text = tokens_of(model_case, "hidden_states", 1);
  description.image = description.text + tokens_of(model_case, "latents_history_short", 1) +
                      tokens_of(model_case, "latents_history_mid", 2) +
                      tokens_of(model_case, "latents_history_long", 4);
  return description;
}

TEST(HeliosSweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("helios", {}, kHeliosStreams, helios_attention_of), (SweepCounts{74, 26}));
  EXPECT_EQ(sweep(golden("helios/uneven"), {}, kHeliosStreams, helios_attention_of), (SweepCounts{18, 22}));
  EXPECT_EQ(sweep("helios", kFloat32OnCpu, kHeliosStreams, helios_attention_of), (SweepCounts{74, 26}));
}

// A model with another configuration.
Subject subject_of(std::string_view name, const std::function<void(Json&)>& change) {
  ModelType model = find_model_type(name);
  Json config = model.hostile_config();
  change(config);
  model.hostile_config = [config] { return config; };
  return Subject::of_model(model, 0);
}

VerificationResult with_shipped_plan(Subject& subject, const std::string& case_name,
                                     const ContextParallelConfig& config) {
  return Verifier(subject, {}).verify(case_name, config, *subject.model().plans(subject.config()).shipped_cp);
}

// Keys of history are amplified by their place in the whole sequence, whatever part of it a rank has.
TEST(Helios, VerifiesEveryFormOfHistory) {
  const auto set = [](std::string_view key, Json value) {
    return subject_of("helios", [&](Json& config) { config.set(key, value); });
  };
  std::vector<Subject> subjects;
  subjects.push_back(set("history_scale_mode", "scalar"));
  subjects.push_back(set("guidance_cross_attn", false));
  subjects.push_back(set("zero_history_timestep", false));
  subjects.push_back(set("cross_attn_norm", false));
  for (Subject& subject : subjects) {
    const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
    for (const ContextParallelConfig& config : {ContextParallelConfig{.ring_degree = 4, .ring_anything = true},
                                                ContextParallelConfig{.ulysses_degree = 3, .ulysses_anything = true}}) {
      const VerificationResult result = Verifier(subject, {}).verify("uneven", config, plan);
      EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
    }
  }
}

TEST(ShippedPlan, OfHeliosNamesLayersThatAreNotThere) {
  Subject subject = Subject::open("helios", 0);
  const VerificationResult result = with_shipped_plan(subject, "even", {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.reason, AllOf(HasSubstr("module id 'blocks.2.attn1': index 2 is past the end of 'blocks'"),
                                   EndsWith("; and 110 more")));
}

TEST(ShippedPlan, OfHeliosLeavesTheLayersAfterTheFortiethDivided) {
  Subject subject = subject_of("helios", [](Json& config) { config.set("num_layers", 41); });
  const VerificationResult result = with_shipped_plan(subject, "even", {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, AllOf(HasSubstr("output 0 of module 'blocks.40.attn1' (HeliosAttention)"),
                                   HasSubstr("the plan divides argument 'hidden_states' of this module and does not "
                                             "gather its output")));
}

TEST(ShippedPlan, OfHeliosFitsFortyLayers) {
  Subject subject = subject_of("helios", [](Json& config) { config.set("num_layers", 40); });
  const VerificationResult result = with_shipped_plan(subject, "even", {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
}

// ---- LTX-2: text and video, and apart from them audio and its text; every one of the six attentions is exchanged

const test::StreamNames kLtx2Streams{
    .apart = {"argument 'audio_hidden_states'", "argument 'audio_encoder_hidden_states'"}};

AttentionConfiguration ltx2_attention_of(const ModelCase& model_case) {
  const auto tokens = [&](Name name) { return model_case.arguments.tensor(name).size(1); };
  AttentionConfiguration description;
  description.text = tokens("encoder_hidden_states");
  description.image = tokens("hidden_states");
  description.apart = {tokens("audio_hidden_states"), tokens("audio_encoder_hidden_states")};
  const bool has_mask = model_case.arguments.optional_tensor("encoder_attention_mask").defined();
  description.mask = has_mask ? test::MaskKind::key : test::MaskKind::none;
  return description;
}

TEST(Ltx2Sweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("ltx2", {}, kLtx2Streams, ltx2_attention_of), (SweepCounts{70, 30}));
  EXPECT_EQ(sweep(golden("ltx2/tiny"), {}, kLtx2Streams, ltx2_attention_of), (SweepCounts{32, 8}));
  EXPECT_EQ(sweep(golden("ltx2/v23"), {}, kLtx2Streams, ltx2_attention_of), (SweepCounts{32, 8}));
  EXPECT_EQ(sweep("ltx2", kFloat32OnCpu, kLtx2Streams, ltx2_attention_of), (SweepCounts{70, 30}));
}

Subject interleaved_ltx2() {
  return subject_of("ltx2", [](Json& config) { config.set("rope_type", "interleaved"); });
}

// Heads of the streams need not agree where the rotation does not tell them apart.
TEST(Ltx2, VerifiesInterleavedTablesAndOtherHeadsOfTheAudio) {
  Subject subject = subject_of("ltx2", [](Json& config) {
    config.set("rope_type", "interleaved");
    config.set("audio_num_attention_heads", 3);
    config.set("audio_attention_head_dim", 8);
  });
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  Verifier verifier(subject, {});
  for (const char* name : {"even_guided", "uneven_masked"}) {
    const VerificationResult ring = verifier.verify(name, {.ring_degree = 4, .ring_anything = true}, plan);
    EXPECT_EQ(ring.verdict, Verdict::rounding_equivalent) << ring.reason;
    const VerificationResult ulysses = verifier.verify(name, {.ulysses_degree = 2, .ulysses_anything = true}, plan);
    EXPECT_EQ(ulysses.verdict, Verdict::rounding_equivalent) << ulysses.reason;
  }
  const VerificationResult refused = verifier.verify("even", {.ulysses_degree = 2}, plan);
  EXPECT_EQ(refused.verdict, Verdict::refused);
  EXPECT_THAT(refused.reason, HasSubstr("3 attention heads cannot be divided among ulysses_degree 2"));
}

TEST(ShippedPlan, OfLtx2NeverDividesTheTablesBetweenTheStreams) {
  Subject subject = interleaved_ltx2();
  for (const char* name : {"even", "whole_shard_masked", "shortest"}) {
    for (const ContextParallelConfig& config :
         {ContextParallelConfig{.ulysses_degree = 2}, ContextParallelConfig{.ring_degree = 2}}) {
      const VerificationResult result = with_shipped_plan(subject, name, config);
      EXPECT_EQ(result.verdict, Verdict::different);
      EXPECT_THAT(result.reason, AllOf(HasSubstr("output 0 of module 'cross_attn_rope' (LTX2AudioVideoRotaryPosEmbed)"),
                                       HasSubstr("argument 'hidden_states' of module '' (LTX2VideoTransformer3DModel)"),
                                       HasSubstr("the plan divides one and not the other")));
    }
  }
}

TEST(ShippedPlan, OfLtx2LeavesTimestepsOfTokensWhole) {
  Subject subject = interleaved_ltx2();
  const VerificationResult result = with_shipped_plan(subject, "even_guided", {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("argument 'timestep' of module '' (LTX2VideoTransformer3DModel) has 24 tokens, "
                                       "but argument 'hidden_states' has 12"));
}

// Its entries expect tables of three axes; those that are split over heads have four.
TEST(ShippedPlan, OfLtx2SkipsTablesThatAreSplitOverHeads) {
  Subject subject = Subject::open("ltx2", 0);
  const VerificationResult result = with_shipped_plan(subject, "even", {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.reason, AllOf(HasSubstr("output 0 of module 'rope' (LTX2AudioVideoRotaryPosEmbed) has 24 tokens"),
                                   HasSubstr("output 0 of module 'rope' was skipped: 4 dimensions, plan expects 3")));
}

// ---- MiniMax-H3: one packed sequence; rows of a kind are picked after the gathers

const test::StreamNames kMiniMaxH3Streams{
    .image = {"output 0 of module 'rope'", "argument 'hidden_states' of module 'transformer_blocks.0'"}};

AttentionConfiguration minimax_h3_attention_of(const ModelCase& model_case) {
  AttentionConfiguration description;
  description.image = model_case.arguments.tensor("token_tags").size(0);
  return description;
}

TEST(MiniMaxH3Sweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("minimax_h3", {}, kMiniMaxH3Streams, minimax_h3_attention_of), (SweepCounts{67, 33}));
  EXPECT_EQ(sweep(golden("minimax_h3/tiny"), {}, kMiniMaxH3Streams, minimax_h3_attention_of), (SweepCounts{32, 8}));
  EXPECT_EQ(sweep("minimax_h3", kFloat32OnCpu, kMiniMaxH3Streams, minimax_h3_attention_of), (SweepCounts{67, 33}));
}

// The refiner sees the whole text on every rank and exchanges nothing: only the blocks' attention does.
TEST(MiniMaxH3, RefinesTheTextWithoutMovingIt) {
  const auto collectives = [](std::int64_t refiner_layers) {
    Subject subject = subject_of("minimax_h3", [&](Json& config) { config.set("num_refiner_layers", refiner_layers); });
    const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
    const VerificationResult result = Verifier(subject, {}).verify("even", {.ulysses_degree = 2}, plan);
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
    return result.collectives;
  };
  EXPECT_EQ(collectives(3), collectives(0));
}

TEST(MiniMaxH3, NamesIndicesThatAPlanLeavesWhole) {
  Subject subject = Subject::open("minimax_h3", 0);
  const auto reason_without = [&](std::string_view id) {
    ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
    std::erase_if(plan.entries, [&](const auto& entry) { return entry.first == id; });
    const VerificationResult result = Verifier(subject, {}).verify("even", {.ring_degree = 2}, plan);
    EXPECT_EQ(result.verdict, Verdict::different);
    return result.reason;
  };
  EXPECT_THAT(reason_without("transformer_blocks.*"),
              HasSubstr("argument 'adaln_indices' of module 'transformer_blocks.0' (MiniMaxH3TransformerBlock) has 36 "
                        "rows, but argument 'hidden_states' has 18"));
  EXPECT_THAT(reason_without("norm_out"), HasSubstr("argument 'timestep_indices' of module 'norm_out'"));
}

}  // namespace
}  // namespace shardproof
