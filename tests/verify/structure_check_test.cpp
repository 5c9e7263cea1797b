// The structure tier over whole models: every legal configuration moves everything to where the layout has it, and a
// run whose ranks disagree does not pass.
#include "verify/structure_check.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verify/verifier.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Checked {
  ParallelRun run;
  ParallelRunOptions options;
};

Checked run_of(Subject& subject, const std::string& case_name, const ParallelConfig& config, GatherForm form) {
  const ModelPlans plans = subject.model().plans(subject.config());
  Verifier verifier(subject, {});
  Checked checked;
  checked.options = {.config = config, .gather_form = form};
  checked.run = verifier.run(case_name, config, {.cp = plans.default_cp, .tp = plans.default_tp}, form);
  return checked;
}

class StructureOfModels : public testing::TestWithParam<const char*> {};

TEST_P(StructureOfModels, StandsInEveryMode) {
  Subject subject = Subject::open(GetParam(), 0);
  const std::vector<ContextParallelConfig> configs{
      {.ring_degree = 3},
      {.ring_degree = 3, .rotate_method = "alltoall"},
      {.ulysses_degree = 3},
      {.ring_degree = 2, .ulysses_degree = 2},
      {.ring_degree = 3, .ring_anything = true},
      {.ring_degree = 4, .rotate_method = "alltoall", .ring_anything = true},
      {.ulysses_degree = 4, .ulysses_anything = true},
  };
  int completed = 0;
  for (const std::string& case_name : subject.case_names()) {
    for (const ContextParallelConfig& config : configs) {
      for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
        const Checked checked = run_of(subject, case_name, {.context_parallel_config = config}, form);
        if (checked.run.end != RunEnd::completed) continue;
        ++completed;
        const StructureResult result = check_structure(checked.run, checked.options);
        EXPECT_THAT(result.differences, IsEmpty()) << case_name << ' ' << checked.run.mesh.text();
        EXPECT_THAT(result.not_checked, IsEmpty());
        EXPECT_GE(result.attention_calls, 1) << case_name;
        EXPECT_GE(result.plan_entries, 1) << case_name;
      }
    }
  }
  EXPECT_GE(completed, 10);
}

INSTANTIATE_TEST_SUITE_P(Models, StructureOfModels,
                         testing::Values("flux", "probe", "qwenimage", "wan", "ltx2", "helios", "minimax_h3"),
                         [](const auto& name) { return std::string(name.param); });

TEST(Structure, IsThatOfTheLocalHeadsUnderTensorParallelism) {
  Subject subject = Subject::open("flux", 0);
  const ParallelConfig config{.context_parallel_config = ContextParallelConfig{.ring_degree = 3},
                              .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  const Checked checked = run_of(subject, "even", config, GatherForm::ragged);
  ASSERT_EQ(checked.run.end, RunEnd::completed) << checked.run.reason;
  const StructureResult result = check_structure(checked.run, checked.options);
  EXPECT_THAT(result.differences, IsEmpty());
  EXPECT_GE(result.attention_calls, 1);
}

TEST(Structure, HasNothingToCheckUnderTensorParallelismAlone) {
  Subject subject = Subject::open("flux", 0);
  const Checked checked =
      run_of(subject, "even", {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}}, GatherForm::ragged);
  const StructureResult result = check_structure(checked.run, checked.options);
  EXPECT_EQ(result.attention_calls + result.plan_entries, 0);
}

TEST(Structure, DiffersWhereRanksDisagree) {
  Subject subject = Subject::open("flux", 0);
  Checked checked =
      run_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ring_degree = 3}}, GatherForm::ragged);
  for (AttentionCall& call : checked.run.ranks[1].attention_calls) ++call.k[1];
  const StructureResult result = check_structure(checked.run, checked.options);
  ASSERT_THAT(result.differences, SizeIs(1));
  EXPECT_THAT(result.differences.front(), HasSubstr("attention of q [2, 12, 6, 16] and k [2, 12, 6, 16] on a rank: "));
  EXPECT_THAT(result.differences.front(), HasSubstr("ring: keys and values"));
}

TEST(Structure, SaysWhatIsTooLargeForIt) {
  Subject subject = Subject::open("flux", 0);
  Checked checked =
      run_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}}, GatherForm::ragged);
  for (RankOutcome& rank : checked.run.ranks) {
    for (AttentionCall& call : rank.attention_calls) call.q[1] = call.k[1] = 1 << 20;
  }
  const StructureResult result = check_structure(checked.run, checked.options);
  EXPECT_EQ(result.attention_calls, 0);
  EXPECT_THAT(result.not_checked, HasSubstr("is too large for identities"));
}

}  // namespace
}  // namespace shardproof
