// The structure tier: what a parallel run moved, checked by identities instead of numbers. Every attention call that
// the run made is made again, by the same code on the same ranks, on operands whose elements say which element they
// are; every division and gathering of a plan likewise. Source: verification specification, sections 1 and 3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/parallel_run.h"

namespace shardproof {

struct StructureResult {
  std::int64_t attention_calls = 0;  // different ones
  std::int64_t plan_entries = 0;     // different ones: by action, axis and sizes
  // Of these.
  std::int64_t wrong_attention_calls = 0;
  std::int64_t wrong_plan_entries = 0;
  // "attention q [1, 4, 2, 8], ..: query token 7, head 2 on rank 1: key token 4 counted 2 times, key token 2 missing";
  // empty if everything stood where the layout says.
  std::vector<std::string> differences;
  std::string not_checked;  // why, where a call was left out
};

// `run` has completed under `options`. Movements are checked by every rank, whatever the numbers were. Never throws
// for what goes wrong in the run: a deadlock or a mismatch is a difference.
StructureResult check_structure(const ParallelRun& run, const ParallelRunOptions& options);

}  // namespace shardproof
