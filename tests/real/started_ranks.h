// The processes of one run, each started by hand as in a terminal of its own, with their ends and what they said.
// A launcher would end the others, and its status would be one for all.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "real/socket.h"
#include "tests/core/files/test_files.h"

namespace shardproof::test {

using Words = std::vector<std::string>;

constexpr int kKilled = -1;

struct Ended {
  int status = 0;  // kKilled for a signal
  std::string error;
};

inline std::vector<char*> pointers_to(Words& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What serves MPI without mpirun.
std::string pmi_library();

class Ranks {
 public:
  // `longest` is for all of them together.
  explicit Ranks(int world_size, std::chrono::milliseconds longest = std::chrono::seconds(30))
      : world_size_(world_size),
        port_(port_of_listening(listen().get())),
        end_(std::chrono::steady_clock::now() + longest) {}
  ~Ranks() {
    for (const pid_t pid : pids_) {
      if (pid < 0) continue;
      (void)::kill(pid, SIGKILL);
      (void)::waitpid(pid, nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int port() const { return port_; }
  const std::filesystem::path& folder() const { return work_.path(); }
  // Neither a result nor what MPI shares between the processes.
  Words left_behind() const {
    Words left;
    for (const std::filesystem::path& folder : {work_.path(), shared_}) {
      std::error_code none;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, none))
        left.push_back(entry.path());
    }
    return left;
  }

  // In the order of the ranks.
  void start(Words words, const Words& variables = {}) {
    const auto rank = static_cast<int>(pids_.size());
    std::filesystem::create_directory(shared_);
    Words environment = variables;  // the first of a name counts
    environment.insert(
        environment.end(),
        {fmt::format("SHARDPROOF_RANK={}", rank), fmt::format("SHARDPROOF_WORLD_SIZE={}", world_size_),
         fmt::format("SHARDPROOF_ADDRESS=127.0.0.1:{}", port_), "SHARDPROOF_PMI_LIBRARY=" + pmi_library(),
         fmt::format("SHARDPROOF_RUN_FOLDER={}", shared_.string()), "OMP_NUM_THREADS=1"});
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    const std::vector<char*> argument_pointers = pointers_to(words), variable_pointers = pointers_to(environment);
    const std::string error_file = logs_ / std::to_string(rank), folder = work_.path();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int error = ::open(error_file.c_str(), O_WRONLY | O_CREAT, 0600);
      const int output = ::open("/dev/null", O_WRONLY);
      if (::dup2(error, STDERR_FILENO) >= 0 && ::dup2(output, STDOUT_FILENO) >= 0 && ::chdir(folder.c_str()) == 0)
        ::execve(argument_pointers.front(), argument_pointers.data(), variable_pointers.data());
      ::_exit(127);
    }
    pids_.push_back(pid);
  }

  // Waits for the end of one; a failure, and its end, if it takes too long.
  Ended wait(int rank) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end_) {
        ADD_FAILURE() << "rank " << rank << " has not ended in time";
        (void)::kill(pid, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : kKilled, contents_of(logs_ / std::to_string(rank))};
  }

  static Socket listen(int port = 0) { return std::move(listen_on("127.0.0.1", port).socket); }

 private:
  int world_size_;
  int port_;
  TemporaryFolder work_, logs_;
  std::filesystem::path shared_ = logs_ / "shared";
  std::vector<pid_t> pids_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace shardproof::test
