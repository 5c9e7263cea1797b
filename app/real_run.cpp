#include "app/real_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "app/agreement.h"
#include "app/output.h"
#include "app/rank_zero_work.h"
#include "app/request.h"
#include "app/run_check.h"
#include "app/run_trace.h"
#include "core/collectives.h"
#include "core/file.h"
#include "parallel/plan_json.h"
#include "real/clock_offset.h"
#include "real/device_activity.h"
#include "real/launcher.h"
#include "real/meeting.h"
#include "real/mpi_communicator.h"
#include "real/nccl_communicator.h"
#include "real/nccl_store.h"
#include "real/nvtx_ranges.h"
#include "real/peer_failure.h"
#include "reports/device_time.h"
#include "reports/profile.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds patience_of(const Options& options) { return std::chrono::seconds(options.timeout_seconds); }

class RealRun {
 public:
  RealRun(const Options& options, const Abort& abort, Communicator& world, Report& report)
      : options_(options),
        abort_(abort),
        world_(world),
        request_(options, report),
        verifier_(request_.subject, verifier_options(request_, options)) {
    check_configuration(request_);
    const Mesh mesh = effective_mesh(config());
    SHARDPROOF_CHECK(mesh.size() == world.size(), usage_error,
                     "run: the mesh {} has {} ranks, but {} process{}; start it with {} -n {}", mesh.text(),
                     mesh.size(), world.size(), world.size() == 1 ? " runs" : "es run",
                     options.backend == Backend::nccl ? "shardproof launch" : "mpirun", mesh.size());
    check_one_case(options, request_.cases);
    if (options.cupti) {
      activity_ = watch_device_activity();
      marks_ = activity_->ranges(world.rank(), ranges_.get());
    }
    if (is_recorded(options) || ranges_) {
      const auto keep = is_recorded(options) ? OperationRecorder::Keep::events : OperationRecorder::Keep::nothing;
      recorder_ = std::make_unique<OperationRecorder>(keep, marks_ ? marks_.get() : ranges_.get());
    }
  }

  const std::vector<std::string>& cases() const { return request_.cases; }
  const RunRequest& request() const { return request_; }

  // Collective. Every rank has the verdict, and rank 0 what else is known. What goes wrong on rank 0 ends the run on
  // every rank.
  VerificationResult run(const std::string& case_name) {
    VerificationResult result = result_of_run(options_, case_name, config());
    const bool is_simulated = options_.check == CheckChoice::exact_order ||
                              (options_.check == CheckChoice::rounding && options_.dtype.size() == 2);
    if (is_simulated) {
      on_rank_0([&] { result = verifier_.verify(case_name, config(), request_.plans); });
      result.device = device_name(options_);
      if (!agreed_on_rank_0(is_verified(result.verdict))) return result;
    }
    const Clock::time_point start = Clock::now();
    RankOutcome outcome;
    const std::optional<std::string> refusal = forward(case_name, outcome);
    if (refusal) {
      result.verdict = Verdict::refused;
      result.reason = *refusal;
      return result;
    }
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    switch (options_.check) {
      case CheckChoice::exact_order: compare_with_simulation(case_name, result); break;
      case CheckChoice::rounding: compare_with_dense(case_name, std::move(outcome), result); break;
      case CheckChoice::off: conclude(findings_of_all(watched(nothing_compared())), result); break;
    }
    return result;
  }

  // Collective: what the ranks recorded, with all times in the clock of rank 0, where alone there is any; packed.
  std::vector<std::vector<std::int64_t>> recorded() {
    RankTrace own = trace_of(*recorder_, world_.rank());
    add_device_work(own, device_work_, true);
    correct_clock(own, measure_clock_offset(world_, request_.subject.host(), steady_nanoseconds));
    return gathered_on_rank_0(world_, request_.subject.host(), packed(own));
  }
  RunTrace trace_of_all(std::vector<std::vector<std::int64_t>> recorded) const {
    RunTrace all = empty_trace(options_, request_, request_.cases.front());
    for (std::vector<std::int64_t>& numbers : recorded) {
      all.ranks.push_back(unpacked(numbers));
      numbers = {};
    }
    return all;
  }
  bool has_recorded() const { return recorder_ && recorder_->event_count() > 0; }

 private:
  bool is_first() const { return world_.rank() == 0; }
  const ParallelConfig& config() const { return request_.configurations.list.front(); }
  GatherForm form() const { return first_form(options_.gather); }

  bool agreed_on_rank_0(bool own) {
    const std::int64_t number = own ? 1 : 0;
    return collectives::all_gather_numbers(world_, std::span(&number, 1), "run: what rank 0 found").front() == 1;
  }

  // Collective. Rank 0 does it alone; if it fails, all ranks end.
  template <class Work>
  void on_rank_0(const Work& work) {
    std::exception_ptr problem;
    const auto attempt = [&] {
      try {
        work();
      } catch (...) {
        problem = std::current_exception();
      }
    };
    // What LibTorch is told of threads, it knows of the thread that told it.
    if (options_.device != DeviceChoice::given) {
      while_others_wait(world_, patience_of(options_), abort_, attempt);
    } else if (is_first()) {
      attempt();
    }
    const bool is_well = agreed_on_rank_0(!problem);
    if (problem) std::rethrow_exception(problem);
    SHARDPROOF_CHECK(is_well, state_error, "rank 0 of {} could not go on; it says why", world_.size());
  }

  // Collective. The reason of rank 0 where a rule refuses the configuration.
  std::optional<std::string> forward(const std::string& case_name, RankOutcome& outcome) {
    watch_ = {};
    const RankSteps steps{.warmup = options_.warmup.value_or(0),
                          .steps = options_.steps.value_or(1),
                          .recorder = recorder_.get(),
                          .before_step = [this] { collectives::barrier(world_, "run: the next step"); },
                          .after_step = [this](int step, const Outputs& outputs) { end_step(step, outputs); }};
    std::optional<std::string> refusal;
    try {
      if (activity_) activity_->begin();
      run_rank(world_, verifier_.tree_factory(), verifier_.arguments_of_rank(case_name, config(), world_.rank()),
               request_.plans, config(), form(), outcome, &refusal, steps);
      if (activity_) {
        if (request_.given_device) request_.given_device->synchronize();
        device_work_ = activity_->end();
      }
    } catch (const PeerFailure&) {
      throw;
    } catch (const Error& error) {
      if (recording_problem_) throw;  // all ranks know
      // A rule is found broken by all ranks alike. Of anything else the others do not know: they wait for this rank,
      // and are ended with it.
      if (!refusal) {
        fmt::print(stderr, "shardproof: rank {} of {} failed in case '{}': {}\n", world_.rank(), world_.size(),
                   case_name, error.what());
        end_all(abort_, kPeerFailed, error.what());
      }
    }
    return all_refuse(refusal.has_value()) ? refusal : std::nullopt;
  }

  // Collective after the first step.
  void end_step(int step, const Outputs& outputs) {
    watch_.see(step, outputs);
    if (step > 0 || !is_recorded(options_)) return;
    recording_problem_ = recording_problem(world_, *recorder_, options_);
    if (recording_problem_) fail(ErrorKind::usage_error, "{}", *recording_problem_);
  }

  bool all_refuse(bool own) {
    const std::int64_t number = own ? 1 : 0;
    const std::vector<std::int64_t> all =
        collectives::all_gather_numbers(world_, std::span(&number, 1), "run: who was refused");
    const bool any = std::ranges::count(all, 1) > 0;
    if (any && std::ranges::count(all, 0) > 0) {
      fail_for_peer("{} of {} ranks were refused by a rule, and the others were not", std::ranges::count(all, 1),
                    world_.size());
    }
    return any;
  }

  // What this rank found, unless its steps differ among each other.
  RankFinding watched(RankFinding finding) const {
    if (watch_.differing() < 0) return finding;
    return {.verdict = Verdict::different, .reason = step_difference(world_.rank(), watch_)};
  }

  // Collective: what every rank found, on every rank.
  std::vector<RankFinding> findings_of_all(const RankFinding& own) {
    constexpr std::size_t kNumbers = 4 + kMaxRank;
    std::vector<std::int64_t> numbers(kNumbers, -1);
    numbers[0] = static_cast<std::int64_t>(own.verdict);
    numbers[1] = own.figure ? 1 : 0;
    numbers[2] = std::bit_cast<std::int64_t>(own.figure.value_or(0.0));
    numbers[3] = std::bit_cast<std::int64_t>(own.max_abs);
    std::copy_n(own.index.begin(), std::min<std::size_t>(own.index.size(), kMaxRank), numbers.begin() + 4);
    const std::vector<std::int64_t> all = collectives::all_gather_numbers(world_, numbers, "run: what each rank found");
    const std::vector<std::string> reasons = gathered_texts(world_, own.reason);
    std::vector<RankFinding> findings;
    for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
      const std::span<const std::int64_t> of = std::span(all).subspan(rank * kNumbers, kNumbers);
      RankFinding finding{.verdict = static_cast<Verdict>(of[0]),
                          .figure = of[1] == 1 ? std::optional(std::bit_cast<double>(of[2])) : std::nullopt,
                          .max_abs = std::bit_cast<double>(of[3]),
                          .reason = reasons[rank]};
      for (const std::int64_t entry : of.subspan(4)) {
        if (entry >= 0) finding.index.push_back(entry);
      }
      findings.push_back(std::move(finding));
    }
    return findings;
  }

  // Collective. Rank 0 simulates all ranks; each compares its own bits.
  void compare_with_simulation(const std::string& case_name, VerificationResult& result) {
    std::vector<std::int64_t> hashes(static_cast<std::size_t>(world_.size()), 0);
    on_rank_0([&] {
      const ParallelRun simulated = verifier_.run(case_name, config(), request_.plans, form());
      SHARDPROOF_CHECK(simulated.end == RunEnd::completed, state_error, "the simulated run did not end: {}",
                       simulated.reason);
      for (std::size_t rank = 0; rank < hashes.size(); ++rank) hashes[rank] = hash_of(simulated.ranks[rank].outputs);
    });
    const std::vector<std::int64_t> all =
        collectives::all_gather_numbers(world_, hashes, "run: hashes of the simulated outputs");
    const bool is_equal = all[static_cast<std::size_t>(world_.rank())] == watch_.hash();
    RankFinding own{.verdict = is_equal ? Verdict::rounding_equivalent : Verdict::different};
    if (!is_equal) own.reason = bits_difference(world_.rank());
    for (const RankFinding& finding : findings_of_all(watched(std::move(own)))) {
      if (finding.verdict != Verdict::different) continue;
      result.verdict = Verdict::different;
      result.reason = finding.reason;
      return;
    }
    if (!is_first()) result.verdict = Verdict::rounding_equivalent;
  }

  // Collective. Each rank runs the dense model and compares its own outputs.
  void compare_with_dense(const std::string& case_name, RankOutcome outcome, VerificationResult& result) {
    ParallelRun run;
    run.mesh = effective_mesh(config());
    run.ranks.resize(static_cast<std::size_t>(world_.size()));
    const std::array<std::int64_t, 2> seen{outcome.attention_tokens, outcome.attention_exchanges};
    const std::vector<std::int64_t> all = collectives::all_gather_numbers(world_, seen, "run: what attention saw");
    run.ranks[static_cast<std::size_t>(world_.rank())] = std::move(outcome);
    for (int rank = 0; rank < world_.size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      run.replica_of.push_back(replica_of_rank(config(), rank));
      run.ranks[at].attention_tokens = all[2 * at];
      run.ranks[at].attention_exchanges = all[2 * at + 1];
    }
    RankFinding own = finding_from(verifier_.judge_rank(case_name, config(), run, world_.rank()));
    result.figure.reset();
    result.max_abs.reset();
    result.worst.reset();
    result.tokens_per_rank.clear();
    for (const RankOutcome& rank : run.ranks) {
      if (rank.attention_tokens > 0) result.tokens_per_rank.push_back(rank.attention_tokens);
    }
    conclude(findings_of_all(watched(std::move(own))), result);
  }

  const Options& options_;
  const Abort& abort_;
  Communicator& world_;
  RunRequest request_;
  Verifier verifier_;
  std::unique_ptr<RangeSink> ranges_ = nvtx_ranges();  // for a tool, if one is attached
  std::unique_ptr<DeviceActivity> activity_;           // with --cupti
  std::unique_ptr<RangeSink> marks_;
  std::unique_ptr<OperationRecorder> recorder_;
  DeviceWorkList device_work_;
  StepWatch watch_;
  std::optional<std::string> recording_problem_;
};

// Opens the request on every rank; returns only if all could. A rank that could not says why, once for all ranks if
// rank 0 could not either, since then it is the request that is wrong.
std::unique_ptr<RealRun> opened_on_all_ranks(const Options& options, const Abort& abort, Communicator& world,
                                             Report& report) {
  std::unique_ptr<RealRun> run;
  std::string problem;
  ErrorKind kind = ErrorKind::usage_error;
  try {
    run = std::make_unique<RealRun>(options, abort, world, report);
  } catch (const Error& error) {
    problem = error.what();
    kind = error.kind();
  }
  const std::int64_t is_open = run ? 1 : 0;
  const std::vector<std::int64_t> open =
      collectives::all_gather_numbers(world, std::span(&is_open, 1), "run: who could open the request");
  const auto failed = std::find(open.begin(), open.end(), 0);
  if (failed == open.end()) return run;
  if (!run && open.front() == 1) {
    fmt::print(stderr, "shardproof: rank {} of {}: {}\n", world.rank(), world.size(), problem);
  }
  if (!run) throw Error(kind, problem);
  throw Error(ErrorKind::state_error,
              fmt::format("rank {} of {} could not start; it says why", failed - open.begin(), world.size()));
}

// What cannot be known from the options alone: the plan of a file, and which cases there are.
void check_what_was_opened(Communicator& world, const RunRequest& request, const std::string& model) {
  std::string cases;
  for (const std::string& name : request.cases) cases += (cases.empty() ? "" : ", ") + name;
  const std::vector<Setting> settings{
      {"the model", model},
      {"the plan", plan_to_json({model, request.plans.cp, request.plans.tp}).dump(0)},
      {"the list of cases", cases},
  };
  check_agreement(world, settings);
}

// Rank 0's part of what follows: the table, and the file. What is wrong with the file, if anything is.
std::string written_on_rank_0(const RunTrace& trace, const Options& options, OutputTarget* target, Report& report) {
  report.profile = profile_of(trace);
  try {
    if (target != nullptr) write_trace_file(trace, options, *target);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Collective: writes what was recorded. Rank 0 notes what is wrong with its file; the others learn of it, and end as
// ranks whose peer has failed.
void keep_trace(const Options& options, const Abort& abort, RealRun& run, Communicator& world, OutputTarget* target,
                CommandOutcome& outcome) {
  std::vector<std::vector<std::int64_t>> recorded = run.recorded();
  std::string problem;
  while_others_wait(world, patience_of(options), abort, [&] {
    problem = written_on_rank_0(run.trace_of_all(std::move(recorded)), options, target, outcome.report);
  });
  const std::string of_rank_0 = gathered_texts(world, problem).front();
  if (of_rank_0.empty()) return;
  if (world.rank() == 0) {
    outcome.messages.push_back(problem);
    outcome.status = kRequestIsWrong;
    return;
  }
  say_on_rank(world.rank(), world.size(), "rank 0 could not write the trace: " + of_rank_0);
  outcome.status = kPeerFailed;
}

CommandOutcome run_cases(const Options& options, const Abort& abort, Communicator& world, OutputTarget* target,
                         Progress& progress) {
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  const std::unique_ptr<RealRun> opened = opened_on_all_ranks(options, abort, world, outcome.report);
  RealRun& run = *opened;
  check_agreement(world, settings_of(options));
  check_what_was_opened(world, run.request(), outcome.report.model);
  int done = 0;
  for (const std::string& case_name : run.cases()) {
    if (world.rank() == 0) progress.step(done++, static_cast<int>(run.cases().size()), case_name);
    outcome.report.verifications.push_back(run.run(case_name));
  }
  finish_run(options, run.request(), world.size(), outcome);
  outcome.is_silent = world.rank() != 0;
  if (outcome.is_silent) outcome.status = kVerified;  // rank 0 speaks, and its status is mpirun's
  if (run.has_recorded()) {
    keep_trace(options, abort, run, world, target, outcome);
  } else if (is_recorded(options) && world.rank() == 0) {
    outcome.messages.push_back(no_trace_text(options));
  }
  return outcome;
}

// Of all MPIs only Open MPI 4 can be told of its world by somebody else (real/mpi_bootstrap.h).
void check_start_of_mpi(const Launch& launch) {
  const bool is_told_by_us = launch.world_size > 1 && !launch.has_mpi_launcher;
  SHARDPROOF_CHECK(!is_told_by_us || !mpi_is_built() || mpi_library().starts_with("Open MPI v4"), usage_error,
                   "run: ranks of {} can be started by mpirun or srun only, and {} started this one; expected mpirun "
                   "-n {}, or a build with Open MPI 4",
                   mpi_library(), launch.source, launch.world_size);
}

void check_world(const Launch& launch, const Communicator& world) {
  SHARDPROOF_CHECK(
      launch.source == "none" || (launch.rank == world.rank() && launch.world_size == world.size()), usage_error,
      "run: {} ({}) says rank {} of {}, but MPI says rank {} of {}; expected the mpirun of the MPI that this program "
      "was built with, or Open MPI 4 with its component 'flux' under another launcher",
      launch.source, launch.claim, launch.rank, launch.world_size, world.rank(), world.size());
}

// Runs `body`, and turns what it throws into the end of all ranks or into one message.
CommandOutcome guarded(const Launch& launch, const Abort& abort, const std::function<CommandOutcome()>& body) {
  try {
    return body();
  } catch (const PeerFailure& error) {
    say_on_rank(launch.rank, launch.world_size, error.what());
    end_all(abort, kPeerFailed, error.what());
  } catch (const Error&) {
    // A request that is wrong is wrong on every rank alike; one message is enough.
    if (launch.rank == 0) throw;
    CommandOutcome silent{.report = {}, .messages = {}};
    silent.is_silent = true;
    return silent;
  } catch (const std::exception& error) {
    // Others may wait for this rank, and nobody knows where.
    const std::string text = fmt::format("internal error: {}", error.what());
    say_on_rank(launch.rank, launch.world_size, text);
    end_all(abort, kInternalError, text);
  }
}

CommandOutcome run_over_mpi(const Options& options, Launch launch, Meeting& meeting, std::chrono::milliseconds patience,
                            OutputTarget* target, Progress& progress) {
  const MpiSession session(
      {.patience = patience, .start_patience = patience, .when_it_hangs = [&](const std::string& what) {
         say_on_rank(launch.rank, launch.world_size, what);
         meeting.remove_files();
         std::_Exit(kPeerFailed);
       }});
  const std::unique_ptr<Communicator> world = session.world();
  check_world(launch, *world);
  launch.rank = world->rank();
  launch.world_size = world->size();
  const Abort abort = [&](int status, const std::string&) { session.abort(status); };
  return guarded(launch, abort, [&] {
    CommandOutcome outcome = run_cases(options, abort, *world, target, progress);
    meeting.end();
    collectives::barrier(*world, "run: the end");
    return outcome;
  });
}

CommandOutcome run_over_nccl(const Options& options, const Launch& launch, Meeting& meeting,
                             std::chrono::milliseconds patience, OutputTarget* target, Progress& progress) {
  SHARDPROOF_CHECK(
      meeting.store() != nullptr, usage_error,
      "run: --backend nccl needs several ranks and a place where they meet; start it with shardproof launch "
      "or torchrun, or name the place with --address HOST:PORT");
  std::unique_ptr<NcclSession> session;
  const Abort abort = [&](int status, const std::string& why) {
    if (session) session->abort(status, why);
  };
  const std::string record = options.flight_record ? fmt::format("{}.{}", *options.flight_record, launch.rank) : "";
  return guarded(launch, abort, [&] {
    session = std::make_unique<NcclSession>(NcclOptions{.rank = launch.rank,
                                                        .world_size = launch.world_size,
                                                        .device = launch.local_rank,
                                                        .timeout = patience,
                                                        .flight_record = record},
                                            nccl_store_in(*meeting.store(), patience));
    std::unique_ptr<Communicator> world = session->world();
    CommandOutcome outcome = run_cases(options, abort, *world, target, progress);
    collectives::barrier(*world, "run: the end");
    session->check();
    world.reset();
    session.reset();  // it uses the store until here
    meeting.end();
    return outcome;
  });
}

}  // namespace

CommandOutcome run_on_real_ranks(const Options& all_options, Progress& progress) {
  const Launch launch = launch_from_environment(all_options.launch);
  const std::unique_ptr<OutputTarget> target = trace_target(all_options);
  Options options = all_options;
  options.torch.index = launch.local_rank;
  const std::chrono::milliseconds patience = patience_of(options);
  CommandOutcome outcome{.report = {}, .messages = {}};
  {
    const bool is_nccl = options.backend == Backend::nccl;
    if (!is_nccl) check_start_of_mpi(launch);
    Meeting meeting(launch, hash_of(settings_of(options)), patience, is_nccl ? MeetingFor::others : MeetingFor::mpi);
    outcome = is_nccl ? run_over_nccl(options, launch, meeting, patience, target.get(), progress)
                      : run_over_mpi(options, launch, meeting, patience, target.get(), progress);
  }
  if (outcome.is_silent && outcome.status == kPeerFailed) let_rank_0_end_first();
  return outcome;
}

}  // namespace shardproof
