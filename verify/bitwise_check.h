// The tier of bits: the attention calls of a run made again on inputs for which every rank has one right answer to the
// last bit. Hard-attention probes go through the production device as it is: one key a query wins by so much that
// attention is a table look-up, or two win alike and give exactly their mean. Dyadic inputs have integer logits and a
// base-2 softmax, whose sums are exact in any order. Source: verification specification, section 4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/parallel_run.h"

namespace shardproof {

struct BitwiseResult {
  std::int64_t attention_calls = 0;  // different ones
  std::int64_t problems = 0;         // that were compared: a kind of input and an element type for each call
  std::vector<std::string> differences;
  std::vector<std::string> not_checked;  // what was left out, and why
};

// The gap by which a probe's winner leads: exp(-gap) * keys * largest |value| stays below half a unit in the last place
// of the smallest result, in `dtype`'s rounding unit u: gap = ln(2 keys largest / u) + 1.
double probe_gap(DType dtype, std::int64_t keys);

// `run` has completed under `options`; probes run on the CPU device. Never throws for what goes wrong in the run.
BitwiseResult check_bits(const ParallelRun& run, const ParallelRunOptions& options);

}  // namespace shardproof
