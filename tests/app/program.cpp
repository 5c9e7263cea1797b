#include "tests/app/program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "tests/core/files/test_files.h"

namespace shardproof::test {
namespace {

// The arguments of execve and what else the child needs, prepared before fork.
struct Preparation {
  std::vector<char*> words;
  std::vector<char*> environment;
  std::string output_file;
  std::string error_file;
};

void limit_to(int resource, std::size_t bytes) {
  const rlimit limit{bytes, bytes};
  if (bytes > 0 && ::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) ::_exit(126);
}

// The descriptor that becomes standard output; -1 if it is to be closed.
int opened_output(const Preparation& prepared, StandardOutput output) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  std::array<int, 2> pipe_ends{-1, -1};
  switch (output) {
    case StandardOutput::captured: return ::open(prepared.output_file.c_str(), kFlags, 0600);
    case StandardOutput::closed: return -1;
    case StandardOutput::full_device: return ::open("/dev/full", O_WRONLY);
    case StandardOutput::broken_pipe:
      if (::pipe(pipe_ends.data()) != 0) ::_exit(126);
      ::close(pipe_ends[0]);
      return pipe_ends[1];
  }
  return -1;
}

// Nothing but system calls between fork and exec.
[[noreturn]] void become_program(const Preparation& prepared, const ProgramSurroundings& surroundings) {
  const int target = opened_output(prepared, surroundings.output);
  const int error = ::open(prepared.error_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (error < 0 || ::dup2(error, STDERR_FILENO) < 0) ::_exit(126);
  if (surroundings.output == StandardOutput::closed) {
    ::close(STDOUT_FILENO);
  } else if (target < 0 || ::dup2(target, STDOUT_FILENO) < 0) {
    ::_exit(126);
  }
  if (!surroundings.has_standard_input) ::close(STDIN_FILENO);
  if (!surroundings.has_standard_error) ::close(STDERR_FILENO);
  // Only the standard descriptors are handed on, as a shell does it.
  if (error > STDERR_FILENO) ::close(error);
  if (target > STDERR_FILENO) ::close(target);
  if (!surroundings.folder.empty() && ::chdir(surroundings.folder.c_str()) != 0) ::_exit(126);
  limit_to(RLIMIT_AS, surroundings.memory_bytes);
  limit_to(RLIMIT_FSIZE, surroundings.file_bytes);
  ::execve(SHARDPROOF_PROGRAM, prepared.words.data(), prepared.environment.data());
  ::_exit(127);
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

pid_t started(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings,
              const std::string& output_file, const std::string& error_file) {
  std::vector<std::string> words{SHARDPROOF_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = surroundings.environment;  // the first of a name counts
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const Preparation prepared{pointers_to(words), pointers_to(environment), output_file, error_file};
  const pid_t child = ::fork();
  if (child == 0) become_program(prepared, surroundings);
  return child;
}

}  // namespace

std::string program_path() { return SHARDPROOF_PROGRAM; }

StartedProgram::StartedProgram(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings)
    : pid_(started(arguments, surroundings, "/dev/null", "/dev/null")) {
  if (pid_ < 0) ADD_FAILURE() << "cannot start " << SHARDPROOF_PROGRAM;
}

StartedProgram::~StartedProgram() {
  if (pid_ <= 0) return;
  (void)::kill(pid_, SIGKILL);
  (void)wait();
}

int StartedProgram::wait() {
  int status = 0;
  const bool has_ended = pid_ > 0 && ::waitpid(pid_, &status, 0) == pid_;
  pid_ = -1;
  return has_ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

ProgramRun run_program(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings) {
  const TemporaryFolder folder;
  const std::string output_file = folder / "output", error_file = folder / "error";
  const pid_t child = started(arguments, surroundings, output_file, error_file);
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

ProgramRun run_program(const std::vector<std::string>& arguments, StandardOutput output) {
  return run_program(arguments, ProgramSurroundings{.output = output});
}

ProgramRun run_program_within(std::size_t memory_bytes, const std::vector<std::string>& arguments) {
  return run_program(arguments, ProgramSurroundings{.memory_bytes = memory_bytes});
}

std::string golden(std::string_view name) {
  return (std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "tests/data/goldens/flux" / name).string();
}

bool has_full_device() {
  std::error_code error;
  return std::filesystem::is_character_file("/dev/full", error);
}

}  // namespace shardproof::test
