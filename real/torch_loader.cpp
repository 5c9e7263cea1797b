// Loads the module with LibTorch the first time that a device is asked for: most runs of the program ask for none, and
// should not wait for it.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "real/torch_device.h"
#include "real/torch_module.h"

namespace shardproof {
namespace {

// Beside the program, as a build has it, or where it is installed; unless a variable says another place.
std::string module_path() {
  namespace fs = std::filesystem;
  constexpr const char* kName = "libshardproof_torch.so";
  std::error_code problem;
  const fs::path folder = fs::read_symlink("/proc/self/exe", problem).parent_path();
  std::vector<fs::path> places{folder / kName, folder.parent_path() / SHARDPROOF_LIBRARY_FOLDER / kName};
  if (const char* const told = std::getenv("SHARDPROOF_TORCH_LIBRARY")) places = {told};
  std::vector<std::string> names;
  for (const fs::path& place : places) {
    if (fs::exists(place, problem)) return place.string();
    names.push_back(fmt::format("'{}'", printable(place.string(), 1000)));
  }
  fail(
      ErrorKind::file_error,
      "the module with LibTorch is missing: there is no {}; build the target shardproof_torch, or say where it is with "
      "SHARDPROOF_TORCH_LIBRARY",
      fmt::join(names, " and no "));
}

TorchModule load() {
  const std::string path = module_path();
  const std::string shown = printable(path, 1000);
  // Its symbols stay its own. It is never unloaded: tensors, exceptions and threads of torch refer to its code.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  SHARDPROOF_CHECK(library != nullptr, file_error, "'{}' cannot be loaded: {}", shown, printable(::dlerror(), 1000));
  const auto function = reinterpret_cast<TorchModuleFunction>(::dlsym(library, kTorchModuleFunction));
  SHARDPROOF_CHECK(function != nullptr, file_error, "'{}' has no function {}; expected the module of this build", shown,
                   kTorchModuleFunction);
  const TorchModule* const module = function();
  const std::string_view version = module->interface_version;
  SHARDPROOF_CHECK(version == SHARDPROOF_TORCH_INTERFACE, file_error,
                   "'{}' is of another build: its interface is '{}', expected '{}'; build the target shardproof_torch "
                   "together with the program",
                   shown, printable(version), SHARDPROOF_TORCH_INTERFACE);
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
