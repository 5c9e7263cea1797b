#include "verify/parallel_run.h"

#include <optional>

#include <fmt/format.h>

#include "core/error.h"
#include "parallel/context_parallel.h"

namespace shardproof {
namespace {

constexpr std::string_view kContextDimensions[] = {"ring", "ulysses"};

std::string skipped_text(const std::vector<SkippedEntry>& skipped) {
  std::string text;
  for (const SkippedEntry& entry : skipped) {
    text += fmt::format("{}argument '{}' of module '{}' was skipped: {}", text.empty() ? "" : "; ", entry.argument,
                        entry.module, entry.reason);
  }
  return text;
}

// What one rank says about an illegal configuration; collected per rank and never shared.
struct RankRefusal {
  std::optional<std::string> reason;
};

class RankBody {
 public:
  RankBody(const TreeFactory& make_tree, const std::vector<Arguments>& arguments, const ContextParallelPlan& plan,
           const ParallelRunOptions& options, ParallelRun& run, std::vector<RankRefusal>& refusals)
      : make_tree_(make_tree), arguments_(arguments), plan_(plan), options_(options), run_(run), refusals_(refusals) {}

  void operator()(Communicator& world) const {
    const auto rank = static_cast<std::size_t>(world.rank());
    std::shared_ptr<const ContextParallelState> state;
    try {
      forward(world, state);
    } catch (const Refusal& refusal) {
      refusals_[rank].reason = refusal.what();
      keep_records(rank, state.get());
      throw;
    } catch (const Error& error) {
      keep_records(rank, state.get());
      // A length mismatch whose operands a plan entry left whole is the plan's, not the code's.
      if (error.kind() == ErrorKind::shape_error && state != nullptr && !state->skipped().empty()) {
        refusals_[rank].reason = fmt::format("{} ({})", error.what(), skipped_text(state->skipped()));
      }
      throw;
    }
    keep_records(rank, state.get());
  }

 private:
  void forward(Communicator& world, std::shared_ptr<const ContextParallelState>& state) const {
    const auto rank = static_cast<std::size_t>(world.rank());
    world.set_gather_form(options_.gather_form);
    state = std::make_shared<const ContextParallelState>(world, options_.config);
    const std::unique_ptr<Module> tree = make_tree_();
    apply_context_parallel(*tree, state, plan_);
    run_.ranks[rank].outputs = tree->call(arguments_[static_cast<std::size_t>(run_.replica_of[rank])]);
  }

  void keep_records(std::size_t rank, const ContextParallelState* state) const {
    if (state == nullptr) return;
    RankOutcome& outcome = run_.ranks[rank];
    outcome.skipped = state->skipped();
    outcome.applied = state->applied();
    outcome.attention_tokens = state->attention_tokens();
    outcome.attention_exchanges = state->attention_exchanges();
  }

  const TreeFactory& make_tree_;
  const std::vector<Arguments>& arguments_;
  const ContextParallelPlan& plan_;
  const ParallelRunOptions& options_;
  ParallelRun& run_;
  std::vector<RankRefusal>& refusals_;
};

}  // namespace

int replica_count(const ContextParallelConfig& config) {
  const Mesh mesh = effective_mesh(config);
  return mesh.size() / (mesh.size_of("ring") * mesh.size_of("ulysses"));
}

ParallelRun run_parallel(const TreeFactory& make_tree, const std::vector<Arguments>& arguments,
                         const ContextParallelPlan& plan, const ParallelRunOptions& options) {
  ParallelRun run;
  try {
    throw_problems(validate(options.config));
  } catch (const Refusal& refusal) {
    run.end = RunEnd::refused;
    run.reason = refusal.what();
    return run;
  }
  run.mesh = effective_mesh(options.config);
  const int world = run.mesh.size();
  SHARDPROOF_CHECK(static_cast<int>(arguments.size()) == replica_count(options.config), usage_error,
                   "{} sets of arguments for {} replicas of the mesh '{}'", arguments.size(),
                   replica_count(options.config), run.mesh.text());
  run.ranks.resize(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) run.replica_of.push_back(run.mesh.group_number(rank, kContextDimensions));
  std::vector<RankRefusal> refusals(static_cast<std::size_t>(world));
  const RankBody body(make_tree, arguments, plan, options, run, refusals);
  try {
    const SimulationReport report =
        run_ranks({.world_size = world, .schedule_seed = options.schedule_seed, .workers = options.workers},
                  [&](Communicator& communicator) { body(communicator); });
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) run.ranks[rank].statistics = report.ranks[rank];
  } catch (const Error& error) {
    // Memory that ran out and the like say nothing about the model.
    if (error.kind() == ErrorKind::internal_error) throw;
    // A rule is one only if every rank found it broken; a single rank's objection is a fault of the run.
    bool all_refuse = true;
    for (const RankRefusal& refusal : refusals) all_refuse = all_refuse && refusal.reason.has_value();
    run.end = all_refuse ? RunEnd::refused : RunEnd::failed;
    run.reason = all_refuse ? *refusals.front().reason : error.what();
  }
  return run;
}

}  // namespace shardproof
