// The part of verify that follows a difference when asked to: the smallest configuration that shows it, the command
// that repeats it, and a test that fails on it.
#pragma once

#include "app/options.h"
#include "app/progress.h"
#include "app/request.h"
#include "reports/result.h"

namespace shardproof {

// Shrinks the first DIFFERENT result of the fewest ranks and notes what came of it in the report; `configurations[i]`
// is that of result i. Nothing differs: a note says so.
void shrink_first_difference(RunRequest& request, const Options& options,
                             const std::vector<ParallelConfig>& configurations, Progress& progress, Report& report);

}  // namespace shardproof
