#include "real/loaded_library.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/file.h"

namespace shardproof {
namespace {

constexpr std::size_t kShownBytes = 1000;

std::string quoted(const std::string& place) { return fmt::format("'{}'", printable(place, kShownBytes)); }

// A file that ends before its table of sections, which stands last, would kill the program when it is loaded.
std::optional<std::string> cut_short(const std::string& path) {
  const MappedFile map(path);
  Elf64_Ehdr header{};
  if (map.bytes().size() < sizeof(header)) return std::nullopt;  // the loader says that it is no library
  std::memcpy(&header, map.bytes().data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  const std::uint64_t end = header.e_shoff + std::uint64_t{header.e_shentsize} * header.e_shnum;
  if (header.e_shoff <= map.bytes().size() && end <= map.bytes().size()) return std::nullopt;
  return fmt::format("{} is cut short: it has {} bytes, expected {}", quoted(path), map.bytes().size(), end);
}

// The first file of that name where the user says that libraries are; empty if there is none. What the system has is
// taken to be whole.
std::string file_of_name(const std::string& name) {
  const char* const told = std::getenv("LD_LIBRARY_PATH");
  std::string_view folders = told == nullptr ? "" : told;
  while (!folders.empty()) {
    const std::string_view folder = folders.substr(0, folders.find_first_of(":;"));
    folders.remove_prefix(std::min(folders.size(), folder.size() + 1));
    std::string file = (std::filesystem::path(folder) / name).string();
    std::error_code problem;
    if (!folder.empty() && std::filesystem::is_regular_file(file, problem)) return file;
  }
  return {};
}

// Why the loader should not be given this place.
std::optional<std::string> obstacle(const std::string& told) {
  if (told.empty()) return "'' names no file";  // the loader takes it for the program itself
  const std::string place = told.find('/') == std::string::npos ? file_of_name(told) : told;
  std::error_code problem;
  if (place.empty() || !std::filesystem::exists(place, problem)) return std::nullopt;
  if (!std::filesystem::is_regular_file(place, problem)) return quoted(place) + " is no regular file";
  try {
    return cut_short(place);
  } catch (const Error& error) {
    return error.what();
  }
}

// Of the places that are names, the first whose library somebody has loaded into this process: a second copy beside it
// would not know what the first one does, and would be given in its stead to libraries that are loaded later.
const std::string* loaded_place(const std::vector<std::string>& places) {
  const auto is_loaded = [](const std::string& place) {
    return place.find('/') == std::string::npos && ::dlopen(place.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
  };
  const auto found = std::ranges::find_if(places, is_loaded);
  return found == places.end() ? nullptr : &*found;
}

}  // namespace

LoadedLibrary::LoadedLibrary(const LibrarySearch& search)
    : expected_(search.expected), variable_(search.variable), error_(search.error) {
  std::vector<std::string> places = search.places;
  if (const char* const told = std::getenv(search.variable)) {
    places = {told};
  } else if (const std::string* const loaded = loaded_place(places)) {
    places = {*loaded};
  }
  std::vector<std::string> problems;
  for (const std::string& place : places) {
    if (std::optional<std::string> problem = obstacle(place)) {
      problems.push_back(std::move(*problem));
      continue;
    }
    handle_ = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle_ != nullptr) {
      place_ = quoted(place);
      return;
    }
    problems.push_back(printable(::dlerror(), kShownBytes));
  }
  fail(error_, "{} cannot be loaded ({}); {}, or say where it is with {}", search.library, fmt::join(problems, "; "),
       search.advice, search.variable);
}

FunctionAddress LoadedLibrary::function(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) reject(fmt::format("has no function {}", name));
  return {address};
}

void LoadedLibrary::reject(std::string_view problem) const {
  fail(error_, "{} {}; expected {}; {} may say where that is", place_, problem, expected_, variable_);
}

}  // namespace shardproof
