#include "tests/fake_nccl/forked_ranks.h"

#include <array>
#include <csignal>
#include <exception>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "tests/fake_nccl/fabric.h"

namespace shardproof::fake_nccl {
namespace {

struct Child {
  pid_t process = 0;
  int pipe = -1;  // where its message comes from
  bool is_running = true;
};

// In the child: runs the body and ends without the destructors and buffers of the parent.
[[noreturn]] void be_rank(int rank, int pipe, const std::function<void(int rank)>& body) {
  int status = 0;
  try {
    enter_fabric(rank);
    body(rank);
  } catch (const std::exception& error) {
    status = 1;
    const std::string message = error.what();
    if (write(pipe, message.data(), message.size()) < 0) status = 2;
  }
  _exit(status);
}

Child start_rank(int rank, const std::function<void(int rank)>& body) {
  std::array<int, 2> ends{};
  SHARDPROOF_CHECK(pipe(ends.data()) == 0, internal_error, "no pipe for rank {}", rank);
  const pid_t process = fork();
  SHARDPROOF_CHECK(process >= 0, internal_error, "no process for rank {}", rank);
  if (process == 0) be_rank(rank, ends[1], body);
  close(ends[1]);
  return {.process = process, .pipe = ends[0]};
}

}  // namespace

std::vector<RankEnd> run_ranks(int ranks, const std::function<void(int rank)>& body,
                               std::chrono::milliseconds patience) {
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) children.push_back(start_rank(rank, body));
  std::vector<RankEnd> ends(children.size());
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::size_t running = children.size();
  while (running > 0) {
    const bool is_late = std::chrono::steady_clock::now() > deadline;
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (!children[i].is_running) continue;
      if (is_late) kill(children[i].process, SIGKILL);
      int status = 0;
      if (waitpid(children[i].process, &status, is_late ? 0 : WNOHANG) != children[i].process) continue;
      children[i].is_running = false;
      --running;
      ends[i].status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    std::array<char, 4096> text{};
    const ssize_t count = read(children[i].pipe, text.data(), text.size());
    if (count > 0) ends[i].message.assign(text.data(), static_cast<std::size_t>(count));
    close(children[i].pipe);
  }
  return ends;
}

}  // namespace shardproof::fake_nccl
