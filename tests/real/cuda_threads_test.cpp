// Ranks that share a GPU, on the fake CUDA runtime and, where there is one, on a GPU: the laws of a communicator, the
// order of streams, and what ends a run. The same file is compiled for both.
#include "real/cuda_threads.h"

#include <atomic>
#include <cstring>
#include <thread>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "tests/real/cuda_memory.h"
#include "tests/real/cuda_runtime_in_use.h"
#include "tests/support/communicator_conformance.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::compute_on;
using test::make_cuda_memory;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaThreads : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = test::reason_for_no_cuda();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  void TearDown() override { EXPECT_EQ(test::complaints_of_cuda(), ""); }

  static std::string failure_of(int ranks, const CudaRank& body) {
    const auto error = test::thrown_by([&] { run_cuda_ranks({.world_size = ranks}, body); });
    return error ? error->message : "nothing";
  }
};

class CudaThreadsLaws : public CudaThreads, public testing::WithParamInterface<CudaThreadsMode> {};

TEST_P(CudaThreadsLaws, HoldOnOneToFourRanks) {
  const std::unique_ptr<Device> memory = make_cuda_memory();
  test::ConformanceTools tools;
  tools.device = memory.get();
  tools.summing = {{memory.get(), kFloat64}, {memory.get(), kFloat32}};
  const test::RankRunner runner = [&](int ranks, const std::function<void(Communicator & world)>& body) {
    run_cuda_ranks({.world_size = ranks, .mode = GetParam()}, [&](Communicator& world, void* stream) {
      compute_on(stream);
      body(world);
    });
  };
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const test::CommunicatorLaw& law : test::communicator_laws()) {
      EXPECT_NO_THROW(test::check_communicator_law(law, ranks, runner, tools)) << law.name << " on " << ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaThreadsLaws, testing::Values(CudaThreadsMode::concurrent, CudaThreadsMode::serial),
                         [](const auto& mode) {
                           return mode.param == CudaThreadsMode::serial ? std::string("serial")
                                                                        : std::string("concurrent");
                         });

// What a stream does after a while: fill memory that the host reaches.
struct Slow {
  std::atomic<bool>* is_done;
};
void finish_slowly(void* data) {
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  *static_cast<Slow*>(data)->is_done = true;
}

TEST_F(CudaThreads, LetTheHostGoOnWhileTheDeviceComputes) {
  const std::unique_ptr<Device> memory = make_cuda_memory();
  std::atomic<int> went_on = 0;
  run_cuda_ranks({.world_size = 2}, [&](Communicator& world, void* stream) {
    compute_on(stream);
    const Tensor mine = memory->empty({16}, kFloat32);
    memory->fill(mine, world.rank() + 1.0);
    std::atomic<bool> is_done = false;
    Slow slow{&is_done};
    cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), finish_slowly, &slow);
    const Tensor all = collectives::all_gather(world, mine, "test: behind a slow computation").wait();
    if (!is_done) ++went_on;
    std::vector<float> found(32);
    memory->download(std::as_writable_bytes(std::span(found)), all);  // waits for the stream
    EXPECT_TRUE(is_done);
    EXPECT_EQ(found.front(), 1.0F);
    EXPECT_EQ(found.back(), 2.0F);
  });
  EXPECT_EQ(went_on, 2);
}

TEST_F(CudaThreads, GiveARankTheDeviceToItselfInSerialMode) {
  std::atomic<int> at_once = 0;
  std::atomic<int> most = 0;
  run_cuda_ranks({.world_size = 3, .mode = CudaThreadsMode::serial}, [&](Communicator& world, void*) {
    for (int i = 0; i < 3; ++i) {
      most = std::max<int>(most, ++at_once);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --at_once;
      collectives::barrier(world, "test: next");
    }
  });
  EXPECT_EQ(most, 1);
}

TEST_F(CudaThreads, EndTheRunWhereARankFails) {
  EXPECT_THAT(failure_of(3,
                         [](Communicator& world, void*) {
                           if (world.rank() == 1) fail(ErrorKind::shape_error, "a bad shape");
                           collectives::barrier(world, "test: never");
                         }),
              HasSubstr("rank 1: a bad shape"));
}

TEST_F(CudaThreads, NameBothSidesWhereRanksDisagree) {
  const std::unique_ptr<Device> memory = make_cuda_memory();
  EXPECT_THAT(failure_of(2,
                         [&](Communicator& world, void* stream) {
                           compute_on(stream);
                           const Tensor mine = memory->empty({2, 3}, kFloat32);
                           if (world.rank() == 0) collectives::all_gather(world, mine, "test: gather").wait();
                           if (world.rank() == 1) collectives::broadcast(world, mine, 0, "test: broadcast").wait();
                         }),
              AllOf(HasSubstr("all_gather 'test: gather'"), HasSubstr("broadcast 'test: broadcast'")));
}

TEST_F(CudaThreads, SayWhoReturnedWhileOthersWait) {
  EXPECT_THAT(failure_of(2,
                         [](Communicator& world, void*) {
                           if (world.rank() == 0) collectives::barrier(world, "test: alone");
                         }),
              HasSubstr("rank 1 returned, but rank 0 waits for it"));
}

TEST_F(CudaThreads, RefuseTensorsInHostMemory) {
  HostDevice host;
  EXPECT_THAT(
      failure_of(2, [&](Communicator& world,
                        void*) { collectives::all_gather(world, host.empty({2}, kFloat32), "test: host").wait(); }),
      AllOf(HasSubstr(": all_gather 'test: host'"), HasSubstr("does not lie in device memory")));
}

TEST_F(CudaThreads, RefuseOptionsThatCannotBe) {
  const auto none = test::thrown_by([] { run_cuda_ranks({.world_size = 0}, {}); });
  ASSERT_TRUE(none);
  EXPECT_THAT(none->message, HasSubstr("0 ranks on one GPU; expected 1 to 256"));
  const auto device = test::thrown_by([] { run_cuda_ranks({.device = 99}, {}); });
  ASSERT_TRUE(device);
  EXPECT_THAT(device->message, HasSubstr("CUDA device 99 is wanted, but there are "));
}

}  // namespace
}  // namespace shardproof
