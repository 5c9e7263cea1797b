#include "verify/parallel_run.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "parallel/context_parallel.h"
#include "parallel/parallelism.h"
#include "reports/result.h"

namespace shardproof {
namespace {

// The dimensions along which one run is spread; the others hold independent runs. Without a dimension "tp", tensor
// parallelism alone takes all of them.
std::vector<std::string_view> dimensions_of_a_run(const ParallelConfig& config, const Mesh& mesh) {
  const bool has_context = config.context_parallel_config.has_value(), has_tensor = effective_tp_degree(config) > 1;
  std::vector<std::string_view> dimensions;
  for (const std::string& name : mesh.names()) {
    const bool is_context = has_context && (name == "ring" || name == "ulysses");
    const bool is_tensor = has_tensor && (name == "tp" || (!has_context && !mesh.has("tp")));
    if (is_context || is_tensor) dimensions.emplace_back(name);
  }
  return dimensions;
}

std::string skipped_text(const std::vector<SkippedEntry>& skipped) {
  std::string text;
  for (const SkippedEntry& entry : skipped) {
    text += fmt::format("{}{} was skipped: {}", text.empty() ? "" : "; ", entry_text(entry.argument, entry.module),
                        entry.reason);
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
  outcome.attention_calls = state->attention_calls();
  outcome.attention_sequence = state->attention_sequence();
}

// A step has ended when the device has: its work may go on after the call.
Outputs called_and_done(Module& tree, const Arguments& arguments) {
  Outputs outputs = tree.call(arguments);
  for (const Tensor& tensor : outputs.tensors) {
    if (tensor.has_storage()) tensor.device().synchronize();
  }
  return outputs;
}

void call_in_steps(Module& tree, const Arguments& arguments, const RankSteps& steps, Outputs& outputs) {
  SHARDPROOF_CHECK(steps.warmup >= 0 && steps.steps >= 1, usage_error,
                   "{} calls and {} before them; expected at least 1", steps.steps, steps.warmup);
  for (int call = 0; call < steps.warmup; ++call) outputs = tree.call(arguments);
  for (int step = 0; step < steps.steps; ++step) {
    if (steps.before_step) steps.before_step();
    {
      const RecordedStep recorded(steps.recorder);
      outputs = called_and_done(tree, arguments);
    }
    if (steps.after_step) steps.after_step(step, outputs);
  }
}

}  // namespace

void run_rank(Communicator& world, const TreeFactory& make_tree, const Arguments& arguments, const ParallelPlans& plans,
              const ParallelConfig& config, GatherForm form, RankOutcome& outcome, std::optional<std::string>* refusal,
              const RankSteps& steps) {
  ParallelState state;
  try {
    world.set_gather_form(form);
    state = set_up_parallelism(world, config);
    const std::unique_ptr<Module> tree = make_tree();
    apply_parallelism(*tree, state, plans);
    if (state.tp) outcome.shards = applied_shards(*tree);
    call_in_steps(*tree, arguments, steps, outcome.outputs);
  } catch (const Refusal& error) {
    keep_records(state.cp.get(), outcome);
    if (refusal != nullptr) *refusal = error.what();
    throw;
  } catch (const Error& error) {
    keep_records(state.cp.get(), outcome);
    // A length mismatch whose operands a plan entry left whole is the plan's, not the code's.
    const bool is_of_plan = error.kind() == ErrorKind::shape_error && state.cp && left_a_sequence_whole(*state.cp);
    outcome.plan_does_not_fit = is_of_plan;
    if (is_of_plan && refusal != nullptr)
      *refusal = fmt::format("{} ({})", error.what(), skipped_text(state.cp->skipped()));
    throw;
  }
  keep_records(state.cp.get(), outcome);
}

int replica_count(const ParallelConfig& config) {
  const Mesh mesh = effective_mesh(config);
  int ranks_of_a_run = 1;
  for (const std::string_view dimension : dimensions_of_a_run(config, mesh)) ranks_of_a_run *= mesh.size_of(dimension);
  return mesh.size() / ranks_of_a_run;
}

int replica_of_rank(const ParallelConfig& config, int rank) {
  const Mesh mesh = effective_mesh(config);
  return mesh.group_number(rank, dimensions_of_a_run(config, mesh));
}

ParallelRun run_parallel(const TreeFactory& make_tree, const std::vector<Arguments>& arguments,
                         const ParallelPlans& plans, const ParallelRunOptions& options) {
  return run_watched(make_tree, [](int, Module&) {}, arguments, plans, options);
}

ParallelRun run_watched(const TreeFactory& make_tree, const TreeWatcher& watch, const std::vector<Arguments>& arguments,
                        const ParallelPlans& plans, const ParallelRunOptions& options) {
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
  for (int rank = 0; rank < world; ++rank) run.replica_of.push_back(replica_of_rank(options.config, rank));
  // Every rank writes its own elements only.
  std::vector<std::optional<std::string>> refusals(static_cast<std::size_t>(world));
  const auto body = [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    communicator.set_reduction_order(options.reduction_order, options.schedule_seed);
    const TreeFactory watched = [&] {
      std::unique_ptr<Module> tree = make_tree();
      watch(communicator.rank(), *tree);
      return tree;
    };
    run_rank(communicator, watched, arguments[static_cast<std::size_t>(run.replica_of[rank])], plans, options.config,
             options.gather_form, run.ranks[rank], &refusals[rank]);
  };
  try {
    const SimulationReport report = run_ranks({.world_size = world,
                                               .schedule_seed = options.schedule_seed,
                                               .workers = options.workers,
                                               .mover = options.mover},
                                              body);
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

bool is_refused_by_plan(const ParallelRun& run) {
  const auto does_not_fit = [](const RankOutcome& rank) { return rank.plan_does_not_fit; };
  return run.end == RunEnd::refused && std::ranges::any_of(run.ranks, does_not_fit);
}

}  // namespace shardproof
