#include "app/launch_command.h"

#include <unistd.h>

#include <cstring>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/output.h"
#include "core/file.h"
#include "real/local_processes.h"

namespace shardproof {
namespace {

std::string signal_text(int signal) { return fmt::format("signal {} ({})", signal, ::strsignal(signal)); }

void say(const std::string& message) { write_standard_error("shardproof: launch: " + message + "\n"); }

}  // namespace

int launch_processes(const Options& options) {
  LocalProcesses what;
  what.words = options.sources;
  what.count = *options.processes;
  if (options.launch.address) what.address = address_from("--address", *options.launch.address);
  what.grace = std::chrono::seconds(options.grace_seconds);
  what.output_descriptor = STDOUT_FILENO;
  what.error_descriptor = STDERR_FILENO;
  const LocalEnd end = run_local_processes(what, [](int rank, OutputStream stream, std::string_view line) {
    const std::string text = fmt::format("[{}] {}\n", rank, line);
    if (stream == OutputStream::output) return write_standard_output(text);
    write_standard_error(text);
  });
  if (end.told_to_end != 0) {
    say(fmt::format("told to end by {}; all ranks were ended", signal_text(end.told_to_end)));
    return 128 + end.told_to_end;
  }
  if (end.failed_rank < 0) return kVerified;
  const std::string last = end.last_error_line.empty() ? "" : ": " + printable(end.last_error_line, 1000);
  if (end.by_signal != 0) {
    say(fmt::format("rank {} was killed by {}; the others were ended{}", end.failed_rank, signal_text(end.by_signal),
                    last));
    return kPeerFailed;
  }
  say(fmt::format("rank {} ended with status {}; the others were ended{}", end.failed_rank, end.exit_status, last));
  return end.exit_status;
}

}  // namespace shardproof
