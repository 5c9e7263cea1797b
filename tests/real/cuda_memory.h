// A device whose tensors lie in memory of cudaMalloc: of a GPU, or of the fake CUDA runtime. It has no kernels. What it
// does with tensors it does to copies of their memory on the host, slowly, in the order of CUDA's default stream.
#pragma once

#include <memory>

#include "core/device.h"

namespace shardproof::test {

std::unique_ptr<Device> make_cuda_memory();

}  // namespace shardproof::test
