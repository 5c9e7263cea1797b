#include "app/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace shardproof {
namespace {

[[noreturn]] void fail_standard_output(int error) {
  fail(ErrorKind::file_error, "cannot write to standard output: {}", std::generic_category().message(error));
}

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF; }

}  // namespace

void prepare_standard_descriptors() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file larger than the user's limit is an error of the write, too
  const bool has_output = is_open(STDOUT_FILENO);
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() takes the lowest free number, which is this one since those below are open.
    if (!is_open(descriptor)) (void)::open("/dev/null", O_RDWR);
  }
  if (!has_output) fail_standard_output(EBADF);
}

void write_standard_output(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) fail_standard_output(errno);
}

void write_standard_error(std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

bool standard_output_takes_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool is_refused = no_colour != nullptr && *no_colour != '\0';
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return !is_refused && !is_dumb && ::isatty(STDOUT_FILENO) != 0;
}

namespace {

// Says which option asked for the file.
template <class Action>
auto of_option(const std::string& option, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    fail(error.kind(), "{} (expected a file that can be written): {}", option, error.what());
  }
}

}  // namespace

OutputTarget::OutputTarget(std::string option, const std::filesystem::path& path)
    : option_(std::move(option)),
      path_(path),
      open_(of_option(option_, [&] { return std::make_unique<AtomicFile>(path); })) {
  // A file is opened again when there is something to write, so that an interrupted run leaves nothing beside it.
  if (!open_->is_stream()) open_.reset();
}

void OutputTarget::write(std::string_view text) {
  of_option(option_, [&] {
    if (!open_) open_ = std::make_unique<AtomicFile>(path_);
    open_->write(text);
    open_->commit();
  });
  open_.reset();
}

}  // namespace shardproof
