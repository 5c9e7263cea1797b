#include "tests/zoo/plan_changes.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "core/error.h"

namespace shardproof::zoo {
namespace {

// Leaves out the entries of arguments for which `drops` says so.
template <class Drops>
void drop_splits(ParallelPlans& plans, const Drops& drops) {
  for (auto& [id, entry] : plans.cp->entries) {
    if (auto* splits = std::get_if<SplitEntries>(&entry)) {
      std::erase_if(*splits, [&](const auto& split) {
        const auto* name = std::get_if<std::string>(&split.first);
        return name != nullptr && drops(*name);
      });
    }
  }
}

void drop_split(ParallelPlans& plans, std::string_view argument) {
  drop_splits(plans, [&](const std::string& name) { return name == argument; });
}

void drop_text(ParallelPlans& plans) {
  drop_split(plans, "encoder_hidden_states");
  drop_split(plans, "txt_ids");
}

void drop_gathers(ParallelPlans& plans) {
  std::erase_if(plans.cp->entries, [](const auto& entry) { return std::holds_alternative<GatherEntry>(entry.second); });
}

void gather_along_batch(ParallelPlans& plans) {
  for (auto& [id, entry] : plans.cp->entries) {
    if (auto* gather = std::get_if<GatherEntry>(&entry)) {
      if (auto* one = std::get_if<ContextParallelOutput>(gather)) one->gather_dim = 0;
    }
  }
}

void split_image_along_batch(ParallelPlans& plans) {
  for (auto& [id, entry] : plans.cp->entries) {
    auto* splits = std::get_if<SplitEntries>(&entry);
    if (splits == nullptr) continue;
    for (auto& [key, split] : *splits) {
      const auto* name = std::get_if<std::string>(&key);
      if (name != nullptr && *name == "hidden_states") std::get<ContextParallelInput>(split).split_dim = 0;
    }
  }
}

void split_context(ParallelPlans& plans) {
  for (auto& [id, entry] : plans.cp->entries) {
    if (auto* splits = std::get_if<SplitEntries>(&entry)) {
      splits->emplace_back("context", ContextParallelInput{.split_dim = 1, .expected_dims = 3});
    }
  }
}

template <class Keeps>
void drop_layers(ParallelPlans& plans, const Keeps& drops) {
  std::erase_if(plans.tp->entries, [&](const auto& entry) { return drops(entry.first, entry.second); });
}

void drop_outputs_of_attention(ParallelPlans& plans) {
  drop_layers(plans, [](const std::string& glob, const TensorParallelEntry& entry) {
    return entry.style == TensorParallelStyle::rowwise && glob.find("attn") != std::string::npos;
  });
}

void take_inputs_for_whole(ParallelPlans& plans) {
  for (auto& [glob, entry] : plans.tp->entries) {
    if (entry.style == TensorParallelStyle::rowwise) entry.style = TensorParallelStyle::replicated_input_rowwise;
  }
}

void cut_into_halves(ParallelPlans& plans) {
  for (auto& [glob, entry] : plans.tp->entries) {
    if (entry.style == TensorParallelStyle::packed_rowwise) entry.blocks = std::vector<std::int64_t>{1, 1};
  }
}

void leave_values_whole(ParallelPlans& plans) {
  drop_layers(plans, [](const std::string& glob, const TensorParallelEntry&) {
    return glob.ends_with("to_v") || glob.ends_with("add_v_proj");
  });
}

using Change = void (*)(ParallelPlans&);

const std::map<std::string_view, Change>& changes() {
  static const std::map<std::string_view, Change> kChanges{
      {"TEXT_NOT_SPLIT", drop_text},
      {"PLAN_IDS_WHOLE", [](ParallelPlans& plans) { drop_split(plans, "img_ids"); }},
      {"PLAN_NOT_GATHERED", drop_gathers},
      {"PLAN_GATHERED_AT_INPUT", gather_along_batch},
      {"PLAN_BATCH_SPLIT", split_image_along_batch},
      {"PLAN_CONTROLNET_WHOLE",
       [](ParallelPlans& plans) {
         drop_splits(plans, [](const std::string& name) { return name.starts_with("controlnet"); });
       }},
      {"PLAN_MASK_WHOLE",
       [](ParallelPlans& plans) {
         drop_splits(plans, [](const std::string& name) { return name.ends_with("mask"); });
       }},
      {"PLAN_CONTEXT_SPLIT", split_context},
      {"PLAN_MODULATION_WHOLE", [](ParallelPlans& plans) { drop_split(plans, "timestep"); }},
      {"PLAN_ROWWISE_LOST", drop_outputs_of_attention},
      {"PLAN_REPLICATED_ROWWISE", take_inputs_for_whole},
      {"PLAN_PACKED_IN_WRONG_BLOCKS", cut_into_halves},
      {"PLAN_VALUES_WHOLE", leave_values_whole},
  };
  return kChanges;
}

}  // namespace

ParallelPlans changed_plans(const Fault& fault, ParallelPlans plans) {
  if (!fault.edits.empty()) return plans;
  const auto change = changes().find(fault.name);
  SHARDPROOF_CHECK(change != changes().end(), config_error,
                   "fault '{}' has no edits, and no change of plans; expected one of them", fault.name);
  change->second(plans);
  return plans;
}

}  // namespace shardproof::zoo
