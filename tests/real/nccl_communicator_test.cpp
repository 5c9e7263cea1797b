// The NCCL communicator over the fake NCCL, beyond the laws that all communicators keep: streams, the choice between
// padding and broadcasts, what it refuses, and what it does where members disagree.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "tests/fake_nccl/shared_store.h"
#include "tests/real/cuda_memory.h"
#include "tests/real/nccl_ranks.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using fake_nccl::RankEnd;
using test::patient_options;
using test::run_nccl;
using test::trouble_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refusal_of(const NcclOptions& options) {
  fake_nccl::make_fabric(1);
  const auto ends = fake_nccl::run_ranks(
      1, [&](int) { const NcclSession session(options, std::make_shared<fake_nccl::SharedStore>()); });
  return ends[0].message;
}

TEST(NcclSession, RefusesOptionsThatCannotBe) {
  EXPECT_THAT(refusal_of({.rank = 2, .world_size = 2}), HasSubstr("NCCL: rank 2 does not lie in a world of 2"));
  EXPECT_THAT(refusal_of({.timeout = std::chrono::milliseconds(0)}),
              HasSubstr("timeout 0 ms and heartbeat 1000 ms must be positive"));
  EXPECT_THAT(
      refusal_of({.device = 9}),
      HasSubstr("NCCL: rank 0 wants CUDA device 9, but the number of devices is 8; to let ranks share one, set"));
}

TEST(NcclSession, SaysThatRankZeroNeverSpoke) {
  EXPECT_THAT(refusal_of({.rank = 1, .world_size = 2, .timeout = std::chrono::milliseconds(100)}),
              HasSubstr("NCCL: rank 0 did not say its unique id within 100 ms"));
}

TEST(NcclSession, TellsTheOthersThatOneRankHasNoDevice) {
  fake_nccl::make_fabric(2);
  const auto ends = fake_nccl::run_ranks(2, [](int rank) {
    NcclOptions options = patient_options();
    options.rank = rank;
    options.world_size = 2;
    options.device = rank == 1 ? 9 : 0;
    const NcclSession session(options, std::make_shared<fake_nccl::SharedStore>());
  });
  EXPECT_THAT(ends[0].message, HasSubstr("rank 1: NCCL: rank 1 wants CUDA device 9"));
  EXPECT_THAT(ends[1].message, HasSubstr("NCCL: rank 1 wants CUDA device 9"));
}

TEST(NcclSession, EndsTheProcessAndTellsTheOthersWhy) {
  fake_nccl::make_fabric(2);
  const auto ends = fake_nccl::run_ranks(2, [](int rank) {
    NcclOptions options = test::impatient_options();
    options.timeout = std::chrono::seconds(20);
    options.rank = rank;
    options.world_size = 2;
    const NcclSession session(options, std::make_shared<fake_nccl::SharedStore>());
    const auto world = session.world();
    collectives::barrier(*world, "test: start");
    if (rank == 0) session.abort(7, "a reason");
    collectives::barrier(*world, "test: never");
  });
  EXPECT_EQ(ends[0].status, 7);
  EXPECT_THAT(ends[1].message, HasSubstr("rank 0: a reason"));
}

TEST(NcclSession, SaysTheVersionOfTheLibrary) {
  EXPECT_TRUE(nccl_is_built());
  EXPECT_THAT(nccl_version(), testing::MatchesRegex("2\\.[0-9]+\\.[0-9]+"));
}

// A computation on a stream of the device: it takes a while, then writes.
struct SlowWrite {
  std::byte* target;
  std::byte value;
  std::size_t bytes;
};
void write_slowly(void* data) {
  const auto* const write = static_cast<const SlowWrite*>(data);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::memset(write->target, static_cast<int>(write->value), write->bytes);
}
struct Reading {
  const std::byte* source;
  std::vector<std::byte> seen;
};
void read_all(void* data) {
  auto* const reading = static_cast<Reading*>(data);
  std::memcpy(reading->seen.data(), reading->source, reading->seen.size());
}

TEST(NcclCommunicator, FollowsTheComputeStreamAndIsFollowedByIt) {
  fake_nccl::make_fabric(2);
  const std::vector<RankEnd> ends = fake_nccl::run_ranks(2, [](int rank) {
    cudaStream_t compute = nullptr;
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    NcclOptions options = patient_options();
    options.rank = rank;
    options.world_size = 2;
    options.compute_stream = compute;
    const NcclSession session(options, std::make_shared<fake_nccl::SharedStore>());
    const auto world = session.world();
    const auto device = test::make_cuda_memory();
    const Tensor mine = device->empty({64}, kInt64);
    SlowWrite write{mine.data(), static_cast<std::byte>(rank + 1), mine.bytes()};
    cudaLaunchHostFunc(compute, write_slowly, &write);
    Pending<Tensor> pending = collectives::all_gather(*world, mine, "test: gather");
    // The host goes on at once; the device reads only after the gather, and overwrites what was sent only after it.
    const Tensor all = pending.wait();
    Reading reading{all.data(), std::vector<std::byte>(all.bytes())};
    cudaLaunchHostFunc(compute, read_all, &reading);
    cudaStreamSynchronize(compute);
    cudaStreamDestroy(compute);
    std::vector<std::byte> expected(mine.bytes(), std::byte{1});
    expected.insert(expected.end(), mine.bytes(), std::byte{2});
    SHARDPROOF_CHECK(reading.seen == expected, internal_error, "the device read something else");
  });
  for (const RankEnd& end : ends) EXPECT_THAT(end.message, IsEmpty());
  EXPECT_THAT(fake_nccl::violations(), IsEmpty());
}

TEST(NcclCommunicator, GathersTheSameInPadsAndByBroadcasts) {
  for (const std::int64_t limit : {0, 1 << 20}) {
    fake_nccl::make_fabric(3);
    NcclOptions options = patient_options();
    options.padded_gather_bytes = limit;
    const std::vector<RankEnd> ends = run_nccl(3, options, [](int rank, Communicator& world) {
      HostDevice device;
      const std::vector<std::int64_t> counts{2, 0, 5};
      std::vector<std::int64_t> values(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]), rank + 7);
      const Tensor mine =
          device.upload(std::as_bytes(std::span(values)), {static_cast<std::int64_t>(values.size())}, kInt64);
      const Tensor all = collectives::all_gather(world, mine, counts, "test: uneven").wait().joined();
      std::vector<std::int64_t> found(7);
      device.download(std::as_writable_bytes(std::span(found)), all);
      SHARDPROOF_CHECK((found == std::vector<std::int64_t>{7, 7, 9, 9, 9, 9, 9}), internal_error, "other values");
    });
    for (const RankEnd& end : ends) EXPECT_THAT(end.message, IsEmpty());
    EXPECT_THAT(fake_nccl::violations(), IsEmpty());
  }
}

// How long rank 0 waits for an exchange that takes `delay_ms` after it has computed for `compute_ms` meanwhile.
double exposed_ms(int delay_ms, int compute_ms) {
  fake_nccl::make_fabric(2);
  for (const int rank : {0, 1}) {
    fake_nccl::faults_of(rank).delayed_launch = 2;
    fake_nccl::faults_of(rank).delay_ms = delay_ms;
  }
  const std::vector<RankEnd> ends = run_nccl(2, patient_options(), [&](int rank, Communicator& world) {
    using Clock = std::chrono::steady_clock;
    HostDevice device;
    collectives::barrier(world, "test: start");
    Pending<Tensor> next =
        collectives::exchange(world, device.empty({4}, kFloat32), 1 - rank, 1 - rank, 4, "test: next chunk");
    std::this_thread::sleep_for(std::chrono::milliseconds(compute_ms));
    const Clock::time_point begin = Clock::now();
    next.wait();
    if (rank == 1) return;
    // The one way out of the process that a rank has.
    fail(ErrorKind::internal_error, "{}", std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  });
  return std::stod(ends[0].message);
}

// What is exposed of an exchange is max(0, delay - compute), within a tenth of the delay; the best of three, because
// the machine may be busy with something else.
TEST(NcclCommunicator, HidesAnExchangeBehindWhatIsComputedMeanwhile) {
  constexpr int kDelay = 200;
  for (const auto& [compute, expected] : {std::pair(0, 200.0), std::pair(120, 80.0), std::pair(300, 0.0)}) {
    double nearest = 1e9;
    for (int attempt = 0; attempt < 3 && nearest > kDelay / 10.0; ++attempt) {
      nearest = std::min(nearest, std::abs(exposed_ms(kDelay, compute) - expected));
    }
    EXPECT_LE(nearest, kDelay / 10.0) << "computing for " << compute << " ms";
  }
}

TEST(NcclCommunicator, EndsWhatNobodyWaitedFor) {
  EXPECT_EQ(trouble_of(2,
                       [](int rank, Communicator& world) {
                         HostDevice device;
                         const auto group = world.split(0, rank, "pair");
                         for (int i = 0; i < 3; ++i) {
                           (void)collectives::all_gather(*group, device.empty({5}, kFloat32), "test: dropped");
                         }
                       }),
            "");
}

TEST(NcclCommunicator, TellsMembersThatDisagree) {
  fake_nccl::make_fabric(2);
  NcclOptions options = test::impatient_options();
  const std::vector<RankEnd> ends = run_nccl(2, options, [](int rank, Communicator& world) {
    HostDevice device;
    const Tensor mine = device.empty({3}, kFloat32);
    if (rank == 0) collectives::all_gather(world, mine, "test: gather").wait();
    if (rank == 1) collectives::broadcast(world, mine, 0, "test: broadcast").wait();
  });
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.message, AllOf(HasSubstr("invalid usage"), HasSubstr("in group 'world'")));
  }
  EXPECT_THAT(
      fake_nccl::violations(),
      Contains("rank 0: ncclAllGather: call 1 is ncclAllGather of 3 elements of type 7, reduction 0, root 0 here, "
               "but ncclBroadcast of 3 elements of type 7, reduction 0, root 0 on member 1"));
}

TEST(NcclCommunicator, TellsAllRanksThatOneHasNoMemory) {
  fake_nccl::make_fabric(2);
  fake_nccl::faults_of(1).refused_pinned_bytes = 1 << 20;
  const std::vector<RankEnd> ends = run_nccl(2, test::impatient_options(), [](int, Communicator& world) {
    HostDevice device;
    collectives::all_gather(world, device.empty({1 << 20}, kFloat32), "test: large").wait();
  });
  EXPECT_THAT(ends[0].message,
              AllOf(HasSubstr("rank 1: all_gather 'test: large'"), HasSubstr("cudaMallocHost failed: out of memory")));
  EXPECT_THAT(ends[1].message, HasSubstr("cudaMallocHost failed: out of memory"));
}

}  // namespace
}  // namespace shardproof
