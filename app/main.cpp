// The program `shardproof`: parses the command line, runs the subcommand, prints the report, and turns every error into
// a message on standard error and an exit status.
#include <unistd.h>

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/launch_command.h"
#include "app/options.h"
#include "app/output.h"
#include "app/output_paths.h"
#include "app/processor_check.h"
#include "app/progress.h"
#include "app/request.h"
#include "app/zoo_program.h"
#include "core/error.h"
#include "core/file.h"
#include "real/peer_failure.h"
#include "reports/html.h"
#include "reports/json_report.h"
#include "reports/junit.h"
#include "reports/terminal.h"

namespace shardproof {
namespace {

// Reached when an exception cannot even be thrown, as when no memory is left for it. Allocates nothing.
[[noreturn]] void end_without_memory() {
  constexpr std::string_view kMessage =
      "shardproof: internal error: out of memory, or a failure while one was handled\n";
  (void)!::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(kInternalError);
}

// Names come from files of strangers: control characters of theirs do not reach the terminal, and a line end in one
// does not begin a line that could be taken for another message. The report sees to that itself.
void say(std::string_view message) {
  std::string text = "shardproof: " + printable_lines(message);
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1))
    text.insert(at + 1, "  ");
  write_standard_error(text + "\n");
}

struct Targets {
  std::unique_ptr<OutputTarget> json, junit, html, plan;  // none where the option is not given
};

std::unique_ptr<OutputTarget> target_of(const char* option, const std::optional<std::string>& path, bool writes) {
  return path && writes ? std::make_unique<OutputTarget>(option, *path) : nullptr;
}

// Standard output and the files are independent: one that cannot be written does not cost the others. Those that say
// why the status is 2 come last, as it may be because of one of the others.
int deliver(const CommandOutcome& outcome, const Targets& targets) {
  int status = outcome.status;
  std::vector<std::string> problems = outcome.messages;
  const auto attempt = [&](const auto& write) {
    try {
      write();
    } catch (const Error& error) {
      say(error.what());
      problems.emplace_back(error.what());
      status = kRequestIsWrong;
    }
  };
  // mpirun hands its processes a terminal of its own, whatever its own output is.
  const bool is_real = outcome.report.command == command_name(Command::run);
  const auto colour = !is_real && standard_output_takes_colour() ? TextTable::Colour::on : TextTable::Colour::off;
  attempt([&] { write_standard_output(terminal_text(outcome.report, {.colour = colour})); });
  if (targets.json) attempt([&] { targets.json->write(json_report(outcome.report).dump(2) + "\n"); });
  if (targets.plan) attempt([&] { targets.plan->write(outcome.plan_file); });
  if (targets.html) attempt([&] { targets.html->write(html_report(outcome.report, problems)); });
  if (targets.junit) attempt([&] { targets.junit->write(junit_report(outcome.report, problems)); });
  for (const std::string& message : outcome.messages) say(message);
  return status;
}

// Of a request that has no result JUnit and the page say so: an older file would be taken for that of this run.
CommandOutcome run_or_report(const Options& options, const Targets& targets, Progress& progress) {
  try {
    return run_command(options, progress);
  } catch (const Error& error) {
    const Report nothing = empty_report(options);
    const auto attempt = [](const auto& write) {  // what cannot be written does not cost the message of the request
      try {
        write();
      } catch (const Error& problem) {
        say(problem.what());
      }
    };
    if (targets.html) attempt([&] { targets.html->write(html_report(nothing, {error.what()})); });
    if (targets.junit) attempt([&] { targets.junit->write(junit_report(nothing, {error.what()})); });
    throw;
  }
}

int run(int count, const char* const* words) {
  prepare_standard_descriptors();
  const CommandLine line = parse_command_line(count, words);
  if (!line.options) {
    write_standard_output(line.text);
    return kVerified;
  }
  if (line.options->command == Command::zoo) become_zoo_program(words);
  if (line.options->command == Command::launch) return launch_processes(*line.options);
  Targets targets;
  const bool writes = writes_outputs(*line.options);
  targets.json = target_of("--json", line.options->json, writes);
  targets.junit = target_of("--junit", line.options->junit, writes);
  targets.html = target_of("--html", line.options->html, writes);
  targets.plan = target_of("--write-plan", line.options->write_plan, writes);
  Progress progress;
  const CommandOutcome outcome = run_or_report(*line.options, targets, progress);
  progress.clear();
  if (outcome.is_silent) return outcome.status;
  return deliver(outcome, targets);
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) {
  using namespace shardproof;
  // The linker keeps the check, which has run before this function, because it is named here.
  if (!processor_suffices(processor_features(), STDERR_FILENO)) return kRequestIsWrong;
  std::set_terminate(end_without_memory);
  try {
    return run(count, words);
  } catch (const PeerFailure& error) {
    say(error.what());
    return kPeerFailed;
  } catch (const Error& error) {
    say(status_of(error.kind()) == kInternalError
            ? fmt::format("internal error ({}): {}", error_kind_name(error.kind()), error.what())
            : error.what());
    return status_of(error.kind());
  } catch (const std::bad_alloc&) {
    write_standard_error("shardproof: internal error: out of memory\n");
  } catch (const std::exception& error) {
    say(fmt::format("internal error: {}", error.what()));
  }
  return kInternalError;
}
