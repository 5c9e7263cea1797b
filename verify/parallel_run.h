// One run of a model on simulated ranks: what every rank returned, what was moved, what the plan did; or why there is
// no result. The same function serves the command line and a user's own tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/module.h"
#include "core/operation_recorder.h"
#include "parallel/config.h"
#include "parallel/context_parallel_state.h"
#include "parallel/parallelism.h"
#include "parallel/plan.h"
#include "sim/simulation.h"

namespace shardproof {

// Makes the tree of one rank, with weights.
using TreeFactory = std::function<std::unique_ptr<Module>()>;

struct ParallelRunOptions {
  ParallelConfig config;
  GatherForm gather_form = GatherForm::ragged;
  // In which order partial results of tensor parallelism are added; the random one is drawn from schedule_seed.
  ReductionOrder reduction_order = ReductionOrder::ranks;
  std::uint64_t schedule_seed = 0;
  int workers = 1;
  Mover* mover = nullptr;  // null: the device's tensors lie in host memory
};

enum class RunEnd : std::uint8_t {
  completed,
  refused,  // by a rule: the configuration is not legal here
  failed,   // a report instead of a result: mismatch, deadlock, exception
};

struct RankOutcome {
  Outputs outputs;
  std::vector<SkippedEntry> skipped;
  std::vector<SkippedEntry> omitted;  // entries whose argument was not given
  std::vector<AppliedEntry> applied;
  std::vector<AppliedShard> shards;
  std::int64_t attention_tokens = 0;
  std::int64_t attention_exchanges = 0;
  std::vector<AttentionCall> attention_calls;  // the different ones
  std::vector<int> attention_sequence;         // of all calls, the number among them
  bool plan_does_not_fit = false;              // it was refused since entries of the plan were skipped
  RankStatistics statistics;
};

struct ParallelRun {
  RunEnd end = RunEnd::completed;
  std::string reason;  // unless completed
  Mesh mesh;
  // In rank order. After a run that did not complete, only what each rank had recorded.
  std::vector<RankOutcome> ranks;
  // Rank -> number of its replica (of the mesh dimensions besides ring and ulysses).
  std::vector<int> replica_of;
};

// True if it was refused since the plan left whole what it should divide: not by a rule about sizes and degrees, which
// other configurations would keep.
bool is_refused_by_plan(const ParallelRun& run);

// How often a rank calls its model, and who is told; each call is a step.
struct RankSteps {
  int warmup = 0;                         // calls before the steps
  int steps = 1;                          // at least one
  OperationRecorder* recorder = nullptr;  // of the steps, the call alone; null = nothing is recorded
  std::function<void()> before_step = {};
  // Of a step, 0 = the first. The last one's outputs are those of the run.
  std::function<void(int step, const Outputs& outputs)> after_step = {};
};

// One rank's part of a run, over any communicator: sets parallelism up on `world`, makes the rank's tree, applies the
// plans and calls the model with `arguments` (those of the rank's replica). What the rank recorded stands in
// `outcome` even where it throws. Real processes call this one; run_parallel calls it on every simulated rank.
// `refusal`, if given, takes the reason where a rule refuses the configuration on this rank; the error is thrown all
// the same.
void run_rank(Communicator& world, const TreeFactory& make_tree, const Arguments& arguments, const ParallelPlans& plans,
              const ParallelConfig& config, GatherForm form, RankOutcome& outcome,
              std::optional<std::string>* refusal = nullptr, const RankSteps& steps = {});

// Independent copies of the run in the mesh of a configuration (dimensions besides ring, ulysses and tp), and the one
// that a rank belongs to.
int replica_count(const ParallelConfig& config);
int replica_of_rank(const ParallelConfig& config, int rank);

// Runs the model on every rank of the configuration's mesh; `arguments[i]` are those of replica i, prepared for the
// model. Never throws for what goes wrong inside the run; throws for arguments that cannot be (no arguments, wrong
// replica count).
ParallelRun run_parallel(const TreeFactory& make_tree, const std::vector<Arguments>& arguments,
                         const ParallelPlans& plans, const ParallelRunOptions& options);
// The same run with something done to each rank's tree before plans are applied to it, on that rank: what watches a run
// has one of its own for every rank.
using TreeWatcher = std::function<void(int rank, Module& tree)>;
ParallelRun run_watched(const TreeFactory& make_tree, const TreeWatcher& watch, const std::vector<Arguments>& arguments,
                        const ParallelPlans& plans, const ParallelRunOptions& options);

}  // namespace shardproof
