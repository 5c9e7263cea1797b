// Loads the module with LibTorch the first time that a device is asked for: most runs of the program ask for none, and
// should not wait for it.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "real/library_file.h"
#include "real/loaded_library.h"
#include "real/torch_device.h"
#include "real/torch_module.h"

namespace shardproof {
namespace {

constexpr const char* kVariable = "SHARDPROOF_TORCH_LIBRARY";

std::string module_path() {
  const LibraryFile file = find_library_file("libshardproof_torch.so", kVariable);
  if (file.path) return *file.path;
  std::vector<std::string> names;
  for (const std::string& place : file.places) names.push_back(fmt::format("'{}'", printable(place, 1000)));
  fail(
      ErrorKind::file_error,
      "the module with LibTorch is missing: there is no {}; build the target shardproof_torch, or say where it is with "
      "{}",
      fmt::join(names, " and no "), kVariable);
}

TorchModule load() {
  const LoadedLibrary library({.library = "the module with LibTorch",
                               .expected = "the module of this build",
                               .advice = "build the target shardproof_torch",
                               .variable = kVariable,
                               .places = {module_path()},
                               .error = ErrorKind::file_error});
  const TorchModuleFunction function = library.function(kTorchModuleFunction);
  const TorchModule* const module = function();
  const std::string_view version = module->interface_version;
  SHARDPROOF_CHECK(version == SHARDPROOF_TORCH_INTERFACE, file_error,
                   "{} is of another build: its interface is '{}', expected '{}'; build the target shardproof_torch "
                   "together with the program",
                   library.place(), printable(version), SHARDPROOF_TORCH_INTERFACE);
  return *module;
}

const TorchModule& torch_module() {
  static const TorchModule module = load();
  return module;
}

}  // namespace

std::unique_ptr<Device> make_torch_device(const TorchDeviceOptions& options) {
  return std::unique_ptr<Device>(torch_module().make_device(options));
}

void compute_on_torch_stream(const TorchDeviceOptions& options, void* stream) {
  torch_module().compute_on_stream(options, stream);
}

bool torch_is_built() { return true; }

}  // namespace shardproof
