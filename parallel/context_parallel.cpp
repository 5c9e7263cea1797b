#include "parallel/context_parallel.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/sharding.h"
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

std::string described_output(const Module& module, std::size_t index) {
  return fmt::format("output {} of module '{}' ({})", index, module.path(), module.class_name());
}

void check_dim(const Tensor& x, int dim, std::string_view field, const std::string& what) {
  SHARDPROOF_REFUSE_UNLESS(dim < x.rank() && dim >= -x.rank(), shape_error,
                           "{} has {}; the plan's {} {} lies outside them", what, dimensions_text(x.rank()), field,
                           dim);
}

// Divides one tensor as an entry says, or leaves it whole and records that. `key` is the argument's name or the
// output's index, `what` says it in words.
Tensor split_tensor(const Tensor& x, const ContextParallelInput& input, const Module& module, const std::string& key,
                    const std::string& what, const ContextParallelState& state) {
  if (input.expected_dims && x.rank() != *input.expected_dims) {
    const std::string reason = fmt::format("{}, plan expects {}", dimensions_text(x.rank()), *input.expected_dims);
    SHARDPROOF_REFUSE_UNLESS(input.on_mismatch == OnMismatch::skip, shape_error, "{}: {}", what, reason);
    state.record_skipped({module.path(), key, reason, x.shape()});
    return x;
  }
  check_dim(x, input.split_dim, "split_dim", what);
  const Tensor part = shard(x, input.split_dim, state.flat(), division_of(state), what);
  const int axis = normalised_axis(input.split_dim, x.rank());
  // The equal division is the balanced one of a length that divides.
  const std::int64_t start = balanced_offset(x.size(axis), state.flat().size(), state.flat().rank());
  state.record_applied({AppliedEntry::Action::split, module.path(), key, axis, x.size(axis), start, part.size(axis)});
  return part;
}

class ContextParallelSplitHook final : public Hook {
 public:
  ContextParallelSplitHook(std::shared_ptr<const ContextParallelState> state, SplitEntries entries)
      : state_(std::move(state)), entries_(std::move(entries)) {}

  std::string_view class_name() const override { return "ContextParallelSplitHook"; }

  void pre_forward(Module& module, Arguments& arguments) override {
    for (const auto& [key, entry] : entries_) {
      const auto* name = std::get_if<std::string>(&key);
      if (name == nullptr) continue;
      // An argument that is absent or none takes the forward's default, which is not divided.
      Value* value = arguments.find(Name(*name));
      if (value == nullptr || is_none(*value)) {
        state_->record_omitted(module.path(), *name);
      } else {
        *value = split_value(*value, entry, module, *name);
      }
    }
  }

  void post_forward(Module& module, Outputs& outputs) override {
    for (const auto& [key, entry] : entries_) {
      const int* index = std::get_if<int>(&key);
      if (index == nullptr) continue;
      const auto i = static_cast<std::size_t>(*index);
      SHARDPROOF_REFUSE_UNLESS(i < outputs.tensors.size(), plan_error,
                               "plan entry '{}' of module '{}' ({}): the module returned {} output{}", *index,
                               module.path(), module.class_name(), outputs.tensors.size(),
                               outputs.tensors.size() == 1 ? "" : "s");
      outputs.tensors[i] = split_tensor(outputs.tensors[i], std::get<ContextParallelInput>(entry), module,
                                        std::to_string(*index), described_output(module, i), *state_);
    }
  }

 private:
  Value split_value(const Value& value, const SplitEntry& entry, const Module& module, const std::string& name) const {
    const auto* one = std::get_if<ContextParallelInput>(&entry);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      SHARDPROOF_REFUSE_UNLESS(one != nullptr, plan_error, "{}: the plan lists several entries for a single tensor",
                               described(module, name));
      return split_tensor(*tensor, *one, module, name, described(module, name), *state_);
    }
    const auto* list = std::get_if<std::vector<Tensor>>(&value);
    SHARDPROOF_REFUSE_UNLESS(list != nullptr, plan_error,
                             "{}: {} cannot be divided; a tensor or a list of tensors is expected",
                             described(module, name), value_kind_name(value));
    const auto* many = std::get_if<std::vector<ContextParallelInput>>(&entry);
    SHARDPROOF_REFUSE_UNLESS(many == nullptr || many->size() == list->size(), plan_error,
                             "{}: the plan has {} entries for a list of {}", described(module, name),
                             many ? many->size() : 0, list->size());
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const ContextParallelInput& input = one ? *one : (*many)[i];
      const std::string element = fmt::format("{}.{}", name, i);
      parts.push_back(input.split_output
                          ? (*list)[i]
                          : split_tensor((*list)[i], input, module, element, described(module, element), *state_));
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
    SHARDPROOF_REFUSE_UNLESS(outputs.tensors.size() == outputs_.size(), plan_error,
                             "module '{}' ({}) returned {} output{}, but the plan gathers {}", module.path(),
                             module.class_name(), outputs.tensors.size(), outputs.tensors.size() == 1 ? "" : "s",
                             outputs_.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      Tensor& tensor = outputs.tensors[i];
      SHARDPROOF_REFUSE_UNLESS(!outputs_[i].expected_dims || tensor.rank() == *outputs_[i].expected_dims, shape_error,
                               "{} has {}, plan expects {}", described_output(module, i),
                               dimensions_text(tensor.rank()), outputs_[i].expected_dims.value_or(0));
      check_dim(tensor, outputs_[i].gather_dim, "gather_dim", described_output(module, i));
      const int axis = normalised_axis(outputs_[i].gather_dim, tensor.rank());
      const std::int64_t local = tensor.size(axis);
      tensor = gather(tensor, axis, state_->flat(), division_of(*state_), "plan: gathered output");
      state_->record_applied(
          {AppliedEntry::Action::gather, module.path(), std::to_string(i), axis, tensor.size(axis), 0, local});
    }
  }

 private:
  std::shared_ptr<const ContextParallelState> state_;
  std::vector<ContextParallelOutput> outputs_;
};

constexpr std::string_view kSplitHook = "cp_input---";
constexpr std::string_view kGatherHook = "cp_output---";

std::string hook_name(std::string_view id, const ModuleEntry& entry) {
  return fmt::format("{}{}", std::holds_alternative<SplitEntries>(entry) ? kSplitHook : kGatherHook, id);
}

bool has_context_parallel_hooks(Module& module) {
  if (!module.has_hooks()) return false;
  const std::vector<std::string> names = module.hooks().names();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with(kSplitHook) || name.starts_with(kGatherHook);
  });
}

void check_has_no_context_parallelism(Module& root) {
  SHARDPROOF_CHECK(!context_parallel_is_applied(root), state_error,
                   "context parallelism is applied to this {} already; it cannot be applied twice (remove it first)",
                   root.class_name());
}

void check_attention(Module& root) {
  root.for_each_module([](Module& module) {
    const auto* slot = dynamic_cast<const AttentionSlot*>(&module);
    const std::string_view obstacle = slot == nullptr ? std::string_view() : slot->context_parallel_obstacle();
    SHARDPROOF_REFUSE_UNLESS(obstacle.empty(), unsupported_error,
                             "the attention of module '{}' ({}) does not support context parallelism: {}",
                             module.path(), module.class_name(), obstacle);
  });
}

}  // namespace

void set_attention_state(Module& root, const std::shared_ptr<const ContextParallelState>& state) {
  root.for_each_module([&](Module& module) {
    if (auto* slot = dynamic_cast<AttentionSlot*>(&module)) slot->set_context_parallel(state);
  });
}

bool context_parallel_is_applied(Module& root) {
  bool applied = false;
  root.for_each_module([&](Module& module) {
    const auto* slot = dynamic_cast<const AttentionSlot*>(&module);
    applied = applied || (slot != nullptr && slot->context_parallel() != nullptr) || has_context_parallel_hooks(module);
  });
  return applied;
}

void check_context_parallel(Module& root, const ContextParallelPlan& plan) {
  check_has_no_context_parallelism(root);
  check_attention(root);
  std::vector<Problem> problems;
  for (std::string& message : plan_problems(root, plan))
    problems.push_back({ErrorKind::plan_error, std::move(message)});
  throw_problems(problems);
}

void apply_context_parallel(Module& root, std::shared_ptr<const ContextParallelState> state,
                            const ContextParallelPlan& plan) {
  check_context_parallel(root, plan);
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
  std::vector<std::pair<Module*, std::string>> hooks;
  for (const auto& [id, entry] : plan.entries) {
    for (Module* module : resolve_module_id(root, id)) hooks.emplace_back(module, hook_name(id, entry));
  }
  for (const auto& [module, name] : hooks) module->remove_hook(name, false);
  set_attention_state(root, nullptr);
}

}  // namespace shardproof
