#include "app/hypothesis.h"

#include <algorithm>

#include <fmt/format.h>

#include "app/program_folder.h"
#include "core/error.h"
#include "core/file.h"
#include "verify/hypothesis.h"

namespace shardproof {

std::filesystem::path fingerprint_table_path() { return data_file("fingerprints.json"); }

void look_for_known_mistakes(RunRequest& request, const Options& options, Progress& progress, Report& report) {
  const auto is_difference = [](const VerificationResult& result) { return result.verdict == Verdict::different; };
  if (std::ranges::none_of(report.verifications, is_difference)) return;
  const int results = static_cast<int>(report.verifications.size());
  progress.step(results, results, "looking for known mistakes");
  std::string obstacle;
  try {
    const FingerprintTable table = FingerprintTable::read(fingerprint_table_path());
    Explanation found =
        explain(table, find_model_type(request.subject.model().class_name), plans_of_sizes(request, options));
    report.hypothesis = std::move(found.hypothesis);
    if (!found.obstacle.empty())
      obstacle = fmt::format("'{}': {}", printable(fingerprint_table_path().string(), 1000), found.obstacle);
  } catch (const Error& error) {
    obstacle = error.what();
  }
  if (!obstacle.empty())
    report.notes.push_back(
        fmt::format("no known mistake was looked for, as its fingerprints are missing: {}", obstacle));
}

}  // namespace shardproof
