// The scheduler of simulated ranks: what it reports in words, how it ends a run, and that neither the seed nor the
// number of workers can be seen in a result.
#include "sim/simulation.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "core/ops.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = kThreadSanitized;
#endif

using Body = std::function<void(Communicator& world)>;

SimulationOptions ranks(int world_size) {
  SimulationOptions options;
  options.world_size = world_size;
  return options;
}

std::optional<ThrownError> failure_of(const SimulationOptions& options, const Body& body) {
  return thrown_by([&] { run_ranks(options, body); });
}

Tensor numbered(Device& device, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + i);
  return device.upload(std::as_bytes(std::span(values)), {count}, kInt64);
}

std::vector<std::int64_t> values_of(const Tensor& tensor) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.numel()));
  tensor.device().download(std::as_writable_bytes(std::span(values)), tensor);
  return values;
}

// ---- running

TEST(Simulation, RunsTheBodyOnceForEachRank) {
  for (const int workers : {1, 3}) {
    std::array<std::atomic<int>, 7> runs{};
    SimulationOptions options = ranks(7);
    options.workers = workers;
    const SimulationReport report = run_ranks(options, [&](Communicator& world) {
      EXPECT_EQ(world.size(), 7);
      EXPECT_EQ(world.name(), "world");
      EXPECT_EQ(world.world_rank(), world.rank());
      ++runs[static_cast<std::size_t>(world.rank())];
    });
    for (const std::atomic<int>& count : runs) EXPECT_EQ(count.load(), 1);
    EXPECT_EQ(report.rounds, 1);
    EXPECT_EQ(report.ranks.size(), 7U);
    EXPECT_TRUE(report.deliveries.empty());
  }
}

TEST(Simulation, CountsRounds) {
  const SimulationReport report = run_ranks(ranks(3), [](Communicator& world) {
    for (int i = 0; i < 5; ++i) collectives::barrier(world, "test");
  });
  EXPECT_EQ(report.rounds, 6) << "one to reach each barrier and one to end";
  EXPECT_EQ(report.ranks[1].calls_of(Operation::barrier), 5);
}

TEST(Simulation, RefusesOptionsThatCannotBe) {
  const Body nothing = [](Communicator&) {};
  EXPECT_EQ(failure_of(ranks(0), nothing), thrown(ErrorKind::config_error, "world_size 0 must lie within 1..16384"));
  EXPECT_EQ(failure_of(ranks(16385), nothing),
            thrown(ErrorKind::config_error, "world_size 16385 must lie within 1..16384"));
  SimulationOptions options = ranks(2);
  options.workers = 0;
  EXPECT_EQ(failure_of(options, nothing), thrown(ErrorKind::config_error, "workers 0 must lie within 1..256"));
  options.workers = 257;
  EXPECT_EQ(failure_of(options, nothing), thrown(ErrorKind::config_error, "workers 257 must lie within 1..256"));
  EXPECT_EQ(failure_of(ranks(2), Body{}), thrown(ErrorKind::config_error, "run_ranks needs a function to run"));
}

TEST(Simulation, RefusesToNest) {
  EXPECT_EQ(failure_of(ranks(2),
                       [](Communicator& world) {
                         if (world.rank() == 1) run_ranks(ranks(1), [](Communicator&) {});
                       }),
            thrown(ErrorKind::state_error,
                   "rank 1: run_ranks was called by rank 1 of a running simulation; simulations do not nest"));
}

TEST(Simulation, KnowsWhetherARankIsRunning) {
  EXPECT_FALSE(is_inside_rank());
  run_ranks(ranks(2), [](Communicator& world) {
    EXPECT_TRUE(is_inside_rank());
    collectives::barrier(world, "test");
    EXPECT_TRUE(is_inside_rank());
  });
  EXPECT_FALSE(is_inside_rank());
}

TEST(Simulation, CanRunAgainAfterAFailedRun) {
  EXPECT_TRUE(failure_of(ranks(2), [](Communicator& world) {
                if (world.rank() == 0) fail(ErrorKind::shape_error, "no");
                collectives::barrier(world, "test");
              }).has_value());
  EXPECT_EQ(run_ranks(ranks(2), [](Communicator& world) { collectives::barrier(world, "test"); }).rounds, 2);
}

TEST(Simulation, HasNoMoreWorkersThanRanks) {
  SimulationOptions options = ranks(2);
  options.workers = 256;
  EXPECT_EQ(run_ranks(options, [](Communicator& world) { collectives::barrier(world, "test"); }).rounds, 2);
}

// ---- failing ranks

TEST(Simulation, NamesTheFailingRankAndKeepsTheKind) {
  for (const int workers : {1, 2, 3}) {
    SimulationOptions options = ranks(5);
    options.workers = workers;
    EXPECT_EQ(failure_of(options,
                         [](Communicator& world) {
                           collectives::barrier(world, "test");
                           if (world.rank() == 3) fail(ErrorKind::shape_error, "sizes {} and {}", 1, 2);
                           collectives::barrier(world, "test");
                         }),
              thrown(ErrorKind::shape_error, "rank 3: sizes 1 and 2"));
  }
}

TEST(Simulation, ReportsTheLowestOfSeveralFailingRanksAndMentionsTheOthers) {
  EXPECT_EQ(failure_of(ranks(5),
                       [](Communicator& world) {
                         if (world.rank() == 1) fail(ErrorKind::plan_error, "first line\nsecond line");
                         if (world.rank() == 4) fail(ErrorKind::shape_error, "other line\nmore of it");
                       }),
            thrown(ErrorKind::plan_error, "rank 1: first line\nsecond line\nalso rank 4: other line"));
}

TEST(Simulation, MentionsABoundedNumberOfFailingRanks) {
  const auto failure = failure_of(ranks(20), [](Communicator&) { fail(ErrorKind::plan_error, "no"); });
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(failure->message, "rank 0: no\nalso ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more: the same");
}

TEST(Simulation, MentionsABoundedNumberOfDifferentFailures) {
  const auto failure =
      failure_of(ranks(20), [](Communicator& world) { fail(ErrorKind::plan_error, "no {}", world.rank()); });
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(failure->message, AllOf(StartsWith("rank 0: no 0\nalso rank 1: no 1\n"),
                                      testing::EndsWith("also rank 7: no 7\nand 12 more ranks failed")));
}

TEST(Simulation, SaysOnceWhatSeveralRanksSay) {
  EXPECT_EQ(failure_of(ranks(6),
                       [](Communicator& world) {
                         if (world.rank() % 2 == 0) fail(ErrorKind::plan_error, "even\nline {}", world.rank() / 4);
                         fail(ErrorKind::shape_error, "odd");
                       }),
            thrown(ErrorKind::plan_error,
                   "rank 0: even\nline 0\nalso ranks 1, 3, 5: odd\nalso rank 2: the same\nalso rank 4: even"));
}

TEST(Simulation, ReportsOtherExceptionsAsInternalErrors) {
  EXPECT_EQ(failure_of(ranks(2), [](Communicator&) { throw std::out_of_range("far out"); })->message,
            "rank 0: far out\nalso rank 1: the same");
  EXPECT_EQ(failure_of(ranks(1), [](Communicator&) { throw std::out_of_range("far out"); }),
            thrown(ErrorKind::internal_error, "rank 0: far out"));
  EXPECT_EQ(failure_of(ranks(1), [](Communicator&) { throw 5; }),
            thrown(ErrorKind::internal_error, "rank 0: threw something that is no std::exception"));
}

TEST(Simulation, KeepsARefusalARefusal) {
  EXPECT_THROW(run_ranks(ranks(2), [](Communicator&) { throw Refusal(ErrorKind::unsupported_error, "not here"); }),
               Refusal);
  EXPECT_EQ(failure_of(ranks(1), [](Communicator&) { throw Refusal(ErrorKind::unsupported_error, "not here"); }),
            thrown(ErrorKind::unsupported_error, "rank 0: not here"));
}

TEST(Simulation, FreesWhatAllRanksHoldWhenOneFails) {
  for (const int workers : {1, 2}) {
    HostDevice device;
    std::atomic<int> alive{0};
    struct Counter {
      explicit Counter(std::atomic<int>& count) : count_(count) { ++count_; }
      ~Counter() { --count_; }
      std::atomic<int>& count_;
    };
    std::weak_ptr<Storage> in_flight;
    SimulationOptions options = ranks(6);
    options.workers = workers;
    EXPECT_EQ(failure_of(options,
                         [&](Communicator& world) {
                           const Counter counter(alive);
                           const Tensor rows = numbered(device, 0, 4);
                           if (world.rank() == 0) in_flight = rows.storage();
                           auto pending = collectives::all_gather(world, rows, "never complete");
                           if (world.rank() == 5) fail(ErrorKind::plan_error, "no");
                           static_cast<void>(pending.wait());
                         })
                  ->message,
              "rank 5: no");
    EXPECT_EQ(alive.load(), 0);
    EXPECT_TRUE(in_flight.expired());
  }
}

TEST(Simulation, CancelsBodiesThatCatchStandardExceptions) {
  std::atomic<int> swallowed{0};
  EXPECT_EQ(failure_of(ranks(3),
                       [&](Communicator& world) {
                         if (world.rank() == 2) fail(ErrorKind::plan_error, "no");
                         try {
                           collectives::barrier(world, "test");
                         } catch (const std::exception&) {
                           ++swallowed;
                         }
                       })
                ->message,
            "rank 2: no");
  EXPECT_EQ(swallowed.load(), 0);
}

TEST(Simulation, CancelsBodiesThatSwallowEverythingAndWaitAgain) {
  std::atomic<int> attempts{0};
  EXPECT_EQ(failure_of(ranks(2),
                       [&](Communicator& world) {
                         if (world.rank() == 1) fail(ErrorKind::plan_error, "no");
                         for (int i = 0; i < 3; ++i) {
                           try {
                             collectives::barrier(world, "test");
                           } catch (...) {
                             ++attempts;
                           }
                         }
                         fail(ErrorKind::shape_error, "thrown after the cancellation: nobody hears of it");
                       }),
            thrown(ErrorKind::plan_error, "rank 1: no"));
  EXPECT_EQ(attempts.load(), 3);
}

TEST(Simulation, RefusesAWaitInsideACatchBlock) {
  EXPECT_EQ(failure_of(ranks(2),
                       [](Communicator& world) {
                         try {
                           throw std::runtime_error("some failure");
                         } catch (const std::exception&) {
                           collectives::barrier(world, "test");
                         }
                       })
                ->message,
            "rank 0: a rank must not wait inside a catch block: leave the block first\n"
            "also rank 1: the same");
}

TEST(Simulation, LetsRanksCatchTheirOwnExceptions) {
  std::atomic<int> caught{0};
  run_ranks(ranks(4), [&](Communicator& world) {
    for (int i = 0; i < 10; ++i) {
      std::exception_ptr kept;
      try {
        fail(ErrorKind::shape_error, "{} {}", world.rank(), i);
      } catch (const Error&) {
        kept = std::current_exception();
      }
      collectives::barrier(world, "between");
      try {
        std::rethrow_exception(kept);
      } catch (const Error& error) {
        if (error.what() == std::to_string(world.rank()) + " " + std::to_string(i)) ++caught;
      }
    }
  });
  EXPECT_EQ(caught.load(), 40);
}

// ---- strictness, through the doors

TEST(Simulation, ReportsDisagreementWithoutARankPrefix) {
  HostDevice device;
  EXPECT_EQ(failure_of(ranks(3),
                       [&](Communicator& world) {
                         const Tensor rows = numbered(device, 0, world.rank() == 2 ? 5 : 4);
                         static_cast<void>(collectives::all_gather(world, rows, "equal parts").wait());
                       }),
            thrown(ErrorKind::collective_error,
                   "world, call 1: different row counts of the gather: rank 0 posted [all_gather 'equal parts' int64 "
                   "rows of [], send 4, receive [4, 4, 4]], rank 2 posted [all_gather 'equal parts' int64 rows of [], "
                   "send 5, receive [5, 5, 5]]"));
}

TEST(Simulation, ReportsARankThatReturnsWhileOthersWait) {
  EXPECT_EQ(failure_of(ranks(4),
                       [](Communicator& world) {
                         const auto pair = world.split(world.rank() / 2, 0, "pair");
                         if (world.rank() == 2) return;
                         collectives::barrier(*pair, "meet");
                       }),
            thrown(ErrorKind::collective_error,
                   "rank 2 returned, but rank 3 waits for it in world/pair {2, 3}, call 1: barrier 'meet'"));
}

TEST(Simulation, ReportsAHandleThatIsNeverWaitedFor) {
  HostDevice device;
  EXPECT_EQ(failure_of(ranks(2),
                       [&](Communicator& world) {
                         auto pending = collectives::all_gather(world, numbered(device, 0, 3), "forgotten");
                         if (world.rank() == 0) static_cast<void>(pending.wait());
                         collectives::barrier(world, "test");
                       }),
            thrown(ErrorKind::state_error,
                   "rank 1: world, call 1: all_gather 'forgotten' int64 rows of [], send 3, receive [3, 3] was posted "
                   "but never waited for"));
}

TEST(Simulation, ReportsAHandleThatOutlivesItsRank) {
  std::vector<std::unique_ptr<Work>> kept(2);
  const auto failure = failure_of(ranks(2), [&](Communicator& world) {
    Request request;
    request.purpose = "kept";
    kept[static_cast<std::size_t>(world.rank())] = world.post(std::move(request));
  });
  EXPECT_EQ(failure->message,
            "rank 0: world, call 1: barrier 'kept' was posted but never waited for\n"
            "also rank 1: the same");
  EXPECT_EQ(thrown_by([&] { kept[0]->wait(); }),
            thrown(ErrorKind::state_error, "wait for barrier 'kept' after the run has ended"));
}

TEST(Simulation, AnswersACommunicatorThatOutlivesItsRun) {
  std::unique_ptr<Communicator> kept;
  run_ranks(ranks(2), [&](Communicator& world) {
    auto group = world.split(0, 0, "all");
    if (world.rank() == 1) kept = std::move(group);
  });
  EXPECT_EQ(thrown_by([&] { collectives::barrier(*kept, "late"); }),
            thrown(ErrorKind::state_error, "barrier of rank 1 in world/all {0, 1} after the run has ended"));
}

TEST(Simulation, ReportsACallByANonMember) {
  std::vector<std::unique_ptr<Communicator>> groups(3);
  EXPECT_EQ(failure_of(ranks(3),
                       [&](Communicator& world) {
                         groups[static_cast<std::size_t>(world.rank())] =
                             world.split(world.rank() == 2 ? 1 : 0, 0, "pair");
                         collectives::barrier(world, "all have their group");
                         if (world.rank() == 2) collectives::barrier(*groups[0], "meet");
                       }),
            thrown(ErrorKind::collective_error,
                   "rank 2: barrier of rank 0 in world/pair {0, 1} by rank 2, which is not a member: each rank must "
                   "use its own communicator"));
}

TEST(Simulation, ReportsAnOrderInversionBetweenTwoGroups) {
  HostDevice device;
  const Body body = [&](Communicator& world) {
    const auto ring = world.split(0, 0, "ring");
    const auto ulysses = world.split(0, 0, "ulysses");
    Communicator& first = world.rank() == 0 ? *ring : *ulysses;
    Communicator& second = world.rank() == 0 ? *ulysses : *ring;
    auto a = collectives::all_gather(first, numbered(device, 0, 1), "chunk");
    auto b = collectives::all_gather(second, numbered(device, 0, 1), "chunk");
    static_cast<void>(a.wait());
    static_cast<void>(b.wait());
  };
  const auto failure = failure_of(ranks(2), body);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, ErrorKind::deadlock_error);
  EXPECT_THAT(failure->message,
              AllOf(StartsWith("deadlock: 2 ranks wait and none can run\n  rank 0 waits in world/ring {0, 1}, call 1: "
                               "all_gather 'chunk'"),
                    HasSubstr("rank 1 has it queued behind world/ulysses {0, 1}, call 1: all_gather 'chunk'"),
                    testing::EndsWith("\n  cycle: rank 0 waits in world/ring for rank 1, which waits in world/ulysses "
                                      "for rank 0")));
  SimulationOptions relaxed = ranks(2);
  relaxed.strict_order = false;
  EXPECT_EQ(failure_of(relaxed, body), std::nullopt);
}

TEST(Simulation, ReportsAMissingCallAsADeadlock) {
  const auto failure = failure_of(ranks(3), [](Communicator& world) {
    const auto pair = world.split(world.rank() == 0 ? 0 : 1, 0, "pair");
    if (world.rank() == 1) collectives::barrier(*pair, "meet");
    collectives::barrier(world, "all");
  });
  EXPECT_EQ(failure, thrown(ErrorKind::deadlock_error,
                            "deadlock: 3 ranks wait and none can run\n"
                            "  rank 0 waits in world, call 2: barrier 'all'; missing: rank 1\n"
                            "  rank 1 waits in world/pair {1, 2}, call 1: barrier 'meet'; missing: rank 2\n"
                            "  rank 2 waits in world, call 2: barrier 'all'; missing: rank 1\n"
                            "  cycle: rank 1 waits in world/pair for rank 2, which waits in world for rank 1"));
}

// What cannot be written through the doors can be written through requests.
struct RawExchange {
  Request request;
  explicit RawExchange(Communicator& world, Device& device) {
    request.operation = Operation::exchange;
    request.purpose = "raw";
    request.dtype = kInt64;
    request.send = numbered(device, world.rank() * 100, 3);
    request.receive = device.empty({3}, kInt64);
    request.to = request.from = 1 - world.rank();
  }
};

TEST(Simulation, ReportsATensorUsedWhileItIsBeingReceived) {
  HostDevice device;
  EXPECT_EQ(failure_of(ranks(2),
                       [&](Communicator& world) {
                         RawExchange raw(world, device);
                         const auto work = world.post(raw.request);
                         if (world.rank() == 1)
                           static_cast<void>(ops::contiguous(raw.request.receive.narrow(0, 1, 2).expand({2, 2})));
                         work->wait();
                       }),
            thrown(ErrorKind::state_error,
                   "rank 1: copy: int64 [2, 2] is used while it is still being received; wait for the operation that "
                   "fills it first"));
}

TEST(Simulation, ReportsATensorChangedWhileItIsBeingSent) {
  HostDevice device;
  EXPECT_EQ(failure_of(ranks(2),
                       [&](Communicator& world) {
                         RawExchange raw(world, device);
                         const auto work = world.post(raw.request);
                         if (world.rank() == 0) ops::copy_into(raw.request.send, numbered(device, 0, 3));
                         work->wait();
                       })
                ->message,
            "rank 0: copy: int64 [3] is changed while it is still being sent; wait for the operation that sends it "
            "first");
}

TEST(Simulation, ReportsBytesChangedBehindTheDoors) {
  HostDevice device;
  EXPECT_EQ(failure_of(ranks(2),
                       [&](Communicator& world) {
                         RawExchange raw(world, device);
                         const auto work = world.post(raw.request);
                         if (world.rank() == 1) raw.request.send.data_as<std::int64_t>()[2] = 5;
                         work->wait();
                       }),
            thrown(ErrorKind::state_error,
                   "world, call 1: rank 1 changed int64 [3] while it was being sent: exchange 'raw' int64 rows of [], "
                   "send 3, receive 3, to 0, from 0"));
}

TEST(Simulation, PoisonsReceiveBuffersOfRanksUntilTheirWait) {
  HostDevice device;
  run_ranks(ranks(2), [&](Communicator& world) {
    RawExchange raw(world, device);
    const auto work = world.post(raw.request);
    const std::int64_t early = raw.request.receive.data_as<std::int64_t>()[0];
    SHARDPROOF_CHECK(early == -1, internal_error, "{} instead of poison", early);
    work->wait();
    const std::int64_t late = raw.request.receive.data_as<std::int64_t>()[0];
    SHARDPROOF_CHECK(late == (1 - world.rank()) * 100, internal_error, "{} arrived", late);
  });
}

// ---- seeds, workers, replay

// A run with groups, uneven sizes and several operations in flight; what each rank ends up with.
struct Outcome {
  std::vector<std::vector<std::int64_t>> results;
  SimulationReport report;
};

Outcome busy_run(const SimulationOptions& options) {
  HostDevice device;
  Outcome outcome;
  outcome.results.resize(static_cast<std::size_t>(options.world_size));
  outcome.report = run_ranks(options, [&](Communicator& world) {
    std::vector<std::int64_t>& result = outcome.results[static_cast<std::size_t>(world.rank())];
    const auto row = world.split(world.rank() / 3, world.rank(), "row");
    const auto column = world.split(world.rank() % 3, -world.rank(), "column");
    for (int round = 0; round < 4; ++round) {
      const int to = (row->rank() + 1) % row->size();
      const int from = (row->rank() + row->size() - 1) % row->size();
      auto shifted =
          collectives::exchange(*row, numbered(device, world.rank() * 1000 + round, 2), to, from, 2, "shift");
      auto gathered = collectives::all_gather(*column, numbered(device, world.rank() * 10, 3), "gather");
      // Ranks do not keep step.
      if (world.rank() % 2 == 0) collectives::barrier(*row->split(row->rank(), 0, "alone"), "pause");
      if (world.rank() % 2 == 1) static_cast<void>(row->split(row->rank(), 0, "alone"));
      for (const std::int64_t value : values_of(gathered.wait())) result.push_back(value);
      for (const std::int64_t value : values_of(shifted.wait())) result.push_back(value);
    }
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()), 1);
    const Tensor mine = numbered(device, world.rank() * 100, world.size());
    for (const std::int64_t value : values_of(collectives::all_to_all(world, mine, sizes, sizes, "transpose").wait())) {
      result.push_back(value);
    }
  });
  return outcome;
}

SimulationOptions busy_options(std::uint64_t seed, int workers, bool strict_order) {
  SimulationOptions options = ranks(9);
  options.schedule_seed = seed;
  options.workers = workers;
  options.strict_order = strict_order;
  options.record_deliveries = true;
  return options;
}

TEST(Simulation, GivesTheSameBitsForEverySeedAndNumberOfWorkers) {
  const Outcome first = busy_run(busy_options(0, 1, true));
  ASSERT_FALSE(first.results[8].empty());
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    for (const int workers : {1, 2, 3}) {
      const Outcome other = busy_run(busy_options(seed, workers, seed % 3 != 0));
      EXPECT_EQ(other.results, first.results) << "seed " << seed << ", workers " << workers;
      EXPECT_EQ(other.report.ranks, first.report.ranks) << "seed " << seed << ", workers " << workers;
    }
  }
}

TEST(Simulation, ReplaysASeedExactlyWithAnyNumberOfWorkers) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Outcome one = busy_run(busy_options(seed, 1, true));
    ASSERT_FALSE(one.report.deliveries.empty());
    for (const int workers : {1, 2, 3}) {
      const Outcome again = busy_run(busy_options(seed, workers, true));
      EXPECT_EQ(again.report.deliveries, one.report.deliveries) << "seed " << seed << ", workers " << workers;
      EXPECT_EQ(again.report.rounds, one.report.rounds);
    }
    orders.insert(one.report.deliveries.front().order);
  }
  EXPECT_GT(orders.size(), 8U) << "different seeds deliver in different orders";
}

TEST(Simulation, RecordsWhatWasDelivered) {
  SimulationOptions options = ranks(2);
  options.record_deliveries = true;
  const SimulationReport report = run_ranks(options, [](Communicator& world) {
    const auto alone = world.split(world.rank(), 0, "alone");
    collectives::barrier(world, "meet");
    if (world.rank() == 1) collectives::barrier(*alone, "pause");
  });
  ASSERT_EQ(report.deliveries.size(), 3U);
  const DeliveryRecord& last = report.deliveries[2];
  EXPECT_EQ(last.round, 3);
  EXPECT_EQ(last.group, 2);
  EXPECT_EQ(last.group_name, "world/alone");
  EXPECT_EQ(last.call, 1);
  EXPECT_EQ(last.operation, Operation::barrier);
  EXPECT_EQ(last.purpose, "pause");
  EXPECT_THAT(last.order, testing::ElementsAre(0));
}

TEST(Simulation, CountsPaddedRowsAsSent) {
  HostDevice device;
  const Body body = [&](Communicator& world) {
    const std::vector<std::int64_t> counts{1, 4};
    const Tensor rows = numbered(device, 0, counts[static_cast<std::size_t>(world.rank())]);
    static_cast<void>(collectives::all_gather(world, rows, counts, "uneven").wait());
    world.set_gather_form(GatherForm::padded);
    static_cast<void>(collectives::all_gather(world, rows, counts, "uneven").wait());
    static_cast<void>(collectives::all_gather_numbers(world, counts, "sizes"));
  };
  const SimulationReport report = run_ranks(ranks(2), body);
  EXPECT_EQ(report.ranks[0].bytes_sent, (1 + 4) * 8);
  EXPECT_EQ(report.ranks[1].bytes_sent, (4 + 4) * 8);
  EXPECT_EQ(report.ranks[0].data_calls(), 2);
  EXPECT_EQ(report.ranks[0].calls_of(Operation::all_gather_numbers), 1);
}

// ---- many ranks, many runs

TEST(Simulation, RunsABarrierOverThousandsOfRanks) {
  const int world_size = kSanitized ? 512 : 4096;
  for (const int workers : {1, 2}) {
    SimulationOptions options = ranks(world_size);
    options.workers = workers;
    const SimulationReport report = run_ranks(options, [](Communicator& world) { collectives::barrier(world, "all"); });
    EXPECT_EQ(report.rounds, 2);
    EXPECT_EQ(report.ranks.back().calls_of(Operation::barrier), 1);
  }
}

TEST(Simulation, RunsARingOfAThousandRanks) {
  const int world_size = kSanitized ? 256 : 1024;
  constexpr int kSteps = 40;
  HostDevice device;
  SimulationOptions options = ranks(world_size);
  options.workers = 2;
  std::vector<std::int64_t> last(static_cast<std::size_t>(world_size));
  const SimulationReport report = run_ranks(options, [&](Communicator& world) {
    Tensor chunk = numbered(device, world.rank(), 1);
    const int to = (world.rank() + 1) % world.size();
    const int from = (world.rank() + world.size() - 1) % world.size();
    for (int step = 0; step < kSteps; ++step) {
      chunk = collectives::exchange(world, chunk, to, from, 1, "ring").wait();
    }
    last[static_cast<std::size_t>(world.rank())] = values_of(chunk)[0];
  });
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(last[static_cast<std::size_t>(rank)], (rank - kSteps + world_size) % world_size);
  }
  EXPECT_EQ(report.ranks[5].bytes_sent, kSteps * 8);
}

TEST(Simulation, NamesDeadlocksOfManyRanksBriefly) {
  const int world_size = kSanitized ? 256 : 1024;
  const auto failure = failure_of(ranks(world_size), [](Communicator& world) {
    const auto half = world.split(world.rank() % 2, 0, "half");
    collectives::barrier(world.rank() == 1 ? *half : world, "meet");
  });
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, ErrorKind::deadlock_error);
  EXPECT_THAT(failure->message, HasSubstr("\n  and " + std::to_string(world_size - 8) + " more ranks\n"));
  EXPECT_THAT(failure->message,
              HasSubstr("rank 1 waits in world/half {1, 3, 5, 7, 9, 11, 13, 15, ..}, call 1: barrier 'meet'; missing: "
                        "ranks 3, 5, 7, 9, 11, 13, 15, 17 and " +
                        std::to_string(world_size / 2 - 9) + " more\n"));
  EXPECT_LT(failure->message.size(), 2000U);
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Simulation, DoesNotGrowOverManyRuns) {
  const auto run = [](int index) {
    HostDevice device;
    SimulationOptions options = ranks(16);
    options.workers = 1 + index % 2;
    const bool fails = index % 3 == 0;
    static_cast<void>(failure_of(options, [&](Communicator& world) {
      const Tensor all = collectives::all_gather(world, numbered(device, 0, 100), "gather").wait();
      if (fails && world.rank() == 7) fail(ErrorKind::shape_error, "no");
      collectives::barrier(*world.split(0, 0, "all"), "test");
    }));
  };
  for (int i = 0; i < (kSanitized ? 10 : 100); ++i) run(i);
  const std::size_t mappings_before = mappings();
  const std::size_t resident_before = resident_bytes();
  for (int i = 0; i < (kSanitized ? 60 : 600); ++i) run(i);
  // ThreadSanitizer maps memory of its own for each fiber.
  if (!kThreadSanitized) {
    EXPECT_LE(mappings(), mappings_before + 20);
  }
  // A leak of one stack page a rank and run would be 38 MB. Sanitizers keep freed memory for a while.
  if (!kSanitized) {
    EXPECT_LE(resident_bytes(), resident_before + (std::size_t{8} << 20U));
  }
}

// ---- stacks

// Uses about `bytes` of stack.
std::int64_t descend(std::int64_t bytes) {
  volatile std::byte frame[1024];
  frame[0] = std::byte{1};
  frame[1023] = std::byte{2};
  if (bytes <= 1024) return std::to_integer<std::int64_t>(frame[0]);
  return descend(bytes - 1024) + std::to_integer<std::int64_t>(frame[1023]) - 2;
}

TEST(Simulation, GivesRanksDeepStacks) {
  // Sanitizers enlarge frames.
  constexpr std::int64_t kDepth = kSanitized ? 100 * 1024 : 400 * 1024;
  std::vector<std::int64_t> results(3);
  run_ranks(ranks(3), [&](Communicator& world) {
    collectives::barrier(world, "before");
    results[static_cast<std::size_t>(world.rank())] = descend(kDepth);
    collectives::barrier(world, "after");
  });
  EXPECT_THAT(results, testing::Each(1));
}

TEST(SimulationDeathTest, StopsARankThatOverflowsItsStack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto overflow = [] {
    run_ranks(ranks(2), [](Communicator& world) {
      collectives::barrier(world, "before");
      static_cast<void>(descend(4 << 20));
    });
  };
  if (kSanitized) {
    EXPECT_DEATH(overflow(), "stack-overflow|SEGV");
  } else {
    EXPECT_EXIT(overflow(), testing::KilledBySignal(SIGSEGV), "");
  }
}

}  // namespace
}  // namespace shardproof::test
