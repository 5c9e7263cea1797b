// Stands in for the device of LibTorch in a build without it: says so instead of doing nothing.
// A caller never needs to know which files were compiled.
#include "core/error.h"
#include "real/torch_device.h"

namespace shardproof {

namespace {

[[noreturn]] void say_how_to_build_it() {
  fail(ErrorKind::unsupported_error,
       "this build has no LibTorch; run tools/setup_python.sh, or name the folder of a LibTorch or of the Python "
       "package "
       "torch with -DSHARDPROOF_TORCH_ROOT=FOLDER, and configure again");
}

}  // namespace

std::unique_ptr<Device> make_torch_device(const TorchDeviceOptions&) { say_how_to_build_it(); }
void compute_on_torch_stream(const TorchDeviceOptions&, void*) { say_how_to_build_it(); }
bool torch_is_built() { return false; }

}  // namespace shardproof
