#include "app/zoo_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {

void become_zoo_program(const char* const* words) {
  std::error_code problem;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", problem);
  const std::filesystem::path program = own.parent_path() / "shardproof-zoo";
  // Only returns if it fails. The words of execv are not changed, its type is older than const.
  if (!problem) ::execv(program.c_str(), const_cast<char* const*>(words));
  fail(ErrorKind::file_error, "zoo: '{}' cannot be started ({}); expected the program beside shardproof",
       printable(program.string(), 1000), problem ? problem.message() : std::strerror(errno));
}

}  // namespace shardproof
