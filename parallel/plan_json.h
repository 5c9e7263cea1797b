// Plan files: {"model": "ClassName", "cp": {module id: entries}, "tp": {module glob: style}}. Entries of "cp" are
// {"gather_dim", "expected_dims"}, a list of those, or an object from argument names and digit keys (output indices) to
// {"split_dim", "expected_dims", "split_output", "on_mismatch"} or a list of those. Styles of "tp" are "colwise",
// "rowwise", "replicated_input_rowwise", {"packed_colwise": blocks or null}, {"packed_rowwise": blocks or null}. Order
// has meaning.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/json.h"
#include "parallel/plan.h"

namespace shardproof {

struct PlanFile {
  std::string model;  // class name
  std::optional<ContextParallelPlan> cp = std::nullopt;
  std::optional<TensorParallelPlan> tp = std::nullopt;
  friend bool operator==(const PlanFile&, const PlanFile&) = default;
};

// All throw file_error or plan_error naming file, key path, value and what was expected.
ContextParallelPlan context_parallel_plan_from_json(const Json& json);
TensorParallelPlan tensor_parallel_plan_from_json(const Json& json);
PlanFile plan_from_json(const Json& json);
PlanFile read_plan_file(const std::filesystem::path& path);

Json plan_to_json(const ContextParallelPlan& plan);
Json plan_to_json(const TensorParallelPlan& plan);
Json plan_to_json(const PlanFile& plan);

}  // namespace shardproof
