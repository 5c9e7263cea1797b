// What a device ran for the ranks of this process, piece by piece, as a profiler tells of it: real/device_activity
// gathers it, reports/device_time joins it to what the ranks recorded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

enum class DeviceWorkKind : std::uint8_t { kernel, copy, fill };

// Times are steady_nanoseconds().
struct DeviceWork {
  DeviceWorkKind kind = DeviceWorkKind::kernel;
  std::int32_t rank = -1;   // that launched it; -1 = nobody knows
  std::int64_t event = -1;  // number of the rank's recorded event in which it was launched; -1 = nobody knows
  std::int64_t name = 0;    // place in DeviceWorkList::names
  std::int64_t device = 0;  // number of the device, and of the stream on it
  std::int64_t stream = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;  // of a copy or fill
};

struct DeviceWorkList {
  std::vector<std::string> names;
  std::vector<DeviceWork> work;
  std::int64_t lost = 0;  // pieces that the profiler had no room for
};

}  // namespace shardproof
