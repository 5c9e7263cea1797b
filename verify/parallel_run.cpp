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

// True if an entry left a sequence whole that other entries of the plan divide: only then can a length mismatch be its
// doing. A value without such an axis (a timestep a batch entry) is skipped on purpose.
bool left_a_sequence_whole(const ContextParallelState& state) {
  for (const SkippedEntry& skipped : state.skipped()) {
    for (const std::int64_t size : skipped.shape) {
      for (const AppliedEntry& applied : state.applied()) {
        if (applied.action == AppliedEntry::Action::split && applied.total == size) return true;
      }
    }
  }
  return false;
}

void keep_records(const ContextParallelState* state, RankOutcome& outcome) {
  if (state == nullptr) return;
  outcome.skipped = state->skipped();
  outcome.omitted = state->omitted();
  outcome.applied = state->applied();
  outcome.attention_tokens = state->attention_tokens();
  outcome.attention_exchanges = state->attention_exchanges();
}

}  // namespace

void run_rank(Communicator& world, const TreeFactory& make_tree, const Arguments& arguments,
              const ContextParallelPlan& plan, const ContextParallelConfig& config, GatherForm form,
              RankOutcome& outcome, std::optional<std::string>* refusal) {
  std::shared_ptr<const ContextParallelState> state;
  try {
    world.set_gather_form(form);
    state = std::make_shared<const ContextParallelState>(world, config);
    const std::unique_ptr<Module> tree = make_tree();
    apply_context_parallel(*tree, state, plan);
    outcome.outputs = tree->call(arguments);
  } catch (const Refusal& error) {
    keep_records(state.get(), outcome);
    if (refusal != nullptr) *refusal = error.what();
    throw;
  } catch (const Error& error) {
    keep_records(state.get(), outcome);
    // A length mismatch whose operands a plan entry left whole is the plan's, not the code's.
    const bool is_of_plan = error.kind() == ErrorKind::shape_error && state != nullptr && left_a_sequence_whole(*state);
    if (is_of_plan && refusal != nullptr)
      *refusal = fmt::format("{} ({})", error.what(), skipped_text(state->skipped()));
    throw;
  }
  keep_records(state.get(), outcome);
}

int replica_count(const ContextParallelConfig& config) {
  const Mesh mesh = effective_mesh(config);
  return mesh.size() / (mesh.size_of("ring") * mesh.size_of("ulysses"));
}

int replica_of_rank(const Mesh& mesh, int rank) { return mesh.group_number(rank, kContextDimensions); }

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
  for (int rank = 0; rank < world; ++rank) run.replica_of.push_back(replica_of_rank(run.mesh, rank));
  // Every rank writes its own elements only.
  std::vector<std::optional<std::string>> refusals(static_cast<std::size_t>(world));
  const auto body = [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    run_rank(communicator, make_tree, arguments[static_cast<std::size_t>(run.replica_of[rank])], plan, options.config,
             options.gather_form, run.ranks[rank], &refusals[rank]);
  };
  try {
    const SimulationReport report =
        run_ranks({.world_size = world, .schedule_seed = options.schedule_seed, .workers = options.workers}, body);
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) run.ranks[rank].statistics = report.ranks[rank];
  } catch (const Error& error) {
    // Memory that ran out and the like say nothing about the model.
    if (error.kind() == ErrorKind::internal_error) throw;
    // A rule is one only if every rank found it broken; a single rank's objection is a fault of the run.
    bool all_refuse = true;
    for (const std::optional<std::string>& refusal : refusals) all_refuse = all_refuse && refusal.has_value();
    run.end = all_refuse ? RunEnd::refused : RunEnd::failed;
    run.reason = all_refuse ? *refusals.front() : error.what();
  }
  return run;
}

}  // namespace shardproof
