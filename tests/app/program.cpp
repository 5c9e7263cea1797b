#include "tests/app/program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "tests/core/files/test_files.h"

namespace shardproof::test {
namespace {

// Nothing but system calls between fork and exec.
[[noreturn]] void become_program(char* const* words, StandardOutput output, std::size_t memory_bytes,
                                 const char* output_file, const char* error_file) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  int target = -1;
  std::array<int, 2> pipe_ends{-1, -1};
  switch (output) {
    case StandardOutput::captured: target = ::open(output_file, kFlags, 0600); break;
    case StandardOutput::closed: break;
    case StandardOutput::full_device: target = ::open("/dev/full", O_WRONLY); break;
    case StandardOutput::broken_pipe:
      if (::pipe(pipe_ends.data()) != 0) ::_exit(126);
      ::close(pipe_ends[0]);
      target = pipe_ends[1];
      break;
  }
  const int error = ::open(error_file, kFlags, 0600);
  if (error < 0 || ::dup2(error, STDERR_FILENO) < 0) ::_exit(126);
  if (output == StandardOutput::closed) {
    ::close(STDOUT_FILENO);
  } else if (target < 0 || ::dup2(target, STDOUT_FILENO) < 0) {
    ::_exit(126);
  }
  const rlimit limit{memory_bytes, memory_bytes};
  if (memory_bytes > 0 && ::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(126);
  ::execv(SHARDPROOF_PROGRAM, words);
  ::_exit(127);
}

ProgramRun run(const std::vector<std::string>& arguments, StandardOutput output, std::size_t memory_bytes) {
  const TemporaryFolder folder;
  const std::string output_file = folder / "output";
  const std::string error_file = folder / "error";
  std::vector<std::string> owned{SHARDPROOF_PROGRAM};
  owned.insert(owned.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  for (std::string& word : owned) words.push_back(word.data());
  words.push_back(nullptr);

  const pid_t child = ::fork();
  if (child == 0) become_program(words.data(), output, memory_bytes, output_file.c_str(), error_file.c_str());
  ProgramRun result;
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    ADD_FAILURE() << "cannot start " << SHARDPROOF_PROGRAM;
    return result;
  }
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  result.output = contents_of(output_file);
  result.error = contents_of(error_file);
  return result;
}

}  // namespace

ProgramRun run_program(const std::vector<std::string>& arguments, StandardOutput output) {
  return run(arguments, output, 0);
}

ProgramRun run_program_within(std::size_t memory_bytes, const std::vector<std::string>& arguments) {
  return run(arguments, StandardOutput::captured, memory_bytes);
}

std::string golden(std::string_view name) {
  return (std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "tests/data/goldens/flux" / name).string();
}

bool has_full_device() {
  std::error_code error;
  return std::filesystem::is_character_file("/dev/full", error);
}

}  // namespace shardproof::test
