// Ranges for tools like Nsight Systems: every step, module call, operation, post and wait of a rank by its name, in the
// domain "shardproof" of NVTX. Without such a tool there is nobody to tell, and nothing is done.
#pragma once

#include <memory>

#include "core/operation_recorder.h"

namespace shardproof {

// Null if no tool is attached to this process, or if this build has no NVTX. Ranges nest in each thread, so a rank must
// have its thread to itself.
std::unique_ptr<RangeSink> nvtx_ranges();

// True if this build has NVTX.
bool nvtx_is_built();

}  // namespace shardproof
