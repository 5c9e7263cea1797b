// Attention with extreme inputs: finite and within the ratio in every mode and type, and what a configuration cannot be
// asked is said.
#include "verify/extreme_check.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/sharding.h"
#include "sim/cpu_device.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::int64_t kWidth = 8;

// What the ranks would have recorded of one attention over so many tokens.
ParallelRun recorded(const ContextParallelConfig& config, std::int64_t queries, std::int64_t keys) {
  const std::int64_t heads = config.ulysses_anything ? 7 : 6;
  ParallelRun run;
  run.mesh = effective_mesh(config);
  const int ranks = run.mesh.size();
  run.ranks.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t local = balanced_size(keys, ranks, rank);
    run.ranks[static_cast<std::size_t>(rank)].attention_calls = {
        {.q = {1, balanced_size(queries, ranks, rank), heads, kWidth}, .k = {1, local, heads, kWidth}}};
    run.ranks[static_cast<std::size_t>(rank)].attention_sequence = {0};
  }
  return run;
}

class ExtremeInputs : public testing::TestWithParam<DType> {
 protected:
  ExtremeResult checked(const ContextParallelConfig& config, std::int64_t queries, std::int64_t keys) const {
    const ParallelRunOptions options{.config = {.context_parallel_config = config}, .schedule_seed = 3};
    return check_extremes(recorded(config, queries, keys), options, GetParam(), *device_);
  }
  // Of one attention call: masks of -1e9 and of the lowest number are the same in float16.
  std::int64_t problems() const { return GetParam() == kFloat16 ? 7 : 8; }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_P(ExtremeInputs, AreFiniteAndWithinTheRatioInEveryMode) {
  std::vector<ContextParallelConfig> configs;
  for (const int degree : {3, 4, 6}) {
    for (const char* method : {"allgather", "alltoall"}) {
      for (const bool wide : {true, false}) {
        configs.push_back({.ring_degree = degree, .convert_to_fp32 = wide, .rotate_method = method});
        configs.push_back(
            {.ring_degree = degree, .convert_to_fp32 = wide, .rotate_method = method, .ring_anything = true});
      }
    }
  }
  for (const int degree : {3, 6}) configs.push_back({.ulysses_degree = degree});
  for (const int degree : {3, 4}) configs.push_back({.ulysses_degree = degree, .ulysses_anything = true});
  configs.push_back({.ring_degree = 2, .ulysses_degree = 2});
  configs.push_back({.ring_degree = 3, .ulysses_degree = 2, .rotate_method = "alltoall"});
  for (const ContextParallelConfig& config : configs) {
    const bool is_ragged = config.ring_anything || config.ulysses_anything;
    const ExtremeResult result = checked(config, is_ragged ? 29 : 24, is_ragged ? 19 : 12);
    EXPECT_THAT(result.differences, IsEmpty()) << mode_name(config) << ' ' << effective_mesh(config).text();
    EXPECT_THAT(result.not_checked, IsEmpty());
    EXPECT_EQ(result.problems, problems());
    EXPECT_GT(result.largest_ratio, 0.0);
    // The most that was seen is 3.8, where a 16-bit type is merged in itself.
    EXPECT_LT(result.largest_ratio, 8.0) << mode_name(config) << ' ' << effective_mesh(config).text();
  }
}

TEST_P(ExtremeInputs, OfTwoRanksLeaveChunksInTheMiddleOpen) {
  const ExtremeResult result = checked({.ring_degree = 2}, 8, 8);
  EXPECT_THAT(result.differences, IsEmpty());
  EXPECT_EQ(result.problems, problems());
  EXPECT_THAT(result.not_checked,
              ElementsAre("extreme inputs: a chunk of keys that is masked as a whole among three or more; 2 ranks hold "
                          "the keys"));
}

TEST_P(ExtremeInputs, OfTooManyRanksAreLeftOut) {
  const ExtremeResult result = checked({.ring_degree = 256}, 1024, 1024);
  EXPECT_EQ(result.problems, 0);
  EXPECT_THAT(result.not_checked, ElementsAre("extreme inputs: too many ranks for attention of q [1, 4, 6, 8] and k "
                                              "[1, 4, 6, 8] on a rank"));
}

INSTANTIATE_TEST_SUITE_P(Types, ExtremeInputs, testing::Values(kFloat32, kBFloat16, kFloat16),
                         [](const auto& type) { return std::string(type.param.name()); });

TEST(ExtremeInputs, DifferWhereRanksDisagree) {
  const ContextParallelConfig config{.ring_degree = 3};
  const std::unique_ptr<Device> device = make_cpu_device();
  ParallelRun run = recorded(config, 9, 9);
  run.ranks[1].attention_calls.front().k[1] = 4;
  const ExtremeResult result = check_extremes(run, {.config = {.context_parallel_config = config}}, kFloat32, *device);
  EXPECT_THAT(result.differences, Not(IsEmpty()));
  EXPECT_THAT(result.differences, Each(HasSubstr("different row counts of the gather")));
  EXPECT_THAT(result.differences.front(), HasSubstr("logits of 150 either way: attention of q [1, 3, 6, 8]"));
}

TEST(ExtremeInputs, BelongToVerificationInNarrowTypes) {
  Subject subject = Subject::open("probe", 0);
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  Verifier narrow(subject, {.dtype = kFloat32, .device = DeviceChoice::cpu}), wide(subject, {});
  const ParallelConfig config{.context_parallel_config = ContextParallelConfig{.ring_degree = 3}};
  const VerificationResult result = narrow.verify("even", config, plans);
  EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
  EXPECT_GE(result.extremes_checked, 7);
  EXPECT_EQ(wide.verify("even", config, plans).extremes_checked, 0);
}

TEST(ExtremeInputs, SayWhereAttentionExchangesNothing) {
  Subject subject = Subject::open("qwenimage21", 0);
  Verifier verifier(subject, {.dtype = kFloat32, .device = DeviceChoice::cpu});
  const ParallelConfig config{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  const VerificationResult result = verifier.verify(subject.case_names().front(), config,
                                                    plans_of_model(subject.model(), subject.config(), "default"));
  EXPECT_EQ(result.extremes_checked, 0);
  EXPECT_THAT(result.not_checked, ElementsAre("extreme inputs: attention exchanges nothing in mode tp"));
}

}  // namespace
}  // namespace shardproof
