// What flight records of a hung run disagree on, with each other or with a trace of what the run should have done:
// calls that a rank did not make or made otherwise, peers and rows that do not fit each other, groups that are not the
// same on all of their ranks. What a record no longer keeps is not held against its rank.
#pragma once

#include <span>

#include "reports/trace_diff.h"

namespace shardproof {

struct FlightRecord;
struct RunTrace;

// Every group of every record, call by call; of each rank and group the first difference. Ranks must differ.
TraceComparison compare_flight_records(std::span<const FlightRecord> records);
// Each record with its rank of the trace, but for the group of all ranks, which a run also uses for what is no part of
// the model; where they agree, the records with each other.
TraceComparison compare_flight_records_with(const RunTrace& trace, std::span<const FlightRecord> records);

}  // namespace shardproof
