#include "real/local_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "real/launcher.h"
#include "real/run_folder.h"
#include "real/run_keeper.h"
#include "real/socket.h"
#include "real/store_server.h"

namespace shardproof {
namespace {

constexpr std::array kWatchedSignals{SIGINT, SIGTERM, SIGHUP, SIGCHLD};

// Blocks the signals for a while, and gives them as something to poll.
class Signals {
 public:
  Signals() {
    sigset_t watched;
    sigemptyset(&watched);
    for (const int signal : kWatchedSignals) sigaddset(&watched, signal);
    sigprocmask(SIG_BLOCK, &watched, &before_);
    descriptor_ = Socket(::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
    SHARDPROOF_CHECK(descriptor_.is_open(), state_error, "signals cannot be received: {}", error_text(errno));
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_.get(); }
  const sigset_t& before() const { return before_; }
  std::optional<int> next() {
    signalfd_siginfo info{};
    if (::read(descriptor_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_{};
  Socket descriptor_;
};

// One end of a pipe from which lines come.
struct LinePipe {
  Socket end;
  std::string text;  // of a line that is not complete
};

struct Child {
  pid_t pid = -1;  // -1 once it was waited for
  LinePipe output, error;
  std::string last_error_line;  // the last one of this program, if there is one: MPI adds many when it is aborted
};

bool is_of_this_program(std::string_view line) { return line.starts_with("shardproof: "); }

struct PipeEnds {
  Socket read, write;
};

PipeEnds new_pipe() {
  std::array<int, 2> ends{-1, -1};
  SHARDPROOF_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, state_error, "no pipe for a process: {}", error_text(errno));
  return {Socket(ends[0]), Socket(ends[1])};
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs, prepared before fork: nothing but system calls between fork and exec.
struct Preparation {
  std::vector<char*> words, environment;
  pid_t parent = -1;
  sigset_t signals{};
  const RunKeeper* keeper = nullptr;
  int output = -1, error = -1, store_socket = -1, failure = -1;
};

[[noreturn]] void become_program(const Preparation& prepared) {
  const auto give_up = [&] {
    const int error = errno;
    (void)!::write(prepared.failure, &error, sizeof error);
    ::_exit(127);
  };
  (void)::setpgid(0, 0);
  prepared.keeper->add(::getpid());
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  if (::getppid() != prepared.parent) ::_exit(127);  // it died before that took effect
  for (const int signal : {SIGPIPE, SIGXFSZ}) (void)::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, &prepared.signals, nullptr);
  const int input = ::open("/dev/null", O_RDONLY);
  if (input < 0 || ::dup2(input, STDIN_FILENO) < 0) give_up();
  if (::dup2(prepared.output, STDOUT_FILENO) < 0 || ::dup2(prepared.error, STDERR_FILENO) < 0) give_up();
  if (prepared.store_socket >= 0 && ::fcntl(prepared.store_socket, F_SETFD, 0) != 0) give_up();
  ::execvpe(prepared.words.front(), prepared.words.data(), prepared.environment.data());
  give_up();
  ::_exit(127);
}

class LocalRun {
 public:
  LocalRun(const LocalProcesses& what, const LineSink& sink)
      : what_(what), sink_(sink), store_socket_(listening_socket(what.address)) {}

  ~LocalRun() {
    for (Child& child : children_) {
      if (child.pid < 0) continue;
      (void)::kill(-child.pid, SIGKILL);
      (void)::kill(child.pid, SIGKILL);
      keeper_.forget(child.pid);
      (void)::waitpid(child.pid, nullptr, 0);
    }
  }
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  LocalEnd run() {
    for (int rank = 0; rank < what_.count; ++rank) start(rank);
    store_socket_.close();
    while (running_ > 0) {
      wait_for_something(next_timeout());
      look_at_signals();
      forward();
      kill_who_is_late();
    }
    drain();
    if (end_.failed_rank >= 0) end_.last_error_line = child(end_.failed_rank).last_error_line;
    return std::move(end_);
  }

 private:
  Child& child(int rank) { return children_[static_cast<std::size_t>(rank)]; }

  // ---- starting

  std::vector<std::string> environment_of(int rank) const {
    const std::string address = StoreAddress{what_.address.host, {port_of_listening(store_socket_.get())}}.text();
    std::vector<std::string> variables{
        fmt::format("SHARDPROOF_RANK={}", rank),       fmt::format("SHARDPROOF_WORLD_SIZE={}", what_.count),
        fmt::format("SHARDPROOF_LOCAL_RANK={}", rank), fmt::format("SHARDPROOF_LOCAL_SIZE={}", what_.count),
        fmt::format("SHARDPROOF_ADDRESS={}", address), fmt::format("SHARDPROOF_RUN_FOLDER={}", folder_.path()),
    };
    if (rank == 0) variables.push_back(fmt::format("SHARDPROOF_STORE_SOCKET={}", store_socket_.get()));
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (!is_launcher_variable(text.substr(0, text.find('=')))) variables.emplace_back(text);
    }
    return variables;
  }

  void start(int rank) {
    PipeEnds output = new_pipe(), error = new_pipe(), failure = new_pipe();
    std::vector<std::string> words = what_.words, variables = environment_of(rank);
    const Preparation prepared{.words = pointers_to(words),
                               .environment = pointers_to(variables),
                               .parent = ::getpid(),
                               .signals = signals_.before(),
                               .keeper = &keeper_,
                               .output = output.write.get(),
                               .error = error.write.get(),
                               .store_socket = rank == 0 ? store_socket_.get() : -1,
                               .failure = failure.write.get()};
    const pid_t pid = ::fork();
    if (pid == 0) become_program(prepared);
    SHARDPROOF_CHECK(pid > 0, state_error, "rank {} cannot be started: {}", rank, error_text(errno));
    (void)::setpgid(pid, pid);  // the child does it, too: whoever comes first
    children_.push_back({pid, {std::move(output.read), {}}, {std::move(error.read), {}}, {}});
    ++running_;
    for (LinePipe* const pipe : {&children_.back().output, &children_.back().error}) {
      (void)::fcntl(pipe->end.get(), F_SETFL, O_NONBLOCK);
    }
    failure.write.close();
    int problem = 0;  // read until the program has started, which closes the pipe
    ssize_t count = 0;
    do {
      count = ::read(failure.read.get(), &problem, sizeof problem);
    } while (count < 0 && errno == EINTR);
    SHARDPROOF_CHECK(count <= 0, usage_error, "'{}' cannot be started: {}; expected a program",
                     printable(what_.words.front(), 1000), error_text(problem));
  }

  // ---- what happens

  int next_timeout() const {
    constexpr std::int64_t kLongest = 60'000;
    return static_cast<int>(kill_at_ ? std::min<std::int64_t>(kill_at_->left().count(), kLongest) : kLongest);
  }

  void wait_for_something(int timeout_ms) {
    std::vector<pollfd> entries{{signals_.descriptor(), POLLIN, 0}};
    for (const Child& one : children_) {
      for (const LinePipe* const pipe : {&one.output, &one.error}) {
        if (pipe->end.is_open()) entries.push_back({pipe->end.get(), POLLIN, 0});
      }
    }
    (void)::poll(entries.data(), entries.size(), timeout_ms);
  }

  void look_at_signals() {
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGCHLD) continue;
      const bool is_first = end_.told_to_end == 0;
      if (is_first) end_.told_to_end = *signal;
      end_all(is_first ? what_.grace : std::chrono::milliseconds(0));
    }
    for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) look_at(rank);
  }

  void look_at(int rank) {
    Child& one = child(rank);
    siginfo_t info{};
    if (one.pid < 0 || ::waitid(P_PID, static_cast<id_t>(one.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid == 0) return;  // it runs
    // What it started and left behind ends now, while its number cannot be anybody else's.
    (void)::kill(-one.pid, SIGKILL);
    keeper_.forget(one.pid);
    int status = 0;
    (void)::waitpid(one.pid, &status, 0);
    one.pid = -1;
    --running_;
    const bool is_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (is_well || end_.failed_rank >= 0 || end_.told_to_end != 0) return;
    end_.failed_rank = rank;
    end_.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    end_.by_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end_all(what_.grace);
  }

  void end_all(std::chrono::milliseconds grace) {
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped one hears nothing else
    kill_at_.emplace(grace);
  }

  void kill_who_is_late() {
    if (!kill_at_ || !kill_at_->is_over()) return;
    kill_at_.reset();
    signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (const Child& one : children_) {
      if (one.pid < 0) continue;
      (void)::kill(-one.pid, signal);
    }
  }

  // ---- output

  void forward() {
    for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
      forward(rank, OutputStream::output, child(rank).output);
      forward(rank, OutputStream::error, child(rank).error);
    }
  }

  // What can be read now, but not more than some: who never stops writing must not keep the others waiting. A line that
  // is very long is forwarded in parts.
  void forward(int rank, OutputStream stream, LinePipe& pipe) {
    constexpr std::size_t kMostBytes = 1 << 16;
    constexpr int kMostReads = 16;
    std::array<char, kMostBytes> buffer;
    for (int reads = 0; pipe.end.is_open() && reads < kMostReads; ++reads) {
      const ssize_t count = ::read(pipe.end.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        pipe.end.close();
        if (!pipe.text.empty()) give_line(rank, stream, std::exchange(pipe.text, {}));
        return;
      }
      pipe.text.append(buffer.data(), static_cast<std::size_t>(count));
      std::size_t begin = 0;
      for (std::size_t end = pipe.text.find('\n'); end != std::string::npos; end = pipe.text.find('\n', begin)) {
        give_line(rank, stream, std::string_view(pipe.text).substr(begin, end - begin));
        begin = end + 1;
      }
      pipe.text.erase(0, begin);
      if (pipe.text.size() >= kMostBytes) give_line(rank, stream, std::exchange(pipe.text, {}));
    }
  }

  void give_line(int rank, OutputStream stream, std::string_view line) {
    if (stream == OutputStream::error && !line.empty()) {
      std::string& last = child(rank).last_error_line;
      if (is_of_this_program(line) || !is_of_this_program(last)) last = line;
    }
    if (is_taken(stream)) sink_(rank, stream, line);
  }

  // Waits until the sink can write, and looks after the ranks meanwhile. False if nobody reads, and all were told to
  // end and have ended.
  bool is_taken(OutputStream stream) {
    const int descriptor = stream == OutputStream::output ? what_.output_descriptor : what_.error_descriptor;
    if (descriptor < 0) return true;
    while (true) {
      std::array<pollfd, 2> entries{{{descriptor, POLLOUT, 0}, {signals_.descriptor(), POLLIN, 0}}};
      const bool is_over = running_ == 0 && end_.told_to_end != 0;
      (void)::poll(entries.data(), entries.size(), is_over ? 0 : next_timeout());
      if (entries[0].revents != 0) return true;  // an error, too, which the sink reports
      if (is_over) return false;
      look_at_signals();
      kill_who_is_late();
    }
  }

  // All processes have ended: their pipes do, too, unless something has left its group and holds one open.
  void drain() {
    constexpr std::chrono::milliseconds kPatience{200};
    const Deadline deadline(kPatience);
    const auto is_open = [](const Child& one) { return one.output.end.is_open() || one.error.end.is_open(); };
    forward();
    while (std::any_of(children_.begin(), children_.end(), is_open) && !deadline.is_over()) {
      wait_for_something(static_cast<int>(deadline.left().count()));
      forward();
    }
    for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
      for (const OutputStream stream : {OutputStream::output, OutputStream::error}) {
        LinePipe& pipe = stream == OutputStream::output ? child(rank).output : child(rank).error;
        if (!pipe.text.empty()) give_line(rank, stream, std::exchange(pipe.text, {}));
      }
    }
  }

  const LocalProcesses& what_;
  const LineSink& sink_;
  Signals signals_;
  Socket store_socket_;
  RunFolder folder_ = RunFolder::new_one();
  RunKeeper keeper_{folder_};
  std::vector<Child> children_;
  int running_ = 0;
  LocalEnd end_;
  std::optional<Deadline> kill_at_;
};

}  // namespace

LocalEnd run_local_processes(const LocalProcesses& what, const LineSink& sink) { return LocalRun(what, sink).run(); }

}  // namespace shardproof
