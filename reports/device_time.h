// What the device of a rank did, joined to what the rank recorded, and where the time of the device went. Where the
// host only hands work over, its own times say how long that took and nothing of the work; these do.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_work.h"
#include "reports/trace.h"

namespace shardproof {

// Adds what the rank launched and, if it has the process to itself, what nobody is known to have launched, as long as
// that ran during the steps. Such work (NCCL launches from threads of its own) is of the communication that ran on the
// device at its middle, and of the shortest of several.
void add_device_work(RankTrace& trace, const DeviceWorkList& list, bool has_process_to_itself);

// True for what a communication launched, and for kernels of NCCL.
bool is_communication(const RankTrace& trace, const TraceDeviceWork& work);

// True if every rank has work that a computation launched: then the profile is one of the device.
bool is_timed_on_device(const RunTrace& trace);

struct TimeSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// The times at which something happened, each once.
class TimeSpans {
 public:
  explicit TimeSpans(std::vector<TimeSpan> spans);
  std::int64_t length_ns() const;
  // How much of the span happened.
  std::int64_t covered_ns(TimeSpan span) const;
  const std::vector<TimeSpan>& spans() const { return spans_; }

 private:
  std::vector<TimeSpan> spans_;                 // apart, ascending
  std::vector<std::int64_t> length_before_ns_;  // of all spans before this one
};

// Of one rank.
class DeviceTime {
 public:
  explicit DeviceTime(const RankTrace& trace);

  // From the first work of a step to the end of its last, of all steps.
  std::int64_t steps_ns() const { return steps_ns_; }
  // Of that: while something communicated and nothing else ran; while nothing ran.
  std::int64_t exposed_ns() const { return exposed_ns_; }
  std::int64_t idle_ns() const { return idle_ns_; }
  // Of an event, by its place: its work, all together, and how much of it ran while no other work than communication
  // did.
  double of_event_ns(std::size_t event) const { return events_[event].time_ns; }
  double exposed_of_event_ns(std::size_t event) const { return events_[event].exposed_ns; }

 private:
  struct EventTime {  // of files of strangers, whose sums no integer may hold
    double time_ns = 0.0;
    double exposed_ns = 0.0;
  };
  std::vector<EventTime> events_;
  std::int64_t steps_ns_ = 0;
  std::int64_t exposed_ns_ = 0;
  std::int64_t idle_ns_ = 0;
};

}  // namespace shardproof
