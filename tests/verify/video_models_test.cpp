// The models of one video stream on simulated ranks: every configuration is verified or refused by a rule, with cross
// attention to what all ranks hold or have divided, and timesteps a sample or a token; what a shipped plan lacks is
// called by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/verify/sweep.h"

namespace shardproof {
namespace {

using test::golden;
using test::kFloat32OnCpu;
using test::sweep;
using test::SweepCounts;
using ::testing::HasSubstr;

// One stream of patches (1, 2, 2) of the video; the context is not divided.
test::AttentionConfiguration patches_of(const ModelCase& model_case) {
  const Tensor& video = model_case.arguments.tensor("hidden_states");
  return {.text = 0, .image = video.size(2) * (video.size(3) / 2) * (video.size(4) / 2)};
}

const test::StreamNames kPatchStreams{.text = {},
                                      .image = {"output 0 of module 'rope'", "argument 'timestep' of module ''"}};

TEST(WanSweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("wan", {}, kPatchStreams, patches_of), (SweepCounts{52, 28}));
  EXPECT_EQ(sweep(golden("wan/tiny"), {}, kPatchStreams, patches_of), (SweepCounts{48, 12}));
  EXPECT_EQ(sweep(golden("wan/flf2v"), {}, kPatchStreams, patches_of), (SweepCounts{32, 8}));
  EXPECT_EQ(sweep(golden("wan/tiny"), kFloat32OnCpu, kPatchStreams, patches_of), (SweepCounts{48, 12}));
  EXPECT_EQ(sweep(golden("wan/flf2v"), kFloat32OnCpu, kPatchStreams, patches_of), (SweepCounts{32, 8}));
}

// A timestep a sample is whole on purpose, and said to be.
TEST(WanSweep, ReportsTimestepsThatItsPlanLeavesWhole) {
  Subject subject = Subject::open("wan", 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  const VerificationResult per_item = verifier.verify("even", {.ring_degree = 2}, plan);
  ASSERT_EQ(per_item.skipped_entries.size(), 1U);
  EXPECT_EQ(per_item.skipped_entries.front().argument, "timestep");
  EXPECT_EQ(per_item.skipped_entries.front().reason, "1 dimension, plan expects 2");
  EXPECT_TRUE(verifier.verify("even_per_token", {.ring_degree = 2}, plan).skipped_entries.empty());
}

// Cross attention exchanges nothing: a plan that divides its context leaves every rank with a part of the keys.
TEST(WanPlanFault, OfADividedContextIsFound) {
  Subject subject = Subject::open(golden("wan/tiny"), 0);
  Verifier verifier(subject, {});
  ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  plan.entries.emplace_back(
      "blocks.*", SplitEntries{{"encoder_hidden_states", ContextParallelInput{.split_dim = 1, .expected_dims = 3}}});
  for (const ContextParallelConfig& config : {ContextParallelConfig{.ring_degree = 2}, {.ulysses_degree = 2}}) {
    const VerificationResult result = verifier.verify("base", config, plan);
    EXPECT_EQ(result.verdict, Verdict::different);
    EXPECT_THAT(result.reason, HasSubstr("output 'sample' on rank 0"));
  }
}

TEST(ChronoEditSweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("chronoedit", {}, kPatchStreams, patches_of), (SweepCounts{52, 28}));
  EXPECT_EQ(sweep(golden("chronoedit/oddsplit"), {}, kPatchStreams, patches_of), (SweepCounts{18, 2}));
  EXPECT_EQ(sweep(golden("chronoedit/oddsplit"), kFloat32OnCpu, kPatchStreams, patches_of), (SweepCounts{18, 2}));
}

TEST(ShippedPlan, OfChronoEditDoesNotDivideTimestepsOfTokens) {
  Subject subject = Subject::open("chronoedit", 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan shipped = *subject.model().plans(subject.config()).shipped_cp;
  EXPECT_EQ(verifier.verify("even", {.ring_degree = 2}, shipped).verdict, Verdict::rounding_equivalent);
  const VerificationResult result = verifier.verify("even_per_token", {.ulysses_degree = 2}, shipped);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("has the 24 tokens of argument 'timestep' of module '' "
                                       "(ChronoEditTransformer3DModel), but hidden_states has 12"));
}

// Two streams of tokens, of which either attention exchanges keys.
const test::StreamNames kLtxStreams{
    .text = {"argument 'encoder_hidden_states'", "argument 'encoder_attention_mask'"},
    .image = {"argument 'hidden_states'", "argument 'timestep' of module ''", "output 0 of module 'rope'"}};

TEST(LtxSweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("ltx", {}, kLtxStreams), (SweepCounts{75, 25}));
  EXPECT_EQ(sweep(golden("ltx/tiny"), {}, kLtxStreams), (SweepCounts{32, 8}));
  EXPECT_EQ(sweep(golden("ltx/uneven"), {}, kLtxStreams), (SweepCounts{16, 24}));
  EXPECT_EQ(sweep("ltx", kFloat32OnCpu, kLtxStreams), (SweepCounts{75, 25}));
}

TEST(ShippedPlan, OfLtxDoesNotDivideTimestepsOfTokens) {
  Subject subject = Subject::open("ltx", 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan shipped = *subject.model().plans(subject.config()).shipped_cp;
  EXPECT_EQ(verifier.verify("whole_shard_masked", {.ring_degree = 2}, shipped).verdict, Verdict::rounding_equivalent);
  const VerificationResult result = verifier.verify("even_masked", {.ulysses_degree = 2}, shipped);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("argument 'timestep' of module '' (LTXVideoTransformer3DModel) has 24 tokens, "
                                       "but hidden_states has 12"));
}

TEST(LtxPlanFault, OfAWholeMaskOverADividedTextIsNamed) {
  Subject subject = Subject::open("ltx", 0);
  Verifier verifier(subject, {});
  ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  std::erase_if(std::get<SplitEntries>(plan.entries.front().second),
                [](const auto& entry) { return split_key_text(entry.first) == "encoder_attention_mask"; });
  const VerificationResult result = verifier.verify("even_masked", {.ring_degree = 2}, plan);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("argument 'encoder_attention_mask' of LTXVideoTransformer3DModel is bool [2, "
                                       "12]; expected [batch, text tokens] of encoder_hidden_states"));
}

// A planned argument that a call does not have takes its default and is said to be absent.
TEST(LtxSweep, ReportsAMaskThatIsNotGiven) {
  Subject subject = Subject::open("ltx", 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  const ParallelRun run = verifier.run("even", {.ring_degree = 2}, plan, GatherForm::ragged);
  ASSERT_EQ(run.end, RunEnd::completed) << run.reason;
  for (const RankOutcome& rank : run.ranks) {
    ASSERT_EQ(rank.omitted.size(), 1U);
    EXPECT_EQ(rank.omitted.front().argument, "encoder_attention_mask");
  }
}

}  // namespace
}  // namespace shardproof
