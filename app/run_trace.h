// What `run` records of its steps, and where that goes: from every rank to rank 0, into the file of --trace, and into
// the table at the end of the report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/output.h"
#include "app/request.h"
#include "core/communicator.h"
#include "reports/chrome_trace.h"
#include "reports/trace.h"

namespace shardproof {

// True if --trace or --steps is given.
bool is_recorded(const Options& options);
// The file of --trace; null without one, and where another rank writes it. file_error if it cannot be written.
std::unique_ptr<OutputTarget> trace_target(const Options& options);
// Writes it to the file of --trace. file_error if that fails, or if nobody could read so large a file again.
void write_trace_file(const RunTrace& trace, const Options& options, OutputTarget& target,
                      std::size_t most_bytes = kMostTraceBytes);
// How much is recorded at most: bytes of the text of a trace, since nobody could read a larger file again; bytes of the
// numbers that rank 0 gathers of all ranks, which it holds several times over.
struct RecordLimits {
  std::int64_t text = kMostTraceBytes;
  std::int64_t numbers = std::int64_t{1} << 31U;
};
// Collective, after the first step, which the recorder holds: why the steps of --steps are too many to be recorded, in
// the same words on every rank; none if they are not.
std::optional<std::string> recording_problem(Communicator& world, const OperationRecorder& recorder,
                                             const Options& options, const RecordLimits& limits = {});
// Why a run that was to be recorded has left no trace or table.
std::string no_trace_text(const Options& options);
// usage_error listing the cases if several would be recorded: a trace is of one.
void check_one_case(const Options& options, const std::vector<std::string>& cases);

std::string_view backend_name(Backend backend);

// A trace without ranks, which says of what it is one.
RunTrace empty_trace(const Options& options, const RunRequest& request, const std::string& case_name);

// Collective: the numbers of all ranks in rank order on rank 0, nothing on the others. They move in pieces, each with
// the deadline of a collective of its own, however many they are. `host` makes tensors that the communicator moves.
inline constexpr std::int64_t kGatheredPiece = std::int64_t{1} << 20U;
std::vector<std::vector<std::int64_t>> gathered_on_rank_0(Communicator& world, Device& host,
                                                          std::vector<std::int64_t> own,
                                                          std::int64_t most_at_once = kGatheredPiece);
// Collective: each rank's text, whole, in rank order.
std::vector<std::string> gathered_texts(Communicator& world, const std::string& own);

}  // namespace shardproof
