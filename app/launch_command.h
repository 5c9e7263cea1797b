// `launch`: starts a program as the ranks of one run on this machine, shows what they write with the rank before every
// line, and ends with the status of the first that fails.
#pragma once

#include "app/options.h"

namespace shardproof {

// The exit status: 0 if every rank ended with 0; that of the first rank that failed, or 4 if a signal killed it; 128
// and the signal if this process was told to end. Throws Error for what is wrong with the request.
int launch_processes(const Options& options);

}  // namespace shardproof
