// Runs the built program as a user does: a process of its own, with its exit status and what it wrote. Nothing of the
// program is called in the process of the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::test {

enum class StandardOutput : std::uint8_t {
  captured,
  closed,
  full_device,  // every write fails: no space left
  broken_pipe,  // nobody reads
};

struct ProgramRun {
  int status = -1;  // exit status; -1 if it did not end by itself
  std::string output;
  std::string error;
};

// What the program finds when it starts, besides its arguments.
struct ProgramSurroundings {
  StandardOutput output = StandardOutput::captured;
  bool has_standard_input = true;
  bool has_standard_error = true;
  std::size_t memory_bytes = 0;               // of address space; 0 for no limit, here and below
  std::size_t file_bytes = 0;                 // of any file that it writes, as if the disk were full then
  std::string folder = {};                    // to work in; the one of the test if empty
  std::vector<std::string> environment = {};  // "NAME=value", added to that of the test
};

ProgramRun run_program(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings);
ProgramRun run_program(const std::vector<std::string>& arguments, StandardOutput output = StandardOutput::captured);
// The program's file.
std::string program_path();

// A program that runs beside the test. Its output is dropped; it is killed if nobody has waited for it.
class StartedProgram {
 public:
  StartedProgram(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings);
  ~StartedProgram();
  StartedProgram(const StartedProgram&) = delete;
  StartedProgram& operator=(const StartedProgram&) = delete;

  int pid() const { return pid_; }
  // Its exit status; -1 if it did not end by itself.
  int wait();

 private:
  int pid_ = -1;
};

// With no more address space than this.
ProgramRun run_program_within(std::size_t memory_bytes, const std::vector<std::string>& arguments);

// A folder of the recorded FLUX data: "tiny", "uneven", "guidance".
std::string golden(std::string_view name);

// True if this test and the program were built with a sanitizer, which reserves much address space and reports what MPI
// leaves allocated at the end.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHasSanitizer = true;
#else
inline constexpr bool kHasSanitizer = false;
#endif

// Whether /dev/full is the device whose writes all fail.
bool has_full_device();

}  // namespace shardproof::test
