#include "app/run_check.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "app/run_trace.h"
#include "core/error.h"
#include "core/file.h"
#include "core/random.h"
#include "verify/judging.h"

namespace shardproof {

std::int64_t hash_of(const Outputs& outputs) {
  std::string content;
  for (const Tensor& tensor : outputs.tensors) {
    std::vector<std::byte> bytes(tensor.bytes());
    tensor.device().download(bytes, tensor);
    content += tensor.text();
    content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return static_cast<std::int64_t>(stable_hash(content));
}

void StepWatch::see(int step, const Outputs& outputs) {
  const std::int64_t hash = hash_of(outputs);
  if (step == 0) hash_ = hash;
  if (hash != hash_ && differing_ < 0) differing_ = step;
}

void check_configuration(const RunRequest& request) {
  SHARDPROOF_CHECK(request.configurations.is_named, usage_error,
                   "run: no configuration was named; expected --ring-degree, --ulysses-degree, --tp-degree or --mesh");
  throw_problems(validate(request.configurations.list.front()));
}

VerificationResult result_of_run(const Options& options, const std::string& case_name, const ParallelConfig& config) {
  VerificationResult result = result_of_configuration(case_name, config);
  result.dtype = options.dtype.name();
  result.device = device_name(options);
  result.tier = "rounding";
  result.seed = options.seed;
  result.schedule_seed = options.schedule_seed;
  // Counted by the simulator alone.
  result.bytes_sent_per_rank = -1;
  result.collectives = -1;
  return result;
}

RankFinding finding_from(const VerificationResult& of_rank) {
  return {.verdict = of_rank.verdict,
          .figure = of_rank.figure,
          .max_abs = of_rank.max_abs.value_or(0.0),
          .index = of_rank.worst ? of_rank.worst->index : std::vector<std::int64_t>{},
          .reason = of_rank.reason};
}

RankFinding nothing_compared() {
  return {.verdict = Verdict::not_checked, .reason = "--check off: nothing was compared"};
}

std::string bits_difference(int rank) {
  return fmt::format("real rank {0} returned other bits than simulated rank {0}", rank);
}

std::string step_difference(int rank, const StepWatch& watch) {
  return fmt::format("rank {} returned other bits in step {} than in the first", rank, watch.differing() + 1);
}

void conclude(const std::vector<RankFinding>& ranks, VerificationResult& result) {
  const auto is = [](Verdict verdict) {
    return [verdict](const RankFinding& finding) { return finding.verdict == verdict; };
  };
  const auto first_of = [&](Verdict verdict) { return std::ranges::find_if(ranks, is(verdict)); };
  result.verdict = Verdict::rounding_equivalent;
  for (const Verdict verdict : {Verdict::different, Verdict::not_checked}) {
    const auto found = first_of(verdict);
    if (found == ranks.end()) continue;
    result.verdict = verdict;
    result.reason = found->reason;
    break;
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFinding& finding = ranks[rank];
    if (!finding.figure) continue;
    result.max_abs = std::max(result.max_abs.value_or(0.0), finding.max_abs);
    if (result.figure && !(*finding.figure > *result.figure) && !std::isnan(*finding.figure)) continue;
    result.figure = finding.figure;
    if (!finding.index.empty()) result.worst = WorstElement{static_cast<int>(rank), finding.index};
  }
}

namespace {

std::string note_of(const Options& options, int ranks) {
  const Backend backend = *options.backend;
  const std::string carrier = backend == Backend::simulator || backend == Backend::cuda_threads
                                  ? fmt::format("{} ranks of one process", ranks)
                                  : fmt::format("{} processes", ranks);
  const char* const means = options.check == CheckChoice::exact_order
                                ? "of a verified case every rank's output has the bits of the simulated rank"
                            : options.check == CheckChoice::rounding
                                ? "of a verified case every rank's output was compared with the dense run"
                                : "nothing was compared";
  return fmt::format("backend {}, {}: {}, and the seconds are those of this run", backend_name(backend), carrier,
                     means);
}

std::vector<std::string> what_run_leaves_open(const Options& options) {
  std::vector<std::string> open;
  if (options.check == CheckChoice::off) open.emplace_back("every output: --check off runs, and compares nothing");
  if (options.check == CheckChoice::rounding) {
    open.emplace_back("equal bits on every communicator (--check exact-order)");
    if (options.dtype != kFloat64) {
      open.emplace_back(
          "modules by themselves and extreme inputs on these ranks; verify takes them on simulated ranks");
    }
  }
  open.emplace_back("exact arithmetic and other element types");
  open.push_back(fmt::format("{} gathers of the modes for uneven lengths (--gather)",
                             options.gather == GatherChoice::padded ? "ragged" : "padded"));
  open.emplace_back("anything but this one configuration; verify sweeps them on simulated ranks");
  return open;
}

void judge(const Options& options, const RunRequest& request, CommandOutcome& outcome) {
  Refusals refusals;
  for (const VerificationResult& result : outcome.report.verifications) {
    if (result.verdict == Verdict::different) outcome.status = kDifferenceFound;
    if (result.verdict == Verdict::refused) refusals.add(result.case_name, result.reason);
    // With --check off nothing was to be checked, and what was asked for has been done.
    if (result.verdict == Verdict::not_checked && options.check != CheckChoice::off) {
      outcome.messages.push_back(
          fmt::format("case '{}' cannot be checked: {}", printable(result.case_name), result.reason));
    }
  }
  for (std::string& message : refusals.messages(request.configurations.list.front())) {
    outcome.messages.push_back(std::move(message));
  }
  if (!outcome.messages.empty() && outcome.status == kVerified) outcome.status = kRequestIsWrong;
}

}  // namespace

void finish_run(const Options& options, const RunRequest& request, int ranks, CommandOutcome& outcome) {
  if (options.check != CheckChoice::off) {
    outcome.report.allowed = options.dtype == kFloat64 ? kFloat64Tolerance : kRatioLimit;
  }
  outcome.report.notes.push_back(note_of(options, ranks));
  outcome.report.not_checked = what_run_leaves_open(options);
  judge(options, request, outcome);
}

}  // namespace shardproof
