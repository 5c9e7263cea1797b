// `run`: the configuration on real ranks, one process each, with the object files that the simulator runs. Rank 0 first
// verifies it on simulated ranks, so that a configuration which is refused or wrong never leaves real ranks waiting;
// then every rank's output must have the bits of the simulated one.
#pragma once

#include "app/commands.h"

namespace shardproof {

CommandOutcome run_on_real_ranks(const Options& options, Progress& progress);

}  // namespace shardproof
