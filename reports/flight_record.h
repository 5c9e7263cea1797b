// The flight record that a rank of a hung run has left (real/flight_recorder.h writes it), read as a part of a trace:
// its calls in every group, numbered since the group was made.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "reports/trace.h"

namespace shardproof {

struct FlightRecord {
  int rank = 0;
  int world_size = 0;
  std::string reason;
  std::vector<std::string> late;    // "rank 1 has not made this call": whom the watchdog waited for
  RankTrace calls;                  // communication only; group_call is the number of the call
  std::vector<std::string> states;  // of the events
};

bool is_flight_record(const Json& json);
// file_error naming the file and the key for what is none.
FlightRecord flight_record_from_json(const Json& json);

}  // namespace shardproof
