// Context and tensor parallelism of a model switched on together: one mesh, one call. Source: parallelism
// specification, sections 6 and 8.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/communicator.h"
#include "core/module.h"
#include "parallel/config.h"
#include "parallel/context_parallel_state.h"
#include "parallel/plan.h"
#include "parallel/tensor_parallel.h"

namespace shardproof {

// The plans of one model, each none if it has none of that kind.
struct ParallelPlans {
  std::optional<ContextParallelPlan> cp = std::nullopt;
  std::optional<TensorParallelPlan> tp = std::nullopt;
  // Heads of its attention, which the tensor-parallel degree must divide; none where that rule does not concern it.
  std::optional<std::int64_t> attention_heads = std::nullopt;
};

// What one rank knows; null for a kind that is not configured (or tp_degree 1).
struct ParallelState {
  std::shared_ptr<const ContextParallelState> cp;
  std::shared_ptr<const TensorParallelState> tp;
};

// Collective over `world`: makes the groups of both kinds in the configuration's mesh. Throws the problems of the
// configuration, and config_error if mesh and number of ranks differ. `world` must outlive the state.
ParallelState set_up_parallelism(Communicator& world, const ParallelConfig& config);

// Collective over `world`: shards the weights, then registers the hooks of context parallelism. All checks that need no
// communication come first. Errors: plan_error for a kind that is configured and has no plan (or a tensor-parallel one
// without layers), shape_error for heads that the degree does not divide (naming the degrees that are legal), and those
// of apply_tensor_parallel and apply_context_parallel.
void apply_parallelism(Module& root, const ParallelState& state, const ParallelPlans& plans);

// Both, as a user calls it. A configuration of neither kind does nothing.
ParallelState enable_parallelism(Module& root, Communicator& world, const ParallelConfig& config,
                                 const ParallelPlans& plans);
// A bare configuration is wrapped.
inline ParallelState enable_parallelism(Module& root, Communicator& world, const ContextParallelConfig& config,
                                        const ParallelPlans& plans) {
  return enable_parallelism(root, world, ParallelConfig{.context_parallel_config = config}, plans);
}
inline ParallelState enable_parallelism(Module& root, Communicator& world, const TensorParallelConfig& config,
                                        const ParallelPlans& plans) {
  return enable_parallelism(root, world, ParallelConfig{.tensor_parallel_config = config}, plans);
}

}  // namespace shardproof
