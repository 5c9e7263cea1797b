// Trace files: the JSON that chrome://tracing and Perfetto show, with everything that reading them back needs in the
// arguments of their events. A process is a rank; a thread is a track: what the rank did in order, and its
// communication from post to completion. Arrows join the calls that belong together on different ranks. Format:
// docs/traces.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/json.h"
#include "reports/trace.h"

namespace shardproof {

// What a file says it is, in otherData.
inline constexpr std::string_view kTraceFormat = "shardproof trace";
inline constexpr int kTraceVersion = 1;

// The text of a trace file.
std::string chrome_text(const RunTrace& trace);

// Of a rank, of which `first` has the first of so many steps like it: the bytes of one step in the text of a trace of
// all of them, with the arrows that end at the rank. An upper bound, by a few in a hundred.
std::int64_t chrome_step_bytes(const RankTrace& first, std::int64_t steps);

// The largest file that is read, in bytes and in JSON values. No line of a trace has fewer bytes for each value than
// these have, so that what is short enough can be read.
inline constexpr std::size_t kMostTraceBytes = std::size_t{1} << 29U;
inline constexpr std::size_t kMostTraceValues = kMostTraceBytes / 8;

// What read_json_file gives a trace file or flight record, with limits that suit them.
Json read_trace_json(const std::filesystem::path& path);
bool is_trace_json(const Json& json);
// file_error naming the file and the key for what is no trace of ours: a group of ranks that the file does not have, a
// time before one that it has to follow, ..
RunTrace trace_from_json(const Json& json);

// A group of a trace or flight record: {"group": key, "members": world ranks}. file_error for no members, or one twice.
TraceGroup read_trace_group(const Json& json);

}  // namespace shardproof
