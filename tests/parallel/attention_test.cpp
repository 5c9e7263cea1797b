// attention() in every mode against nested loops over the whole sequence, on every rank: masks of every kind and
// placement, masked shards, cross attention, replicated keys, the log-sum-exp, and what is refused by name.
// Tolerance of float64: rows have at most 60 keys and logits of size 10, so rounding stays below 60 * 10 * 2^-53 =
// 7e-14 of the largest value; a wrong key, weight or mask differs by more than 1e-4.
#include "parallel/attention.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "reference/eigen_device.h"
#include "tests/support/attention_problem.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::HasSubstr;

constexpr double kTolerance = 1e-12;
constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr const char* kRotateMethods[] = {"allgather", "alltoall"};

int ranks_of(const ContextParallelConfig& config) {
  return effective_ring_degree(config) * effective_ulysses_degree(config);
}
bool takes_anything(const ContextParallelConfig& config) { return config.ulysses_anything || config.ring_anything; }

std::string name_of(const ContextParallelConfig& config) {
  return mode_name(config) + " " + effective_mesh(config).text() + " " + config.rotate_method;
}

// Every mode for 2 to 6 ranks.
std::vector<ContextParallelConfig> all_modes() {
  std::vector<ContextParallelConfig> modes;
  for (const int degree : {2, 3}) modes.push_back(ulysses_config(degree));
  for (const int degree : {2, 3, 4}) modes.push_back(ulysses_config(degree, Lengths::anything));
  for (const char* rotate_method : kRotateMethods) {
    for (const int degree : {2, 3, 4}) {
      modes.push_back(ring_config(degree, rotate_method));
      modes.push_back(ring_config(degree, rotate_method, Lengths::anything));
    }
    modes.push_back(unified_config(2, 2, rotate_method));
    modes.push_back(unified_config(2, 3, rotate_method));
    modes.push_back(unified_config(3, 2, rotate_method));
  }
  return modes;
}

// Text and image that a mode admits: uneven apart where it may be. Six or, with head pads, seven heads.
ProblemShape shape_for(const ContextParallelConfig& config) {
  const int ranks = ranks_of(config);
  if (!takes_anything(config)) return {.batch = 2, .heads = 6, .streams = {ranks, 2 * ranks}};
  return {.batch = 2, .heads = config.ulysses_anything ? 7 : 3, .streams = {7, 11}};
}

class AttentionTest : public testing::Test {
 protected:
  double difference(const AttentionProblem& problem, AttentionRun run) {
    run.device = device.get();
    return worst_difference(problem, problem.dense(), run_parallel(problem, run));
  }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(AttentionTest, WithoutAStateEqualsNestedLoops) {
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 3, .streams = {5}, .key_streams = {7}}, 1);
  const AttentionResult result =
      attention(to_device(*device, problem.q, kFloat64), to_device(*device, problem.k, kFloat64),
                to_device(*device, problem.v, kFloat64), {}, {.return_lse = true}, nullptr);
  EXPECT_LE(max_difference(to_host(result.out), problem.dense().out), kTolerance);
  EXPECT_LE(max_difference(to_host(result.lse), problem.dense().lse), kTolerance);
}

TEST_F(AttentionTest, EqualsDenseInEveryMode) {
  for (const ContextParallelConfig& config : all_modes()) {
    const AttentionProblem problem = random_problem(shape_for(config), 2);
    for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
      EXPECT_LE(difference(problem, {.config = config, .gather_form = form}), kTolerance) << name_of(config);
    }
  }
}

// Keeps two of three keys, differently for each item, head and query; row (b 0, h 1, q 2) keeps none.
bool keep(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t key) {
  if (b == 0 && h == 1 && q == 2) return false;
  return (key * 7 + 3 * b + 5 * h + 11 * q) % 3 != 0;
}

struct MaskCase {
  std::string name;
  bool by_item, by_head, by_query;
  KeyAxis key_axis;
};

HostArray bias_for(const MaskCase& mask, const AttentionProblem& problem) {
  HostArray bias({mask.by_item ? problem.batch() : 1, mask.by_head ? problem.heads() : 1,
                  mask.by_query ? problem.queries() : 1, problem.keys()});
  std::size_t i = 0;
  for (std::int64_t b = 0; b < bias.shape[0]; ++b) {
    for (std::int64_t h = 0; h < bias.shape[1]; ++h) {
      for (std::int64_t q = 0; q < bias.shape[2]; ++q) {
        for (std::int64_t key = 0; key < bias.shape[3]; ++key) bias.values[i++] = keep(b, h, q, key) ? 0.0 : kNever;
      }
    }
  }
  return bias;
}

const std::vector<MaskCase> kMaskCases{{"one mask for all", false, false, false, KeyAxis::local},
                                       {"one mask for all, all keys", false, false, false, KeyAxis::global},
                                       {"per item", true, false, false, KeyAxis::local},
                                       {"per item, all keys", true, false, false, KeyAxis::global},
                                       {"per item and head", true, true, false, KeyAxis::local},
                                       {"per head, all keys", false, true, false, KeyAxis::global},
                                       {"per query", false, false, true, KeyAxis::global},
                                       {"per item, head and query", true, true, true, KeyAxis::global}};

TEST_F(AttentionTest, EqualsDenseUnderMasksOfEveryKindAndPlacementInEveryMode) {
  for (const ContextParallelConfig& config : all_modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 3);
    for (const MaskCase& mask : kMaskCases) {
      problem.bias = bias_for(mask, problem);
      for (const MaskForm form : {MaskForm::boolean, MaskForm::additive}) {
        const GatherForm gather = form == MaskForm::boolean ? GatherForm::padded : GatherForm::ragged;
        EXPECT_LE(difference(problem,
                             {.config = config, .key_axis = mask.key_axis, .mask_form = form, .gather_form = gather}),
                  kTolerance)
            << name_of(config) << ", " << mask.name;
      }
    }
  }
}

TEST_F(AttentionTest, EqualsDenseUnderFiniteBiases) {
  for (const ContextParallelConfig& config : all_modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 4);
    problem.bias = random_array({2, 1, 1, problem.keys()}, 4, "bias", 3.0);
    problem.bias.at({0, 0, 0, 0}) = -1e4;
    problem.bias.at({1, 0, 0, 1}) = -1e9;
    problem.bias.at({1, 0, 0, 2}) = std::numeric_limits<double>::lowest();
    EXPECT_LE(difference(problem, {.config = config, .mask_form = MaskForm::additive}), kTolerance) << name_of(config);
  }
}

// A bias that all keys of an item share changes nothing, however far below zero it is: it is no mask.
TEST_F(AttentionTest, EqualsDenseWhereEveryKeyIsBiasedFarBelowZero) {
  constexpr double kRoundedTolerance = 1e-10;  // the bias takes four digits of the logits
  for (const ContextParallelConfig& config : all_modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 4);
    problem.bias = HostArray({2, 1, 1, problem.keys()});
    for (std::int64_t key = 0; key < problem.keys(); ++key) problem.bias.at({1, 0, 0, key}) = -1e4;
    EXPECT_LE(difference(problem, {.config = config, .mask_form = MaskForm::additive}), kRoundedTolerance)
        << name_of(config);
  }
}

// Every shard in turn without a key: by a boolean mask, by -inf, and out of the way by a large finite bias.
TEST_F(AttentionTest, EqualsDenseWithEachShardInTurnMaskedAltogether) {
  for (const ContextParallelConfig& config : all_modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 5);
    const std::vector<Indices> pieces = pieces_of(problem.key_streams, ranks_of(config));
    for (std::size_t masked = 0; masked < pieces.size(); ++masked) {
      for (const double bias : {kNever, -1e4, -1e9}) {
        problem.bias = HostArray({1, 1, 1, problem.keys()});
        for (const std::int64_t key : pieces[masked]) problem.bias.at({0, 0, 0, key}) = bias;
        const MaskForm form = bias == kNever && masked % 2 == 0 ? MaskForm::boolean : MaskForm::additive;
        EXPECT_LE(difference(problem, {.config = config, .mask_form = form}), kTolerance)
            << name_of(config) << ", shard " << masked << " at " << bias;
      }
    }
  }
}

TEST_F(AttentionTest, GivesZeroAndMinusInfinityWhereEveryKeyIsMasked) {
  for (const ContextParallelConfig& config : all_modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 6);
    problem.bias = key_bias(problem, [](std::int64_t b, std::int64_t) { return b != 0; });
    const ParallelAttention result = run_parallel(problem, {.config = config, .device = device.get()});
    EXPECT_LE(worst_difference(problem, problem.dense(), result), kTolerance) << name_of(config);
    for (const AttentionResult& rank : result.ranks) {
      EXPECT_EQ(max_magnitude(to_host(rank.out.narrow(0, 0, 1))), 0.0) << name_of(config);
      for (const double lse : ops::to_doubles(rank.lse.narrow(0, 0, 1))) EXPECT_EQ(lse, kNever) << name_of(config);
    }
  }
}

TEST_F(AttentionTest, EqualsDenseForCrossAttentionWithDividedKeys) {
  for (const ContextParallelConfig& config : all_modes()) {
    const int ranks = ranks_of(config);
    ProblemShape shape = shape_for(config);
    shape.key_streams = takes_anything(config) ? std::vector<std::int64_t>{5} : std::vector<std::int64_t>{4 * ranks};
    AttentionProblem problem = random_problem(shape, 7);
    EXPECT_LE(difference(problem, {.config = config}), kTolerance) << name_of(config);
    problem.bias = key_bias(problem, [](std::int64_t b, std::int64_t key) { return (key + b) % 2 == 0; });
    EXPECT_LE(difference(problem, {.config = config}), kTolerance) << name_of(config) << ", masked";
  }
}

TEST_F(AttentionTest, AttendsToReplicatedKeysWithoutCommunication) {
  for (const ContextParallelConfig& config : all_modes()) {
    ProblemShape shape = shape_for(config);
    shape.key_streams = {9};
    AttentionProblem problem = random_problem(shape, 8);
    problem.bias = full_bias(problem, keep);
    const AttentionRun run{.config = config, .device = device.get(), .keys = Placement::replicated};
    const ParallelAttention result = run_parallel(problem, run);
    EXPECT_LE(worst_difference(problem, problem.dense(), result), kTolerance) << name_of(config);
    for (const RankStatistics& rank : result.report.ranks) {
      EXPECT_EQ(rank.data_calls(), 0) << name_of(config);
      EXPECT_EQ(rank.bytes_sent, 0) << name_of(config);
    }
  }
}

TEST(SequencePart, CountsTheTokensOfLowerFlatRanks) {
  const auto parts_of = [](int world_size, const ContextParallelConfig& config, const Indices& tokens) {
    return rank_results(world_size, [&](Communicator& world) {
      const ContextParallelState state(world, config);
      const SequencePart part = part_of_sequence(tokens[static_cast<std::size_t>(world.rank())], &state);
      return std::pair(part.start, part.total);
    });
  };
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(parts_of(2, {.ulysses_degree = 2}, {5, 5}), ElementsAre(Pair(0, 10), Pair(5, 10)));
  EXPECT_THAT(parts_of(3, {.ring_degree = 3, .ring_anything = true}, {7, 5, 4}),
              ElementsAre(Pair(0, 16), Pair(7, 16), Pair(12, 16)));
  // rank = ulysses * 2 + ring, but tokens stand in the order ring * 2 + ulysses.
  EXPECT_THAT(parts_of(4, {.mesh = Mesh::parse("ulysses=2,ring=2")}, {3, 3, 3, 3}),
              ElementsAre(Pair(0, 12), Pair(6, 12), Pair(3, 12), Pair(9, 12)));
}

TEST(SequencePart, IsAllOfItOnOneRank) {
  EXPECT_EQ(part_of_sequence(7, nullptr).total, 7);
  EXPECT_EQ(part_of_sequence(7, ContextParallelState::for_one_rank().get()).total, 7);
}

// Tokens == heads, so that a transposed log-sum-exp or output has a legal shape.
TEST_F(AttentionTest, KeepsTokensAndHeadsApartWhereTheyAreEqual) {
  for (const ContextParallelConfig& config : all_modes()) {
    const int ranks = ranks_of(config);
    const AttentionProblem problem =
        random_problem({.batch = 2, .heads = ranks * 2, .width = ranks * 2, .streams = {ranks * 2}}, 9);
    EXPECT_LE(difference(problem, {.config = config}), kTolerance) << name_of(config);
  }
}

TEST_F(AttentionTest, ReturnsTheLogSumExpOnlyWhenAskedAndTheSameOutput) {
  for (const ContextParallelConfig& config : all_modes()) {
    const AttentionProblem problem = random_problem(shape_for(config), 10);
    AttentionRun run{.config = config, .device = device.get()};
    const ParallelAttention with = run_parallel(problem, run);
    run.return_lse = false;
    const ParallelAttention without = run_parallel(problem, run);
    for (std::size_t rank = 0; rank < with.ranks.size(); ++rank) {
      EXPECT_TRUE(with.ranks[rank].lse.defined());
      EXPECT_FALSE(without.ranks[rank].lse.defined());
      EXPECT_TRUE(bitwise_equal(with.ranks[rank].out, without.ranks[rank].out)) << name_of(config);
    }
  }
}

TEST_F(AttentionTest, GivesTheSameBitsForBothRotationsAndBothGatherForms) {
  for (const ContextParallelConfig& config : all_modes()) {
    AttentionProblem problem = random_problem(shape_for(config), 11);
    problem.bias = bias_for(kMaskCases[4], problem);
    AttentionRun run{.config = config, .device = device.get()};
    const ParallelAttention first = run_parallel(problem, run);
    for (const char* rotate_method : kRotateMethods) {
      for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
        run.config.rotate_method = rotate_method;
        run.gather_form = form;
        const ParallelAttention other = run_parallel(problem, run);
        for (std::size_t rank = 0; rank < first.ranks.size(); ++rank) {
          EXPECT_TRUE(bitwise_equal(first.ranks[rank].out, other.ranks[rank].out)) << name_of(run.config);
          EXPECT_TRUE(bitwise_equal(first.ranks[rank].lse, other.ranks[rank].lse)) << name_of(run.config);
        }
      }
    }
  }
}

TEST_F(AttentionTest, DoesNotDependOnTheScheduleOrTheWorkers) {
  for (const ContextParallelConfig& config :
       {ulysses_config(3, Lengths::anything), ring_config(4, "alltoall"), unified_config(2, 3, "allgather")}) {
    const AttentionProblem problem = random_problem(shape_for(config), 12);
    const ParallelAttention first = run_parallel(problem, {.config = config, .device = device.get()});
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      const ParallelAttention other = run_parallel(
          problem,
          {.config = config, .device = device.get(), .schedule_seed = seed, .workers = 1 + static_cast<int>(seed % 2)});
      for (std::size_t rank = 0; rank < first.ranks.size(); ++rank) {
        EXPECT_TRUE(bitwise_equal(first.ranks[rank].out, other.ranks[rank].out)) << name_of(config) << " " << seed;
      }
    }
  }
}

// ---- refusals

class AttentionRefusalTest : public testing::Test {
 protected:
  Tensor zeros(const Shape& shape) { return ops::zeros(*device, shape, kFloat64); }
  std::optional<ThrownError> refusal(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& options) {
    return thrown_by([&] { attention(q, k, v, {}, options, nullptr); });
  }
  // What two ranks of a mode get for a body of their own, or "completed".
  std::string outcome(const ContextParallelConfig& config,
                      const std::function<void(int rank, const ContextParallelState&)>& body) {
    const auto error = thrown_by([&] {
      run_ranks({.world_size = ranks_of(config)}, [&](Communicator& world) {
        const ContextParallelState state(world, config);
        body(world.rank(), state);
      });
    });
    return error ? std::string(error_kind_name(error->kind)) + ": " + error->message : "completed";
  }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(AttentionRefusalTest, NamesWhatIsNotSupportedInOrder) {
  const Tensor x = zeros({1, 2, 2, 4}), wide = zeros({1, 2, 4, 4});
  EXPECT_EQ(refusal(x, wide, wide, {.is_causal = true, .enable_gqa = true, .dropout = 0.1}),
            thrown(ErrorKind::unsupported_error, "causal attention is not yet supported"));
  EXPECT_EQ(refusal(x, x, x, {.enable_gqa = true, .dropout = 0.1}),
            thrown(ErrorKind::unsupported_error,
                   "GQA is not yet supported: q float64 [1, 2, 2, 4] and k float64 [1, 2, 2, 4] must have equally many "
                   "heads"));
  EXPECT_EQ(refusal(x, wide, wide, {}),
            thrown(ErrorKind::unsupported_error,
                   "GQA is not yet supported: q float64 [1, 2, 2, 4] and k float64 [1, 2, 4, 4] must have equally many "
                   "heads"));
  EXPECT_EQ(refusal(x, x, x, {.dropout = 0.1}),
            thrown(ErrorKind::unsupported_error, "attention dropout 0.1 is not supported; it must be 0"));
}

TEST_F(AttentionRefusalTest, NamesShapesThatDoNotFit) {
  const Tensor x = zeros({1, 2, 2, 4});
  const auto expected = [](const std::string& shapes) {
    return thrown(ErrorKind::shape_error, "attention of " + shapes +
                                              ": expected [batch, tokens, heads, head_dim] with one batch, heads and "
                                              "head_dim, and as many keys as values");
  };
  EXPECT_EQ(refusal(zeros({2, 2, 4}), x, x, {}),
            expected("q float64 [2, 2, 4], k float64 [1, 2, 2, 4], v float64 [1, 2, 2, 4]"));
  EXPECT_EQ(refusal(x, x, zeros({1, 3, 2, 4}), {}),
            expected("q float64 [1, 2, 2, 4], k float64 [1, 2, 2, 4], v float64 [1, 3, 2, 4]"));
  EXPECT_EQ(refusal(zeros({2, 2, 2, 4}), x, x, {}),
            expected("q float64 [2, 2, 2, 4], k float64 [1, 2, 2, 4], v float64 [1, 2, 2, 4]"));
  EXPECT_EQ(refusal(zeros({1, 2, 2, 8}), x, x, {}),
            expected("q float64 [1, 2, 2, 8], k float64 [1, 2, 2, 4], v float64 [1, 2, 2, 4]"));
}

TEST_F(AttentionRefusalTest, RefusesReplicatedQueriesAgainstDividedKeysInEveryMode) {
  const Tensor x = zeros({1, 2, 6, 4});
  for (const ContextParallelConfig& config : all_modes()) {
    EXPECT_THAT(outcome(config,
                        [&](int, const ContextParallelState& state) {
                          attention(x, x, x, {}, {.queries = Placement::replicated}, &state);
                        }),
                HasSubstr("unsupported_error: rank 0: attention of replicated queries against split keys is not "
                          "supported: every rank would compute the same rows"));
    EXPECT_EQ(outcome(config,
                      [&](int, const ContextParallelState& state) {
                        attention(x, x, x, {}, {.queries = Placement::replicated, .keys = Placement::replicated},
                                  &state);
                      }),
              "completed");
  }
}

TEST_F(AttentionRefusalTest, RefusesAMaskOfQueryRowsOverLocalKeysUnlessAttentionIsLocal) {
  const Tensor x = zeros({1, 2, 6, 4});
  const AttentionMask mask{.values = ops::full(*device, {1, 2, 2}, kBool, 1), .query_axis = QueryAxis::local};
  for (const ContextParallelConfig& config : all_modes()) {
    EXPECT_THAT(outcome(config, [&](int, const ContextParallelState& state) { attention(x, x, x, mask, {}, &state); }),
                HasSubstr("it needs the global key axis"));
    EXPECT_EQ(outcome(config,
                      [&](int, const ContextParallelState& state) {
                        attention(x, x, x, mask, {.keys = Placement::replicated}, &state);
                      }),
              "completed");
  }
}

TEST_F(AttentionRefusalTest, RefusesAGlobalKeyAxisOfAnotherLength) {
  const Tensor x = zeros({1, 2, 12, 4});
  const AttentionMask mask{.values = ops::full(*device, {1, 5}, kBool, 1), .key_axis = KeyAxis::global};
  for (const ContextParallelConfig& config : all_modes()) {
    EXPECT_THAT(outcome(config, [&](int, const ContextParallelState& state) { attention(x, x, x, mask, {}, &state); }),
                HasSubstr("shape_error: rank 0: attention mask bool [1, 1, 1, 5]: its global key axis must cover the " +
                          std::to_string(2 * ranks_of(config)) + " keys of all ranks, not 5"))
        << name_of(config);
  }
  EXPECT_EQ(thrown_by([&] { attention(x, x, x, mask, {}, nullptr); }),
            thrown(ErrorKind::shape_error, "attention mask bool [1, 1, 1, 5]: its key axis must cover 2 keys, not 5"));
}

// Ranks that disagree about a mask are told, whichever of them has it.
TEST_F(AttentionRefusalTest, FindsRanksThatDisagreeAboutAMask) {
  const Tensor x = zeros({1, 2, 12, 4});
  const Tensor values = ops::full(*device, {1, 2}, kBool, 1);
  for (const ContextParallelConfig& config : all_modes()) {
    for (const int with : {0, 1}) {
      const std::string text = outcome(config, [&](int rank, const ContextParallelState& state) {
        attention(x, x, x, rank == with ? AttentionMask{.values = values} : AttentionMask{}, {}, &state);
      });
      EXPECT_THAT(text, testing::StartsWith("collective_error: ")) << name_of(config);
      EXPECT_THAT(text, HasSubstr("different purposes")) << name_of(config);
    }
  }
}

// The equal modes find lengths that differ through the signature of the exchange, without an extra one.
TEST_F(AttentionRefusalTest, FindsUnequalLengthsInTheEqualModes) {
  for (const ContextParallelConfig& config : all_modes()) {
    const std::string text = outcome(config, [&](int rank, const ContextParallelState& state) {
      const Tensor x = zeros({1, rank == 1 ? 3 : 2, 12, 4});
      attention(x, x, x, {}, {}, &state);
    });
    if (takes_anything(config)) {
      EXPECT_EQ(text, "completed") << name_of(config);
    } else {
      EXPECT_THAT(text, testing::StartsWith("collective_error: ")) << name_of(config);
    }
  }
}

TEST_F(AttentionRefusalTest, RefusesHeadsThatDoNotDivide) {
  const Tensor x = zeros({1, 2, 5, 4});
  EXPECT_THAT(
      outcome(ulysses_config(2), [&](int, const ContextParallelState& state) { attention(x, x, x, {}, {}, &state); }),
      HasSubstr("shape_error: rank 0: 5 attention heads cannot be divided among ulysses_degree 2; it must "
                "divide the heads: 1, 5 (ulysses_anything accepts 1, 2, 3, 5)"));
  EXPECT_THAT(outcome(unified_config(2, 2, "allgather"),
                      [&](int, const ContextParallelState& state) { attention(x, x, x, {}, {}, &state); }),
              HasSubstr("5 attention heads cannot be divided among ulysses_degree 2"));
}

}  // namespace
}  // namespace shardproof::test
