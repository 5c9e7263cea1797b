// Attention in the production types on the fast CPU device: the error against float64 is at most 16 times that of dense
// attention in the same type (the ratio rule of the verification specification, section 5), at extreme inputs too, and
// every output is finite.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "parallel/attention.h"
#include "sim/cpu_device.h"
#include "tests/support/attention_problem.h"

namespace shardproof::test {
namespace {

constexpr double kRatioLimit = 16.0;

// Unit roundoff, with which the largest representable error of a correct dense run is bounded from below.
double unit(DType dtype) {
  if (dtype == kBFloat16) return std::ldexp(1.0, -8);
  return std::ldexp(1.0, dtype == kFloat16 ? -11 : -24);
}

class AttentionPrecisionTest : public testing::Test {
 protected:
  // Inputs as the type holds them, so that float64 starts from the same numbers.
  AttentionProblem rounded(AttentionProblem problem, DType dtype) {
    for (HostArray* array : {&problem.q, &problem.k, &problem.v}) *array = to_host(to_device(*device, *array, dtype));
    if (!problem.bias.empty()) problem.bias = to_host(to_device(*device, problem.bias, dtype));
    return problem;
  }
  // Error of the parallel run over that of the dense run in the same type.
  double ratio(const AttentionProblem& problem, AttentionRun run) {
    run.device = device.get();
    run.return_lse = false;
    const HostArray exact = problem.dense().out;
    const Tensor q = to_device(*device, problem.q, run.dtype), k = to_device(*device, problem.k, run.dtype);
    AttentionMask mask;
    if (!problem.bias.empty()) {
      mask.values = to_device(*device, problem.bias, run.mask_dtype.value_or(run.dtype));
      mask.head_axis = problem.bias.shape[1] == 1 ? HeadAxis::one : HeadAxis::all;
    }
    run.mask_form = MaskForm::additive;
    const Tensor dense =
        attention(q, k, to_device(*device, problem.v, run.dtype), mask, {.scale = problem.scale}, nullptr).out;
    const double floor = unit(run.dtype) * max_magnitude(exact);
    const double dense_error = std::max(max_difference(to_host(dense), exact), floor);
    const ParallelAttention result = run_parallel(problem, run);
    const std::vector<Indices> pieces = pieces_of(problem.query_streams, static_cast<int>(result.ranks.size()));
    double worst = 0;
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      worst = std::max(worst, max_difference(to_host(result.ranks[rank].out), selected(exact, 1, pieces[rank])));
    }
    return worst / dense_error;
  }
  std::unique_ptr<Device> device = make_cpu_device();
};

std::vector<ContextParallelConfig> modes() {
  return {ulysses_config(3, Lengths::anything), ring_config(3, "allgather", Lengths::anything),
          ring_config(4, "alltoall", Lengths::anything), unified_config(2, 2, "alltoall"),
          unified_config(3, 2, "allgather")};
}

ProblemShape shape_for(const ContextParallelConfig& config) {
  const bool anything = config.ulysses_anything || config.ring_anything;
  return {.batch = 2,
          .heads = config.ulysses_anything ? 5 : 4,
          .width = 16,
          .streams = anything ? std::vector<std::int64_t>{7, 11} : std::vector<std::int64_t>{12, 12}};
}

TEST_F(AttentionPrecisionTest, KeepsTheRatioInEveryTypeAndMode) {
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    for (const ContextParallelConfig& config : modes()) {
      const AttentionProblem problem = rounded(random_problem(shape_for(config), 1), dtype);
      EXPECT_LE(ratio(problem, {.config = config, .dtype = dtype}), kRatioLimit)
          << dtype.name() << " " << mode_name(config);
    }
  }
}

// From 257 on, bfloat16 holds not every whole number, and float16 from 2049 on: lengths must not pass through them.
TEST_F(AttentionPrecisionTest, KeepsTheRatioWithMoreKeysThanTheTypeCanCount) {
  for (const ContextParallelConfig& config :
       {ulysses_config(2, Lengths::anything), ring_config(3, "allgather", Lengths::anything),
        ring_config(3, "alltoall", Lengths::anything)}) {
    const AttentionProblem problem = rounded(random_problem({.streams = {7}, .key_streams = {781}}, 8), kBFloat16);
    EXPECT_LE(ratio(problem, {.config = config, .dtype = kBFloat16}), kRatioLimit) << mode_name(config);
  }
}

// Logits of one chunk 100 to 1000 above the others, at every position: finite, and the whole weight goes there.
TEST_F(AttentionPrecisionTest, StaysFiniteWhereOneChunkIsFarAbove) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const ContextParallelConfig& config : modes()) {
      AttentionProblem problem = random_problem(shape_for(config), 2);
      const int ranks = effective_mesh(config).size();
      const std::vector<Indices> pieces = pieces_of(problem.key_streams, ranks);
      for (std::size_t above = 0; above < pieces.size(); ++above) {
        for (const double shift : {100.0, 1000.0}) {
          problem.bias = HostArray({1, 1, 1, problem.keys()});
          for (const std::int64_t key : pieces[above]) problem.bias.at({0, 0, 0, key}) = shift;
          EXPECT_LE(ratio(rounded(problem, dtype), {.config = config, .dtype = dtype}), kRatioLimit)
              << dtype.name() << " " << mode_name(config) << ", chunk " << above << " by " << shift;
        }
      }
    }
  }
}

// Biases may have the type of log-sum-exps, and must keep it on their way: -1000 and -1001 are one number in bfloat16.
TEST_F(AttentionPrecisionTest, KeepsTheRatioUnderBiasesOfAWiderType) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    for (const ContextParallelConfig& config : modes()) {
      AttentionProblem problem = rounded(random_problem(shape_for(config), 9), dtype);
      problem.bias = random_array({2, 1, 1, problem.keys()}, 9, "bias", 1.0);
      for (double& value : problem.bias.values) value -= 1000.0;
      EXPECT_LE(ratio(problem, {.config = config, .dtype = dtype, .mask_dtype = kFloat32}), kRatioLimit)
          << dtype.name() << " " << mode_name(config);
    }
  }
}

// A merge by sigmoids of differences fails here: 1.6e-4 at -1e4, 2.0 at -1e9, NaN at -inf, from three ranks on.
TEST_F(AttentionPrecisionTest, KeepsTheRatioWithEachChunkInTurnOutOfTheWay) {
  const double lowest = static_cast<double>(std::numeric_limits<float>::lowest());
  for (const ContextParallelConfig& config : modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 3);
    const std::vector<Indices> pieces = pieces_of(problem.key_streams, effective_mesh(config).size());
    for (std::size_t masked = 0; masked < pieces.size(); ++masked) {
      for (const double bias : {-1e4, -1e9, lowest, -std::numeric_limits<double>::infinity()}) {
        problem.bias = HostArray({1, 1, 1, problem.keys()});
        for (const std::int64_t key : pieces[masked]) problem.bias.at({0, 0, 0, key}) = bias;
        EXPECT_LE(ratio(rounded(problem, kFloat32), {.config = config, .dtype = kFloat32}), kRatioLimit)
            << mode_name(config) << ", chunk " << masked << " at " << bias;
      }
    }
  }
}

// Values of 1e6 in the first chunk with weight exp(-40): a merge that keeps an absolute error of the old sum fails.
TEST_F(AttentionPrecisionTest, ForgetsHeavyValuesOfLightWeight) {
  for (const ContextParallelConfig& config : modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 4);
    problem.bias = HostArray({1, 1, 1, problem.keys()});
    const std::vector<Indices> pieces = pieces_of(problem.key_streams, effective_mesh(config).size());
    for (const std::int64_t key : pieces.front()) {
      problem.bias.at({0, 0, 0, key}) = -40.0;
      for (std::int64_t h = 0; h < problem.heads(); ++h) problem.v.at({0, key, h, 0}) = 1e6;
    }
    EXPECT_LE(ratio(rounded(problem, kFloat32), {.config = config, .dtype = kFloat32}), kRatioLimit)
        << mode_name(config);
  }
}

TEST_F(AttentionPrecisionTest, SurvivesLogitsOfHundredAndFifty) {
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    for (const ContextParallelConfig& config : modes()) {
      AttentionProblem problem = random_problem(shape_for(config), 5);
      for (double& value : problem.q.values) value *= 15.0;  // standard deviation 45, up to about 150
      EXPECT_LE(ratio(rounded(problem, dtype), {.config = config, .dtype = dtype}), kRatioLimit)
          << dtype.name() << " " << mode_name(config);
    }
  }
}

// Largest ratio over a few problems of one key a rank and chunk, bfloat16.
double worst_ratio(const std::function<double(std::uint64_t seed)>& ratio_of) {
  double worst = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) worst = std::max(worst, ratio_of(seed));
  return worst;
}

// Partial outputs kept in bfloat16 between merges lose accuracy with every merge; merged wide they do not.
TEST_F(AttentionPrecisionTest, MergesWideUnlessToldOtherwiseAndThenTheErrorGrowsWithTheRing) {
  std::vector<double> wide, narrow;
  for (const int degree : {2, 8, 32}) {
    for (const bool convert_to_fp32 : {true, false}) {
      const double worst = worst_ratio([&](std::uint64_t seed) {
        ProblemShape shape{.batch = 1, .heads = 4, .width = 16, .streams = {64}};
        AttentionProblem problem = random_problem(shape, seed);
        for (double& value : problem.q.values) value /= 3.0;  // many keys count
        AttentionRun run{.config = ring_config(degree, "allgather"), .dtype = kBFloat16};
        run.config.convert_to_fp32 = convert_to_fp32;
        return ratio(rounded(problem, kBFloat16), run);
      });
      (convert_to_fp32 ? wide : narrow).push_back(worst);
    }
  }
  for (const double value : wide) EXPECT_LE(value, 1.5);
  EXPECT_GT(narrow[1], 1.5 * wide[1]);
  EXPECT_GT(narrow[2], narrow[1]);
}

// Float32 and float64 are their own wide types: the same bits either way.
TEST_F(AttentionPrecisionTest, ConvertToFp32ChangesNothingInFloat32AndFloat64) {
  const AttentionProblem problem = random_problem({.batch = 1, .heads = 2, .streams = {9}}, 6);
  for (const DType dtype : {kFloat32, kFloat64}) {
    AttentionRun run{.config = ring_config(3, "allgather"), .device = device.get(), .dtype = dtype};
    const ParallelAttention wide = run_parallel(problem, run);
    run.config.convert_to_fp32 = false;
    const ParallelAttention narrow = run_parallel(problem, run);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(bitwise_equal(wide.ranks[rank].out, narrow.ranks[rank].out)) << dtype.name();
      EXPECT_TRUE(bitwise_equal(wide.ranks[rank].lse, narrow.ranks[rank].lse)) << dtype.name();
    }
  }
}

TEST_F(AttentionPrecisionTest, ReturnsTheQuerysTypeAndTheLogTypeInEveryMode) {
  for (const bool convert_to_fp32 : {true, false}) {
    for (ContextParallelConfig config : modes()) {
      config.convert_to_fp32 = convert_to_fp32;
      const AttentionProblem problem = random_problem(shape_for(config), 7);
      const ParallelAttention result =
          run_parallel(problem, {.config = config, .device = device.get(), .dtype = kBFloat16});
      for (const AttentionResult& rank : result.ranks) {
        EXPECT_EQ(rank.out.dtype(), kBFloat16) << mode_name(config);
        EXPECT_EQ(rank.lse.dtype(), kFloat32) << mode_name(config);
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::test
