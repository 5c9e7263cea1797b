// What the GPUs of this process do, kernel by kernel and copy by copy, as CUPTI (the CUDA profiling tools interface)
// tells. Where a rank records its operations, each piece of work is known by the operation that launched it.
//
// CUPTI is one for the process and so is this: there may be one DeviceActivity at a time, and none while another tool
// (Nsight Systems, the profiler of PyTorch) watches the same process. The library is loaded when it is asked for, from
// the path in SHARDPROOF_CUPTI_LIBRARY, or from where the build, the program loader or the CUDA toolkit has it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/device_work.h"
#include "core/operation_recorder.h"

namespace shardproof {

class DeviceActivity {
 public:
  virtual ~DeviceActivity() = default;

  // From now on the devices are watched. internal_error with what CUPTI says if that fails.
  virtual void begin() = 0;
  // What they did since begin(), in the order in which it began; the watch ends. To be called when all of it is done:
  // what still runs may be missing.
  virtual DeviceWorkList end() = 0;

  // For the recorder of a rank: what its thread launches belongs to the event that is open. `also` is told of all
  // ranges too; it may be null. Must not outlive this object.
  virtual std::unique_ptr<RangeSink> ranges(int rank, RangeSink* also) = 0;

  // What the calling thread launches between the two belongs to an event of that rank; -1 = to none that is known.
  // Nests.
  virtual void begin_launch(int rank, std::int64_t event) = 0;
  virtual void end_launch() = 0;
};

// unsupported_error if this build has no CUPTI, if its library is not found, is of another version, or sees no GPU;
// state_error if there is one already.
std::unique_ptr<DeviceActivity> watch_device_activity();

// True if this build has CUPTI.
bool device_activity_is_built();

// begin_launch() and end_launch() around a scope; nothing without an activity.
class LaunchMark {
 public:
  LaunchMark(DeviceActivity* activity, int rank, std::int64_t event) : activity_(activity) {
    if (activity_ != nullptr) activity_->begin_launch(rank, event);
  }
  ~LaunchMark() {
    if (activity_ != nullptr) activity_->end_launch();
  }
  LaunchMark(const LaunchMark&) = delete;
  LaunchMark& operator=(const LaunchMark&) = delete;

 private:
  DeviceActivity* activity_;
};

}  // namespace shardproof
