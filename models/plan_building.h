// What the plans of several models are put together from: entries that many of them share, and a list of sharded
// layers. A plan is data; these helpers only keep it short and in order.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "parallel/plan.h"

namespace shardproof {

// IN(1,3): tokens [batch, tokens, width] divided along the tokens.
inline constexpr ContextParallelInput kSplitTokens{.split_dim = 1, .expected_dims = 3};
// GATHER(1,3).
inline constexpr ContextParallelOutput kGatherTokens{.gather_dim = 1, .expected_dims = 3};

// Entries "<layers>.*.<name>" in the given order.
inline void add_to_plan(TensorParallelPlan& plan, std::string_view layers,
                        std::initializer_list<std::pair<const char*, TensorParallelEntry>> entries) {
  for (const auto& [name, entry] : entries) plan.entries.emplace_back(std::string(layers) + ".*." + name, entry);
}

}  // namespace shardproof
