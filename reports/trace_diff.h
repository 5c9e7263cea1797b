// Where two runs part: the first operation of every rank that one run made and the other did not, or made differently.
// A run is a trace file, or the flight records that ranks of a hung run wrote; those say which rank did not make which
// call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"

namespace shardproof {

struct RunTrace;

// An operation as one side has it.
struct DivergentCall {
  std::string id;
  std::string signature;
};

struct Divergence {
  int rank = 0;
  std::string kind = {};      // "missing" or "extra" in the second, "different"; "absent": the rank is not there at all
  std::int64_t position = 0;  // of the first divergent operation among those of the rank; 0 = the first
  std::int64_t step = 0;
  std::optional<DivergentCall> first = std::nullopt;   // what the first side does there; none at its end
  std::optional<DivergentCall> second = std::nullopt;  // the same of the second side
  std::string text = {};                               // all that in one sentence
};

struct TraceComparison {
  std::vector<std::string> files;
  std::int64_t ranks = 0;     // that both sides have
  std::int64_t compared = 0;  // operations
  std::vector<Divergence> divergences;
  std::vector<std::string> notes;  // what was not compared, and settings that differ
};

// Steps that both have, rank by rank, in the order in which the rank came to its operations. What the runs were asked
// for (model, mesh, mode, type, ..) is a note where it differs.
TraceComparison compare_traces(const RunTrace& first, const RunTrace& second);

// Two trace files; or flight records of one run, with or without one trace of what it should have done. file_error for
// what is neither, and where nothing was there to be compared; usage_error for other numbers of files.
TraceComparison compare_trace_files(std::span<const std::filesystem::path> files);

std::string comparison_text(const TraceComparison& comparison, std::size_t width);
Json comparison_json(const TraceComparison& comparison);

}  // namespace shardproof
