// Switching context parallelism on and off for a model: hooks that divide arguments and gather outputs as the plan
// says, and the state handed to every attention module. Source: parallelism specification 4.4 to 4.7, 6.1.
#pragma once

#include <memory>

#include "core/module.h"
#include "parallel/attention.h"
#include "parallel/context_parallel_state.h"
#include "parallel/plan.h"

namespace shardproof {

// Registers a hook "cp_input---{id}" or "cp_output---{id}" for every entry, in plan order, and gives the state to every
// attention module. All checks come first: a call that throws leaves the model as it was.
// Errors: state_error (applied already), unsupported_error (an attention module that cannot), plan_error (all problems
// of the plan, the first as the headline).
void apply_context_parallel(Module& root, std::shared_ptr<const ContextParallelState> state,
                            const ContextParallelPlan& plan);
// Removes what apply_context_parallel registered for this plan; hooks that are not there are ignored. plan_error, and
// nothing removed, for a plan that names modules that do not exist.
void remove_context_parallel(Module& root, const ContextParallelPlan& plan);
bool context_parallel_is_applied(Module& root);
// Hands a state (or none) to every attention module; what apply and remove do besides their hooks.
void set_attention_state(Module& root, const std::shared_ptr<const ContextParallelState>& state);

// The checks of apply_context_parallel alone, with its errors.
void check_context_parallel(Module& root, const ContextParallelPlan& plan);

}  // namespace shardproof
