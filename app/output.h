// Where results go: standard output, and the files of --json and its like. What cannot be written is an error that
// names the target and is found, where possible, before the work starts.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/file.h"

namespace shardproof {

// To be called first. Opens what is closed of the three standard descriptors on /dev/null, so that no file of ours
// becomes one of them by accident, and ignores SIGPIPE, so that a reader who leaves is an error of the write.
// file_error if standard output is closed.
void prepare_standard_descriptors();

// Writes all of it and flushes. file_error if that fails.
void write_standard_output(std::string_view text);
// What cannot be written there has nowhere else to go.
void write_standard_error(std::string_view text);

// True if standard output is a terminal whose user has not asked for text without colour (NO_COLOR, TERM=dumb).
bool standard_output_takes_colour();

// The file that an option names to be written. Made before the work, so that a wrong path costs nothing; until `write`
// a file keeps what it had.
class OutputTarget {
 public:
  // file_error naming the option, for a missing folder, a folder, a file that may not be written.
  OutputTarget(std::string option, const std::filesystem::path& path);
  // file_error; the target then is as it was before.
  void write(std::string_view text);

 private:
  std::string option_;  // "--json"
  std::filesystem::path path_;
  // Kept open for a stream: who reads from a pipe would take a second opening for the end.
  std::unique_ptr<AtomicFile> open_;
};

}  // namespace shardproof
