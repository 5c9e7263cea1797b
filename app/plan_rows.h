// What a plan did in one run, as lines: the records of all ranks put side by side. Sizes are those that the ranks saw,
// not what the plan should give.
#pragma once

#include <string>
#include <vector>

#include "reports/result.h"
#include "verify/parallel_run.h"

namespace shardproof {

// In the order in which the entries acted, those that were skipped or whose argument was not given last. A run that did
// not complete is one line.
std::vector<PlanRow> plan_rows(const ParallelRun& run, const std::string& case_name, const std::string& mode,
                               const std::string& mesh);

}  // namespace shardproof
