// Answers to the last bit over whole models: every legal configuration gives them in every type, and what a model is
// too small or too large for is said.
#include "verify/bitwise_check.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verify/verifier.h"

namespace shardproof {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BitsOfModels : public testing::TestWithParam<const char*> {};

TEST_P(BitsOfModels, AreRightInEveryMode) {
  Subject subject = Subject::open(GetParam(), 0);
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  Verifier verifier(subject, {});
  const std::vector<ContextParallelConfig> configs{
      {.ring_degree = 3},
      {.ring_degree = 3, .convert_to_fp32 = false, .rotate_method = "alltoall"},
      {.ulysses_degree = 3},
      {.ring_degree = 2, .ulysses_degree = 2},
      {.ring_degree = 4, .rotate_method = "alltoall", .ring_anything = true},
      {.ulysses_degree = 4, .ulysses_anything = true},
  };
  int completed = 0;
  for (const std::string& case_name : subject.case_names()) {
    for (const ContextParallelConfig& config : configs) {
      const ParallelRunOptions options{.config = {.context_parallel_config = config}};
      const ParallelRun run = verifier.run(case_name, options.config, {.cp = plan}, GatherForm::ragged);
      if (run.end != RunEnd::completed) continue;
      ++completed;
      const BitwiseResult result = check_bits(run, options);
      EXPECT_THAT(result.differences, IsEmpty()) << case_name << ' ' << run.mesh.text();
      // One model has heads of 4 channels.
      EXPECT_THAT(result.not_checked, Each(HasSubstr("heads of 4 channels cannot tell so many keys apart")));
      const auto left_out = static_cast<std::int64_t>(result.not_checked.size());
      EXPECT_EQ(result.problems + left_out, 8 * result.attention_calls);
      EXPECT_LE(4 * left_out, 3 * 8 * result.attention_calls);
      EXPECT_GE(result.attention_calls, 1);
    }
  }
  EXPECT_GE(completed, 6);
}

INSTANTIATE_TEST_SUITE_P(Models, BitsOfModels, testing::Values("flux", "probe", "ltx2", "helios"),
                         [](const auto& name) { return std::string(name.param); });

// In units of the last place: the gap that a specification's example gives is enough, and not by far.
TEST(ProbeGap, FollowsFromTheTypesRounding) {
  EXPECT_NEAR(probe_gap(kFloat64, 8), std::log(128.0) + 53 * std::log(2.0) + 1, 1e-12);
  EXPECT_LT(probe_gap(kFloat64, 1 << 10), 60.0);
  EXPECT_LT(probe_gap(kFloat32, 1 << 6), 30.0);
  EXPECT_GT(probe_gap(kFloat64, 4), 40.0);
}

ParallelRun made_up_run(const Shape& q) {
  ParallelRun run;
  run.ranks.resize(2);
  for (RankOutcome& rank : run.ranks) {
    rank.attention_calls = {{.q = q, .k = q}};
    rank.attention_sequence = {0};
  }
  run.mesh = Mesh({"ring", "ulysses"}, {2, 1});
  return run;
}

TEST(Bits, DifferWhereRanksDisagree) {
  ParallelRun run = made_up_run({1, 4, 2, 8});
  run.ranks[1].attention_calls.front().k[1] = 5;
  const BitwiseResult result =
      check_bits(run, {.config = {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}}});
  EXPECT_THAT(result.differences, Each(HasSubstr("different row counts of the gather")));
  EXPECT_THAT(result.differences, Contains(HasSubstr("bfloat16 probe with two winners: attention of q [1, 4, 2, 8]")));
}

TEST(Bits, SayWhatIsNotChecked) {
  const ParallelRunOptions options{.config = {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}}};
  const BitwiseResult narrow = check_bits(made_up_run({1, 4, 2, 2}), options);
  EXPECT_THAT(narrow.differences, IsEmpty());
  EXPECT_THAT(narrow.not_checked,
              Contains("float64 probe with one winner: heads of 2 channels cannot tell so many keys "
                       "apart (attention of q [1, 4, 2, 2] and k [1, 4, 2, 2] on a rank)"));
  const BitwiseResult large = check_bits(made_up_run({1, 1 << 16, 2, 64}), options);
  EXPECT_EQ(large.attention_calls, 0);
  EXPECT_THAT(large.not_checked, Each(HasSubstr("is too large for answers to the last bit")));
}

}  // namespace
}  // namespace shardproof
