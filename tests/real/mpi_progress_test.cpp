// Who is late, told from the counts that ranks keep in shared memory. Here the memory is the test's own, so that any
// standing of the ranks can be made.
#include "real/mpi_progress.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

namespace shardproof {
namespace {

using Row = std::array<ProgressSlot, ProgressTable::kSlots>;

constexpr std::uint64_t kWorld = 1, kPair = 77;

// Rows of four ranks, of which the last is on another machine.
struct Machine {
  std::array<Row, 3> rows{};
  ProgressTable table_of(int rank) { return {{rows[0].data(), rows[1].data(), rows[2].data(), nullptr}, rank}; }
};

TEST(MpiProgress, NamesTheRanksThatHavePostedLess) {
  Machine machine;
  ProgressTable first = machine.table_of(0), second = machine.table_of(1), third = machine.table_of(2);
  const std::vector<int> members{0, 1, 2};
  const std::size_t slot = first.enter(kWorld).value();
  first.note_posted(slot, 5);
  EXPECT_EQ(lateness_text(first, members, 0, kWorld, 5), "late: ranks 1, 2");  // they have not even made the group
  second.note_posted(second.enter(kWorld).value(), 4);
  third.note_posted(third.enter(kWorld).value(), 6);
  EXPECT_EQ(lateness_text(first, members, 0, kWorld, 5), "late: rank 1");
  EXPECT_EQ(lateness_text(first, members, 0, kWorld, 4), "every member has posted it, but it does not end");
}

TEST(MpiProgress, SaysOfWhomNothingIsKnown) {
  Machine machine;
  ProgressTable first = machine.table_of(0);
  EXPECT_EQ(lateness_text(first, std::vector<int>{0, 3}, 0, kWorld, 1), "nothing is known of rank 3 on other machines");
  EXPECT_EQ(lateness_text(first, std::vector<int>{0, 2, 3}, 0, kWorld, 1),
            "late: rank 2; nothing is known of rank 3 on other machines");
}

TEST(MpiProgress, KeepsGroupsApartAndForgetsThemWhenTheyEnd) {
  Machine machine;
  ProgressTable first = machine.table_of(0), second = machine.table_of(1);
  second.note_posted(second.enter(kWorld).value(), 9);
  const std::size_t pair = second.enter(kPair).value();
  second.note_posted(pair, 2);
  EXPECT_EQ(first.standing(1, kPair, 2), ProgressTable::Standing::has_posted);
  EXPECT_EQ(first.standing(1, kPair, 3), ProgressTable::Standing::is_late);
  second.leave(pair);
  EXPECT_EQ(first.standing(1, kPair, 1), ProgressTable::Standing::is_late);
  EXPECT_EQ(second.enter(kPair + 1), pair);
  EXPECT_EQ(first.standing(1, kPair + 1, 1), ProgressTable::Standing::is_late);  // starts at zero
}

TEST(MpiProgress, FollowsOnlySoManyGroups) {
  Machine machine;
  ProgressTable table = machine.table_of(0);
  for (std::size_t i = 0; i < ProgressTable::kSlots; ++i) EXPECT_EQ(table.enter(i + 1), i);
  EXPECT_EQ(table.enter(kPair * 1000), std::nullopt);
}

TEST(MpiProgress, CutsALongList) {
  std::vector<ProgressSlot*> rows(40, nullptr);
  Row own{};
  rows[0] = own.data();
  const ProgressTable table(rows, 0);
  std::vector<int> members(40);
  std::iota(members.begin(), members.end(), 0);
  EXPECT_EQ(lateness_text(table, members, 0, kWorld, 1),
            "nothing is known of ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 23 more on other "
            "machines");
}

}  // namespace
}  // namespace shardproof
