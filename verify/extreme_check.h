// Attention with extreme inputs: the attention calls of a run made again, by the same code on the same ranks and in the
// type of production, on operands at which numbers overflow, vanish or lose their digits. Logits of 150 either way; the
// keys of each rank in turn masked, by -inf and by large finite numbers; large values of next to no weight on each rank
// in turn; a single key on every rank. What comes back must be finite, and off by at most the usual multiple of what
// the dense run is off. A dense run that has no log-sum-exp of 150 to round can be right by luck: what one rounding of
// such a one in float32 does to the result, in which all types accumulate, counts as its least error. Source:
// verification specification, section 5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "verify/parallel_run.h"

namespace shardproof {

struct ExtremeResult {
  // "masked by -1e9: attention of q ..: rank 1: .."; empty if nothing is wrong.
  std::vector<std::string> differences;
  // What could not be asked of this configuration, and why.
  std::vector<std::string> not_checked;
  std::int64_t problems = 0;
  double largest_ratio = 0.0;
};

// `run` has completed under `options`; `device` computes in `dtype`. Sequences are cut to few tokens a rank, as extreme
// values need no long ones; heads and channels are the run's. Never throws for what goes wrong in the run.
ExtremeResult check_extremes(const ParallelRun& run, const ParallelRunOptions& options, DType dtype, Device& device);

}  // namespace shardproof
