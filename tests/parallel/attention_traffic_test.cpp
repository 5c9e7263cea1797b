// What attention sends: number and bytes of collectives per rank against the prediction of the specification, written
// out here from the lengths alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/attention.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"
#include "tests/support/attention_problem.h"

namespace shardproof::test {
namespace {

constexpr std::int64_t kElement = 8;  // bytes of a float64; a bool has one

struct Traffic {
  std::int64_t all_to_all = 0;
  std::int64_t all_gather = 0;
  std::int64_t exchange = 0;
  std::int64_t sizes = 0;  // host-side gathers of lengths
  std::int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
  friend void PrintTo(const Traffic& t, std::ostream* out) {
    *out << t.all_to_all << " all_to_all, " << t.all_gather << " all_gather, " << t.exchange << " exchange, " << t.sizes
         << " sizes, " << t.bytes << " bytes";
  }
};

Traffic observed(const RankStatistics& rank) {
  return {rank.calls_of(Operation::all_to_all), rank.calls_of(Operation::all_gather),
          rank.calls_of(Operation::exchange), rank.calls_of(Operation::all_gather_numbers), rank.bytes_sent};
}

class AttentionTrafficTest : public testing::Test {
 protected:
  std::vector<Traffic> traffic(const AttentionProblem& problem, AttentionRun run) {
    run.device = device.get();
    std::vector<Traffic> result;
    for (const RankStatistics& rank : run_parallel(problem, run).report.ranks) result.push_back(observed(rank));
    return result;
  }
  static Indices lengths(const std::vector<std::int64_t>& streams, int ranks) {
    Indices result;
    for (const Indices& piece : pieces_of(streams, ranks)) result.push_back(static_cast<std::int64_t>(piece.size()));
    return result;
  }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

// Batch 2, width 4 everywhere: a row of one head has this many bytes.
constexpr std::int64_t kHeadRow = 2 * 4 * kElement;

TEST_F(AttentionTrafficTest, UlyssesSendsItsShareOfFourTensors) {
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 6, .streams = {3, 6}, .key_streams = {12}}, 1);
  const auto result = traffic(problem, {.config = ulysses_config(3), .return_lse = false});
  // Of q and out [3 rows], k and v [4 rows], six heads each: two thirds.
  const std::int64_t bytes = (3 + 4 + 4 + 3) * 6 * kHeadRow / 3 * 2;
  EXPECT_THAT(result, testing::Each(Traffic{.all_to_all = 4, .bytes = bytes}));
}

TEST_F(AttentionTrafficTest, UlyssesSendsTheLogSumExpWhenAskedAndGathersALocalMaskOnce) {
  AttentionProblem problem = random_problem({.batch = 2, .heads = 6, .streams = {9}}, 1);
  problem.bias = key_bias(problem, [](std::int64_t, std::int64_t key) { return key % 2 == 0; });
  const auto result = traffic(problem, {.config = ulysses_config(3)});
  const std::int64_t tensors = 4 * 3 * 6 * kHeadRow / 3 * 2, lse = 3 * 6 * 2 * kElement / 3 * 2, mask = 3 * 2 * 2;
  EXPECT_THAT(result, testing::Each(Traffic{.all_to_all = 5, .all_gather = 1, .bytes = tensors + lse + mask}));
}

TEST_F(AttentionTrafficTest, UlyssesSendsNoMaskThatCoversAllKeysButTheRowsOfItsQueries) {
  AttentionProblem problem = random_problem({.batch = 2, .heads = 6, .streams = {9}}, 1);
  problem.bias = key_bias(problem, [](std::int64_t, std::int64_t key) { return key % 2 == 0; });
  const AttentionRun run{.config = ulysses_config(3), .key_axis = KeyAxis::global, .return_lse = false};
  const std::int64_t tensors = 4 * 3 * 6 * kHeadRow / 3 * 2;
  EXPECT_THAT(traffic(problem, run), testing::Each(Traffic{.all_to_all = 4, .bytes = tensors}));
  problem.bias = full_bias(problem, [](auto, auto, auto q, auto key) { return (q + key) % 2 == 0; });
  const std::int64_t rows = 3 * (2 * 6 * 9) * 2;  // three rows of [2, 6, 9] bools to two others
  EXPECT_THAT(traffic(problem, run), testing::Each(Traffic{.all_to_all = 4, .all_gather = 1, .bytes = tensors + rows}));
}

TEST_F(AttentionTrafficTest, UlyssesAnythingExchangesTwoListsOfLengthsAndPaddedHeads) {
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 5, .streams = {7, 10}}, 1);
  const auto result = traffic(problem, {.config = ulysses_config(3, Lengths::anything), .return_lse = false});
  const Indices length{7, 5, 5};
  ASSERT_EQ(lengths({7, 10}, 3), length);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    // Blocks of two heads (the last with a pad): own rows to two others, three times; then every other rank's rows
    // back.
    const std::int64_t bytes = (3 * 2 * length[rank] + (17 - length[rank])) * 2 * kHeadRow;
    EXPECT_EQ(result[rank], (Traffic{.all_to_all = 4, .sizes = 2, .bytes = bytes})) << rank;
  }
}

TEST_F(AttentionTrafficTest, RingGathersAllChunksInOneCall) {
  AttentionProblem problem = random_problem({.batch = 2, .heads = 3, .streams = {12}}, 1);
  const std::int64_t kv = 2 * 4 * 3 * kHeadRow;
  EXPECT_THAT(traffic(problem, {.config = ring_config(3, "allgather")}),
              testing::Each(Traffic{.all_gather = 1, .bytes = 2 * kv}));
  problem.bias = key_bias(problem, [](std::int64_t, std::int64_t key) { return key % 2 == 0; });
  EXPECT_THAT(traffic(problem, {.config = ring_config(3, "allgather")}),
              testing::Each(Traffic{.all_gather = 2, .bytes = 2 * (kv + 4 * 2)}));
  EXPECT_THAT(traffic(problem, {.config = ring_config(3, "allgather"), .key_axis = KeyAxis::global}),
              testing::Each(Traffic{.all_gather = 1, .bytes = 2 * kv}));
}

TEST_F(AttentionTrafficTest, RotationSendsOneChunkLessThanRanks) {
  AttentionProblem problem = random_problem({.batch = 2, .heads = 3, .streams = {16}}, 1);
  const std::int64_t kv = 2 * 4 * 3 * kHeadRow;
  EXPECT_THAT(traffic(problem, {.config = ring_config(4, "alltoall")}),
              testing::Each(Traffic{.exchange = 3, .bytes = 3 * kv}));
  problem.bias = key_bias(problem, [](std::int64_t, std::int64_t key) { return key % 2 == 0; });
  EXPECT_THAT(traffic(problem, {.config = ring_config(4, "alltoall")}),
              testing::Each(Traffic{.exchange = 6, .bytes = 3 * (kv + 4 * 2)}));
}

TEST_F(AttentionTrafficTest, RingAnythingExchangesLengthsOnceAndSendsTrueOrPaddedChunks) {
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 3, .streams = {7, 10}}, 1);
  const Indices length{7, 5, 5};
  const std::int64_t row = 2 * 3 * kHeadRow;
  const auto gathered = traffic(problem, {.config = ring_config(3, "allgather", Lengths::anything)});
  const auto padded =
      traffic(problem, {.config = ring_config(3, "allgather", Lengths::anything), .gather_form = GatherForm::padded});
  const auto rotated = traffic(problem, {.config = ring_config(3, "alltoall", Lengths::anything)});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(gathered[rank], (Traffic{.all_gather = 1, .sizes = 1, .bytes = 2 * length[rank] * row})) << rank;
    EXPECT_EQ(padded[rank], (Traffic{.all_gather = 1, .sizes = 1, .bytes = 2 * 7 * row})) << rank;
    // Its own chunk, then the next one; never the last that it holds.
    const std::int64_t sent = length[rank] + length[(rank + 1) % 3];
    EXPECT_EQ(rotated[rank], (Traffic{.exchange = 2, .sizes = 1, .bytes = sent * row})) << rank;
  }
}

TEST_F(AttentionTrafficTest, UnifiedSendsUlyssesTensorsAndRingChunksOfItsHeads) {
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 4, .streams = {12}}, 1);
  const std::int64_t ulysses = 4 * 2 * 4 * kHeadRow / 2;  // half of four tensors of 2 rows, 4 heads
  const std::int64_t chunk = 2 * 4 * 2 * kHeadRow;        // 4 keys and values of 2 heads
  EXPECT_THAT(traffic(problem, {.config = unified_config(3, 2, "allgather"), .return_lse = false}),
              testing::Each(Traffic{.all_to_all = 4, .all_gather = 1, .bytes = ulysses + 2 * chunk}));
  EXPECT_THAT(traffic(problem, {.config = unified_config(3, 2, "alltoall"), .return_lse = false}),
              testing::Each(Traffic{.all_to_all = 4, .exchange = 2, .bytes = ulysses + 2 * chunk}));
}

// Attention accumulates in a wider type, which is no reason to send it.
TEST_F(AttentionTrafficTest, InBFloat16EveryElementTakesTwoBytes) {
  device = make_cpu_device();
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 6, .streams = {12}}, 1);
  const std::int64_t row = 2 * 4 * 2;  // of one head
  const AttentionRun ulysses{.config = ulysses_config(3), .dtype = kBFloat16, .return_lse = false};
  EXPECT_THAT(traffic(problem, ulysses), testing::Each(Traffic{.all_to_all = 4, .bytes = 4 * 4 * 6 * row / 3 * 2}));
  for (const bool wide : {true, false}) {
    AttentionRun ring{.config = ring_config(3, "alltoall"), .dtype = kBFloat16, .return_lse = false};
    ring.config.convert_to_fp32 = wide;
    EXPECT_THAT(traffic(problem, ring), testing::Each(Traffic{.exchange = 2, .bytes = 2 * (2 * 4 * 6 * row)}));
  }
}

}  // namespace
}  // namespace shardproof::test
