// Stands in for ranks that share a GPU in a build without CUDA: says so instead of doing nothing.
// A caller never needs to know which of the two files was compiled.
#include "core/error.h"
#include "real/cuda_threads.h"

namespace shardproof {

void run_cuda_ranks(const CudaThreadsOptions&, const CudaRank&) {
  fail(ErrorKind::unsupported_error,
       "this build has no CUDA; run tools/setup_nccl.sh, or name a folder that has NCCL and the CUDA runtime with "
       "-DNCCL_ROOT=FOLDER, and configure again");
}
bool cuda_threads_are_built() { return false; }

}  // namespace shardproof
