// What the watchdog of the NCCL communicator does about ranks that are late, gone or wrong: real processes over the
// fake NCCL. Every rank must end within its deadlines with words that name the operation and who is to blame.
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "core/json.h"
#include "tests/fake_nccl/shared_store.h"
#include "tests/real/nccl_ranks.h"

namespace shardproof {
namespace {

using fake_nccl::RankEnd;
using test::impatient_options;
using test::run_nccl;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Tensor rows(Device& device, std::int64_t count) { return device.empty({count, 3}, kFloat32); }

// A barrier that all ranks make, then a gather before which a rank may misbehave.
void barrier_and_gather(int rank, Communicator& world, const std::function<void(int rank)>& before = {}) {
  HostDevice device;
  collectives::barrier(world, "test: start");
  if (before) before(rank);
  collectives::all_gather(world, rows(device, 2), "test: rows").wait();
}

constexpr const char* kGather =
    "all_gather 'test: rows' float32 rows of [3], send 2, receive [2, 2], call 2 of group "
    "'world', has not ended within 400 ms";

TEST(NcclWatchdog, NamesTheRankThatIsLateAndWritesAFlightRecord) {
  const std::string path = testing::TempDir() + "nccl_flight_" + std::to_string(getpid()) + "_";
  NcclOptions options = impatient_options();
  options.flight_record = path;
  fake_nccl::make_fabric(2);
  const std::vector<RankEnd> ends = run_nccl(2, options, [](int rank, Communicator& world) {
    barrier_and_gather(rank, world, [](int late) {
      if (late == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    });
  });
  EXPECT_THAT(ends[0].message, AllOf(HasSubstr("rank 0: "), HasSubstr(kGather),
                                     HasSubstr("; late: rank 1 has last made call 1 of this group, barrier 'test: "
                                               "start'"),
                                     Not(HasSubstr("no sign of life")), HasSubstr("; flight record: " + path + "0")));
  // The late rank is told by the other, not by a deadline of its own, which had not begun.
  EXPECT_THAT(ends[1].message, AllOf(HasSubstr("rank 0: "), HasSubstr(kGather)));
  const Json record = read_json_file(path + "0");
  EXPECT_EQ(record.at("late").at(std::size_t{0}).at("rank").as_int(), 1);
  EXPECT_EQ(record.at("rank").as_int(), 0);
  EXPECT_THAT(record.at("reason").as_string(), HasSubstr(kGather));
  ASSERT_EQ(record.at("operations").size(), 2U);
  EXPECT_EQ(record.at("operations").at(std::size_t{0}).at("state").as_string(), "complete");
  const Json& gather = record.at("operations").at(std::size_t{1});
  EXPECT_EQ(gather.at("state").as_string(), "failed");
  EXPECT_EQ(gather.at("purpose").as_string(), "test: rows");
  EXPECT_GT(gather.at("started_us").as_int(), 0);
  // The rank that was late has no call in its record that others could wait for.
  EXPECT_EQ(read_json_file(path + "1").at("operations").size(), 1U);
}

TEST(NcclWatchdog, SaysThatARankGivesNoSignOfLife) {
  fake_nccl::make_fabric(3);
  NcclOptions options = impatient_options();
  options.timeout = std::chrono::milliseconds(1200);  // the rank must be gone by then, on a slow machine too
  const std::vector<RankEnd> ends = run_nccl(3, options, [](int rank, Communicator& world) {
    barrier_and_gather(rank, world, [](int dying) {
      if (dying != 2) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // its beats tell of the barrier
      _exit(9);
    });
  });
  EXPECT_EQ(ends[2].status, 9);
  const std::string late =
      "; late: rank 2 gives no sign of life; when it last did, it had made call 1 of this group, barrier 'test: start'";
  EXPECT_THAT(ends[0].message, HasSubstr(late));
  EXPECT_THAT(ends[1].message, HasSubstr(late));
}

TEST(NcclWatchdog, SaysThatARankMadeNoCallInAGroup) {
  fake_nccl::make_fabric(2);
  const std::vector<RankEnd> ends = run_nccl(2, impatient_options(), [](int rank, Communicator& world) {
    HostDevice device;
    const auto group = world.split(0, rank, "pair");
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    collectives::all_gather(*group, rows(device, 1), "test: pair").wait();
  });
  EXPECT_THAT(ends[0].message, AllOf(HasSubstr("call 1 of group 'world/pair#1'"),
                                     HasSubstr("; late: rank 1 has last made no call in this group")));
}

TEST(NcclWatchdog, SaysThatTheTransportIsStuckWhereAllRanksMadeTheCall) {
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(1).dropped_launch = 2;
  const std::vector<RankEnd> ends =
      run_nccl(2, impatient_options(), [](int rank, Communicator& world) { barrier_and_gather(rank, world); });
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.message, AllOf(HasSubstr(kGather), HasSubstr("every rank has made this call")));
  }
}

TEST(NcclWatchdog, ReportsAsynchronousErrorsToAllRanks) {
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(1).failing_launch = 2;
  NcclOptions options = impatient_options();
  options.timeout = std::chrono::seconds(20);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<RankEnd> ends =
      run_nccl(2, options, [](int rank, Communicator& world) { barrier_and_gather(rank, world); });
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.message,
                AllOf(HasSubstr("rank 1: "), HasSubstr("remote process exited or there was a network error")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(NcclWatchdog, LetsADelayWithinTheDeadlinePass) {
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(1).delayed_launch = 2;
  fake_nccl::faults_of(1).delay_ms = 150;
  const std::vector<RankEnd> ends =
      run_nccl(2, impatient_options(), [](int rank, Communicator& world) { barrier_and_gather(rank, world); });
  for (const RankEnd& end : ends) EXPECT_THAT(end.message, IsEmpty());
  EXPECT_THAT(fake_nccl::violations(), IsEmpty());
}

TEST(NcclWatchdog, RefusesEveryCallAfterItGaveUp) {
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(0).dropped_launch = 1;
  const std::vector<RankEnd> ends = run_nccl(2, impatient_options(), [](int, Communicator& world) {
    std::string first;
    try {
      collectives::barrier(world, "test: never");
    } catch (const Error& error) {
      first = error.what();
    }
    try {
      (void)world.split(0, 0, "late");
    } catch (const Error& error) {
      fail(ErrorKind::internal_error, "{}, {}", first == error.what() ? "the same" : "another", first);
    }
  });
  for (const RankEnd& end : ends) EXPECT_THAT(end.message, HasSubstr("the same, rank "));
  EXPECT_THAT(fake_nccl::violations(), IsEmpty());
}

TEST(NcclWatchdog, SaysThatRanksAreMissingWhenNcclStarts) {
  fake_nccl::make_fabric(2);
  const std::vector<RankEnd> ends = fake_nccl::run_ranks(2, [](int rank) {
    if (rank == 1) return;
    NcclOptions options = impatient_options();
    options.world_size = 2;
    const NcclSession session(options, std::make_shared<fake_nccl::SharedStore>());
  });
  EXPECT_THAT(ends[0].message, HasSubstr("rank 0: NCCL did not connect the 2 ranks within 400 ms; missing: rank 1"));
}

TEST(NcclWatchdog, GivesUpWhereNcclStaysInProgress) {
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(0).never_connects = 1;
  const std::vector<RankEnd> ends = run_nccl(2, impatient_options(), [](int, Communicator&) {});
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.message,
                HasSubstr("NCCL did not connect the 2 ranks within 400 ms; missing: nobody, all ranks have "
                          "started NCCL"));
  }
  EXPECT_THAT(fake_nccl::violations(), IsEmpty());
}

TEST(NcclWatchdog, SaysThatTheStoreIsLost) {
  fake_nccl::make_fabric(2);
  const std::vector<RankEnd> ends = run_nccl(2, impatient_options(), [](int rank, Communicator& world) {
    barrier_and_gather(rank, world, [](int keeper) {
      if (keeper == 1) fake_nccl::lose_store();
      if (keeper == 1) _exit(0);
    });
  });
  EXPECT_THAT(ends[0].message, HasSubstr("the store of this run is lost: the store is gone"));
}

TEST(NcclWatchdog, SaysWhyThereIsNoFlightRecord) {
  NcclOptions options = impatient_options();
  options.flight_record = testing::TempDir() + "no such folder/record";
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(0).dropped_launch = 1;
  const std::vector<RankEnd> ends =
      run_nccl(2, options, [](int, Communicator& world) { collectives::barrier(world, "test: never"); });
  EXPECT_THAT(ends[0].message, AllOf(HasSubstr("barrier 'test: never'"), HasSubstr("; no flight record: ")));
}

}  // namespace
}  // namespace shardproof
