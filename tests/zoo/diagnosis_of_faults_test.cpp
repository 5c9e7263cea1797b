// What a diagnosis says of known faults of attention: the keys that are missing or counted too often, and which modules
// are wrong by themselves. The words are those that a user reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/zoo/plan_changes.h"
#include "tests/zoo/scenarios.h"
#include "tests/zoo/switch.h"
#include "tests/zoo/tiers.h"
#include "verify/exact_verifier.h"

namespace shardproof::zoo {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

ParallelConfig ring_of_three() {
  return {.context_parallel_config = ContextParallelConfig{.ring_degree = 3, .ring_anything = true}};
}

// Of FLUX with 3 tokens of text and 4 of image, one head, one layer of each kind.
std::vector<std::string> diagnosis_of(const char* fault, const ParallelConfig& config) {
  const ModelSize size{.text = 3, .image = 4, .heads = 1};
  Subject subject = Subject::of_size(find_model_type("flux"), Json::object(), size, 0);
  const FaultSwitch on(fault);
  const VerificationResult result =
      ExactVerifier(subject, {.gather = GatherChoice::ragged, .bits = false})
          .verify("sized", config, plans_of_model(subject.model(), subject.config(), "default"));
  EXPECT_EQ(result.verdict, Verdict::different) << fault;
  return result.diagnosis;
}

TEST(DiagnosisOfAFault, NamesTheKeysThatAreLost) {
  const std::vector<std::string> lines = diagnosis_of("RING_SKIP_LAST", ring_of_three());
  // Every rank misses the chunk that comes to it last, in the ring's order that of the rank behind it.
  EXPECT_THAT(lines, Contains(HasSubstr("weights: attention of q [1, 3, 1, 16] and k [1, 3, 1, 16] on a rank: rank 0, "
                                        "its queries all 3, heads all 1: missing: key 5 (token 0 of rank 2's)")));
}

TEST(DiagnosisOfAFault, NamesTheKeysThatAreCountedTwice) {
  const std::vector<std::string> lines = diagnosis_of("RING_START_OWN", ring_of_three());
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("weights: "), HasSubstr("counted 2 times: key 0 (token 0 of rank 0's)"),
                                    HasSubstr("missing: key"))));
}

TEST(DiagnosisOfAFault, NamesChunksThatAreWeightedWronglyAgainstEachOther) {
  const std::vector<std::string> lines = diagnosis_of("MERGE_AVG", ring_of_three());
  EXPECT_THAT(lines, Contains(HasSubstr("weighted wrongly against each other: keys ")));
}

// Given right values, attention alone stays wrong, in both kinds of blocks; the layers around it are right.
TEST(DiagnosisOfAFault, ListsWhatIsWrongByItself) {
  const std::vector<std::string> lines = diagnosis_of("RING_SKIP_LAST", ring_of_three());
  EXPECT_THAT(lines,
              Contains(AllOf(HasSubstr("wrong even when given the dense run's values"),
                             HasSubstr("'transformer_blocks.0.attn' (FluxAttention): argument 'hidden_states' of "
                                       "'transformer_blocks.0.attn.to_out.0', as it gives it"),
                             HasSubstr("'single_transformer_blocks.0"), Not(HasSubstr("norm")))));
}

TEST(DiagnosisOfAFault, ShowsHowThePlanDivided) {
  const std::vector<std::string> lines = diagnosis_of("RING_SKIP_LAST", ring_of_three());
  EXPECT_THAT(lines, Contains("layout: argument 'hidden_states' of module '' along axis 1, 4 divided into 2 + 1 + 1"));
  EXPECT_THAT(lines, Contains("layout: output 0 of module 'proj_out' along axis 1, 4 gathered from 2 + 1 + 1"));
  EXPECT_THAT(lines, Contains("groups: ring [0 1 2]"));
}

TEST(DiagnosisOfAFault, SaysNothingOfWeightsWhereAttentionIsRight) {
  const std::vector<std::string> lines = diagnosis_of("ROPE_TXTIMG_SWAP", ring_of_three());
  EXPECT_THAT(lines, Each(Not(HasSubstr("weights: "))));
  EXPECT_THAT(lines, Contains(HasSubstr("wrong even when given the dense run's values")));
}

}  // namespace
}  // namespace shardproof::zoo
