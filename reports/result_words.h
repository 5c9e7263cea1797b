// What a report says in sentences, for every printer that shows words: the verdict on the whole, what the columns mean,
// reasons with the configurations that they apply to. So a page says the same as the terminal.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reports/result.h"
#include "reports/text_table.h"

namespace shardproof {

// The last line of the terminal. Empty if there is no result: that of a trace.
struct Closing {
  std::string line;
  Tone tone = Tone::plain;
};
Closing closing_of(const Report& report);

// What was run, a line for each tier: "float64 on device reference, rounding tier, seed 7, schedule seed 8".
std::vector<std::string> run_lines(const Report& report);
// What the columns of the table of verifications mean.
std::string legend_words(const Report& report);
// What stands behind EXACT besides equal elements; empty if nothing does.
std::string movement_words(const Report& report);
// The worst of all modules, likewise.
std::string module_words(const Report& report);

// A reason for a verdict, with all configurations that have it.
struct Reason {
  std::string text;  // may have several lines
  // Cases, and of each the configurations: "ulysses ulysses=3; ring ring=3 (allgather, alltoall)".
  std::vector<std::pair<std::string, std::string>> configurations;
  std::vector<const VerificationResult*> results;  // in the report, in its order
};
std::vector<Reason> reasons_of(const Report& report, Verdict verdict);

// Plan entries that were left whole, and in which cases; one sentence each.
std::vector<std::string> skipped_entry_words(const Report& report);
// Of every export and case the entries of its trace that our model does not have.
std::vector<std::string> missing_counterpart_words(const Report& report);
// Why cases of a plan did not run to the end, and which.
std::vector<std::pair<std::string, std::string>> plan_end_words(const Report& report);
// "12 configurations tried in 0.5 s".
std::string effort_words(const ShrunkResult& shrunk);

}  // namespace shardproof
