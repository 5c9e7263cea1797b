#include "app/real_run.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>

#include <fmt/format.h>

#include "app/agreement.h"
#include "app/output.h"
#include "app/request.h"
#include "core/collectives.h"
#include "core/file.h"
#include "core/random.h"
#include "parallel/plan_json.h"
#include "real/launcher.h"
#include "real/meeting.h"
#include "real/mpi_communicator.h"
#include "real/nccl_communicator.h"
#include "real/nccl_store.h"
#include "real/peer_failure.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

// Equal for equal shapes, types and bits.
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

// Ends this process, and those of all ranks that wait for it, which are told why.
using Abort = std::function<void(int status, const std::string& why)>;

[[noreturn]] void end_all(const Abort& abort, int status, const std::string& why) {
  abort(status, why);
  std::_Exit(status);
}

std::string_view name_of(Backend backend) { return backend == Backend::mpi ? "mpi" : "nccl"; }

class RealRun {
 public:
  RealRun(const Options& options, const Abort& abort, Communicator& world, Report& report)
      : options_(options),
        abort_(abort),
        world_(world),
        request_(options, report),
        verifier_(request_.subject, verifier_options(request_, options)) {
    SHARDPROOF_CHECK(
        request_.configurations.is_named, usage_error,
        "run: no configuration was named; expected --ring-degree, --ulysses-degree, --tp-degree or --mesh");
    throw_problems(validate(config()));
    const Mesh mesh = effective_mesh(config());
    SHARDPROOF_CHECK(mesh.size() == world.size(), usage_error,
                     "run: the mesh {} has {} ranks, but {} process{}; start it with {} -n {}", mesh.text(),
                     mesh.size(), world.size(), world.size() == 1 ? " runs" : "es run",
                     options.backend == Backend::nccl ? "shardproof launch" : "mpirun", mesh.size());
  }

  const std::vector<std::string>& cases() const { return request_.cases; }
  const RunRequest& request() const { return request_; }

  // Collective. The result counts on rank 0 only. What goes wrong on rank 0 ends the run on every rank.
  VerificationResult run(const std::string& case_name) {
    VerificationResult result;
    on_rank_0([&] { result = verifier_.verify(case_name, config(), request_.plans); });
    if (!agreed_on_rank_0(is_verified(result.verdict))) return result;
    const Clock::time_point start = Clock::now();
    const std::int64_t own = hash_of(forward(case_name));
    const std::vector<std::int64_t> hashes =
        collectives::all_gather_numbers(world_, std::span(&own, 1), "run: hashes of the outputs");
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    on_rank_0([&] { compare_with_simulation(case_name, hashes, result); });
    return result;
  }

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
    if (is_first()) {
      try {
        work();
      } catch (...) {
        problem = std::current_exception();
      }
    }
    const bool is_well = agreed_on_rank_0(!problem);
    if (problem) std::rethrow_exception(problem);
    SHARDPROOF_CHECK(is_well, state_error, "rank 0 of {} could not go on; it says why", world_.size());
  }

  Outputs forward(const std::string& case_name) {
    RankOutcome outcome;
    try {
      run_rank(world_, verifier_.tree_factory(), verifier_.arguments_of_rank(case_name, config(), world_.rank()),
               request_.plans, config(), form(), outcome);
    } catch (const PeerFailure&) {
      throw;
    } catch (const Error& error) {
      // The others wait for this rank: they are ended with it.
      fmt::print(stderr, "shardproof: rank {} of {} failed in case '{}': {}\n", world_.rank(), world_.size(), case_name,
                 error.what());
      end_all(abort_, kPeerFailed, error.what());
    }
    return outcome.outputs;
  }

  void compare_with_simulation(const std::string& case_name, const std::vector<std::int64_t>& hashes,
                               VerificationResult& result) {
    const ParallelRun simulated = verifier_.run(case_name, config(), request_.plans, form());
    for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
      if (simulated.end == RunEnd::completed && hash_of(simulated.ranks[rank].outputs) == hashes[rank]) continue;
      result.verdict = Verdict::different;
      result.reason = fmt::format("real rank {} returned other bits than simulated rank {}", rank, rank);
      return;
    }
  }

  const Options& options_;
  const Abort& abort_;
  Communicator& world_;
  RunRequest request_;
  Verifier verifier_;
};

void judge(const RealRun& run, CommandOutcome& outcome) {
  Refusals refusals;
  for (const VerificationResult& result : outcome.report.verifications) {
    if (result.verdict == Verdict::different) outcome.status = kDifferenceFound;
    if (result.verdict == Verdict::refused) refusals.add(result.case_name, result.reason);
    if (result.verdict == Verdict::not_checked) {
      outcome.messages.push_back(
          fmt::format("case '{}' cannot be checked: {}", printable(result.case_name), result.reason));
    }
  }
  for (std::string& message : refusals.messages(run.request().configurations.list.front())) {
    outcome.messages.push_back(std::move(message));
  }
  if (!outcome.messages.empty() && outcome.status == kVerified) outcome.status = kRequestIsWrong;
}

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

CommandOutcome run_cases(const Options& options, const Abort& abort, Communicator& world, Progress& progress) {
  CommandOutcome outcome{.report = empty_report(options), .messages = {}};
  const std::unique_ptr<RealRun> opened = opened_on_all_ranks(options, abort, world, outcome.report);
  RealRun& run = *opened;
  check_agreement(world, settings_of(options));
  check_what_was_opened(world, run.request(), outcome.report.model);
  int done = 0;
  for (const std::string& case_name : run.cases()) {
    if (world.rank() == 0) progress.step(done++, static_cast<int>(run.cases().size()), case_name);
    VerificationResult result = run.run(case_name);
    result.device = device_name(options);
    outcome.report.verifications.push_back(std::move(result));
  }
  outcome.report.allowed = options.dtype == kFloat64 ? kFloat64Tolerance : kRatioLimit;
  outcome.report.notes.push_back(fmt::format(
      "backend {}, {} processes: of a verified case every rank's output has the bits of the simulated rank, and the "
      "seconds are those of the real run",
      name_of(*options.backend), world.size()));
  outcome.report.not_checked = {
      "exact arithmetic and other element types",
      fmt::format("{} gathers of the modes for uneven lengths (--gather)",
                  options.gather == GatherChoice::padded ? "ragged" : "padded"),
      "anything but this one configuration; verify sweeps them on simulated ranks",
  };
  judge(run, outcome);
  outcome.is_silent = world.rank() != 0;
  if (outcome.is_silent) outcome.status = kVerified;  // rank 0 speaks, and its status is mpirun's
  return outcome;
}

void check_world(const Launch& launch, const Communicator& world) {
  SHARDPROOF_CHECK(
      launch.source == "none" || (launch.rank == world.rank() && launch.world_size == world.size()), usage_error,
      "run: {} ({}) says rank {} of {}, but MPI says rank {} of {}; expected the mpirun of the MPI that this program "
      "was built with, or Open MPI 4 with its component 'flux' under another launcher",
      launch.source, launch.claim, launch.rank, launch.world_size, world.rank(), world.size());
}

// Every rank says it: which of them others will hear, nobody knows.
void say_on_rank(int rank, int size, std::string_view what) {
  write_standard_error(fmt::format("shardproof: rank {} of {}: {}\n", rank, size, printable_lines(what)));
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
                            Progress& progress) {
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
    CommandOutcome outcome = run_cases(options, abort, *world, progress);
    meeting.end();
    collectives::barrier(*world, "run: the end");
    return outcome;
  });
}

CommandOutcome run_over_nccl(const Options& options, const Launch& launch, Meeting& meeting,
                             std::chrono::milliseconds patience, Progress& progress) {
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
    CommandOutcome outcome = run_cases(options, abort, *world, progress);
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
  Options options = all_options;
  options.torch.index = launch.local_rank;
  const std::chrono::milliseconds patience = std::chrono::seconds(options.timeout_seconds);
  Meeting meeting(launch, hash_of(settings_of(options)), patience);
  if (options.backend == Backend::nccl) return run_over_nccl(options, launch, meeting, patience, progress);
  return run_over_mpi(options, launch, meeting, patience, progress);
}

}  // namespace shardproof
