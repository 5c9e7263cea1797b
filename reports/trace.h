// A trace: what every rank of a run did, operation by operation, with times in the clock of rank 0. The one data model
// that the writer and reader of trace files, the table of a profile and the comparison of two runs take. A rank's part
// is made of its recorder and travels to rank 0 as a list of integers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device_work.h"
#include "core/operation_recorder.h"

namespace shardproof {

// Numbers of texts and groups are those of the rank's lists. Only integers, so that it can be sent as it is.
// Times are nanoseconds; -1 = did not come about.
struct TraceEvent {
  std::int64_t kind = 0;  // EventKind
  std::int64_t step = 0;
  std::int64_t operation = 0;    // text; of a module call, the class
  std::int64_t module = -1;      // text: path of the module in whose call it happened; -1 = none
  std::int64_t module_call = 0;  // of that module, in the step; 1 = the first
  std::int64_t ordinal = 0;      // of a computation: among those of the same operation in that module call
  std::int64_t group = -1;       // of a communication, like the rest but bytes, type and times
  std::int64_t call = 0;         // in the group and step; 1 = the first
  std::int64_t group_call = 0;   // in the group, since it was made; 1 = the first
  std::int64_t is_sum = 0;
  std::int64_t purpose = 0;  // text
  std::int64_t dtype = 0;    // text
  std::int64_t shape = 0;    // text: of the result; of a communication, of one row
  std::int64_t bytes = 0;    // of a computation: of its result and of what it reads
  std::int64_t send_rows = 0;
  std::int64_t receive_rows = 0;
  std::int64_t send_bytes = 0;
  std::int64_t receive_bytes = 0;
  std::int64_t to = -1;
  std::int64_t from = -1;
  std::int64_t root = -1;
  std::int64_t begin_ns = -1;  // of a communication: posted
  std::int64_t end_ns = -1;    // of a communication: wait() returned
  std::int64_t post_end_ns = -1;
  std::int64_t wait_begin_ns = -1;
  std::int64_t device_begin_ns = -1;  // where the transport measures it
  std::int64_t device_end_ns = -1;

  bool is(EventKind wanted) const { return kind == static_cast<std::int64_t>(wanted); }
  // When it is known to be complete.
  std::int64_t complete_ns() const { return device_end_ns >= 0 ? device_end_ns : end_ns; }
  // How long the rank stood still for it: its wait.
  std::int64_t exposed_ns() const { return end_ns >= 0 && wait_begin_ns >= 0 ? end_ns - wait_begin_ns : 0; }
};

// A piece of work that the rank's device did. Only integers, like an event.
struct TraceDeviceWork {
  std::int64_t kind = 0;    // DeviceWorkKind
  std::int64_t name = 0;    // text
  std::int64_t event = -1;  // place among the rank's events of the one in which it was launched; -1 = not known
  std::int64_t device = 0;
  std::int64_t stream = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;  // of a copy or fill

  bool is(DeviceWorkKind wanted) const { return kind == static_cast<std::int64_t>(wanted); }
};

// "kernel", "copy" or "fill".
std::string_view device_work_name(const TraceDeviceWork& work);

struct TraceGroup {
  std::string key;           // "world/ring#1"
  std::vector<int> members;  // world ranks
};

struct RankTrace {
  int rank = 0;
  ClockOffset clock;
  std::vector<std::string> texts;
  std::vector<TraceGroup> groups;
  std::vector<TraceEvent> events;                 // in the order in which the rank came to them
  std::vector<TraceDeviceWork> device_work = {};  // in the order in which it began; empty if nobody watched
  std::int64_t device_work_lost = 0;              // pieces that are missing

  const std::string& text(std::int64_t number) const;  // of -1: nothing
  const TraceGroup& group_of(const TraceEvent& event) const { return groups[static_cast<std::size_t>(event.group)]; }
};

struct RunTrace {
  std::vector<std::pair<std::string, std::string>> about;  // model, case, mesh, backend, ..
  std::vector<RankTrace> ranks;                            // ascending
  std::string source = {};                                 // the file that it was read from, for messages

  std::int64_t steps() const;
  // Empty if there is none of that name.
  std::string_view about_of(std::string_view name) const;
  // Whether any rank has an operation: a computation or a communication.
  bool has_operations() const;
};

// World ranks in member order, with at least three that follow each other as a range: "0-3, 8, 9".
std::string members_text(std::span<const int> members);

RankTrace trace_of(const OperationRecorder& recorder, int rank);
// Adds the offset to every time and notes it.
void correct_clock(RankTrace& trace, const ClockOffset& offset);

std::vector<std::int64_t> packed(const RankTrace& trace);
// internal_error if the numbers are none that packed() makes.
RankTrace unpacked(std::span<const std::int64_t> numbers);

// The name of the operation, which no other of its rank and step has: "world/ring#1 call 3 exchange",
// "blocks.0.attn.to_q call 1 matmul 1".
std::string identifier(const RankTrace& trace, const TraceEvent& event);
// What members, or a simulated and a real run, must agree on: "exchange 'ring: keys and values' float64 rows of [2, 4],
// sends 3 rows (192 B), receives 3 rows (192 B), to 1, from 1 among ranks 0, 1". Peers and root are positions among
// those.
std::string signature(const RankTrace& trace, const TraceEvent& event);

// Of a communication, in bytes for each nanosecond (GB/s), by the formulas of nccl-tests: algorithm bandwidth is S / t,
// bus bandwidth that times (n-1)/n for all_gather, all_to_all and scatter, and itself for broadcast and exchange.
// S is what the rank gets of an all_gather, what it sends of an all_to_all, what the root sends, the larger side of an
// exchange.
struct Bandwidth {
  double algorithm = 0.0;
  double bus = 0.0;
};
std::int64_t moved_bytes(const RankTrace& trace, const TraceEvent& event);
Bandwidth bandwidth(std::string_view operation, std::int64_t bytes, std::int64_t nanoseconds, std::size_t members);
// From post to completion; on the device where that was measured.
std::int64_t duration_ns(const TraceEvent& event);

}  // namespace shardproof
