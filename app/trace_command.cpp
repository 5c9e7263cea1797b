#include "app/trace_command.h"

#include <filesystem>

#include <fmt/format.h>

#include "app/request.h"
#include "core/error.h"
#include "core/file.h"
#include "reports/chrome_trace.h"
#include "reports/profile.h"
#include "reports/trace_diff.h"

namespace shardproof {
namespace {

void summarise(const std::string& file, CommandOutcome& outcome) {
  const Json json = read_trace_json(file);
  SHARDPROOF_CHECK(is_trace_json(json), file_error, "{} is no trace of shardproof; expected a file of run --trace",
                   printable(file));
  const RunTrace trace = trace_from_json(json);
  outcome.report.model = trace.about_of("model");
  outcome.report.profile = profile_of(trace);
}

}  // namespace

CommandOutcome run_trace_command(const Options& options) {
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  const std::string& action = options.sources.front();
  const std::vector<std::string> files(options.sources.begin() + 1, options.sources.end());
  outcome.report.sources = files;
  if (action == "summary") {
    SHARDPROOF_CHECK(files.size() == 1, usage_error, "trace summary: {} files were given; expected one trace",
                     files.size());
    summarise(files.front(), outcome);
    return outcome;
  }
  SHARDPROOF_CHECK(action == "diff", usage_error, "trace: '{}' is no action; expected diff or summary",
                   printable(action));
  const std::vector<std::filesystem::path> paths(files.begin(), files.end());
  outcome.report.comparison = compare_trace_files(paths);
  if (!outcome.report.comparison->divergences.empty()) outcome.status = kDifferenceFound;
  return outcome;
}

}  // namespace shardproof
