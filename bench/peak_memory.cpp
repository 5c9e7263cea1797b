#include "bench/peak_memory.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kKibibyte = 1024;

// What posix_spawn does before the program starts, freed at the end of the scope.
class SpawnActions {
 public:
  explicit SpawnActions(ChildOutput output) {
    posix_spawn_file_actions_init(&actions_);
    if (output == ChildOutput::shown) return;
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

pid_t start(std::span<const std::string> command, ChildOutput output) {
  SHARDPROOF_CHECK(!command.empty(), usage_error, "run_child of an empty command; expected a program and arguments");
  std::vector<std::string> words(command.begin(), command.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const SpawnActions actions(output);
  pid_t child = -1;
  const int error = posix_spawnp(&child, pointers.front(), actions.get(), nullptr, pointers.data(), environ);
  SHARDPROOF_CHECK(error == 0, usage_error, "cannot start '{}': {}", command.front(), std::strerror(error));
  return child;
}

}  // namespace

ChildRun run_child(std::span<const std::string> command, ChildOutput output) {
  const Clock::time_point begin = Clock::now();
  const pid_t child = start(command, output);
  int status = 0;
  rusage usage{};
  pid_t ended = -1;
  do {
    ended = wait4(child, &status, 0, &usage);
  } while (ended < 0 && errno == EINTR);
  SHARDPROOF_CHECK(ended == child, internal_error, "cannot wait for '{}': {}", command.front(), std::strerror(errno));
  ChildRun run;
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.peak_bytes = static_cast<std::size_t>(usage.ru_maxrss) * kKibibyte;
  run.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  run.processor_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  return run;
}

// Not from getrusage, which counts in what started this process.
std::size_t own_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::size_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * kKibibyte;
  }
  fail(ErrorKind::internal_error, "/proc/self/status has no VmHWM");
}

void forget_own_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string bytes_text(std::size_t bytes) {
  const double gigabytes = 1e-9 * static_cast<double>(bytes);
  return gigabytes < 1.0 ? fmt::format("{:.0f} MB", 1e3 * gigabytes) : fmt::format("{:.2f} GB", gigabytes);
}

}  // namespace shardproof::bench
