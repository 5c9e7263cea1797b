// Peak resident memory of programs, measured from outside: a command runs as a child process, and the system tells its
// peak when it has ended (wait4). Inside a process the peak falls only
// where the system can forget it, so that figures of several steps have a child each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace shardproof::bench {

enum class ChildOutput : std::uint8_t { shown, discarded };

struct ChildRun {
  int status = 0;  // exit status; 128 + the signal's number if a signal ended it
  // The system counts the peak of the process that starts the child as well: measure from a program that stays small.
  std::size_t peak_bytes = 0;
  double seconds = 0.0;          // on the wall
  double processor_seconds = 0;  // of all threads
};

// Runs the command (program and arguments; the program is looked up in PATH unless it has a slash) to its end. `output`
// concerns standard output only. Throws usage_error for an empty command and for one that cannot be started.
ChildRun run_child(std::span<const std::string> command, ChildOutput output);

// The peak of this process so far, or since the last forget_own_peak().
std::size_t own_peak_bytes();
// Starts the peak anew from what is resident now, where the system can; otherwise it stays too large.
void forget_own_peak();

// The path of the running program, to start it again with other arguments.
std::string own_program();

// "1.23 GB" (10^9 bytes) or "456 MB".
std::string bytes_text(std::size_t bytes);

}  // namespace shardproof::bench
