// A device whose tensors lie in memory of cudaMalloc: of a GPU, or of the fake CUDA runtime. It has no kernels: what it
// does with tensors, of which it can add but not multiply, it does to copies of their memory on the host, slowly, after
// everything that was queued on the stream of the calling thread.
#pragma once

#include <memory>

#include "core/device.h"

namespace shardproof::test {

std::unique_ptr<Device> make_cuda_memory();
// The cudaStream_t on which the calling thread computes from now on; null, as at first, is the default one.
void compute_on(void* stream);

}  // namespace shardproof::test
