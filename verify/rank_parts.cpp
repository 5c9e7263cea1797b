#include "verify/rank_parts.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "core/error.h"
#include "core/sharding.h"
#include "parallel/tensor_parallel_specs.h"

namespace shardproof {
namespace {

std::int64_t total_of(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

Place place_in(const Mesh& mesh, int rank, const std::vector<std::string_view>& dimensions) {
  Place place;
  for (const std::string_view dimension : dimensions) place.members *= mesh.size_of(dimension);
  if (place.members > 1) place.member = mesh.flat_index(rank, dimensions);
  return place;
}

}  // namespace

RankPlaces places_of_rank(const Mesh& mesh, const ParallelConfig& config, int rank) {
  std::vector<std::string_view> context, tensor;
  for (const std::string_view name : {"ring", "ulysses"}) {
    if (mesh.has(name)) context.push_back(name);
  }
  for (const std::string& name : mesh.names()) {
    // Without a dimension of its own, tensor parallelism alone takes all of them.
    if (name == "tp" || (!mesh.has("tp") && !config.context_parallel_config)) tensor.emplace_back(name);
  }
  return {place_in(mesh, rank, context), place_in(mesh, rank, tensor)};
}

std::vector<std::int64_t> entries_of(const std::vector<std::int64_t>& lengths, const Place& place) {
  std::vector<std::int64_t> entries;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t first = start + balanced_offset(length, place.members, place.member);
    const std::int64_t size = balanced_size(length, place.members, place.member);
    for (std::int64_t i = 0; i < size; ++i) entries.push_back(first + i);
    start += length;
  }
  return entries;
}

RankParts::RankParts(Module& tree, const ParallelPlans& plans, const ParallelConfig& config, const ParallelRun& run) {
  for (int rank = 0; rank < run.mesh.size(); ++rank) places_.push_back(places_of_rank(run.mesh, config, rank));
  for (const RankOutcome& rank : run.ranks) {
    for (const AppliedEntry& entry : rank.applied) totals_.insert(entry.total);
  }
  find_blocks(tree, plans, effective_tp_degree(config));
}

void RankParts::find_blocks(Module& tree, const ParallelPlans& plans, int degree) {
  if (!plans.tp || degree < 2) return;
  tree.for_each_module([&](Module& module) {
    const auto* layer = dynamic_cast<const Linear*>(&module);
    if (layer == nullptr) return;
    blocks_.insert(layer->packed_col_blocks());
    blocks_.insert(layer->packed_row_blocks());
  });
  for (const ShardSpec& spec : resolve_tp_shard_specs(tree, *plans.tp, degree)) blocks_.insert(spec.blocks);
}

std::vector<RankParts::Lengths> RankParts::sequences_of(std::int64_t total) const {
  std::vector<Lengths> all{{total}};
  for (const std::int64_t first : totals_) {
    if (totals_.contains(total - first)) all.push_back({first, total - first});
    for (const std::int64_t second : totals_) {
      const std::int64_t third = total - first - second;
      if (totals_.contains(third)) all.push_back({first, second, third});
    }
  }
  return all;
}

std::vector<RankParts::Entries> RankParts::parts_of_axis(int rank, std::int64_t whole, std::int64_t local) const {
  std::vector<Entries> parts;
  const auto try_lengths = [&](const Lengths& lengths, const Place& place) {
    if (place.members < 2) return;
    Entries entries = entries_of(lengths, place);
    if (std::ssize(entries) == local && std::find(parts.begin(), parts.end(), entries) == parts.end())
      parts.push_back(std::move(entries));
  };
  const auto& [context, tensor] = places_[static_cast<std::size_t>(rank)];
  for (const Lengths& lengths : sequences_of(whole)) try_lengths(lengths, context);
  try_lengths({whole}, tensor);
  for (const Lengths& lengths : blocks_) {
    if (total_of(lengths) == whole) try_lengths(lengths, tensor);
  }
  return parts;
}

std::vector<Places> RankParts::of(int rank, const Shape& whole, const Shape& local) const {
  if (whole == local) return {Places{}};
  if (whole.rank() != local.rank()) return {};
  const Shape strides = whole.contiguous_strides();
  // Axis by axis: what is in front of it, repeated for each of its entries.
  std::vector<Places> parts{{0}};
  for (int axis = 0; axis < whole.rank(); ++axis) {
    std::vector<Entries> choices;
    if (whole[axis] == local[axis]) {
      choices.push_back(entries_of({whole[axis]}, {}));
    } else {
      choices = parts_of_axis(rank, whole[axis], local[axis]);
    }
    std::vector<Places> extended;
    for (const Places& before : parts) {
      for (const Entries& entries : choices) {
        Places& next = extended.emplace_back();
        next.reserve(before.size() * entries.size());
        for (const std::int64_t place : before) {
          for (const std::int64_t entry : entries) next.push_back(place + entry * strides[axis]);
        }
      }
    }
    parts = std::move(extended);
  }
  return parts;
}

}  // namespace shardproof
