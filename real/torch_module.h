// What the program and the module with LibTorch agree on: one function, exported with C linkage, that gives the version
// of this agreement and makes devices. The two are built apart and meet at run time, so everything that passes between
// them (the layout of Device, Tensor, Storage and Error) has to be the same: the version contains a hash of those
// headers.
#pragma once

#include "core/device.h"
#include "real/torch_device.h"

namespace shardproof {

struct TorchModule {
  const char* interface_version;  // first, and the only member that is read before it is compared
  // The two functions of real/torch_device.h; the caller deletes the device.
  Device* (*make_device)(const TorchDeviceOptions& options);
  void (*compute_on_stream)(const TorchDeviceOptions& options, void* stream);
};

inline constexpr const char* kTorchModuleFunction = "shardproof_torch_module";
using TorchModuleFunction = const TorchModule* (*)();

}  // namespace shardproof
