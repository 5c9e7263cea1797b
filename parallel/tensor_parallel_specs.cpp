#include "parallel/tensor_parallel_specs.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/ops.h"

namespace shardproof {
namespace {

using Blocks = std::vector<std::int64_t>;

bool is_colwise(TensorParallelStyle style) {
  return style == TensorParallelStyle::colwise || style == TensorParallelStyle::packed_colwise;
}

bool is_packed(TensorParallelStyle style) {
  return style == TensorParallelStyle::packed_colwise || style == TensorParallelStyle::packed_rowwise;
}

std::string parameter_path(const Module& layer, std::string_view name) {
  const std::string path = layer.path();
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

std::int64_t sum_of(const Blocks& blocks) { return std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}); }

// Absolute sizes along the sharded dimension; empty, and a problem, where there are none.
Blocks block_sizes(const Linear& layer, const TensorParallelEntry& entry, std::int64_t total,
                   std::vector<Problem>& problems) {
  const bool colwise = is_colwise(entry.style);
  const Blocks& own = colwise ? layer.packed_col_blocks() : layer.packed_row_blocks();
  const auto reject = [&](const std::string& message) {
    problems.push_back({ErrorKind::plan_error, fmt::format("layer '{}': {}", layer.path(), message)});
    return Blocks{};
  };
  if (!is_packed(entry.style)) {
    if (own.size() > 1) {
      return reject(fmt::format("style '{}' would cut across the blocks [{}] that its {} are made of; use '{}'",
                                style_name(entry.style), fmt::join(own, ", "), colwise ? "rows" : "columns",
                                colwise ? "packed_colwise" : "packed_rowwise"));
    }
    return {total};
  }
  if (entry.blocks && std::any_of(entry.blocks->begin(), entry.blocks->end(), [](auto size) { return size < 1; })) {
    return reject(fmt::format("blocks [{}] must be positive", fmt::join(*entry.blocks, ", ")));
  }
  const Blocks& parts = entry.blocks ? *entry.blocks : own;
  if (parts.empty()) {
    return reject(fmt::format("'{}' has no blocks: neither the plan nor the layer gives any", style_name(entry.style)));
  }
  const std::int64_t sum = sum_of(parts);
  if (total % sum != 0) {
    return reject(fmt::format("the sum {} of the blocks [{}] does not divide its {} {}", sum, fmt::join(parts, ", "),
                              total, colwise ? "rows" : "columns"));
  }
  Blocks sizes = parts;
  for (std::int64_t& size : sizes) size *= total / sum;
  return sizes;
}

// One problem a parameter, however many of its blocks do not divide.
void check_divisible(const ShardSpec& spec, int tp_degree, std::vector<Problem>& problems) {
  const auto uneven = std::find_if(spec.blocks.begin(), spec.blocks.end(),
                                   [tp_degree](std::int64_t size) { return size % tp_degree != 0; });
  if (uneven == spec.blocks.end()) return;
  problems.push_back(
      {ErrorKind::shape_error, fmt::format("cannot shard '{}' across {} ranks: a block of size {} along dim {} is not "
                                           "divisible by {}",
                                           spec.parameter, tp_degree, *uneven, spec.dim.value_or(0), tp_degree)});
}

// Adds the layer to `layers`, or what is wrong with it to `problems`.
void plan_layer(Module& module, const std::string& glob, const TensorParallelEntry& entry, int tp_degree,
                std::vector<PlannedLayer>& layers, std::vector<Problem>& problems) {
  auto* const layer = dynamic_cast<Linear*>(&module);
  if (layer == nullptr) {
    problems.push_back(
        {ErrorKind::plan_error, fmt::format("plan entry '{}': module '{}' is a {}, style '{}' needs a Linear", glob,
                                            module.path(), module.class_name(), style_name(entry.style))});
    return;
  }
  const auto known =
      std::find_if(layers.begin(), layers.end(), [&](const PlannedLayer& other) { return other.layer == layer; });
  if (known != layers.end() && known->style != entry.style) {
    problems.push_back(
        {ErrorKind::plan_error, fmt::format("plan entry '{}': layer '{}' has the style '{}' already, not '{}'", glob,
                                            layer->path(), style_name(known->style), style_name(entry.style))});
    return;
  }
  const bool colwise = is_colwise(entry.style);
  const Blocks sizes = block_sizes(*layer, entry, colwise ? layer->out_features() : layer->in_features(), problems);
  if (sizes.empty()) return;
  if (known != layers.end()) {
    if (known->weight.blocks == sizes) return;
    problems.push_back({ErrorKind::plan_error,
                        fmt::format("plan entry '{}': layer '{}' is cut into blocks of [{}] already, not [{}]", glob,
                                    layer->path(), fmt::join(known->weight.blocks, ", "), fmt::join(sizes, ", "))});
    return;
  }
  PlannedLayer planned{.layer = layer, .style = entry.style, .weight = {}, .bias = std::nullopt};
  planned.weight = {parameter_path(*layer, "weight"), colwise ? 0 : 1, sizes};
  if (layer->has_bias()) {
    planned.bias = ShardSpec{parameter_path(*layer, "bias"), std::nullopt, {}};
    if (colwise) planned.bias->dim = 0;
    if (colwise) planned.bias->blocks = sizes;
  }
  const std::size_t before = problems.size();
  check_divisible(planned.weight, tp_degree, problems);
  if (problems.size() == before) layers.push_back(std::move(planned));
}

}  // namespace

std::vector<PlannedLayer> planned_layers(Module& root, const TensorParallelPlan& plan, int tp_degree,
                                         std::vector<Problem>& problems) {
  std::vector<PlannedLayer> layers;
  for (const auto& [glob, entry] : plan.entries) {
    try {
      for (Module* module : resolve_module_id(root, glob)) {
        plan_layer(*module, glob, entry, tp_degree, layers, problems);
      }
    } catch (const Error& error) {
      problems.push_back({error.kind(), error.what()});
    }
  }
  return layers;
}

std::vector<ShardSpec> resolve_tp_shard_specs(Module& root, const TensorParallelPlan& plan, int tp_degree) {
  std::vector<Problem> problems;
  const std::vector<PlannedLayer> layers = planned_layers(root, plan, tp_degree, problems);
  throw_problems(problems);
  std::vector<ShardSpec> specs;
  for (const PlannedLayer& planned : layers) {
    specs.push_back(planned.weight);
    if (planned.bias) specs.push_back(*planned.bias);
  }
  return specs;
}

std::vector<int> legal_tp_degrees(Module& root, const TensorParallelPlan& plan, std::int64_t heads) {
  std::int64_t common = heads;
  for (const ShardSpec& spec : resolve_tp_shard_specs(root, plan, 1)) {
    for (const std::int64_t size : spec.blocks) common = std::gcd(common, size);
  }
  std::vector<int> degrees;
  for (int degree = 1; degree <= common; ++degree) {
    if (common % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}

std::vector<ShardRange> ranges_of_rank(const ShardSpec& spec, int rank, int degree) {
  std::vector<ShardRange> ranges;
  std::int64_t offset = 0;
  for (const std::int64_t size : spec.blocks) {
    const std::int64_t length = size / degree;
    ranges.push_back({offset + rank * length, length});
    offset += size;
  }
  return ranges;
}

Tensor local_shard(const Tensor& full, const ShardSpec& spec, int rank, int degree) {
  if (!spec.dim) return full;
  std::vector<Tensor> pieces;
  for (const ShardRange& range : ranges_of_rank(spec, rank, degree)) {
    pieces.push_back(full.narrow(*spec.dim, range.start, range.length));
  }
  return ops::concat(pieces, *spec.dim);
}

Tensor joined_shards(std::span<const Tensor> shards, const ShardSpec& spec) {
  if (!spec.dim) return shards.front();
  std::vector<Tensor> pieces;
  std::int64_t offset = 0;
  for (const std::int64_t size : spec.blocks) {
    const std::int64_t length = size / static_cast<std::int64_t>(shards.size());
    for (const Tensor& shard : shards) pieces.push_back(shard.narrow(*spec.dim, offset, length));
    offset += length;
  }
  return ops::concat(pieces, *spec.dim);
}

Shape local_shape(const Shape& full, const ShardSpec& spec, int degree) {
  Shape shape = full;
  if (spec.dim) shape[*spec.dim] /= degree;
  return shape;
}

}  // namespace shardproof
