// What both tiers say of a run alike: what was run, what makes it wrong whatever its numbers are, and in which words.
// How numbers are compared is each tier's own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "parallel/config.h"
#include "reports/result.h"
#include "verify/parallel_run.h"

namespace shardproof {

// A result that names the configuration and nothing else.
VerificationResult result_of_configuration(const std::string& case_name, const ParallelConfig& config);
// Tokens, bytes and calls of the run, and the plan entries that it left out.
void describe_run(const ParallelRun& run, VerificationResult& result);

// How the plan divided values and what attention had of them, on every rank, and the groups that exchanged: a line
// each.
std::vector<std::string> layout_lines(const ParallelRun& run);

bool same_bits(const Tensor& a, const Tensor& b);
bool splits_tokens(const ParallelRun& run);
// In which words two tensors differ: "3 elements differ, ..".
using DifferenceText = std::function<std::string(const Tensor& actual, const Tensor& expected)>;
// What makes a completed run wrong whatever its numbers are: outputs that are missing, or that differ between ranks
// which must have the same. Empty if nothing does.
std::string structural_difference(const ParallelRun& run, const std::vector<std::string>& outputs,
                                  const DifferenceText& difference);
// What is said of a plan under which attention sees tokens more than once, given the query tokens of the first
// attention in the dense run of each replica. Empty if it does not.
std::string replicated_tokens(const ParallelRun& run, int tp_degree,
                              const std::function<std::int64_t(int replica)>& dense_tokens);
// The reason of a DIFFERENT verdict: the findings together, and that no attention collective was issued where so.
std::string reason_of_difference(const ParallelRun& run, const std::string& replicated, const std::string& difference);

}  // namespace shardproof
