// The message of every disagreement that the rendezvous finds when it matches what was posted.
// On a cluster each would be a hang or silent corruption; the words are what a user gets instead.
#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/rendezvous/manual_ranks.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

constexpr ErrorKind kDisagreement = ErrorKind::collective_error;

// Posts `a` as rank 0 and `b` as rank 1 in a world of two.
std::optional<ThrownError> answer_to(ManualRanks& ranks, Request a, Request b) {
  const auto first = ranks.post(0, std::move(a));
  const auto second = ranks.post(1, std::move(b));
  return thrown_by([&] { ranks.settle(); });
}

TEST(RendezvousChecks, NameDifferentOperations) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.gather({1, 1}, 0), ranks.broadcast(0, 1, 1)),
            thrown(kDisagreement,
                   "world, call 1: different operations: rank 0 posted [all_gather 'test' int64 rows of [2], send 1, "
                   "receive [1, 1]], rank 1 posted [broadcast 'test' int64 rows of [2], receive 1, root 0]"));
}

TEST(RendezvousChecks, NameDifferentPurposes) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.request(Operation::barrier, "before"), ranks.request(Operation::barrier, "after")),
            thrown(kDisagreement,
                   "world, call 1: different purposes: rank 0 posted [barrier 'before'], rank 1 posted [barrier "
                   "'after']"));
}

TEST(RendezvousChecks, NameDifferentReductions) {
  ManualRanks ranks(2);
  Request summed = ranks.all_to_all({1, 1}, {1, 1});
  summed.reduction = Reduction::sum;
  EXPECT_EQ(answer_to(ranks, ranks.all_to_all({1, 1}, {1, 1}), std::move(summed)),
            thrown(kDisagreement,
                   "world, call 1: different reductions: rank 0 posted [all_to_all 'test' int64 rows of [2], send [1, "
                   "1], receive [1, 1]], rank 1 posted [all_to_all 'test' (sum) int64 rows of [2], send [1, 1], "
                   "receive [1, 1]]"));
}

TEST(RendezvousChecks, NameDifferentElementTypes) {
  ManualRanks ranks(2);
  Request other = ranks.request(Operation::broadcast);
  other.dtype = kFloat64;
  other.receive = ranks.device().empty({3, 2}, kFloat64);
  other.root = 0;
  EXPECT_EQ(answer_to(ranks, ranks.broadcast(0, 0, 3), std::move(other)),
            thrown(kDisagreement,
                   "world, call 1: different element types: rank 0 posted [broadcast 'test' int64 rows of [2], send 3, "
                   "receive 3, root 0], rank 1 posted [broadcast 'test' float64 rows of [2], receive 3, root 0]"));
}

TEST(RendezvousChecks, NameDifferentRowShapes) {
  ManualRanks ranks(2);
  Request other = ranks.request(Operation::broadcast);
  other.row_shape = {4};
  other.receive = ranks.device().empty({3, 4}, kInt64);
  other.root = 0;
  EXPECT_EQ(answer_to(ranks, ranks.broadcast(0, 0, 3), std::move(other)),
            thrown(kDisagreement,
                   "world, call 1: different row shapes: rank 0 posted [broadcast 'test' int64 rows of [2], send 3, "
                   "receive 3, root 0], rank 1 posted [broadcast 'test' int64 rows of [4], receive 3, root 0]"));
}

TEST(RendezvousChecks, NameDifferentRoots) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.broadcast(0, 0, 3), ranks.broadcast(1, 1, 3)),
            thrown(kDisagreement,
                   "world, call 1: different roots: rank 0 posted [broadcast 'test' int64 rows of [2], send 3, receive "
                   "3, root 0], rank 1 posted [broadcast 'test' int64 rows of [2], send 3, receive 3, root 1]"));
}

TEST(RendezvousChecks, NameDifferentGatherCounts) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.gather({2, 1}, 0), ranks.gather({2, 2}, 1)),
            thrown(kDisagreement,
                   "world, call 1: different row counts of the gather: rank 0 posted [all_gather 'test' int64 rows of "
                   "[2], send 2, receive [2, 1]], rank 1 posted [all_gather 'test' int64 rows of [2], send 2, receive "
                   "[2, 2]]"));
}

TEST(RendezvousChecks, NameDifferentBroadcastRows) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.broadcast(0, 0, 3), ranks.broadcast(0, 1, 2)),
            thrown(kDisagreement,
                   "world, call 1: different rows of the broadcast: rank 0 posted [broadcast 'test' int64 rows of [2], "
                   "send 3, receive 3, root 0], rank 1 posted [broadcast 'test' int64 rows of [2], receive 2, root "
                   "0]"));
}

TEST(RendezvousChecks, NameDifferentCountsOfNumbers) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.numbers({1}), ranks.numbers({1, 2})),
            thrown(kDisagreement,
                   "world, call 1: different counts of numbers: rank 0 posted [all_gather_numbers 'test', numbers "
                   "[1]], rank 1 posted [all_gather_numbers 'test', numbers [1, 2]]"));
}

TEST(RendezvousChecks, CompareWhatOneSendsWithWhatTheOtherExpects) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.all_to_all({1, 2}, {1, 1}), ranks.all_to_all({1, 1}, {3, 1})),
            thrown(kDisagreement,
                   "world, call 1: rank 0 sends 2 rows to rank 1, which expects 3: rank 0 posted [all_to_all 'test' "
                   "int64 rows of [2], send [1, 2], receive [1, 1]], rank 1 posted [all_to_all 'test' int64 rows of "
                   "[2], send [1, 1], receive [3, 1]]"));
}

TEST(RendezvousChecks, CompareAlsoTheLaterSenderWithTheEarlierReceiver) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.all_to_all({1, 2}, {1, 5}), ranks.all_to_all({1, 1}, {2, 1})),
            thrown(kDisagreement,
                   "world, call 1: rank 1 sends 1 rows to rank 0, which expects 5: rank 1 posted [all_to_all 'test' "
                   "int64 rows of [2], send [1, 1], receive [2, 1]], rank 0 posted [all_to_all 'test' int64 rows of "
                   "[2], send [1, 2], receive [1, 5]]"));
}

TEST(RendezvousChecks, CompareARankWithItself) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.all_to_all({1, 2}, {2, 1}), ranks.all_to_all({1, 1}, {2, 1})),
            thrown(kDisagreement,
                   "world, call 1: rank 0 sends 1 rows to rank 0, which expects 2: rank 0 posted [all_to_all 'test' "
                   "int64 rows of [2], send [1, 2], receive [2, 1]], rank 0 posted [all_to_all 'test' int64 rows of "
                   "[2], send [1, 2], receive [2, 1]]"));
}

TEST(RendezvousChecks, NameATargetThatListensElsewhere) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.exchange(1, -1, 2, 0), ranks.exchange(-1, -1, 0, 0)),
            thrown(kDisagreement,
                   "world, call 1: rank 0 sends to rank 1, which receives from nobody: rank 0 posted [exchange 'test' "
                   "int64 rows of [2], send 2, receive 0, to 1, from -1], rank 1 posted [exchange 'test' int64 rows of "
                   "[2], receive 0, to -1, from -1]"));
}

TEST(RendezvousChecks, NameASourceThatSendsElsewhere) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.exchange(-1, -1, 0, 0), ranks.exchange(-1, 0, 0, 2)),
            thrown(kDisagreement,
                   "world, call 1: rank 1 receives from rank 0, which sends to nobody: rank 0 posted [exchange 'test' "
                   "int64 rows of [2], receive 0, to -1, from -1], rank 1 posted [exchange 'test' int64 rows of [2], "
                   "receive 2, to -1, from 0]"));
}

TEST(RendezvousChecks, NameTwoRanksThatSendToOne) {
  ManualRanks ranks(3);
  const auto a = ranks.post(0, ranks.exchange(2, -1, 1, 0));
  const auto b = ranks.post(1, ranks.exchange(2, -1, 1, 0));
  EXPECT_EQ(thrown_by([&] { ranks.settle(); }),
            thrown(kDisagreement,
                   "world, call 1: rank 0 and rank 1 both send to rank 2: rank 0 posted [exchange 'test' int64 rows of "
                   "[2], send 1, receive 0, to 2, from -1], rank 1 posted [exchange 'test' int64 rows of [2], send 1, "
                   "receive 0, to 2, from -1]"));
}

TEST(RendezvousChecks, NameTwoRanksThatReceiveFromOne) {
  ManualRanks ranks(3);
  const auto a = ranks.post(0, ranks.exchange(-1, 2, 0, 1));
  const auto b = ranks.post(1, ranks.exchange(-1, 2, 0, 1));
  EXPECT_EQ(thrown_by([&] { ranks.settle(); }),
            thrown(kDisagreement,
                   "world, call 1: rank 0 and rank 1 both receive from rank 2: rank 0 posted [exchange 'test' int64 "
                   "rows of [2], receive 1, to -1, from 2], rank 1 posted [exchange 'test' int64 rows of [2], receive "
                   "1, to -1, from 2]"));
}

// Whoever of the two arrives first, in whichever round.
TEST(RendezvousChecks, NameAPeerThatSaysOtherwiseInAnyOrderOfArrival) {
  for (const bool target_first : {false, true}) {
    ManualRanks ranks(3);
    std::vector<std::unique_ptr<RendezvousWork>> works;
    const auto post_sender = [&] { works.push_back(ranks.post(0, ranks.exchange(1, -1, 2, 0))); };
    const auto post_target = [&] { works.push_back(ranks.post(1, ranks.exchange(-1, 2, 0, 2))); };
    target_first ? post_target() : post_sender();
    ranks.settle();
    target_first ? post_sender() : post_target();
    const auto answer = thrown_by([&] { ranks.settle(); });
    ASSERT_TRUE(answer.has_value());
    EXPECT_THAT(
        answer->message,
        testing::StartsWith("world, call 1: rank 0 sends to rank 1, which receives from rank 2: rank 0 posted"));
  }
}

TEST(RendezvousChecks, NameASourceThatSaysOtherwiseInAnyOrderOfArrival) {
  for (const bool source_first : {false, true}) {
    ManualRanks ranks(3);
    std::vector<std::unique_ptr<RendezvousWork>> works;
    const auto post_source = [&] { works.push_back(ranks.post(0, ranks.exchange(2, -1, 2, 0))); };
    const auto post_receiver = [&] { works.push_back(ranks.post(1, ranks.exchange(-1, 0, 0, 2))); };
    source_first ? post_source() : post_receiver();
    ranks.settle();
    source_first ? post_receiver() : post_source();
    const auto answer = thrown_by([&] { ranks.settle(); });
    ASSERT_TRUE(answer.has_value());
    EXPECT_THAT(
        answer->message,
        testing::StartsWith("world, call 1: rank 1 receives from rank 0, which sends to rank 2: rank 0 posted"));
  }
}

TEST(RendezvousChecks, NameDifferentRowsOfAnExchange) {
  ManualRanks ranks(2);
  EXPECT_EQ(answer_to(ranks, ranks.exchange(1, -1, 2, 0), ranks.exchange(-1, 0, 0, 3)),
            thrown(kDisagreement,
                   "world, call 1: rank 0 sends 2 rows to rank 1, which expects 3: rank 0 posted [exchange 'test' "
                   "int64 rows of [2], send 2, receive 0, to 1, from -1], rank 1 posted [exchange 'test' int64 rows of "
                   "[2], receive 3, to -1, from 0]"));
}

TEST(RendezvousChecks, NameDifferentRowsOfAScatter) {
  for (const int root : {0, 1}) {
    ManualRanks ranks(2);
    const bool first = root == 0;
    const auto answer =
        answer_to(ranks, ranks.scatter(root, first ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{}, 1),
                  ranks.scatter(root, first ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{2, 4}, 4));
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->kind, kDisagreement);
    EXPECT_THAT(answer->message,
                testing::StartsWith(first ? "world, call 1: rank 0 sends 2 rows to rank 1, which expects 4: rank 0 "
                                            "posted [scatter 'test' int64 rows of [2], send [1, 2], receive 1, root 0]"
                                          : "world, call 1: rank 1 sends 2 rows to rank 0, which expects 1: rank 1 "
                                            "posted [scatter 'test' int64 rows of [2], send [2, 4], receive 4, root "
                                            "1]"));
  }
}

TEST(RendezvousChecks, AnswerBeforeAllMembersHaveArrived) {
  ManualRanks ranks(3);
  EXPECT_EQ(answer_to(ranks, ranks.request(Operation::barrier, "one"), ranks.request(Operation::barrier, "two")),
            thrown(kDisagreement,
                   "world, call 1: different purposes: rank 0 posted [barrier 'one'], rank 1 posted [barrier 'two']"));
}

TEST(RendezvousChecks, CountTheCallsOfTheGroup) {
  ManualRanks ranks(2);
  const auto a = ranks.post(0, ranks.request(Operation::barrier));
  const auto b = ranks.post(0, ranks.numbers({1}));
  const auto c = ranks.post(1, ranks.request(Operation::barrier));
  const auto d = ranks.post(1, ranks.numbers({1, 2}));
  const auto answer = thrown_by([&] { ranks.settle(); });
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->message, testing::StartsWith("world, call 2: different counts of numbers"));
}

TEST(RendezvousChecks, NameTheGroupAndItsMembers) {
  ManualRanks ranks(4);
  std::vector<std::unique_ptr<RendezvousWork>> splits;
  for (int rank = 0; rank < 4; ++rank) splits.push_back(ranks.post_split(rank, rank % 2, -rank, "world/ring"));
  ranks.carrier().woken.clear();
  for (int rank = 0; rank < 4; ++rank) ranks.start_waiting(rank, *splits[static_cast<std::size_t>(rank)]);
  ranks.settle();
  const RendezvousGroup& odd = *splits[1]->new_group();
  EXPECT_THAT(odd.members, testing::ElementsAre(3, 1));
  const auto a = ranks.post(odd, 0, ranks.exchange(1, 1, 2, 1));
  const auto b = ranks.post(odd, 1, ranks.exchange(0, -1, 1, 0));
  const auto answer = thrown_by([&] { ranks.settle(); });
  ASSERT_TRUE(answer.has_value());
  // Member 0 of the group is rank 3; messages count world ranks.
  EXPECT_THAT(answer->message,
              testing::StartsWith("world/ring {3, 1}, call 1: rank 3 sends to rank 1, which receives from nobody: "));
}

TEST(RendezvousChecks, NameDifferentNamesOfANewGroup) {
  ManualRanks ranks(2);
  const auto a = ranks.post_split(0, 4, 0, "world/ring");
  const auto b = ranks.post_split(1, 4, 0, "world/ulysses");
  EXPECT_EQ(thrown_by([&] { ranks.settle(); }),
            thrown(kDisagreement,
                   "world, call 1: different names for the new group of colour 4: rank 0 calls it 'world/ring', rank 1 "
                   "'world/ulysses'"));
}

TEST(RendezvousChecks, CutLongRequestsAndMemberLists) {
  ManualRanks ranks(300);
  std::vector<std::unique_ptr<RendezvousWork>> works;
  for (int rank = 0; rank < 300; ++rank) works.push_back(ranks.post_split(rank, 0, 0, "world/all"));
  for (int rank = 0; rank < 300; ++rank) ranks.start_waiting(rank, *works[static_cast<std::size_t>(rank)]);
  ranks.settle();
  const RendezvousGroup& group = *works[0]->new_group();
  const auto a = ranks.post(group, 0, ranks.gather(std::vector<std::int64_t>(300, 1), 0));
  const auto b = ranks.post(group, 1, ranks.request(Operation::barrier));
  const auto answer = thrown_by([&] { ranks.settle(); });
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->message,
              testing::StartsWith("world/all {0, 1, 2, 3, 4, 5, 6, 7, ..}, call 1: different operations"));
  EXPECT_THAT(answer->message, testing::HasSubstr(", 1, 1 ..], rank 1 posted [barrier 'test']"));
  EXPECT_LT(answer->message.size(), 800U);
}

TEST(RendezvousChecks, RefuseBuffersThatOverlap) {
  ManualRanks ranks(2);
  const Tensor both = ranks.rows(4);
  Request request = ranks.request(Operation::exchange);
  request.send = both.narrow(0, 0, 2);
  request.receive = both.narrow(0, 1, 2);
  request.to = request.from = 1;
  EXPECT_EQ(thrown_by([&] { static_cast<void>(ranks.post(0, std::move(request))); }),
            thrown(kDisagreement,
                   "world, call 1: the send and the receive tensor overlap: exchange 'test' int64 rows of [2], send 2, "
                   "receive 2, to 1, from 1"));
}

TEST(RendezvousChecks, RefuseARootThatReceivesOtherRowsThanItSends) {
  ManualRanks ranks(2);
  Request request = ranks.broadcast(0, 0, 3);
  request.send = ranks.rows(2);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(ranks.post(0, std::move(request))); }),
            thrown(kDisagreement,
                   "world, call 1: the root sends 2 rows but receives 3: broadcast 'test' int64 rows of [2], send 2, "
                   "receive 3, root 0"));
}

TEST(RendezvousChecks, RefuseRowsFromNobody) {
  ManualRanks ranks(2);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(ranks.post(0, ranks.exchange(1, -1, 2, 3))); }),
            thrown(kDisagreement,
                   "world, call 1: expects 3 rows from nobody: exchange 'test' int64 rows of [2], send 2, receive 3, "
                   "to 1, from -1"));
}

}  // namespace
}  // namespace shardproof::test
