#include "parallel/context_parallel.h"

#include <fmt/format.h>

#include "core/error.h"
#include "parallel/movement.h"

namespace shardproof {
namespace {

Division division_of(const ContextParallelState& state) {
  return state.is_ragged() ? Division::balanced : Division::equal;
}

std::string dimensions_text(int rank) { return fmt::format("{} dimension{}", rank, rank == 1 ? "" : "s"); }

std::string described(const Module& module, std::string_view argument) {
  return fmt::format("argument '{}' of module '{}' ({})", argument, module.path(), module.class_name());
}

// Divides one tensor as an entry says, or leaves it whole and records that.
Tensor split_tensor(const Tensor& x, const ContextParallelInput& input, const Module& module, std::string_view argument,
                    const ContextParallelState& state) {
  if (input.expected_dims && x.rank() != *input.expected_dims) {
    const std::string reason = fmt::format("{}, plan expects {}", dimensions_text(x.rank()), *input.expected_dims);
    SHARDPROOF_CHECK(input.on_mismatch == OnMismatch::skip, shape_error, "{}: {}", described(module, argument), reason);
    state.record_skipped({module.path(), std::string(argument), reason});
    return x;
  }
  return shard(x, input.split_dim, state.flat(), division_of(state), described(module, argument));
}

class ContextParallelSplitHook final : public Hook {
 public:
  ContextParallelSplitHook(std::shared_ptr<const ContextParallelState> state, SplitEntries entries)
      : state_(std::move(state)), entries_(std::move(entries)) {}

  std::string_view class_name() const override { return "ContextParallelSplitHook"; }

  void pre_forward(Module& module, Arguments& arguments) override {
    for (const auto& [key, entry] : entries_) {
      const auto* name = std::get_if<std::string>(&key);
      // An argument that is absent or none takes the forward's default, which is not divided.
      Value* value = name ? arguments.find(Name(*name)) : nullptr;
      if (value != nullptr && !is_none(*value)) *value = split_value(*value, entry, module, *name);
    }
  }

  void post_forward(Module& module, Outputs& outputs) override {
    for (const auto& [key, entry] : entries_) {
      const int* index = std::get_if<int>(&key);
      if (index == nullptr) continue;
      SHARDPROOF_CHECK(*index < static_cast<int>(outputs.tensors.size()), plan_error,
                       "plan entry '{}' of module '{}' ({}): it returned {} outputs", *index, module.path(),
                       module.class_name(), outputs.tensors.size());
      const auto* input = std::get_if<ContextParallelInput>(&entry);
      SHARDPROOF_CHECK(input != nullptr, plan_error,
                       "plan entry '{}' of module '{}': a list of entries for a single output", *index, module.path());
      Tensor& output = outputs.tensors[static_cast<std::size_t>(*index)];
      output = split_tensor(output, *input, module, std::to_string(*index), *state_);
    }
  }

 private:
  Value split_value(const Value& value, const SplitEntry& entry, const Module& module, const std::string& name) const {
    const auto* one = std::get_if<ContextParallelInput>(&entry);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      SHARDPROOF_CHECK(one != nullptr, plan_error, "{}: the plan lists several entries for a single tensor",
                       described(module, name));
      return split_tensor(*tensor, *one, module, name, *state_);
    }
    const auto* list = std::get_if<std::vector<Tensor>>(&value);
    SHARDPROOF_CHECK(list != nullptr, plan_error, "{}: {} cannot be divided; a tensor or a list of tensors is expected",
                     described(module, name), value_kind_name(value));
    const auto* many = std::get_if<std::vector<ContextParallelInput>>(&entry);
    SHARDPROOF_CHECK(many == nullptr || many->size() == list->size(), plan_error,
                     "{}: the plan has {} entries for a list of {}", described(module, name), many ? many->size() : 0,
                     list->size());
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < list->size(); ++i) {
      parts.push_back(
          split_tensor((*list)[i], one ? *one : (*many)[i], module, fmt::format("{}.{}", name, i), *state_));
    }
    return parts;
  }

  std::shared_ptr<const ContextParallelState> state_;
  SplitEntries entries_;
};

class ContextParallelGatherHook final : public Hook {
 public:
  ContextParallelGatherHook(std::shared_ptr<const ContextParallelState> state, GatherEntry entry)
      : state_(std::move(state)) {
    const auto* one = std::get_if<ContextParallelOutput>(&entry);
    outputs_ = one ? std::vector{*one} : std::get<std::vector<ContextParallelOutput>>(entry);
  }

  std::string_view class_name() const override { return "ContextParallelGatherHook"; }

  void post_forward(Module& module, Outputs& outputs) override {
    SHARDPROOF_CHECK(outputs.tensors.size() == outputs_.size(), plan_error,
                     "module '{}' ({}) returned {} outputs, but the plan gathers {}", module.path(),
                     module.class_name(), outputs.tensors.size(), outputs_.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      Tensor& tensor = outputs.tensors[i];
      SHARDPROOF_CHECK(!outputs_[i].expected_dims || tensor.rank() == *outputs_[i].expected_dims, shape_error,
                       "output {} of module '{}' ({}) has {}, plan expects {}", i, module.path(), module.class_name(),
                       dimensions_text(tensor.rank()), outputs_[i].expected_dims.value_or(0));
      tensor = gather(tensor, outputs_[i].gather_dim, state_->flat(), division_of(*state_), "plan: gathered output");
    }
  }

 private:
  std::shared_ptr<const ContextParallelState> state_;
  std::vector<ContextParallelOutput> outputs_;
};

std::string hook_name(std::string_view id, const ModuleEntry& entry) {
  return fmt::format("{}---{}", std::holds_alternative<SplitEntries>(entry) ? "cp_input" : "cp_output", id);
}

void check_attention(Module& root) {
  root.for_each_module([](Module& module) {
    const auto* slot = dynamic_cast<const AttentionSlot*>(&module);
    SHARDPROOF_CHECK(slot == nullptr || slot->supports_context_parallel(), unsupported_error,
                     "the attention of module '{}' ({}) does not support context parallelism", module.path(),
                     module.class_name());
  });
}

void set_attention_state(Module& root, const std::shared_ptr<const ContextParallelState>& state) {
  root.for_each_module([&](Module& module) {
    if (auto* slot = dynamic_cast<AttentionSlot*>(&module)) slot->set_context_parallel(state);
  });
}

void check_hooks_are_free(Module& root, const ContextParallelPlan& plan) {
  for (const auto& [id, entry] : plan.entries) {
    for (Module* module : resolve_module_id(root, id)) {
      SHARDPROOF_CHECK(!module->has_hooks() || module->hooks().find(hook_name(id, entry)) == nullptr, state_error,
                       "module '{}' has a hook named '{}' already", module->path(), hook_name(id, entry));
    }
  }
}

}  // namespace

bool context_parallel_is_applied(Module& root) {
  bool applied = false;
  root.for_each_module([&](Module& module) {
    const auto* slot = dynamic_cast<const AttentionSlot*>(&module);
    applied = applied || (slot != nullptr && slot->context_parallel() != nullptr);
  });
  return applied;
}

void apply_context_parallel(Module& root, std::shared_ptr<const ContextParallelState> state,
                            const ContextParallelPlan& plan) {
  SHARDPROOF_CHECK(!context_parallel_is_applied(root), state_error,
                   "context parallelism is applied to this {} already; it cannot be applied twice (remove it first)",
                   root.class_name());
  check_attention(root);
  std::vector<Problem> problems;
  for (std::string& message : plan_problems(root, plan))
    problems.push_back({ErrorKind::plan_error, std::move(message)});
  throw_problems(problems);
  check_hooks_are_free(root, plan);

  for (const auto& [id, entry] : plan.entries) {
    for (Module* module : resolve_module_id(root, id)) {
      std::unique_ptr<Hook> hook;
      if (const auto* split = std::get_if<SplitEntries>(&entry)) {
        hook = std::make_unique<ContextParallelSplitHook>(state, *split);
      } else {
        hook = std::make_unique<ContextParallelGatherHook>(state, std::get<GatherEntry>(entry));
      }
      module->hooks().register_hook(hook_name(id, entry), std::move(hook));
    }
  }
  set_attention_state(root, state);
}

void remove_context_parallel(Module& root, const ContextParallelPlan& plan) {
  for (const auto& [id, entry] : plan.entries) {
    for (Module* module : resolve_module_id(root, id)) module->remove_hook(hook_name(id, entry), false);
  }
  set_attention_state(root, nullptr);
}

std::shared_ptr<const ContextParallelState> enable_parallelism(Module& root, Communicator& world,
                                                               const ParallelConfig& config,
                                                               const ContextParallelPlan* cp_plan) {
  throw_problems(validate(config));
  SHARDPROOF_CHECK(!config.tensor_parallel_config || effective_tp_degree(*config.tensor_parallel_config) == 1,
                   unsupported_error, "tensor_parallel_config with tp_degree {}: tensor parallelism is not offered yet",
                   effective_tp_degree(*config.tensor_parallel_config));
  if (!config.context_parallel_config) return nullptr;
  SHARDPROOF_CHECK(cp_plan != nullptr, plan_error, "{} has no context-parallel plan; give one", root.class_name());
  auto state = std::make_shared<const ContextParallelState>(world, *config.context_parallel_config);
  apply_context_parallel(root, state, *cp_plan);
  return state;
}

}  // namespace shardproof
