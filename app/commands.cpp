#include "app/commands.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/build_info.h"
#include "app/configurations.h"
#include "app/hypothesis.h"
#include "app/local_run.h"
#include "app/plan_rows.h"
#include "app/real_run.h"
#include "app/repeat.h"
#include "app/request.h"
#include "app/shrinking.h"
#include "app/trace_command.h"
#include "core/file.h"
#include "parallel/plan_json.h"
#include "verify/oracle.h"

namespace shardproof {
namespace {

std::vector<std::string> what_verify_leaves_open(const Options& options) {
  std::vector<std::string> open;
  if (options.tier == Tier::rounding) open.emplace_back("EXACT: exact arithmetic (--tier exact or all)");
  open.push_back(options.tier == Tier::exact
                     ? "rounding, overflow and infinities, which exact arithmetic does not have (--tier all)"
                     : fmt::format("element types other than {}: one run each (--dtype)", options.dtype.name()));
  if (options.gather != GatherChoice::both) {
    open.push_back(fmt::format("{} gathers of the modes for uneven lengths (--gather)",
                               options.gather == GatherChoice::ragged ? "padded" : "ragged"));
  }
  return open;
}

// Of each case that the plan does not fit, in the first configuration that shows it: no refusal that a default set may
// have.
void add_misfits(const std::vector<VerificationResult>& results, std::vector<std::string>& messages) {
  std::set<std::string> known;
  for (const VerificationResult& result : results) {
    if (!result.plan_does_not_fit || !known.insert(result.case_name).second) continue;
    messages.push_back(fmt::format("the plan does not fit case '{}': {}", printable(result.case_name), result.reason));
  }
}

void judge_verify(const RunRequest& request, const Options& options, CommandOutcome& outcome) {
  const std::vector<VerificationResult>& results = outcome.report.verifications;
  const auto any = [&](const auto& predicate) { return std::any_of(results.begin(), results.end(), predicate); };
  if (any([](const VerificationResult& result) { return result.verdict == Verdict::different; })) {
    outcome.status = kDifferenceFound;
    return;
  }
  Refusals refusals;
  for (const VerificationResult& result : results) {
    if (result.verdict == Verdict::refused) refusals.add(result.case_name, result.reason);
  }
  if (request.configurations.is_named) {
    outcome.messages = refusals.messages(request.configurations.list.front());
  } else {
    add_misfits(results, outcome.messages);
  }
  for (const VerificationResult& result : results) {
    if (result.verdict != Verdict::not_checked) continue;
    // What exact arithmetic does not take is listed; the other tier has its own say.
    if (result.tier == "exact" && options.tier == Tier::all) continue;
    const std::string message =
        fmt::format("case '{}' cannot be checked: {}", printable(result.case_name), result.reason);
    const bool is_new = std::find(outcome.messages.begin(), outcome.messages.end(), message) == outcome.messages.end();
    if (is_new) outcome.messages.push_back(message);
  }
  if (!any([](const VerificationResult& result) { return is_verified(result.verdict); })) {
    const bool is_open = any([](const VerificationResult& result) { return result.verdict == Verdict::not_checked; });
    outcome.messages.push_back(
        fmt::format("nothing was verified: every configuration is refused{}", is_open ? " or cannot be checked" : ""));
  }
  if (!outcome.messages.empty()) outcome.status = kRequestIsWrong;
}

CommandOutcome run_verify(const Options& options, Progress& progress) {
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  RunRequest request(options, outcome.report);
  Verifier verifier(request.subject, verifier_options(request, options));
  ExactVerifier exact(request.subject, exact_options(options));
  std::vector<VerificationResult>& results = outcome.report.verifications;
  std::vector<ParallelConfig> configurations;  // of the results
  const bool has_exact = options.tier != Tier::rounding, has_rounding = options.tier != Tier::exact;
  const int tiers = has_exact && has_rounding ? 2 : 1;
  const int total = tiers * static_cast<int>(request.cases.size() * request.configurations.list.size());
  for (const std::string& case_name : request.cases) {
    for (const ParallelConfig& configuration : request.configurations.list) {
      progress.step(static_cast<int>(results.size()), total, step_text(case_name, configuration));
      if (has_exact) {
        results.push_back(exact.verify(case_name, configuration, request.plans));
        configurations.push_back(configuration);
      }
      // A rule refuses in any arithmetic.
      if (!has_rounding || (has_exact && results.back().verdict == Verdict::refused)) continue;
      const bool is_exact = has_exact && results.back().verdict == Verdict::exact;
      results.push_back(
          verifier.verify(case_name, configuration, request.plans, is_exact ? Passed::exact : Passed::nothing));
      results.back().device = device_name(options);
      configurations.push_back(configuration);
    }
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].verdict != Verdict::different) continue;
    results[i].repeat = repeat_command(options, results[i], configurations[i], std::nullopt);
  }
  look_for_known_mistakes(request, options, progress, outcome.report);
  if (options.shrink) shrink_first_difference(request, options, configurations, progress, outcome.report);
  if (has_rounding) outcome.report.allowed = options.dtype == kFloat64 ? kFloat64Tolerance : kRatioLimit;
  outcome.report.not_checked = what_verify_leaves_open(options);
  for (const VerificationResult& result : results) {
    for (const std::string& what : result.not_checked) {
      std::vector<std::string>& open = outcome.report.not_checked;
      if (std::find(open.begin(), open.end(), what) == open.end()) open.push_back(what);
    }
  }
  judge_verify(request, options, outcome);
  return outcome;
}

// Without a named configuration `plan` shows one that admits every length; for a model that has only a tensor-parallel
// plan, the smallest degree.
ParallelConfig plan_configuration(const RunRequest& request, const Options& options, Report& report) {
  if (request.configurations.is_named) return request.configurations.list.front();
  const ParallelPlans& plans = request.plans;
  if (plans.tp && (!plans.cp || plans.cp->entries.empty())) {
    report.notes.push_back("no configuration was named: this is tp_degree 2");
    return {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  }
  report.notes.push_back("no configuration was named: this is ring_degree 2 with ring_anything");
  return {.context_parallel_config = ContextParallelConfig{.ring_degree = 2,
                                                           .convert_to_fp32 = options.convert_to_fp32,
                                                           .rotate_method = options.rotate_method.value_or("allgather"),
                                                           .ring_anything = true}};
}

CommandOutcome run_plan(const Options& options, Progress& progress) {
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  Report& report = outcome.report;
  RunRequest request(options, report);
  // Whatever becomes of the run: one that is refused is a reason to change the plan.
  outcome.plan_file = plan_to_json({report.model, request.plans.cp, request.plans.tp}).dump(2) + "\n";
  const ParallelConfig configuration = plan_configuration(request, options, report);
  Verifier verifier(request.subject, verifier_options(request, options));
  const GatherForm form = first_form(options.gather);
  Refusals refusals;
  int done = 0;
  for (const std::string& case_name : request.cases) {
    progress.step(done++, static_cast<int>(request.cases.size()), step_text(case_name, configuration));
    const ParallelRun run = verifier.run(case_name, configuration, request.plans, form);
    for (PlanRow& row : plan_rows(run, case_name, mode_name(configuration), effective_mesh(configuration).text()))
      report.plan.push_back(std::move(row));
    if (run.end == RunEnd::failed) outcome.status = kDifferenceFound;
    if (run.end == RunEnd::refused) refusals.add(case_name, run.reason);
  }
  report.notes.push_back("plan runs the model once and compares nothing; verify does");
  outcome.messages = refusals.messages(configuration);
  if (!outcome.messages.empty() && outcome.status == kVerified) outcome.status = kRequestIsWrong;
  return outcome;
}

void judge_oracle(CommandOutcome& outcome) {
  const std::vector<OracleResult>& results = outcome.report.oracles;
  const auto any = [&](const auto& predicate) { return std::any_of(results.begin(), results.end(), predicate); };
  if (any([](const OracleResult& result) { return result.checked && !result.agrees; })) {
    outcome.status = kDifferenceFound;
  } else if (!any([](const OracleResult& result) { return result.checked; })) {
    outcome.status = kRequestIsWrong;
    outcome.messages.emplace_back("nothing was compared: the exports hold no outputs");
  }
}

CommandOutcome run_oracle_command(const Options& options, Progress& progress) {
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  Report& report = outcome.report;
  // All are opened before the first is run, so that a wrong one is reported at once.
  const std::unique_ptr<Device> device = given_device_of(options);
  std::vector<Subject> subjects;
  int total = 0;
  for (const std::string& source : options.sources) {
    subjects.push_back(Subject::open(source, options.seed));
    const Subject& subject = subjects.back();
    SHARDPROOF_CHECK(subject.export_directory() != nullptr, usage_error,
                     "'{}' is a model's name; oracle needs recorded outputs, expected an export directory",
                     printable(source));
    total += static_cast<int>(subject.case_names().size());
    const std::string& model = subject.model().class_name;
    if (report.model.find(model) == std::string::npos) report.model += (report.model.empty() ? "" : ", ") + model;
  }
  int done = 0;
  for (Subject& subject : subjects) {
    for (const std::string& case_name : subject.case_names()) {
      progress.step(done++, total, fmt::format("{}: {}", subject.source(), case_name));
      for (OracleResult& result : run_oracle(subject, case_name, device.get())) {
        result.source = subject.source();
        result.model = subject.model().class_name;
        report.oracles.push_back(std::move(result));
      }
    }
  }
  judge_oracle(outcome);
  return outcome;
}

}  // namespace

CommandOutcome run_command(const Options& options, Progress& progress) {
  switch (options.command) {
    case Command::oracle: return run_oracle_command(options, progress);
    case Command::verify: return run_verify(options, progress);
    case Command::plan: return run_plan(options, progress);
    case Command::run:
      return options.backend == Backend::simulator || options.backend == Backend::cuda_threads
                 ? run_in_this_process(options, progress)
                 : run_on_real_ranks(options, progress);
    case Command::trace: return run_trace_command(options);
    case Command::launch: break;  // has no report, see launch_command.h
    case Command::zoo: break;     // another program's, see zoo_program.h
  }
  fail(ErrorKind::internal_error, "unknown subcommand");
}

int status_of(ErrorKind kind) {
  const bool is_ours =
      kind == ErrorKind::internal_error || kind == ErrorKind::deadlock_error || kind == ErrorKind::collective_error;
  return is_ours ? kInternalError : kRequestIsWrong;
}

}  // namespace shardproof
