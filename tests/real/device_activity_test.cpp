// What CUPTI tells of the devices, joined to what ranks record: on the fake CUDA runtime, which tells a fake CUPTI, and
// the refusal of the real one where there is no GPU. Each test runs in processes of its own, since CUPTI is loaded
// once.
#include "real/device_activity.h"

#include <cstdlib>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "real/cuda_threads.h"
#include "reports/device_time.h"
#include "tests/real/cuda_memory.h"
#include "tests/real/nccl_ranks.h"

namespace shardproof {
namespace {

using test::trouble_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Sets variables for the processes that a test forks.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

class DeviceActivityTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_activity_is_built()) GTEST_SKIP() << "this build has no CUPTI, tools/setup_nccl.sh fetches it";
  }
  using Variables = std::map<std::string, std::string>;
  static Variables named(const std::string& library) { return {{"SHARDPROOF_CUPTI_LIBRARY", library}}; }
  static Variables fake(const std::string& trouble = "") {
    Variables variables = named(SHARDPROOF_FAKE_CUPTI_LIBRARY);
    variables["SHARDPROOF_FAKE_CUPTI"] = trouble;
    return variables;
  }
  // What a process of its own throws.
  static std::string failure_of(const std::function<void()>& body) {
    fake_nccl::make_fabric(1);
    return fake_nccl::run_ranks(1, [&](int) { body(); }).front().message;
  }
};

void expect(bool holds, const std::string& what) { SHARDPROOF_CHECK(holds, internal_error, "{}", what); }

// How far apart two clocks may be said to be on a machine that is busy.
constexpr std::int64_t kNear = 5'000'000;

// NCCL launches from threads of its own, so that nobody can have said for what: the times tell.
TEST_F(DeviceActivityTest, KnowsOfWhichCommunicationAKernelOfNcclIs) {
  const Environment environment(fake());
  const auto body = [](int rank, Communicator& world) {
    HostDevice device;
    const std::unique_ptr<DeviceActivity> activity = watch_device_activity();
    const std::unique_ptr<RangeSink> ranges = activity->ranges(rank, nullptr);
    OperationRecorder recorder(OperationRecorder::Keep::events, ranges.get());
    activity->begin();
    collectives::all_gather(world, device.empty({3}, kFloat32), "test: before the step").wait();
    collectives::barrier(world, "test: the step");
    {
      const RecordedStep step(&recorder);
      for (int i = 0; i < 4; ++i) collectives::all_gather(world, device.empty({3}, kFloat32), "test: rows").wait();
    }
    const DeviceWorkList list = activity->end();
    RankTrace trace = trace_of(recorder, rank);
    add_device_work(trace, list, true);
    std::map<std::int64_t, int> kernels;
    for (const TraceDeviceWork& work : trace.device_work) {
      expect(work.event >= 0 && is_communication(trace, work), "work of no communication");
      const TraceEvent& event = trace.events.at(static_cast<std::size_t>(work.event));
      expect(work.begin_ns >= event.begin_ns - kNear && work.end_ns <= event.end_ns + kNear, "work at another time");
      expect(trace.text(work.name) == "ncclDevKernel_Fake", "another kernel");
      ++kernels[work.event];
    }
    expect(kernels.size() == 4, fmt::format("kernels of {} communications", kernels.size()));
    for (const auto& [event, count] : kernels) expect(count == 1, fmt::format("{} kernels of one", count));
  };
  EXPECT_EQ(trouble_of(2, body), "");
}

// Copies are launched by whichever thread settles, and belong to the communication of who receives.
TEST_F(DeviceActivityTest, KnowsOfWhichRankACopyOnASharedGpuIs) {
  const Environment environment(fake());
  constexpr int kRanks = 3;
  const std::string failure = failure_of([] {
    const std::unique_ptr<Device> memory = test::make_cuda_memory();
    const std::unique_ptr<DeviceActivity> activity = watch_device_activity();
    std::vector<std::unique_ptr<RangeSink>> ranges;
    std::vector<std::unique_ptr<OperationRecorder>> recorders;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranges.push_back(activity->ranges(rank, nullptr));
      recorders.push_back(std::make_unique<OperationRecorder>(OperationRecorder::Keep::events, ranges.back().get()));
    }
    activity->begin();
    run_cuda_ranks({.world_size = kRanks, .activity = activity.get()}, [&](Communicator& world, void* stream) {
      test::compute_on(stream);
      const RecordedStep step(recorders[static_cast<std::size_t>(world.rank())].get());
      collectives::all_gather(world, memory->empty({2, 4}, kFloat32), "test: rows").wait();
      const Tensor rows = memory->empty({2 + world.rank(), 4}, kFloat32);
      const int next = (world.rank() + 1) % kRanks, before = (world.rank() + kRanks - 1) % kRanks;
      collectives::exchange(world, rows, next, before, 2 + before, "test: next").wait();
    });
    const DeviceWorkList list = activity->end();
    for (int rank = 0; rank < kRanks; ++rank) {
      RankTrace trace = trace_of(*recorders[static_cast<std::size_t>(rank)], rank);
      add_device_work(trace, list, false);
      std::map<std::int64_t, std::int64_t> bytes;
      for (const TraceDeviceWork& work : trace.device_work) bytes[work.event] += work.bytes;
      int moved = 0;
      for (std::size_t i = 0; i < trace.events.size(); ++i) {
        const TraceEvent& event = trace.events[i];
        if (!event.is(EventKind::communication) || event.receive_bytes == 0) continue;
        ++moved;
        expect(bytes[static_cast<std::int64_t>(i)] == event.receive_bytes,
               fmt::format("rank {}: {} bytes of {} in {}", rank, bytes[static_cast<std::int64_t>(i)],
                           event.receive_bytes, identifier(trace, event)));
      }
      expect(moved == 2, fmt::format("{} communications", moved));
    }
  });
  EXPECT_EQ(failure, "");
}

TEST_F(DeviceActivityTest, CountsWhatIsMissing) {
  for (const auto& [trouble, lost] : {std::pair("dropped", 3), std::pair("unfinished", 1), std::pair("endless", 1),
                                      std::pair("unreadable", 1), std::pair("", 0)}) {
    const Environment environment(fake(trouble));
    const int expected = lost;
    const auto body = [expected](int, Communicator& world) {
      HostDevice device;
      const std::unique_ptr<DeviceActivity> activity = watch_device_activity();
      activity->begin();
      collectives::broadcast(world, device.empty({3}, kFloat32), 0, "test: rows").wait();
      const DeviceWorkList list = activity->end();
      expect(list.lost == expected && list.work.empty() == (expected == 1), fmt::format("{} are lost", list.lost));
    };
    EXPECT_EQ(trouble_of(2, body), "") << trouble;
  }
}

TEST_F(DeviceActivityTest, IsRefusedWithTheReason) {
  {
    const Environment environment(fake("no-gpu"));
    EXPECT_THAT(failure_of([] { (void)watch_device_activity(); }),
                AllOf(HasSubstr("CUPTI cannot watch the GPUs of this process: cuptiActivityEnable: "),
                      HasSubstr("CUPTI_ERROR_UNKNOWN; expected a GPU with its driver, and no other profiler")));
  }
  {
    const Environment environment(fake("other-version"));
    EXPECT_THAT(failure_of([] { (void)watch_device_activity(); }),
                AllOf(HasSubstr("is CUPTI 120000; expected CUPTI 13, with which"), HasSubstr("fake_cupti")));
  }
  {
    const Environment environment(named("/nowhere/libcupti.so"));
    EXPECT_THAT(failure_of([] { (void)watch_device_activity(); }),
                AllOf(HasSubstr("CUPTI cannot be loaded ("), HasSubstr("/nowhere/libcupti.so"),
                      HasSubstr("SHARDPROOF_CUPTI_LIBRARY")));
  }
  {
    const Environment environment(named("libm.so.6"));
    EXPECT_THAT(failure_of([] { (void)watch_device_activity(); }),
                HasSubstr("'libm.so.6' has no function cuptiGetVersion"));
  }
  {
    const Environment environment(fake());
    EXPECT_THAT(failure_of([] {
                  const std::unique_ptr<DeviceActivity> first = watch_device_activity();
                  (void)watch_device_activity();
                }),
                HasSubstr("are being watched already"));
    EXPECT_EQ(failure_of([] {
                for (int i = 0; i < 3; ++i) watch_device_activity()->begin();
              }),
              "");
  }
}

TEST_F(DeviceActivityTest, IsRefusedByTheRealLibraryWithoutAGpu) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(failure_of([] { (void)watch_device_activity(); }),
              HasSubstr("CUPTI cannot watch the GPUs of this process"));
}

}  // namespace
}  // namespace shardproof
