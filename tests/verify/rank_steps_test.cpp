// A rank's model called several times, as a profile does, and the verdict on one rank by itself, as ranks that are
// processes of their own make it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "tests/support/thrown_error.h"
#include "verify/parallel_run.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ParallelConfig kRing{.context_parallel_config = ContextParallelConfig{.ring_degree = 2}};

class RankStepsTest : public testing::Test {
 protected:
  Subject subject_ = Subject::open("flux", 0);
  Verifier verifier_{subject_, {}};
  ParallelPlans plans_ = plans_of_model(subject_.model(), subject_.config(), "default");
};

TEST_F(RankStepsTest, ComeBehindTheWarmUpAndAreRecordedAlone) {
  const Arguments& arguments = verifier_.arguments_of_rank("even", kRing, 0);
  std::vector<OperationRecorder> recorders(2);
  std::vector<std::string> order(2);
  run_ranks({.world_size = 2}, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    RankOutcome outcome;
    const RankSteps steps{.warmup = 2,
                          .steps = 3,
                          .recorder = &recorders[rank],
                          .before_step = [&] { order[rank] += "before "; },
                          .after_step =
                              [&](int step, const Outputs& outputs) {
                                order[rank] += std::to_string(step) + (outputs.tensors.empty() ? "? " : " ");
                              }};
    run_rank(world, verifier_.tree_factory(), arguments, plans_, kRing, GatherForm::ragged, outcome, nullptr, steps);
    // Two calls before, and as many in each step: the numbers since the group was made go on.
    const OperationRecorder& recorder = recorders[rank];
    std::vector<std::int64_t> first_calls;
    for (std::size_t i = 0; i < recorder.event_count(); ++i) {
      const RecordedEvent& event = recorder.event(i);
      if (event.kind != EventKind::communication || event.call != 1) continue;
      if (recorder.groups()[static_cast<std::size_t>(event.place)].key != recorder.groups().front().key) continue;
      first_calls.push_back(recorder.movement_of(event).group_call);
    }
    if (first_calls.size() != 3) fail(ErrorKind::internal_error, "{} steps were recorded", first_calls.size());
    const std::int64_t calls_of_a_step = first_calls[1] - first_calls[0];
    if (first_calls[0] != 2 * calls_of_a_step + 1 || first_calls[2] - first_calls[1] != calls_of_a_step) {
      fail(ErrorKind::internal_error, "the calls of steps begin at {}, {}, {}", first_calls[0], first_calls[1],
           first_calls[2]);
    }
  });
  EXPECT_THAT(order, Each("before 0 before 1 before 2 "));
  EXPECT_EQ(recorders[0].event_count(), recorders[1].event_count());
}

TEST_F(RankStepsTest, AreAtLeastOne) {
  const Arguments& arguments = verifier_.arguments_of_rank("even", kRing, 0);
  const auto error = test::thrown_by([&] {
    run_ranks({.world_size = 2}, [&](Communicator& world) {
      RankOutcome outcome;
      run_rank(world, verifier_.tree_factory(), arguments, plans_, kRing, GatherForm::ragged, outcome, nullptr,
               {.steps = 0});
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::usage_error);
  EXPECT_THAT(error->message, HasSubstr("0 calls and 0 before them; expected at least 1"));
}

TEST_F(RankStepsTest, HaveAVerdictForEachRank) {
  ParallelRun run = verifier_.run("even", kRing, plans_, GatherForm::ragged);
  const auto verdict_of = [&](int rank) { return verifier_.judge_rank("even", kRing, run, rank); };
  EXPECT_EQ(verdict_of(0).verdict, Verdict::rounding_equivalent);
  EXPECT_LT(verdict_of(1).figure.value_or(1.0), kFloat64Tolerance);
  Tensor& output = run.ranks[1].outputs.tensors.front();
  output = ops::add(output, 1e-6);
  EXPECT_EQ(verdict_of(0).verdict, Verdict::rounding_equivalent);
  const VerificationResult wrong = verdict_of(1);
  EXPECT_EQ(wrong.verdict, Verdict::different);
  EXPECT_THAT(wrong.reason, HasSubstr("output 'sample' on rank 1: "));
  run.ranks[1].outputs.tensors.clear();
  EXPECT_THAT(verdict_of(1).reason, HasSubstr("rank 1 returned 0 outputs, the dense run 1"));
}

// Tokens that attention sees twice need not change its output.
TEST_F(RankStepsTest, AreDifferentOnEveryRankIfAttentionSeesTokensTwice) {
  ParallelRun run = verifier_.run("even", kRing, plans_, GatherForm::ragged);
  run.ranks[1].attention_tokens *= 2;
  for (const int rank : {0, 1}) {
    const VerificationResult result = verifier_.judge_rank("even", kRing, run, rank);
    EXPECT_EQ(result.verdict, Verdict::different);
    EXPECT_THAT(result.reason, HasSubstr("so its tokens count more than once"));
  }
}

}  // namespace
}  // namespace shardproof
