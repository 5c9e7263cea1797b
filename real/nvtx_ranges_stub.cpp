// In the place of nvtx_ranges.cpp where the build found no headers of NVTX (tools/setup_nccl.sh fetches them): no tool
// hears of anything.
#include "real/nvtx_ranges.h"

namespace shardproof {

std::unique_ptr<RangeSink> nvtx_ranges() { return nullptr; }

bool nvtx_is_built() { return false; }

}  // namespace shardproof
