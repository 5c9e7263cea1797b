// The flight record that a rank of a hung run has left (real/flight_recorder.h writes it), read as a part of a trace:
// its calls in every group, numbered since the group was made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "reports/trace.h"

namespace shardproof {

// What a trace's event does not hold of a call.
struct FlightDetail {
  std::string state;
  std::vector<std::int64_t> send_rows;     // all_to_all: one per member; scatter: one per member, on the root
  std::vector<std::int64_t> receive_rows;  // all_gather, all_to_all: one per member
};

struct FlightRecord {
  int rank = 0;
  int world_size = 0;
  std::string reason;
  std::vector<std::string> late;      // "rank 1 has not made this call": whom the watchdog waited for
  RankTrace calls;                    // communication only; group_call is the number of the call
  std::vector<FlightDetail> details;  // of the events
  std::vector<std::int64_t>
      dropped_last;      // of the groups: how many calls, parts of others included, came behind those kept
  bool is_whole = true;  // every call that the rank made is still there
};

bool is_flight_record(const Json& json);
// file_error naming the file and the key for what is none, and for a group without members or with one twice.
FlightRecord flight_record_from_json(const Json& json);

}  // namespace shardproof
