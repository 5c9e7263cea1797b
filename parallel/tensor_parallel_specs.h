// Which parameters a tensor-parallel plan shards, along which dimension and in which blocks; the slice that a rank owns
// of each, and the way back. Nothing here changes a model or communicates. Source: parallelism specification 7.1 to
// 7.4, 7.9.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/module.h"
#include "parallel/config.h"
#include "parallel/plan.h"

namespace shardproof {

// One parameter of a planned layer, with its sizes before sharding.
struct ShardSpec {
  std::string parameter;             // path: "transformer_blocks.0.attn.to_q.weight"
  std::optional<int> dim;            // none: whole on every rank
  std::vector<std::int64_t> blocks;  // sizes along dim, each of which is split by itself; empty if dim is none
  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};

// One planned layer: what its forward does under tensor parallelism, and the shards of its weight and bias.
struct PlannedLayer {
  Linear* layer = nullptr;
  TensorParallelStyle style = TensorParallelStyle::colwise;
  ShardSpec weight;
  std::optional<ShardSpec> bias;
};

// The layers of a plan in plan order, by the sizes that the model declares, whatever weights it holds. Every problem of
// the plan on this model and degree is added to `problems`, and the layers that have none are returned: plan_error
// (unknown path, not a linear layer, no blocks, blocks whose sum does not divide the size, a plain style on a layer
// made of blocks, two styles for one layer), shape_error (a block that the degree does not divide, with parameter,
// degree, size and dimension).
std::vector<PlannedLayer> planned_layers(Module& root, const TensorParallelPlan& plan, int tp_degree,
                                         std::vector<Problem>& problems);

// The same as shards by parameter, as a loader needs them; throws all problems as one error.
std::vector<ShardSpec> resolve_tp_shard_specs(Module& root, const TensorParallelPlan& plan, int tp_degree);

// All degrees that divide the heads and every block of the plan, ascending; 1 is always among them.
std::vector<int> legal_tp_degrees(Module& root, const TensorParallelPlan& plan, std::int64_t heads);

// Pieces [start, start + length) along spec.dim that rank `rank` of `degree` owns, in block order. spec.dim is not
// none.
struct ShardRange {
  std::int64_t start = 0;
  std::int64_t length = 0;
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};
std::vector<ShardRange> ranges_of_rank(const ShardSpec& spec, int rank, int degree);

// The rank's slice of a full parameter: a view for a single block, otherwise a copy; the parameter itself where it is
// whole on every rank.
Tensor local_shard(const Tensor& full, const ShardSpec& spec, int rank, int degree);
// The full parameter from all ranks' slices in rank order: the inverse of local_shard, bit for bit.
Tensor joined_shards(std::span<const Tensor> shards, const ShardSpec& spec);
// Shape of a rank's slice of a parameter of shape `full`.
Shape local_shape(const Shape& full, const ShardSpec& spec, int degree);

}  // namespace shardproof
