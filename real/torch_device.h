// LibTorch as a device: operations are those of ATen, attention its fused kernels that also give the log-sum-exp
// (flash, cuDNN, memory-efficient), or the textbook form where these do not apply. Memory is that of torch's own
// allocator. It lives in a module, libshardproof_torch.so, that is loaded when a device is first asked for, so that
// nothing pays for LibTorch's start-up, half a second, that does not use it. No header of torch is needed here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/device.h"

namespace shardproof {

enum class TorchPlace : std::uint8_t { cpu, cuda };

struct TorchDeviceOptions {
  TorchPlace place = TorchPlace::cpu;
  int index = 0;  // of the GPU; those beyond the last one are shared, as real ranks beyond the number of GPUs are
};

// A device named "torch", or "cuda" where it computes on a GPU, for the six plain element types. On the CPU it uses one
// thread, since ATen's bits depend on their number. unsupported_error if this build has no LibTorch, or if a GPU is
// wanted and there is none for it; file_error if the module is missing, cannot be loaded or is of another build.
std::unique_ptr<Device> make_torch_device(const TorchDeviceOptions& options = {});

// From now on the devices of that GPU compute on `stream`, a cudaStream_t, whenever the calling thread asks them to:
// for ranks that are threads and share one device, each with a stream. Otherwise they compute on the stream that torch
// has for a thread, which is the default one. Throws as make_torch_device(), usage_error on the CPU, which has no
// streams.
void compute_on_torch_stream(const TorchDeviceOptions& options, void* stream);

// True if the module was built with this program; it need not be loaded for that.
bool torch_is_built();

}  // namespace shardproof
