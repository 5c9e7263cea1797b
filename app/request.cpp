#include "app/request.h"

#include <algorithm>

#include <fmt/format.h>

#include "app/build_info.h"
#include "core/file.h"

namespace shardproof {

Report empty_report(const Options& options) {
  Report report;
  report.command = command_name(options.command);
  report.version = build_version();
  report.features = build_features();
  report.sources = options.sources;
  return report;
}

VerifierOptions verifier_options(const Options& options) {
  return {.dtype = options.dtype,
          .device = options.device,
          .gather = options.gather,
          .seed = options.seed,
          .schedule_seed = options.schedule_seed,
          .workers = options.workers};
}

std::string step_text(const std::string& case_name, const RequestedConfiguration& configuration) {
  return fmt::format("{}: {} {}", case_name, requested_mode(configuration), requested_mesh(configuration));
}

RunRequest::RunRequest(const Options& options, Report& report)
    : subject(Subject::open(options.sources.front(), options.seed)) {
  RequestedPlan requested = requested_plan(options, subject);
  plan = std::move(requested.plan);
  cases = requested_cases(options, subject);
  configurations = requested_configurations(options);
  report.model = subject.model().class_name;
  report.plan_name = options.plan;
  report.notes = std::move(requested.notes);
  if (subject.export_directory() == nullptr) {
    report.notes.push_back(fmt::format("weights and inputs are drawn, from seed {}", options.seed));
  }
}

VerificationResult refused_tensor_parallelism(const Options& options, const std::string& case_name,
                                              const RequestedConfiguration& configuration) {
  VerificationResult result;
  result.case_name = case_name;
  result.mode = requested_mode(configuration);
  result.mesh = requested_mesh(configuration);
  result.dtype = options.dtype.name();
  result.tier = "rounding";
  result.rotate_method = configuration.context.rotate_method;
  result.convert_to_fp32 = configuration.context.convert_to_fp32;
  result.seed = options.seed;
  result.schedule_seed = options.schedule_seed;
  result.verdict = Verdict::refused;
  result.reason = fmt::format("tp_degree is {}: {}", configuration.tp_degree, kNoTensorParallelism);
  return result;
}

void Refusals::add(const std::string& case_name, const std::string& reason) {
  const auto same = [&](const auto& known) { return known.first == reason; };
  auto found = std::find_if(by_reason_.begin(), by_reason_.end(), same);
  if (found == by_reason_.end()) found = by_reason_.insert(by_reason_.end(), {reason, ""});
  found->second += fmt::format("{}'{}'", found->second.empty() ? "" : ", ", printable(case_name));
}

std::vector<std::string> Refusals::messages(const RequestedConfiguration& configuration) const {
  std::vector<std::string> messages;
  for (const auto& [reason, cases] : by_reason_) {
    messages.push_back(fmt::format("{} with {} is refused in case {}: {}", requested_mode(configuration),
                                   requested_mesh(configuration), cases, reason));
  }
  return messages;
}

}  // namespace shardproof
