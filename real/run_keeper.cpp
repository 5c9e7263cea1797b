#include "real/run_keeper.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "core/error.h"

namespace shardproof {
namespace {

// What is killed makes files until it is dead; in a container nobody may take note of that, so not for long.
void wait_for_end(const std::vector<pid_t>& groups) {
  const Deadline deadline(std::chrono::milliseconds(500));
  const auto is_there = [](pid_t group) { return ::kill(-group, 0) == 0; };
  while (std::ranges::any_of(groups, is_there) && !deadline.is_over()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Closes everything else, so that nobody waits for the end of a pipe or for a port because of it.
[[noreturn]] void keep(int line, const RunFolder& folder) {
  (void)::setsid();  // what ends the group of the other process does not end this one
  (void)::prctl(PR_SET_NAME, "shardproof-keep");
  if (line > 0) (void)::close_range(0, static_cast<unsigned>(line) - 1, 0);
  (void)::close_range(static_cast<unsigned>(line) + 1, ~0U, 0);
  std::vector<pid_t> groups;
  pid_t number = 0;
  while (true) {
    const ssize_t count = ::recv(line, &number, sizeof number, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    if (number > 0) groups.push_back(number);
    if (number < 0) std::erase(groups, -number);
  }
  for (const pid_t group : groups) (void)::kill(-group, SIGKILL);
  wait_for_end(groups);
  folder.remove();
  ::_exit(0);
}

}  // namespace

RunKeeper::RunKeeper(const RunFolder& folder) : folder_(folder) {
  std::array<int, 2> ends{-1, -1};
  SHARDPROOF_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, state_error,
                   "no line to a process: {}", error_text(errno));
  line_ = Socket(ends[0]);
  const Socket other(ends[1]);
  keeper_ = ::fork();
  if (keeper_ == 0) keep(other.get(), folder);
  SHARDPROOF_CHECK(keeper_ > 0, state_error, "the process that cleans up cannot be started: {}", error_text(errno));
}

RunKeeper::~RunKeeper() {
  line_.close();
  (void)::kill(keeper_, SIGCONT);  // should somebody have stopped it, it would be waited for without end
  while (::waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {
  }
  folder_.remove();  // should somebody have killed the keeper
}

void RunKeeper::tell(pid_t number) const { (void)::send(line_.get(), &number, sizeof number, MSG_NOSIGNAL); }

}  // namespace shardproof
