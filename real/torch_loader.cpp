// Loads the module with LibTorch the first time that a device is asked for: most runs of the program ask for none, and
// should not wait for it.
#include <dlfcn.h>
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "real/library_file.h"
#include "real/torch_device.h"
#include "real/torch_module.h"

namespace shardproof {
namespace {

std::string module_path() {
  const LibraryFile file = find_library_file("libshardproof_torch.so", "SHARDPROOF_TORCH_LIBRARY");
  if (file.path) return *file.path;
  std::vector<std::string> names;
  for (const std::string& place : file.places) names.push_back(fmt::format("'{}'", printable(place, 1000)));
  fail(
      ErrorKind::file_error,
      "the module with LibTorch is missing: there is no {}; build the target shardproof_torch, or say where it is with "
      "SHARDPROOF_TORCH_LIBRARY",
      fmt::join(names, " and no "));
}

// A file that ends before its table of sections, which stands last, would kill the program when it is loaded.
void check_whole(const std::string& path, const std::string& shown) {
  std::error_code problem;
  SHARDPROOF_CHECK(std::filesystem::is_regular_file(path, problem), file_error,
                   "'{}' is no regular file; expected the module with LibTorch", shown);
  const MappedFile map(path);
  Elf64_Ehdr header{};
  if (map.bytes().size() < sizeof(header)) return;  // the loader says that it is no library
  std::memcpy(&header, map.bytes().data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
  const std::uint64_t end = header.e_shoff + std::uint64_t{header.e_shentsize} * header.e_shnum;
  SHARDPROOF_CHECK(header.e_shoff <= map.bytes().size() && end <= map.bytes().size(), file_error,
                   "'{}' is cut short: it has {} bytes, expected {}", shown, map.bytes().size(), end);
}

TorchModule load() {
  const std::string path = module_path();
  const std::string shown = printable(path, 1000);
  check_whole(path, shown);
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
