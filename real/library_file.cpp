#include "real/library_file.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace shardproof {

LibraryFile find_library_file(const char* name, const char* variable) {
  namespace fs = std::filesystem;
  std::error_code problem;
  const fs::path folder = fs::read_symlink("/proc/self/exe", problem).parent_path();
  std::vector<fs::path> places{folder / name, folder.parent_path() / SHARDPROOF_LIBRARY_FOLDER / name};
  if (const char* const told = std::getenv(variable)) places = {told};
  LibraryFile file;
  for (const fs::path& place : places) {
    file.places.push_back(place.string());
    if (!file.path && fs::exists(place, problem)) file.path = place.string();
  }
  return file;
}

}  // namespace shardproof
