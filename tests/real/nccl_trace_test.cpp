// What a recorder and a flight record hold of operations over the fake NCCL: times of the device, what is hidden behind
// computation, and which rank of a run that hangs did not make which call.
#include <unistd.h>

#include <cmath>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "reports/chrome_trace.h"
#include "reports/trace_diff.h"
#include "sim/simulation.h"
#include "tests/core/files/test_files.h"
#include "tests/real/nccl_ranks.h"

namespace shardproof {
namespace {

using fake_nccl::RankEnd;
using test::impatient_options;
using test::patient_options;
using test::run_nccl;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Milliseconds {
  double exposed = 0.0;
  double on_device = 0.0;
};

// What rank 0 records of an exchange that the fake lets take `delay_ms`, during which the rank computes for
// `compute_ms`.
Milliseconds recorded(int delay_ms, int compute_ms) {
  fake_nccl::make_fabric(2);
  for (const int rank : {0, 1}) {
    fake_nccl::faults_of(rank).delayed_launch = 2;
    fake_nccl::faults_of(rank).delay_ms = delay_ms;
  }
  const std::vector<RankEnd> ends = run_nccl(2, patient_options(), [&](int rank, Communicator& world) {
    HostDevice device;
    collectives::barrier(world, "test: start");
    OperationRecorder recorder;
    {
      const RecordedStep step(&recorder);
      Pending<Tensor> next =
          collectives::exchange(world, device.empty({4}, kFloat32), 1 - rank, 1 - rank, 4, "test: next chunk");
      std::this_thread::sleep_for(std::chrono::milliseconds(compute_ms));
      next.wait();
    }
    const RankTrace trace = trace_of(recorder, rank);
    const TraceEvent& exchange = trace.events.at(1);
    if (rank == 1) return;
    // The one way out of the process that a rank has.
    fail(ErrorKind::internal_error, "{} {}", exchange.exposed_ns(), exchange.device_end_ns - exchange.device_begin_ns);
  });
  std::istringstream numbers(ends[0].message);
  Milliseconds result;
  numbers >> result.exposed >> result.on_device;
  EXPECT_FALSE(numbers.fail()) << ends[0].message;
  return {.exposed = result.exposed / 1e6, .on_device = result.on_device / 1e6};
}

// Exposed is max(0, delay - compute), within a tenth of the delay; the device's time is the delay. The best of three,
// because the machine may be busy with something else.
TEST(NcclTrace, HasTheExposedTimeAndThatOfTheDevice) {
  constexpr int kDelay = 200;
  for (const auto& [compute, expected] : {std::pair(0, 200.0), std::pair(120, 80.0), std::pair(300, 0.0)}) {
    double nearest = 1e9, nearest_on_device = 1e9;
    for (int attempt = 0; attempt < 3 && std::max(nearest, nearest_on_device) > kDelay / 10.0; ++attempt) {
      const Milliseconds found = recorded(kDelay, compute);
      nearest = std::min(nearest, std::abs(found.exposed - expected));
      nearest_on_device = std::min(nearest_on_device, std::abs(found.on_device - kDelay));
    }
    EXPECT_LE(nearest, kDelay / 10.0) << "computing for " << compute << " ms";
    EXPECT_LE(nearest_on_device, kDelay / 10.0) << "computing for " << compute << " ms";
  }
}

// How far apart the two clocks may be said to be on a machine that is busy; with other origins they differ by far more.
constexpr std::int64_t kNear = 5'000'000;

TEST(NcclTrace, PutsTheTimesOfTheDeviceOnTheClockOfTheHost) {
  EXPECT_EQ(test::trouble_of(2,
                             [](int rank, Communicator& world) {
                               HostDevice device;
                               OperationRecorder recorder;
                               {
                                 const RecordedStep step(&recorder);
                                 for (int i = 0; i < 5; ++i) {
                                   collectives::all_gather(world, device.empty({3}, kFloat32), "test: rows").wait();
                                 }
                               }
                               const RankTrace trace = trace_of(recorder, rank);
                               for (const TraceEvent& event : trace.events) {
                                 if (!event.is(EventKind::communication)) continue;
                                 const bool is_inside = event.begin_ns <= event.device_begin_ns + kNear &&
                                                        event.device_begin_ns <= event.device_end_ns &&
                                                        event.device_end_ns <= event.end_ns + kNear;
                                 SHARDPROOF_CHECK(is_inside, internal_error, "{} {} {} {}", event.begin_ns,
                                                  event.device_begin_ns, event.device_end_ns, event.end_ns);
                               }
                             }),
            "");
}

// What every rank should do: in a group, three gathers.
void three_gathers(Communicator& world, int calls) {
  HostDevice device;
  const auto group = world.split(0, world.rank(), "pair");
  for (int call = 0; call < calls; ++call) {
    collectives::all_gather(*group, device.empty({2, 3}, kFloat32), "test: rows").wait();
  }
}

TEST(NcclTrace, SaysOfAHungRunWhichRankDidNotMakeWhichCall) {
  const test::TemporaryFolder folder;
  NcclOptions options = impatient_options();
  options.flight_record = folder / "record.";
  fake_nccl::make_fabric(2);
  (void)run_nccl(2, options, [](int rank, Communicator& world) {
    three_gathers(world, rank == 1 ? 1 : 3);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    collectives::barrier(world, "test: end");
  });
  // The same ranks, simulated.
  RunTrace trace;
  std::vector<OperationRecorder> recorders(2);
  run_ranks({.world_size = 2}, [&](Communicator& world) {
    const RecordedStep step(&recorders[static_cast<std::size_t>(world.rank())]);
    three_gathers(world, 3);
  });
  for (int rank = 0; rank < 2; ++rank) {
    trace.ranks.push_back(trace_of(recorders[static_cast<std::size_t>(rank)], rank));
  }
  test::put(folder / "trace.json", chrome_text(trace));
  const auto texts_of = [&](const std::vector<std::filesystem::path>& files) {
    std::vector<std::string> texts;
    for (const Divergence& divergence : compare_trace_files(files).divergences) texts.push_back(divergence.text);
    return texts;
  };
  EXPECT_THAT(
      texts_of({folder / "record.0", folder / "record.1"}),
      ElementsAre("rank 1 did not make call 2 of group world/pair#1, which rank 0 made: all_gather 'test: rows' "
                  "float32 rows of [3], sends 2 rows (24 B), receives 4 rows (48 B) among ranks 0, 1"));
  EXPECT_THAT(texts_of({folder / "record.1", folder / "trace.json"}),
              ElementsAre(HasSubstr("rank 1 did not make call 2 of group world/pair#1, which the trace has as "
                                    "'world/pair#1 call 2 all_gather': all_gather 'test: rows' float32 rows of [3]")));
}

// The numbers of calls are those of every communicator, whatever its splits are made of.
TEST(NcclTrace, NumbersCallsAsTheSimulatorDoes) {
  const auto calls = [](Communicator& world) {
    HostDevice device;
    OperationRecorder recorder;
    {
      const RecordedStep step(&recorder);
      const auto first = world.split(0, world.rank(), "pair");
      const auto second = first->split(world.rank(), 0, "own");
      collectives::barrier(world, "test");
      collectives::barrier(*first, "test");
    }
    std::string text;
    for (std::size_t i = 1; i < recorder.event_count(); ++i) {
      const RecordedEvent& event = recorder.event(i);
      text += recorder.groups()[static_cast<std::size_t>(event.place)].key + " " + std::to_string(event.call) + " " +
              std::to_string(recorder.movement_of(event).group_call) + ", ";
    }
    return text;
  };
  std::vector<std::string> simulated(2);
  run_ranks({.world_size = 2},
            [&](Communicator& world) { simulated[static_cast<std::size_t>(world.rank())] = calls(world); });
  EXPECT_EQ(simulated[0], "world 1 2, world/pair#1 1 2, ");
  fake_nccl::make_fabric(2);
  const std::vector<RankEnd> ends = run_nccl(
      2, patient_options(), [&](int, Communicator& world) { fail(ErrorKind::internal_error, "{}", calls(world)); });
  for (const RankEnd& end : ends) EXPECT_EQ(end.message, simulated[0]);
}

}  // namespace
}  // namespace shardproof
