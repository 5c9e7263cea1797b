// The program `shardproof-zoo`, which `shardproof zoo` starts: it holds the copy of the algorithms in which every fault
// can be switched on, so that the product holds none. Arguments are those of `shardproof`, beginning with `zoo`.
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <optional>

#include <fmt/format.h>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/hypothesis.h"
#include "app/options.h"
#include "app/output.h"
#include "app/processor_check.h"
#include "app/progress.h"
#include "core/error.h"
#include "tests/zoo/fingerprints.h"
#include "tests/zoo/zoo.h"

namespace shardproof::zoo {
namespace {

Json with_build(Json json) {
  json.set("version", build_version());
  Json features = Json::array();
  for (const std::string& feature : build_features()) features.append(feature);
  json.set("features", std::move(features));
  return json;
}

int write_fingerprints(const std::string& path) {
  OutputTarget target("--write-fingerprints", path);
  const auto start = std::chrono::steady_clock::now();
  Progress progress;
  const FingerprintTable table = make_fingerprint_table(
      chosen_faults({.full = true}),
      [&](int done, int all, std::string_view name) { progress.step(done, all, std::string(name)); });
  progress.clear();
  target.write(table.to_json().dump(1) + "\n");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  write_standard_output(fmt::format("{} of {} faults leave fingerprints in {} models; {:.1f} seconds\n",
                                    table.mistakes.size(), all_faults().size(), table.correct.size(), seconds.count()));
  return kVerified;
}

int run(int count, const char* const* words) {
  prepare_standard_descriptors();
  const CommandLine line = parse_command_line(count, words);
  if (!line.options) {
    write_standard_output(line.text);
    return kVerified;
  }
  SHARDPROOF_CHECK(line.options->command == Command::zoo, usage_error,
                   "'{}' is a subcommand of shardproof; expected zoo", command_name(line.options->command));
  if (line.options->list) {
    write_standard_output(list_text());
    return kVerified;
  }
  if (line.options->write_fingerprints) return write_fingerprints(*line.options->write_fingerprints);
  const ZooOptions options{.seed = line.options->seed,
                           .full = line.options->full,
                           .only = line.options->fault,
                           .shrink = line.options->shrink,
                           .fingerprints = FingerprintTable::read(fingerprint_table_path())};
  static_cast<void>(chosen_faults(options));
  const auto target = [](const char* option, const std::optional<std::string>& path) {
    return path ? std::make_unique<OutputTarget>(option, *path) : nullptr;
  };
  const std::unique_ptr<OutputTarget> json = target("--json", line.options->json);
  const std::unique_ptr<OutputTarget> junit = target("--junit", line.options->junit);
  const std::unique_ptr<OutputTarget> html = target("--html", line.options->html);
  Progress progress;
  const ZooReport report =
      run_zoo(options, [&](int done, int all, std::string_view name) { progress.step(done, all, std::string(name)); });
  progress.clear();
  write_standard_output(report_text(report));
  if (json) json->write(with_build(report_json(report)).dump(2) + "\n");
  if (html) html->write(report_html(report, build_version()));
  // Last: it has no word for what could not be written, and must not say that all is well then.
  if (junit) junit->write(report_junit(report, build_version()));
  return report.is_good() ? kVerified : kDifferenceFound;
}

}  // namespace
}  // namespace shardproof::zoo

int main(int count, char** words) {
  using namespace shardproof;
  if (!processor_suffices(processor_features(), STDERR_FILENO)) return kRequestIsWrong;
  try {
    return zoo::run(count, words);
  } catch (const Error& error) {
    write_standard_error(fmt::format("shardproof: {}\n", error.what()));
    return status_of(error.kind());
  } catch (const std::exception& error) {
    write_standard_error(fmt::format("shardproof: internal error: {}\n", error.what()));
  }
  return kInternalError;
}
