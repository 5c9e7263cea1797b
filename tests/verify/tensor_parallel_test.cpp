// Whole models under tensor parallelism, alone and with context parallelism, in every order of adding partial results:
// what is legal is verified, the rest refused by a rule, and plans that cut a layer wrongly are called by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/verify/sweep.h"

namespace shardproof {
namespace {

using test::golden;
using test::kFloat32OnCpu;
using test::SweepCounts;
using test::tensor_parallel_sweep;
using ::testing::AllOf;
using ::testing::HasSubstr;

const test::StreamNames kQwenImageStreams{
    .text = {"argument 'encoder_hidden_states'", "output 1 of module 'pos_embed'"},
    .image = {"argument 'hidden_states'", "output 0 of module 'pos_embed'", "argument 'controlnet_block_samples"}};

TEST(TensorParallelSweep, VerifiesFlux) {
  EXPECT_EQ(tensor_parallel_sweep("flux", {}), (SweepCounts{24, 20}));
  EXPECT_EQ(tensor_parallel_sweep(golden("flux/tiny"), {}), (SweepCounts{40, 4}));
  EXPECT_EQ(tensor_parallel_sweep("flux", kFloat32OnCpu), (SweepCounts{24, 20}));
}

TEST(TensorParallelSweep, VerifiesFlux2WithItsPackedLayers) {
  EXPECT_EQ(tensor_parallel_sweep("flux2", {}), (SweepCounts{17, 16}));
  EXPECT_EQ(tensor_parallel_sweep(golden("flux2/uneven"), {}), (SweepCounts{10, 12}));
  EXPECT_EQ(tensor_parallel_sweep("flux2", kFloat32OnCpu), (SweepCounts{17, 16}));
}

TEST(TensorParallelSweep, VerifiesQwenImage) {
  EXPECT_EQ(tensor_parallel_sweep("qwenimage", {}, kQwenImageStreams), (SweepCounts{38, 28}));
  EXPECT_EQ(tensor_parallel_sweep("qwenimage", kFloat32OnCpu, kQwenImageStreams), (SweepCounts{38, 28}));
}

TEST(TensorParallelSweep, VerifiesQwenImage21Alone) {
  const auto sweep = [](const std::string& source, const VerifierOptions& options) {
    return tensor_parallel_sweep(source, options, {}, test::joint_attention_of, false);
  };
  EXPECT_EQ(sweep("qwenimage21", {}), (SweepCounts{8, 36}));
  EXPECT_EQ(sweep(golden("qwenimage21/tiny"), {}), (SweepCounts{8, 36}));
}

// Dimensions of the mesh besides tp, ring and ulysses hold runs of their own, over which nothing is summed.
TEST(TensorParallelReplicas, AreVerifiedOnInputsOfTheirOwn) {
  Subject subject = Subject::open("flux", 0);
  Verifier verifier(subject, {});
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  for (const char* text : {"dp=2,tp=2", "tp=2,dp=2", "tp=3,dp=2,ring=2,ulysses=1", "ring=1,tp=2,ulysses=3,dp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    ParallelConfig config{.tensor_parallel_config = TensorParallelConfig{.mesh = mesh}};
    if (mesh.has("ring")) config.context_parallel_config = ContextParallelConfig{.mesh = mesh};
    ASSERT_EQ(replica_count(config), 2);
    const VerificationResult result = verifier.verify("even", config, plans);
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << text << ": " << result.reason;
  }
}

VerificationResult verified(const std::string& source, TensorParallelPlan plan) {
  Subject subject = Subject::open(source, 0);
  Verifier verifier(subject, {});
  return verifier.verify(subject.case_names().front(), {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
                         {.tp = std::move(plan)});
}

// Gate and up stand side by side in one projection: cut as one block, every rank gets half of one of them.
TEST(TensorParallelFaults, FindAFusedProjectionThatIsCutAcrossItsParts) {
  const VerificationResult result = verified(
      "flux2",
      {{{"transformer_blocks.*.ff.linear_in", {TensorParallelStyle::packed_colwise, std::vector<std::int64_t>{1}}},
        {"transformer_blocks.*.ff.linear_out", {TensorParallelStyle::rowwise}}}});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_GT(*result.figure, 1e-3);
}

TEST(TensorParallelFaults, NameTheStyleThatALayerOfSeveralPartsNeeds) {
  const VerificationResult rows =
      verified("flux2", {{{"single_transformer_blocks.*.attn.to_qkv_mlp_proj", {TensorParallelStyle::colwise}}}});
  EXPECT_EQ(rows.verdict, Verdict::refused);
  EXPECT_THAT(rows.reason, AllOf(HasSubstr("layer 'single_transformer_blocks.0.attn.to_qkv_mlp_proj'"),
                                 HasSubstr("use 'packed_colwise'")));
  const VerificationResult columns =
      verified("flux", {{{"single_transformer_blocks.*.proj_out", {TensorParallelStyle::rowwise}}}});
  EXPECT_EQ(columns.verdict, Verdict::refused);
  EXPECT_THAT(columns.reason,
              AllOf(HasSubstr("layer 'single_transformer_blocks.0.proj_out'"), HasSubstr("use 'packed_rowwise'")));
}

TEST(TensorParallelFaults, NameTheAttentionWhoseProjectionsAreDividedInPart) {
  const VerificationResult keys =
      verified("flux", {{{"transformer_blocks.*.attn.to_q", {TensorParallelStyle::colwise}},
                         {"transformer_blocks.*.attn.to_v", {TensorParallelStyle::colwise}}}});
  EXPECT_EQ(keys.verdict, Verdict::different);
  EXPECT_THAT(keys.reason, AllOf(HasSubstr("module 'transformer_blocks.0.attn' (FluxAttention): 'to_q' gives "),
                                 HasSubstr("a plan must divide all three or none")));
  const VerificationResult text =
      verified("flux", {{{"transformer_blocks.*.attn.to_q", {TensorParallelStyle::colwise}},
                         {"transformer_blocks.*.attn.to_k", {TensorParallelStyle::colwise}},
                         {"transformer_blocks.*.attn.to_v", {TensorParallelStyle::colwise}}}});
  EXPECT_EQ(text.verdict, Verdict::different);
  EXPECT_THAT(text.reason, AllOf(HasSubstr("module 'transformer_blocks.0.attn' (FluxAttention): the text has "),
                                 HasSubstr("a plan must divide both or neither")));
}

TEST(TensorParallelFaults, NameTheLayerThatIsLeftWholeBehindADividedOne) {
  const VerificationResult result =
      verified("flux", {{{"transformer_blocks.*.ff.net.0.proj", {TensorParallelStyle::colwise}}}});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("layer 'transformer_blocks.0.ff.net.2' with weight "));
}

TEST(TensorParallelFaults, NameANormOverAllHeadsThatSeesThoseOfOneRank) {
  const VerificationResult result = verified("wan", {{{"blocks.*.attn1.to_q", {TensorParallelStyle::colwise}},
                                                      {"blocks.*.attn1.to_k", {TensorParallelStyle::colwise}},
                                                      {"blocks.*.attn1.to_v", {TensorParallelStyle::colwise}},
                                                      {"blocks.*.attn1.to_out.0", {TensorParallelStyle::rowwise}}}});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("norm 'blocks.0.attn1.norm_q' spans"));
}

}  // namespace
}  // namespace shardproof
