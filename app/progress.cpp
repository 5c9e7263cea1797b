#include "app/progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "core/file.h"

namespace shardproof {

namespace {

// Back to the first column, erase to the end of the line.
constexpr const char* kErase = "\r\x1b[K";

}  // namespace

Progress::Progress() : is_shown_(::isatty(STDERR_FILENO) != 0) {}

void Progress::step(int done, int total, std::string_view what) {
  if (!is_shown_) return;
  // A line that is broken by the terminal could not be rewritten.
  constexpr std::size_t kMaxWidth = 70;
  const std::string line = fmt::format("{}{}/{} {}", kErase, done, total, printable(what, kMaxWidth));
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  has_line_ = true;
}

void Progress::clear() {
  if (!has_line_) return;
  std::fputs(kErase, stderr);
  std::fflush(stderr);
  has_line_ = false;
}

}  // namespace shardproof
