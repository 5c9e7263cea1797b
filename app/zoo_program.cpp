#include "app/zoo_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/program_folder.h"
#include "core/error.h"
#include "core/file.h"

namespace shardproof {

void become_zoo_program(const char* const* words) {
  const std::filesystem::path program = program_folder() / "shardproof-zoo";
  // Only returns if it fails. The words of execv are not changed, its type is older than const.
  ::execv(program.c_str(), const_cast<char* const*>(words));
  fail(ErrorKind::file_error,
       "zoo: '{}' cannot be started ({}); expected the program beside shardproof, which cmake --build "
       "--preset release builds",
       printable(program.string(), 1000), std::strerror(errno));
}

}  // namespace shardproof
