// `run` with all ranks in this process: simulated, or as threads that share a GPU. What it records is what real
// processes record, under the same names.
#pragma once

#include "app/commands.h"

namespace shardproof {

CommandOutcome run_in_this_process(const Options& options, Progress& progress);

}  // namespace shardproof
