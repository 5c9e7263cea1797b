// A device whose tensors lie in the device memory of the fake CUDA runtime. The host can reach that, so tensors are
// moved as a host device moves them, each time after waiting for the default stream: what a device does that computes
// on that stream. It has no arithmetic.
#pragma once

#include <memory>

#include "core/device.h"

namespace shardproof::fake_nccl {

std::unique_ptr<Device> make_device_memory();

}  // namespace shardproof::fake_nccl
