// The offsets of clocks that a test has moved, over simulated ranks: right within the residual. Real processes of one
// machine have one clock, so that nothing could be seen of a mistake there.
#include "real/clock_offset.h"

#include <array>

#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "tests/support/rank_results.h"

namespace shardproof {
namespace {

TEST(ClockOffset, IsWhatBringsEveryClockToThatOfRank0) {
  // Ahead and behind, by more than a round trip takes.
  constexpr std::array<std::int64_t, 4> kAhead{5'000, 7'000'000'000, -3'000'000'000, 12};
  const auto offsets = test::rank_results(4, [&](Communicator& world) {
    HostDevice host;
    const std::int64_t ahead = kAhead[static_cast<std::size_t>(world.rank())];
    return measure_clock_offset(world, host, [ahead] { return steady_nanoseconds() + ahead; });
  });
  EXPECT_EQ(offsets[0].offset_ns, 0);
  EXPECT_EQ(offsets[0].residual_ns, 0);
  for (std::size_t rank = 1; rank < offsets.size(); ++rank) {
    const std::int64_t expected = kAhead[0] - kAhead[rank];
    EXPECT_GT(offsets[rank].residual_ns, 0);
    EXPECT_LE(std::abs(offsets[rank].offset_ns - expected), offsets[rank].residual_ns) << rank;
  }
}

TEST(ClockOffset, OfOneRankIsNone) {
  const auto offsets = test::rank_results(1, [&](Communicator& world) {
    HostDevice host;
    return measure_clock_offset(world, host, steady_nanoseconds);
  });
  EXPECT_EQ(offsets[0].offset_ns, 0);
}

// The best of several round trips: one that was slow on the way back tells less, and does not count.
TEST(ClockOffset, TakesTheFastestRoundTrip) {
  const auto offsets = test::rank_results(2, [&](Communicator& world) {
    HostDevice host;
    std::int64_t looks = 0;
    // Rank 0 looks three times a round; between the first and the last, 10 ns pass in round 5 and 1,000 in the others.
    const auto of_rank_0 = [&]() -> std::int64_t {
      const std::int64_t round = looks / 3, look = looks % 3;
      ++looks;
      return round * 100'000 + (look == 2 ? (round == 5 ? 10 : 1'000) : 0);
    };
    const auto of_rank_1 = [&]() -> std::int64_t {
      const std::int64_t round = looks++ / 3;
      return round * 100'000 + 50'005;
    };
    return world.rank() == 0 ? measure_clock_offset(world, host, of_rank_0)
                             : measure_clock_offset(world, host, of_rank_1);
  });
  EXPECT_EQ(offsets[1].offset_ns, 5 - 50'005);
  EXPECT_EQ(offsets[1].residual_ns, 6);
}

}  // namespace
}  // namespace shardproof
