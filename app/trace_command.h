// `trace`: what differs between two recorded runs, and the table of one. It reads files alone, so that runs can be
// compared that were made on different days and machines.
#pragma once

#include "app/commands.h"

namespace shardproof {

// usage_error for an action that there is not, or files that it does not take; file_error for a file that is no trace.
CommandOutcome run_trace_command(const Options& options);

}  // namespace shardproof
