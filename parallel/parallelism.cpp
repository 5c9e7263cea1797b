#include "parallel/parallelism.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "parallel/context_parallel.h"

namespace shardproof {
namespace {

void check_plans(Module& root, const ParallelState& state, const ParallelPlans& plans) {
  if (state.tp) {
    SHARDPROOF_REFUSE_UNLESS(plans.tp.has_value(), plan_error,
                             "{} has no tensor-parallel plan; give one, or leave tensor parallelism away",
                             root.class_name());
    SHARDPROOF_REFUSE_UNLESS(!plans.tp->entries.empty(), plan_error,
                             "the tensor-parallel plan for {} shards no layer; every rank would compute everything",
                             root.class_name());
    const std::int64_t heads = plans.attention_heads.value_or(state.tp->degree());
    SHARDPROOF_REFUSE_UNLESS(heads % state.tp->degree() == 0, shape_error,
                             "the {} attention heads of {} are not divisible by tp_degree {}; legal degrees are {}",
                             heads, root.class_name(), state.tp->degree(),
                             fmt::join(legal_tp_degrees(root, *plans.tp, heads), ", "));
  }
  SHARDPROOF_REFUSE_UNLESS(!state.cp || plans.cp.has_value(), plan_error, "{} has no context-parallel plan; give one",
                           root.class_name());
}

}  // namespace

ParallelState set_up_parallelism(Communicator& world, const ParallelConfig& config) {
  throw_problems(validate(config));
  ParallelState state;
  const int tp_degree = effective_tp_degree(config);
  if (config.context_parallel_config) {
    ContextParallelConfig context = *config.context_parallel_config;
    if (tp_degree > 1) context.mesh = effective_mesh(config);
    state.cp = std::make_shared<const ContextParallelState>(world, context);
  }
  if (tp_degree > 1) {
    state.tp =
        std::make_shared<const TensorParallelState>(world, effective_mesh(config), *config.tensor_parallel_config);
  }
  return state;
}

void apply_parallelism(Module& root, const ParallelState& state, const ParallelPlans& plans) {
  check_plans(root, state, plans);
  // What the second of the two would object to, before the first changes anything.
  if (state.tp && state.cp) check_context_parallel(root, *plans.cp);
  if (state.tp) apply_tensor_parallel(root, state.tp, *plans.tp);
  if (state.cp) apply_context_parallel(root, state.cp, *plans.cp);
}

ParallelState enable_parallelism(Module& root, Communicator& world, const ParallelConfig& config,
                                 const ParallelPlans& plans) {
  throw_problems(validate(config));
  SHARDPROOF_CHECK(!context_parallel_is_applied(root) && !tensor_parallel_is_applied(root), state_error,
                   "parallelism is enabled for this {} already; it cannot be enabled twice", root.class_name());
  ParallelState state = set_up_parallelism(world, config);
  apply_parallelism(root, state, plans);
  return state;
}

}  // namespace shardproof
