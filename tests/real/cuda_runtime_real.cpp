// The real CUDA runtime is in use, with a GPU or without one.
// It finds nothing wrong by itself, so there is nothing to say at the end.
#include <cuda_runtime_api.h>

#include "tests/real/cuda_runtime_in_use.h"

namespace shardproof::test {

std::string reason_for_no_cuda() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  return std::string("this machine has no GPU: cudaGetDeviceCount: ") + cudaGetErrorString(status);
}

std::string complaints_of_cuda() { return ""; }

}  // namespace shardproof::test
