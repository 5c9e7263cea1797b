// Plans as data: which arguments and outputs of which modules are divided or gathered for context parallelism, and
// which linear layers are sharded in which style for tensor parallelism. Names as in diffusers. Source: parallelism
// specification 4.2, 4.3, 7.1, 7.3; the JSON form is that of the plan files (see plan_json.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/module.h"

namespace shardproof {

// What a split entry does with a value whose number of dimensions is not the expected one: leave it whole (and report
// that), or refuse.
enum class OnMismatch : std::uint8_t { skip, error };

// Divide an argument (or, with split_output, an output) along split_dim.
struct ContextParallelInput {
  int split_dim = 0;  // negative: from the end; then expected_dims is needed
  std::optional<int> expected_dims = std::nullopt;
  bool split_output = false;
  OnMismatch on_mismatch = OnMismatch::skip;
  friend bool operator==(const ContextParallelInput&, const ContextParallelInput&) = default;
  // "ContextParallelInput(split_dim=1, expected_dims=3, split_output=false)".
  std::string text() const;
};

// Gather an output along gather_dim.
struct ContextParallelOutput {
  int gather_dim = 0;
  std::optional<int> expected_dims = std::nullopt;
  friend bool operator==(const ContextParallelOutput&, const ContextParallelOutput&) = default;
  // "ContextParallelOutput(gather_dim=1, expected_dims=3)".
  std::string text() const;
};

// An argument name, or the index of an output.
using SplitKey = std::variant<std::string, int>;
// One entry acts on a tensor, or on every element of a list; a list of entries acts element by element.
using SplitEntry = std::variant<ContextParallelInput, std::vector<ContextParallelInput>>;
using SplitEntries = std::vector<std::pair<SplitKey, SplitEntry>>;
using GatherEntry = std::variant<ContextParallelOutput, std::vector<ContextParallelOutput>>;
using ModuleEntry = std::variant<SplitEntries, GatherEntry>;

// Module ids in plan order: "" is the root, dotted names below it, one "*" over the elements of a module list.
struct ContextParallelPlan {
  std::vector<std::pair<std::string, ModuleEntry>> entries;
  friend bool operator==(const ContextParallelPlan&, const ContextParallelPlan&) = default;
};

std::string split_key_text(const SplitKey& key);

enum class TensorParallelStyle : std::uint8_t {
  colwise,
  rowwise,
  packed_colwise,
  packed_rowwise,
  replicated_input_rowwise
};

struct TensorParallelEntry {
  TensorParallelStyle style = TensorParallelStyle::colwise;
  // Proportions of the packed styles; none takes the layer's own blocks.
  std::optional<std::vector<std::int64_t>> blocks = std::nullopt;
  friend bool operator==(const TensorParallelEntry&, const TensorParallelEntry&) = default;
};

struct TensorParallelPlan {
  std::vector<std::pair<std::string, TensorParallelEntry>> entries;
  friend bool operator==(const TensorParallelPlan&, const TensorParallelPlan&) = default;
};

std::string_view style_name(TensorParallelStyle style);

// The modules that an id names, in order. plan_error naming the atom, the class it was looked up in and what exists
// there: an unknown name, an index past the end, two wildcards, a wildcard where no module list is.
std::vector<Module*> resolve_module_id(Module& root, std::string_view id);

// Every problem of a plan on this model, as plan_errors in plan order: unknown modules or arguments, a name with
// split_output, an output index without, negative dims without expected_dims, dims outside expected_dims.
std::vector<std::string> plan_problems(Module& root, const ContextParallelPlan& plan);

}  // namespace shardproof
