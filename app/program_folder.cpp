#include "app/program_folder.h"

#include <system_error>

#include "core/error.h"

namespace shardproof {

std::filesystem::path program_folder() {
  std::error_code problem;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", problem);
  SHARDPROOF_CHECK(!problem, file_error, "'/proc/self/exe' cannot be read ({}); expected the path of this program",
                   problem.message());
  return own.parent_path();
}

std::filesystem::path data_file(std::string_view name) {
  return program_folder().parent_path() / "share" / "shardproof" / name;
}

}  // namespace shardproof
