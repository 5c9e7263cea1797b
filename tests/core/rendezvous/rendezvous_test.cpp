// Matching, delivery, order, memory in flight, statistics and the ends of ranks, played rank by rank; and the same
// rendezvous carried by host threads, which shows that it knows nothing of fibers.
#include "core/rendezvous.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/rendezvous/manual_ranks.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::Each;
using testing::ElementsAre;

std::vector<std::int64_t> values_of(const Tensor& tensor) {
  return {tensor.data_as<std::int64_t>(), tensor.data_as<std::int64_t>() + tensor.numel()};
}

TEST(Rendezvous, PoisonsWhatIsReceivedUntilItArrives) {
  ManualRanks ranks(2);
  Request receiving = ranks.exchange(-1, 0, 0, 2);
  const Tensor buffer = receiving.receive;
  ASSERT_THAT(values_of(buffer), Each(7));
  const auto receive = ranks.post(1, std::move(receiving));
  EXPECT_THAT(values_of(buffer), Each(-1)) << "all bytes 0xFF";
  const auto send = ranks.post(0, ranks.exchange(1, -1, 2, 0));
  EXPECT_THAT(values_of(buffer), Each(-1)) << "nothing moves before the round is settled";
  ranks.start_waiting(1, *receive);
  ranks.settle();
  EXPECT_THAT(values_of(buffer), Each(7));
}

TEST(Rendezvous, WakesOnlyRanksWhoseOperationIsComplete) {
  ManualRanks ranks(3);
  std::vector<std::unique_ptr<RendezvousWork>> splits;
  for (int rank = 0; rank < 3; ++rank) splits.push_back(ranks.post_split(rank, rank, 0, "world/alone"));
  for (int rank = 0; rank < 3; ++rank) ranks.start_waiting(rank, *splits[static_cast<std::size_t>(rank)]);
  ranks.settle();
  EXPECT_THAT(ranks.carrier().woken, testing::UnorderedElementsAre(0, 1, 2));
  ranks.carrier().woken.clear();

  const auto a = ranks.post(0, ranks.request(Operation::barrier));
  const auto b = ranks.post(*splits[1]->new_group(), 0, ranks.request(Operation::barrier));
  const auto c = ranks.post(2, ranks.request(Operation::barrier));
  ranks.start_waiting(0, *a);
  ranks.start_waiting(1, *b);
  ranks.start_waiting(2, *c);
  ranks.settle();
  EXPECT_THAT(ranks.carrier().woken, ElementsAre(1));

  ranks.wait(1, *b);
  const auto d = ranks.post(1, ranks.request(Operation::barrier));
  ranks.start_waiting(1, *d);
  ranks.carrier().woken.clear();
  ranks.settle();
  EXPECT_THAT(ranks.carrier().woken, testing::UnorderedElementsAre(0, 1, 2));
}

TEST(Rendezvous, WakesARankForWhatItWaitsForAlone) {
  ManualRanks ranks(2);
  const auto first = ranks.post(0, ranks.request(Operation::barrier));
  const auto second = ranks.post(0, ranks.request(Operation::barrier));
  const auto other = ranks.post(1, ranks.request(Operation::barrier));
  ranks.start_waiting(0, *second);
  ranks.start_waiting(1, *other);
  ranks.settle();
  EXPECT_THAT(ranks.carrier().woken, ElementsAre(1)) << "rank 0's first barrier is complete, but it waits for another";
}

TEST(Rendezvous, NoticesDataChangedBeforeItsDelivery) {
  ManualRanks ranks(2);
  Request sending = ranks.exchange(1, -1, 3, 0);
  const Tensor data = sending.send;
  const auto send = ranks.post(0, std::move(sending));
  const auto receive = ranks.post(1, ranks.exchange(-1, 0, 0, 3));
  data.data_as<std::int64_t>()[5] = 8;
  EXPECT_EQ(thrown_by([&] { ranks.settle(); }),
            thrown(ErrorKind::state_error,
                   "world, call 1: rank 0 changed int64 [3, 2] while it was being sent: exchange 'test' int64 rows of "
                   "[2], send 3, receive 0, to 1, from -1"));
}

TEST(Rendezvous, NoticesDataChangedBetweenDeliveryAndWait) {
  ManualRanks ranks(2);
  Request sending = ranks.exchange(1, -1, 3, 0);
  const Tensor data = sending.send;
  const auto send = ranks.post(0, std::move(sending));
  const auto receive = ranks.post(1, ranks.exchange(-1, 0, 0, 3));
  ranks.start_waiting(1, *receive);
  ranks.settle();
  data.data_as<std::int64_t>()[0] = 8;
  EXPECT_EQ(thrown_by([&] { ranks.wait(0, *send); }),
            thrown(ErrorKind::state_error,
                   "world, call 1: rank 0 changed int64 [3, 2] while it was being sent: exchange 'test' int64 rows of "
                   "[2], send 3, receive 0, to 1, from -1"));
}

TEST(Rendezvous, NoticesAChangeOfAnyByteOfWhatIsSent) {
  for (const std::size_t bytes : {1U, 7U, 8U, 31U, 32U, 45U, 64U, 77U}) {
    for (std::size_t changed = 0; changed < bytes; ++changed) {
      ManualRanks ranks(2);
      Request sending = ranks.request(Operation::exchange);
      sending.dtype = kBool;
      sending.row_shape = {};
      const std::vector<std::byte> zeros(bytes);
      sending.send = ranks.device().upload(zeros, {static_cast<std::int64_t>(bytes)}, kBool);
      sending.to = 1;
      Request receiving = ranks.request(Operation::exchange);
      receiving.dtype = kBool;
      receiving.row_shape = {};
      receiving.receive = ranks.device().empty({static_cast<std::int64_t>(bytes)}, kBool);
      receiving.from = 0;
      const Tensor data = sending.send;
      const auto send = ranks.post(0, std::move(sending));
      const auto receive = ranks.post(1, std::move(receiving));
      data.data()[changed] = std::byte{1};
      const auto answer = thrown_by([&] { ranks.settle(); });
      ASSERT_TRUE(answer.has_value()) << "byte " << changed << " of " << bytes;
      EXPECT_EQ(answer->kind, ErrorKind::state_error);
    }
  }
}

TEST(Rendezvous, CountsCallsAndWhatOthersReceive) {
  ManualRanks ranks(3);
  constexpr std::int64_t kRowBytes = 16;
  std::vector<std::unique_ptr<RendezvousWork>> works;
  for (int rank = 0; rank < 3; ++rank) {
    works.push_back(ranks.post(rank, ranks.gather({1, 0, 4}, rank)));
    works.push_back(ranks.post(rank, ranks.broadcast(1, rank, 5)));
    works.push_back(ranks.post(
        rank,
        ranks.scatter(2, rank == 2 ? std::vector<std::int64_t>{1, 2, 3} : std::vector<std::int64_t>{}, rank + 1)));
    works.push_back(ranks.post(rank, ranks.all_to_all({1, 1, 1}, {1, 1, 1})));
    works.push_back(ranks.post(rank, ranks.exchange(rank == 0 ? 0 : -1, rank == 0 ? 0 : -1, 6, rank == 0 ? 6 : 0)));
    works.push_back(ranks.post(rank, ranks.exchange(rank == 1 ? 2 : -1, rank == 2 ? 1 : -1, 7, rank == 2 ? 7 : 0)));
    works.push_back(ranks.post(rank, ranks.request(Operation::barrier)));
    works.push_back(ranks.post(rank, ranks.numbers({1})));
  }
  ranks.start_waiting(0, *works[7]);
  ranks.settle();
  const Rendezvous& rendezvous = ranks.rendezvous();
  // gather 1, 0, 4 rows to two others; broadcast 5 rows of rank 1 to two; scatter 1 + 2 rows of rank 2 to others;
  // all_to_all 2 rows to others; an exchange with oneself counts nothing; 7 rows from rank 1 to rank 2.
  EXPECT_EQ(rendezvous.statistics(0).bytes_sent, (2 + 0 + 0 + 2) * kRowBytes);
  EXPECT_EQ(rendezvous.statistics(1).bytes_sent, (0 + 10 + 0 + 2 + 7) * kRowBytes);
  EXPECT_EQ(rendezvous.statistics(2).bytes_sent, (8 + 0 + 3 + 2) * kRowBytes);
  for (int rank = 0; rank < 3; ++rank) {
    const RankStatistics& statistics = rendezvous.statistics(rank);
    EXPECT_EQ(statistics.data_calls(), 6);
    EXPECT_EQ(statistics.calls_of(Operation::exchange), 2);
    EXPECT_EQ(statistics.calls_of(Operation::all_gather), 1);
    EXPECT_EQ(statistics.calls_of(Operation::barrier), 1);
    EXPECT_EQ(statistics.calls_of(Operation::all_gather_numbers), 1);
    EXPECT_EQ(statistics.calls_of(Operation::split), 0);
  }
}

// Groups {0, 1} and {0, 1} again, made by two splits of a world of two.
struct TwoGroups {
  const RendezvousGroup* ring = nullptr;
  const RendezvousGroup* ulysses = nullptr;
};

TwoGroups two_groups(ManualRanks& ranks) {
  const std::array<std::string, 2> names{"world/ring", "world/ulysses"};
  TwoGroups groups;
  for (const std::string& name : names) {
    std::vector<std::unique_ptr<RendezvousWork>> works;
    for (int rank = 0; rank < 2; ++rank) works.push_back(ranks.post_split(rank, 0, 0, name));
    for (int rank = 0; rank < 2; ++rank) ranks.start_waiting(rank, *works[static_cast<std::size_t>(rank)]);
    ranks.settle();
    for (int rank = 0; rank < 2; ++rank) ranks.wait(rank, *works[static_cast<std::size_t>(rank)]);
    (name == names[0] ? groups.ring : groups.ulysses) = works[0]->new_group();
  }
  ranks.carrier().woken.clear();
  return groups;
}

TEST(Rendezvous, CallsAnInversionOfTwoGroupsADeadlockInStrictOrder) {
  ManualRanks ranks(2);
  const TwoGroups groups = two_groups(ranks);
  const Request barrier = ranks.request(Operation::barrier);
  const auto a = ranks.post(*groups.ring, 0, barrier);
  const auto b = ranks.post(*groups.ulysses, 0, barrier);
  const auto c = ranks.post(*groups.ulysses, 1, barrier);
  const auto d = ranks.post(*groups.ring, 1, barrier);
  ranks.start_waiting(0, *b);
  ranks.start_waiting(1, *c);
  EXPECT_EQ(
      thrown_by([&] { ranks.settle(); }),
      thrown(
          ErrorKind::deadlock_error,
          "deadlock: 2 ranks wait and none can run\n"
          "  rank 0 waits in world/ulysses {0, 1}, call 1: barrier 'test'; before it comes world/ring {0, 1}, call 1: "
          "barrier 'test'; rank 1 has it queued behind world/ulysses {0, 1}, call 1: barrier 'test'\n"
          "  rank 1 waits in world/ulysses {0, 1}, call 1: barrier 'test'; rank 0 has it queued behind world/ring "
          "{0, 1}, call 1: barrier 'test'\n"
          "  cycle: rank 0 waits in world/ring for rank 1, which waits in world/ulysses for rank 0"));
}

TEST(Rendezvous, AllowsAnInversionOfTwoGroupsInRelaxedOrder) {
  ManualRanks ranks(2, false);
  const TwoGroups groups = two_groups(ranks);
  const Request barrier = ranks.request(Operation::barrier);
  const auto a = ranks.post(*groups.ring, 0, barrier);
  const auto b = ranks.post(*groups.ulysses, 0, barrier);
  const auto c = ranks.post(*groups.ulysses, 1, barrier);
  const auto d = ranks.post(*groups.ring, 1, barrier);
  ranks.start_waiting(0, *b);
  ranks.start_waiting(1, *c);
  ranks.settle();
  EXPECT_THAT(ranks.carrier().woken, testing::UnorderedElementsAre(0, 1));
  ranks.wait(0, *a);
  ranks.wait(1, *d);
}

TEST(Rendezvous, KeepsTheOrderWithinAGroupInRelaxedOrder) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    ManualRanks ranks({.world_size = 2, .seed = seed, .strict_order = false, .record_deliveries = true});
    std::vector<std::unique_ptr<RendezvousWork>> works;
    for (int rank = 0; rank < 2; ++rank) {
      for (int call = 0; call < 3; ++call) works.push_back(ranks.post(rank, ranks.numbers({call})));
    }
    ranks.start_waiting(0, *works[2]);
    ranks.settle();
    std::vector<std::int64_t> calls;
    for (const DeliveryRecord& record : ranks.rendezvous().take_deliveries()) calls.push_back(record.call);
    EXPECT_THAT(calls, ElementsAre(1, 2, 3));
    ranks.wait(1, *works[4]);
    EXPECT_THAT(works[4]->numbers(), ElementsAre(1, 1));
  }
}

TEST(Rendezvous, NamesTheCycleOfADeadlockInRelaxedOrder) {
  ManualRanks ranks(2, false);
  const TwoGroups groups = two_groups(ranks);
  const Request barrier = ranks.request(Operation::barrier);
  const auto a = ranks.post(*groups.ring, 0, barrier);
  const auto b = ranks.post(*groups.ulysses, 1, barrier);
  ranks.start_waiting(0, *a);
  ranks.start_waiting(1, *b);
  EXPECT_EQ(thrown_by([&] { ranks.settle(); }),
            thrown(ErrorKind::deadlock_error,
                   "deadlock: 2 ranks wait and none can run\n"
                   "  rank 0 waits in world/ring {0, 1}, call 1: barrier 'test'; missing: rank 1\n"
                   "  rank 1 waits in world/ulysses {0, 1}, call 1: barrier 'test'; missing: rank 0\n"
                   "  cycle: rank 0 waits in world/ring for rank 1, which waits in world/ulysses for rank 0"));
}

TEST(Rendezvous, NamesAWaitInRelaxedOrderForWhoeverHasNotCalled) {
  ManualRanks ranks(3, false);
  const auto a = ranks.post(0, ranks.request(Operation::barrier));
  const auto b = ranks.post(1, ranks.request(Operation::barrier));
  ranks.start_waiting(0, *a);
  ranks.start_waiting(1, *b);
  ranks.finish(2);
  EXPECT_EQ(
      thrown_by([&] { ranks.settle(); }),
      thrown(ErrorKind::collective_error, "rank 2 returned, but rank 0 waits for it in world, call 1: barrier 'test'"));
}

TEST(Rendezvous, NamesARankThatReturnedBeforeOthersCalled) {
  ManualRanks ranks(2);
  const auto a = ranks.post(0, ranks.request(Operation::barrier));
  const auto b = ranks.post(1, ranks.request(Operation::barrier));
  ranks.start_waiting(0, *a);
  ranks.start_waiting(1, *b);
  ranks.settle();
  ranks.wait(0, *a);
  ranks.wait(1, *b);
  ranks.finish(1);
  ranks.settle();
  // Rank 0 had work of its own and calls rounds later.
  const auto c = ranks.post(0, ranks.numbers({5}));
  ranks.start_waiting(0, *c);
  EXPECT_EQ(thrown_by([&] { ranks.settle(); }),
            thrown(ErrorKind::collective_error,
                   "rank 1 returned, but rank 0 waits for it in world, call 2: all_gather_numbers 'test', numbers "
                   "[5]"));
}

TEST(Rendezvous, SaysWhatARankNeverWaitedFor) {
  ManualRanks ranks(1);
  {
    const auto dropped = ranks.post(0, ranks.numbers({5}));
  }
  EXPECT_EQ(thrown_by([&] { ranks.finish(0); }),
            thrown(ErrorKind::state_error,
                   "world, call 1: all_gather_numbers 'test', numbers [5] was posted but never waited for"));
}

TEST(Rendezvous, CountsWhatElseARankNeverWaitedFor) {
  ManualRanks ranks(1);
  const auto kept = ranks.post(0, ranks.request(Operation::barrier));
  {
    const auto dropped = ranks.post(0, ranks.numbers({5}));
  }
  EXPECT_EQ(thrown_by([&] { ranks.finish(0); }),
            thrown(ErrorKind::state_error,
                   "world, call 1: barrier 'test' was posted but never waited for (1 more posted operations too)"));
}

TEST(Rendezvous, RefusesASecondWait) {
  ManualRanks ranks(1);
  const auto work = ranks.post(0, ranks.request(Operation::barrier));
  ranks.start_waiting(0, *work);
  ranks.settle();
  ranks.wait(0, *work);
  EXPECT_EQ(thrown_by([&] { ranks.wait(0, *work); }),
            thrown(ErrorKind::state_error, "waited twice for barrier 'test'"));
}

TEST(Rendezvous, RefusesACallThroughTheCommunicatorOfAnotherRank) {
  ManualRanks ranks(2);
  ranks.carrier().caller = 1;
  EXPECT_EQ(
      thrown_by([&] {
        static_cast<void>(ranks.rendezvous().post(ranks.rendezvous().world(), 0, ranks.request(Operation::barrier)));
      }),
      thrown(ErrorKind::collective_error,
             "barrier of rank 0 in world by rank 1: each rank must use its own communicator"));
}

TEST(Rendezvous, RefusesACallByANonMember) {
  ManualRanks ranks(2);
  std::vector<std::unique_ptr<RendezvousWork>> works;
  for (int rank = 0; rank < 2; ++rank) works.push_back(ranks.post_split(rank, rank, 0, "world/alone"));
  ranks.start_waiting(0, *works[0]);
  ranks.settle();
  ranks.carrier().caller = 1;
  EXPECT_EQ(thrown_by([&] {
              static_cast<void>(ranks.rendezvous().post(*works[0]->new_group(), 0, ranks.request(Operation::barrier)));
            }),
            thrown(ErrorKind::collective_error,
                   "barrier of rank 0 in world/alone {0} by rank 1, which is not a member: each rank must use its own "
                   "communicator"));
}

TEST(Rendezvous, RefusesACallByCodeOfNoRank) {
  ManualRanks ranks(2);
  ranks.carrier().caller = -1;
  EXPECT_EQ(
      thrown_by([&] {
        static_cast<void>(ranks.rendezvous().post(ranks.rendezvous().world(), 0, ranks.request(Operation::barrier)));
      }),
      thrown(ErrorKind::collective_error,
             "barrier of rank 0 in world by code of no rank: each rank must use its own communicator"));
}

TEST(Rendezvous, RefusesAWaitByAnotherRank) {
  ManualRanks ranks(2);
  const auto work = ranks.post(0, ranks.request(Operation::barrier));
  EXPECT_EQ(thrown_by([&] { ranks.wait(1, *work); }),
            thrown(ErrorKind::collective_error,
                   "wait of rank 0 in world by rank 1: each rank must use its own communicator"));
}

TEST(Rendezvous, AnswersCallsAfterTheRun) {
  ManualRanks ranks(1);
  const auto work = ranks.post(0, ranks.request(Operation::barrier));
  ranks.rendezvous().close();
  EXPECT_EQ(thrown_by([&] { static_cast<void>(ranks.post(0, ranks.request(Operation::barrier))); }),
            thrown(ErrorKind::state_error, "barrier of rank 0 in world after the run has ended"));
  EXPECT_EQ(thrown_by([&] { ranks.wait(0, *work); }),
            thrown(ErrorKind::state_error, "wait for barrier 'test' after the run has ended"));
}

TEST(Rendezvous, ListsTheFirstBlockedRanksOfMany) {
  constexpr int kRanks = 40;
  ManualRanks ranks(kRanks);
  std::vector<std::unique_ptr<RendezvousWork>> works;
  for (int rank = 0; rank < kRanks; ++rank) works.push_back(ranks.post_split(rank, rank / 20, 0, "world/half"));
  for (int rank = 0; rank < kRanks; ++rank) ranks.start_waiting(rank, *works[static_cast<std::size_t>(rank)]);
  ranks.settle();
  for (int rank = 0; rank < kRanks; ++rank) ranks.wait(rank, *works[static_cast<std::size_t>(rank)]);
  // Rank 39 waits in its half for the others, which wait in the world for it.
  const RendezvousGroup& half = *works[39]->new_group();
  std::vector<std::unique_ptr<RendezvousWork>> barriers;
  for (int rank = 0; rank < kRanks - 1; ++rank) barriers.push_back(ranks.post(rank, ranks.request(Operation::barrier)));
  barriers.push_back(ranks.post(half, 19, ranks.request(Operation::barrier)));
  for (int rank = 0; rank < kRanks; ++rank) ranks.start_waiting(rank, *barriers[static_cast<std::size_t>(rank)]);
  const auto answer = thrown_by([&] { ranks.settle(); });
  ASSERT_TRUE(answer.has_value());
  std::string expected = "deadlock: 40 ranks wait and none can run\n";
  for (int rank = 0; rank < 8; ++rank) {
    expected += "  rank " + std::to_string(rank) + " waits in world, call 2: barrier 'test'; missing: rank 39\n";
  }
  expected +=
      "  and 32 more ranks\n"
      "  cycle: rank 39 waits in world/half for rank 20, which waits in world for rank 39";
  EXPECT_EQ(answer->message, expected);
  EXPECT_EQ(answer->kind, ErrorKind::deadlock_error);
}

TEST(Rendezvous, DrawsTheOrderOfDeliveryFromTheSeedAlone) {
  const auto order_for = [](std::uint64_t seed) {
    ManualRanks ranks({.world_size = 8, .seed = seed, .record_deliveries = true});
    std::vector<std::unique_ptr<RendezvousWork>> works;
    for (int rank = 0; rank < 8; ++rank) works.push_back(ranks.post(rank, ranks.request(Operation::barrier)));
    ranks.start_waiting(0, *works[0]);
    ranks.settle();
    return ranks.rendezvous().take_deliveries().at(0).order;
  };
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int> order = order_for(seed);
    EXPECT_EQ(order, order_for(seed));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  }
  EXPECT_GT(orders.size(), 15U);
}

TEST(Rendezvous, DrawsTheOrderOfReadyGroupsFromTheSeed) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    ManualRanks ranks({.world_size = 4, .seed = seed, .record_deliveries = true});
    std::vector<std::unique_ptr<RendezvousWork>> works;
    for (int rank = 0; rank < 4; ++rank) works.push_back(ranks.post_split(rank, rank, 0, "world/alone"));
    for (int rank = 0; rank < 4; ++rank) ranks.start_waiting(rank, *works[static_cast<std::size_t>(rank)]);
    ranks.settle();
    std::vector<std::unique_ptr<RendezvousWork>> barriers;
    for (const auto& work : works) {
      barriers.push_back(ranks.post(*work->new_group(), 0, ranks.request(Operation::barrier)));
    }
    ranks.settle();
    std::vector<int> order;
    for (const DeliveryRecord& record : ranks.rendezvous().take_deliveries()) order.push_back(record.group);
    ASSERT_EQ(order.size(), 5U);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 8U) << "of 24 possible ones";
}

// Ranks as host threads: the last one to block or to end settles for all.
class ThreadCarrier final : public Carrier {
 public:
  void block(int rank) override {
    std::unique_lock lock(mutex_);
    awake_.erase(rank);
    settle_if_all_wait();
    changed_.wait(lock, [&] { return awake_.contains(rank) || failure_; });
    if (failure_) std::rethrow_exception(failure_);
  }
  void wake(int rank) override { awake_.insert(rank); }
  int calling_rank() const override { return current_rank; }

  // Runs `body` on one thread a rank.
  void run(Rendezvous& rendezvous, int world_size, const std::function<void(int rank)>& body) {
    rendezvous_ = &rendezvous;
    for (int rank = 0; rank < world_size; ++rank) awake_.insert(rank);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([this, rank, &body] {
        current_rank = rank;
        try {
          body(rank);
        } catch (const Error&) {
          return;  // the failure is known already
        }
        const std::lock_guard lock(mutex_);
        rendezvous_->finish(rank);
        awake_.erase(rank);
        settle_if_all_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void settle_if_all_wait() {
    if (!awake_.empty() || failure_) return;
    try {
      rendezvous_->settle();
    } catch (...) {
      failure_ = std::current_exception();
    }
    changed_.notify_all();
  }

  static thread_local int current_rank;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> awake_;
  std::exception_ptr failure_;
  Rendezvous* rendezvous_ = nullptr;
};

thread_local int ThreadCarrier::current_rank = -1;

TEST(Rendezvous, CarriesRanksOnHostThreads) {
  constexpr int kRanks = 4;
  RendezvousOptions options;
  options.world_size = kRanks;
  ThreadCarrier carrier;
  Rendezvous rendezvous(options, carrier);
  std::array<std::vector<std::int64_t>, kRanks> results;
  carrier.run(rendezvous, kRanks, [&](int rank) {
    for (int round = 0; round < 100; ++round) {
      Request request;
      request.operation = Operation::all_gather_numbers;
      request.numbers = {rank * 1000 + round};
      const auto work = rendezvous.post(rendezvous.world(), rank, std::move(request));
      work->wait();
      results[static_cast<std::size_t>(rank)] = {work->numbers().begin(), work->numbers().end()};
    }
  });
  EXPECT_THAT(results, Each(ElementsAre(99, 1099, 2099, 3099)));
}

TEST(Rendezvous, ReportsDisagreementOfHostThreads) {
  RendezvousOptions options;
  options.world_size = 2;
  ThreadCarrier carrier;
  Rendezvous rendezvous(options, carrier);
  const auto answer = thrown_by([&] {
    carrier.run(rendezvous, 2, [&](int rank) {
      Request request;
      request.operation = Operation::barrier;
      request.purpose = rank == 0 ? "left" : "right";
      rendezvous.post(rendezvous.world(), rank, std::move(request))->wait();
    });
  });
  EXPECT_EQ(answer, thrown(ErrorKind::collective_error,
                           "world, call 1: different purposes: rank 0 posted [barrier 'left'], rank 1 posted [barrier "
                           "'right']"));
}

}  // namespace
}  // namespace shardproof::test
