// Starts a program several times on this machine, as the ranks of one run: forwards what the processes write line by
// line, ends all when one fails or when this process is told to end, and leaves nothing running. Every process leads a
// group of its own, so that what it started ends with it, and with this one even if that is killed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "real/store_address.h"

namespace shardproof {

struct LocalProcesses {
  std::vector<std::string> words;  // the program, looked for as a shell does, and its arguments
  int count = 1;
  StoreAddress address = {"127.0.0.1", {0}};  // where they meet; port 0 stands for any that is free
  std::chrono::milliseconds grace{5000};      // between asking them to end and killing them
  // Where the sink writes; it is called when that takes something, so that nobody who is slow to read keeps this
  // process from hearing signals (lines of more than some thousand bytes may). -1 = it always does.
  int output_descriptor = -1;
  int error_descriptor = -1;
};

enum class OutputStream : std::uint8_t { output, error };
// Gets a line without its end.
using LineSink = std::function<void(int rank, OutputStream stream, std::string_view line)>;

struct LocalEnd {
  int failed_rank = -1;         // the first that failed
  int exit_status = 0;          // its status, 0 if all ended well
  int by_signal = 0;            // the signal that killed it
  int told_to_end = 0;          // the signal by which this process was told to end; the ranks then were ended
  std::string last_error_line;  // of the rank that failed; of this program, if there is one
};

// For a process with one thread. Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD while it runs. usage_error if the program
// cannot be started or the address is not free; what the sink throws ends all processes and is passed on. Lines that
// the sink could not take when all had been told to end are dropped.
LocalEnd run_local_processes(const LocalProcesses& what, const LineSink& sink);

}  // namespace shardproof
