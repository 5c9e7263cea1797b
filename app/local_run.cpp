#include "app/local_run.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "app/run_check.h"
#include "app/run_trace.h"
#include "core/collectives.h"
#include "core/error.h"
#include "real/cuda_threads.h"
#include "real/device_activity.h"
#include "real/launcher.h"
#include "reports/device_time.h"
#include "reports/profile.h"
#include "sim/simulation.h"

namespace shardproof {
namespace {

// What a backend of this kind does: runs the body once for each rank and returns when all have ended.
void run_on_ranks(const Options& options, int ranks, Mover* mover, DeviceActivity* activity,
                  const std::function<void(Communicator& world)>& body) {
  if (options.backend == Backend::cuda_threads) {
    run_cuda_ranks({.world_size = ranks, .device = options.torch.index, .activity = activity},
                   [&](Communicator& world, void* stream) {
                     compute_on_torch_stream(options.torch, stream);
                     body(world);
                   });
    return;
  }
  run_ranks({.world_size = ranks, .schedule_seed = options.schedule_seed, .workers = options.workers, .mover = mover},
            body);
}

void check_place(const Options& options) {
  const Launch launch = launch_from_environment(options.launch);
  SHARDPROOF_CHECK(launch.world_size == 1, usage_error,
                   "run: --backend {} has all ranks in one process, but {} says that {} processes run; expected to be "
                   "started once",
                   backend_name(*options.backend), launch.source, launch.world_size);
  if (options.backend != Backend::cuda_threads) return;
  SHARDPROOF_CHECK(cuda_threads_are_built(), usage_error,
                   "--backend: 'cuda-threads' is not part of this build; run tools/setup_nccl.sh and configure again, "
                   "or take simulator");
  SHARDPROOF_CHECK(options.device == DeviceChoice::given && options.torch.place == TorchPlace::cuda, usage_error,
                   "--backend: 'cuda-threads' moves tensors in the memory of a GPU, and device {} computes in that of "
                   "the processor; expected --device cuda, or --backend simulator",
                   device_name(options));
}

class LocalRun {
 public:
  LocalRun(const Options& options, const RunRequest& request, Verifier& verifier)
      : options_(options),
        request_(request),
        verifier_(verifier),
        activity_(options.cupti ? watch_device_activity() : nullptr) {}

  VerificationResult run(const std::string& case_name) {
    VerificationResult result = result_of_run(options_, case_name, config());
    if (options_.check == CheckChoice::exact_order) {
      result = verifier_.verify(case_name, config(), request_.plans);
      result.device = device_name(options_);
      if (!is_verified(result.verdict)) return result;
    }
    result.seconds = 0.0;
    const std::int64_t start = steady_nanoseconds();
    ParallelRun run = run_steps(case_name);
    result.seconds = static_cast<double>(steady_nanoseconds() - start) / 1e9;
    if (run.end != RunEnd::completed) {
      result.verdict = run.end == RunEnd::refused ? Verdict::refused : Verdict::different;
      result.stopped = run.end == RunEnd::failed;
      result.reason = run.reason;
      return result;
    }
    judge(case_name, run, result);
    return result;
  }

  // Of the last case, if it was recorded.
  RunTrace trace(const std::string& case_name) const {
    RunTrace trace = empty_trace(options_, request_, case_name);
    for (std::size_t rank = 0; rank < recorders_.size(); ++rank) {
      trace.ranks.push_back(trace_of(*recorders_[rank], static_cast<int>(rank)));
      add_device_work(trace.ranks.back(), device_work_, false);
    }
    return trace;
  }

 private:
  const ParallelConfig& config() const { return request_.configurations.list.front(); }
  GatherForm form() const { return first_form(options_.gather); }

  ParallelRun run_steps(const std::string& case_name) {
    ParallelRun run;
    run.mesh = effective_mesh(config());
    const int ranks = run.mesh.size();
    run.ranks.resize(static_cast<std::size_t>(ranks));
    watches_.assign(static_cast<std::size_t>(ranks), {});
    recorders_.clear();
    marks_.clear();
    std::vector<const Arguments*> arguments;
    for (int rank = 0; rank < ranks; ++rank) {
      run.replica_of.push_back(replica_of_rank(config(), rank));
      arguments.push_back(&verifier_.arguments_of_rank(case_name, config(), rank));
      if (activity_) marks_.push_back(activity_->ranges(rank, nullptr));
      if (!is_recorded(options_)) continue;
      recorders_.push_back(std::make_unique<OperationRecorder>(OperationRecorder::Keep::events,
                                                               activity_ ? marks_.back().get() : nullptr));
    }
    // Ranks compute on streams of their own, which do not wait for what was computed here.
    if (request_.given_device) request_.given_device->synchronize();
    // Every rank writes its own elements only.
    std::vector<std::optional<std::string>> refusals(static_cast<std::size_t>(ranks));
    std::vector<std::optional<std::string>> recording_problems(static_cast<std::size_t>(ranks));
    try {
      if (activity_) activity_->begin();
      run_on_ranks(options_, ranks, request_.mover.get(), activity_.get(), [&](Communicator& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        const RankSteps steps{.warmup = options_.warmup.value_or(0),
                              .steps = options_.steps.value_or(1),
                              .recorder = recorders_.empty() ? nullptr : recorders_[rank].get(),
                              .before_step = [&world] { collectives::barrier(world, "run: the next step"); },
                              .after_step =
                                  [&](int step, const Outputs& outputs) {
                                    watches_[rank].see(step, outputs);
                                    if (step > 0 || !is_recorded(options_)) return;
                                    recording_problems[rank] = recording_problem(world, *recorders_[rank], options_);
                                    if (recording_problems[rank])
                                      fail(ErrorKind::usage_error, "{}", *recording_problems[rank]);
                                  }};
        run_rank(world, verifier_.tree_factory(), *arguments[rank], request_.plans, config(), form(), run.ranks[rank],
                 &refusals[rank], steps);
      });
      if (activity_) device_work_ = activity_->end();  // all streams are idle
    } catch (const Error& error) {
      // The same on all ranks, but some were ended by others before they had it.
      for (const std::optional<std::string>& problem : recording_problems) {
        if (problem) fail(ErrorKind::usage_error, "{}", *problem);
      }
      // Memory that ran out, a machine without what is needed: nothing that the model did.
      if (error.kind() == ErrorKind::internal_error || error.kind() == ErrorKind::unsupported_error) throw;
      bool all_refuse = true;
      for (const std::optional<std::string>& refusal : refusals) all_refuse = all_refuse && refusal.has_value();
      run.end = all_refuse ? RunEnd::refused : RunEnd::failed;
      run.reason = all_refuse ? *refusals.front() : error.what();
    }
    return run;
  }

  void judge(const std::string& case_name, const ParallelRun& run, VerificationResult& result) {
    std::vector<RankFinding> findings;
    std::optional<ParallelRun> simulated;
    if (options_.check == CheckChoice::exact_order) {
      simulated = verifier_.run(case_name, config(), request_.plans, form());
    }
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      RankFinding finding = finding_of(case_name, run, simulated, static_cast<int>(rank));
      if (watches_[rank].differing() >= 0) {
        finding = {.verdict = Verdict::different, .reason = step_difference(static_cast<int>(rank), watches_[rank])};
      }
      findings.push_back(std::move(finding));
    }
    if (options_.check == CheckChoice::exact_order) {
      for (const RankFinding& finding : findings) {
        if (finding.verdict != Verdict::different || result.verdict == Verdict::different) continue;
        result.verdict = Verdict::different;
        result.reason = finding.reason;
      }
      return;
    }
    for (const RankOutcome& rank : run.ranks) {
      if (rank.attention_tokens > 0) result.tokens_per_rank.push_back(rank.attention_tokens);
    }
    conclude(findings, result);
  }

  RankFinding finding_of(const std::string& case_name, const ParallelRun& run,
                         const std::optional<ParallelRun>& simulated, int rank) {
    const auto own = static_cast<std::size_t>(rank);
    if (options_.check == CheckChoice::off) return nothing_compared();
    if (options_.check == CheckChoice::exact_order) {
      const bool is_equal = simulated->end == RunEnd::completed &&
                            hash_of(simulated->ranks[own].outputs) == hash_of(run.ranks[own].outputs);
      if (is_equal) return {.verdict = Verdict::rounding_equivalent};
      return {.verdict = Verdict::different, .reason = bits_difference(rank)};
    }
    return finding_from(verifier_.judge_rank(case_name, config(), run, rank));
  }

  const Options& options_;
  const RunRequest& request_;
  Verifier& verifier_;
  std::vector<StepWatch> watches_;
  std::unique_ptr<DeviceActivity> activity_;  // with --cupti, like the next
  std::vector<std::unique_ptr<RangeSink>> marks_;
  std::vector<std::unique_ptr<OperationRecorder>> recorders_;
  DeviceWorkList device_work_;
};

// Whether it could be written; else the message and the status are noted.
void write_trace(const RunTrace& trace, const Options& options, OutputTarget& target, CommandOutcome& outcome) {
  try {
    write_trace_file(trace, options, target);
  } catch (const Error& error) {
    outcome.messages.emplace_back(error.what());
    outcome.status = kRequestIsWrong;
  }
}

}  // namespace

CommandOutcome run_in_this_process(const Options& options, Progress& progress) {
  check_place(options);
  const std::unique_ptr<OutputTarget> target = trace_target(options);
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  RunRequest request(options, outcome.report);
  check_configuration(request);
  check_one_case(options, request.cases);
  Verifier verifier(request.subject, verifier_options(request, options));
  LocalRun run(options, request, verifier);
  int done = 0;
  for (const std::string& case_name : request.cases) {
    progress.step(done++, static_cast<int>(request.cases.size()), case_name);
    outcome.report.verifications.push_back(run.run(case_name));
  }
  finish_run(options, request, effective_mesh(request.configurations.list.front()).size(), outcome);
  const RunTrace trace = run.trace(request.cases.front());
  // Of a run that did not come to its end, a table or file would look like that of a shorter one.
  const bool is_complete = std::ranges::all_of(outcome.report.verifications, [](const VerificationResult& result) {
    return !result.stopped && result.verdict != Verdict::refused;
  });
  if (is_recorded(options) && !trace.ranks.empty() && is_complete) {
    outcome.report.profile = profile_of(trace);
    if (target) write_trace(trace, options, *target, outcome);
  } else if (is_recorded(options)) {
    outcome.messages.push_back(no_trace_text(options));
  }
  return outcome;
}

}  // namespace shardproof
