#include "tests/zoo/switch.h"

#include <atomic>
#include <mutex>

#include "core/error.h"
#include "sim/simulation.h"
#include "tests/zoo/helpers.h"

namespace shardproof::zoo {
namespace {

// Zero is no fault's number. Ranks may run on several workers.
std::atomic<std::uint64_t> fault_that_is_on{0};
std::atomic<bool> reached{false};

std::atomic<bool> is_recording{false};
std::mutex recorded_guard;
std::set<std::uint64_t> recorded;

}  // namespace

ReachRecorder::ReachRecorder() {
  SHARDPROOF_CHECK(!is_recording, state_error, "another recorder is at work; one at a time");
  recorded.clear();
  is_recording = true;
}

ReachRecorder::~ReachRecorder() { is_recording = false; }

std::set<std::uint64_t> ReachRecorder::reached() const {
  const std::lock_guard lock(recorded_guard);
  return recorded;
}

bool active(std::uint64_t fault) {
  if (is_recording.load(std::memory_order_relaxed) && is_inside_rank()) {
    const std::lock_guard lock(recorded_guard);
    recorded.insert(fault);
  }
  if (fault_that_is_on.load(std::memory_order_relaxed) != fault || !is_inside_rank()) return false;
  reached.store(true, std::memory_order_relaxed);
  return true;
}

FaultSwitch::FaultSwitch(std::string_view name) {
  SHARDPROOF_CHECK(fault_that_is_on == 0, state_error, "fault '{}': another fault is on; one at a time", name);
  fault_that_is_on = id(name);
  reached = false;
}

FaultSwitch::~FaultSwitch() {
  fault_that_is_on = 0;
  forget_left_overs();
}

bool FaultSwitch::was_reached() const { return reached; }

}  // namespace shardproof::zoo
