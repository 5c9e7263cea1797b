// The model of a trace: names and signatures of operations, the list of integers in which it travels, clocks, and the
// formulas of bandwidth.
#include "reports/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"
#include "tests/reports/sample_traces.h"

namespace shardproof::test {
namespace {

TEST(Trace, NamesOperationsByWhatTheRankDoes) {
  const RankTrace rank = sample_rank(1);
  EXPECT_EQ(identifier(rank, rank.events[0]), "step 0");
  EXPECT_EQ(identifier(rank, rank.events[1]), "blocks.0.attn call 1");
  EXPECT_EQ(identifier(rank, rank.events[2]), "world/ring#1 call 1 exchange");
  EXPECT_EQ(identifier(rank, rank.events[3]), "blocks.0.attn call 1 attention 1");
  EXPECT_EQ(signature(rank, rank.events[2]),
            "exchange 'ring: keys' float64 rows of [2, 4], sends 3 rows (192 B), receives 3 rows (192 B), to 0, from 0 "
            "among ranks 0, 1");
  EXPECT_EQ(signature(rank, rank.events[3]), "attention float64 [2, 4], 700 B");
}

TEST(Trace, WritesMembersInTheirOrder) {
  EXPECT_EQ(members_text(std::vector{0, 1, 2, 3, 8, 9}), "0-3, 8, 9");
  EXPECT_EQ(members_text(std::vector{2, 1, 0}), "2, 1, 0");
  EXPECT_EQ(members_text(std::vector{5, 0, 1, 2}), "5, 0-2");
  EXPECT_EQ(members_text({}), "");
}

TEST(Trace, TravelsAsAListOfIntegers) {
  const RankTrace rank = sample_rank(1);
  const std::vector<std::int64_t> numbers = packed(rank);
  const RankTrace back = unpacked(numbers);
  EXPECT_EQ(packed(back), numbers);
  EXPECT_EQ(back.rank, 1);
  EXPECT_EQ(back.texts, rank.texts);
  EXPECT_EQ(back.groups.front().key, "world/ring#1");
  EXPECT_EQ(back.groups.front().members, (std::vector<int>{0, 1}));
  ASSERT_EQ(back.events.size(), 4U);
  EXPECT_EQ(back.events[2].wait_begin_ns, 60'000);
  EXPECT_THAT(
      message_of(ErrorKind::internal_error, [&] { (void)unpacked(std::span(numbers).first(numbers.size() - 4)); }),
      testing::HasSubstr("ends 2 numbers too early"));
}

TEST(Trace, BringsEveryTimeToTheClockOfRank0) {
  RankTrace rank = sample_rank(0);
  correct_clock(rank, {.offset_ns = -3, .residual_ns = 2});
  EXPECT_EQ(rank.clock.offset_ns, -3);
  EXPECT_EQ(rank.events[2].begin_ns, 9'997);
  EXPECT_EQ(rank.events[2].end_ns, 79'997);
  EXPECT_EQ(rank.events[2].wait_begin_ns, 59'997);
  EXPECT_EQ(rank.events[2].device_begin_ns, -1);  // which never came about
}

// S / t, and the factors of nccl-tests: 12,000 bytes in 1,000 ns on 4 members.
TEST(Trace, HasTheBandwidthOfNcclTests) {
  for (const char* operation : {"all_gather", "all_to_all", "scatter"}) {
    EXPECT_DOUBLE_EQ(bandwidth(operation, 12'000, 1'000, 4).algorithm, 12.0) << operation;
    EXPECT_DOUBLE_EQ(bandwidth(operation, 12'000, 1'000, 4).bus, 9.0) << operation;
  }
  for (const char* operation : {"broadcast", "exchange"}) {
    EXPECT_DOUBLE_EQ(bandwidth(operation, 12'000, 1'000, 4).bus, 12.0) << operation;
  }
  EXPECT_EQ(bandwidth("barrier", 0, 0, 4).algorithm, 0.0);
}

TEST(Trace, PrefersWhatTheDeviceMeasured) {
  TraceEvent event = sample_rank(0).events[2];
  EXPECT_EQ(duration_ns(event), 70'000);
  EXPECT_EQ(event.exposed_ns(), 20'000);
  EXPECT_EQ(event.complete_ns(), 80'000);
  event.device_begin_ns = 15'000;
  event.device_end_ns = 40'000;
  EXPECT_EQ(duration_ns(event), 25'000);
  EXPECT_EQ(event.complete_ns(), 40'000);
}

}  // namespace
}  // namespace shardproof::test
