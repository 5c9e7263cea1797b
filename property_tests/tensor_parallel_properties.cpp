// Laws of tensor parallelism: P21 and P22 of the verification specification, section 7, and P10 for the all-reduce.
// Integers as float64, so that sums are exact in any order and equality is equality.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/ops.h"
#include "property_tests/model_draws.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"

namespace shardproof::test {
namespace {

// Integers between -8 and 8.
HostArray integers(const Shape& shape, std::uint64_t seed, std::string_view name) {
  HostArray array(shape);
  const RandomStream stream(seed, name);
  for (std::size_t i = 0; i < array.values.size(); ++i) array.values[i] = static_cast<double>(stream.below(i, 17)) - 8;
  return array;
}

Device& device() {
  static const std::unique_ptr<Device> kDevice = make_reference_device(kFloat64);
  return *kDevice;
}

OneLayer layer_of(const LayerDraw& draw) {
  return OneLayer(draw, [&](std::string_view name, const Shape& shape) {
    return to_device(device(), integers(shape, draw.seed, name), kFloat64);
  });
}

HostArray whole_output(const LayerDraw& draw, const HostArray& x) {
  OneLayer whole = layer_of(draw);
  return to_host(whole(to_device(device(), x, kFloat64)));
}

RC_GTEST_PROP(TensorParallel, P21_ColumnSlicesJoinedAreTheWholeOutput, ()) {
  const LayerDraw draw = *any_layer();
  const HostArray x = integers({draw.tokens + 1, LayerDraw::sum(draw.columns())}, draw.seed, "x");
  const std::vector<Tensor> parts = rank_results(draw.ranks(), [&](Communicator& world) {
    OneLayer tree = layer_of(draw);
    apply_tensor_parallel(tree, state_on(world, draw), plan_of(TensorParallelStyle::packed_colwise));
    return tree(to_device(device(), x, kFloat64));
  });
  RC_ASSERT(max_difference(to_host(joined_shards(parts, spec(1, draw.rows()))), whole_output(draw, x)) == 0.0);
}

RC_GTEST_PROP(TensorParallel, P21_SumOfPartialResultsAndOneBiasIsTheWholeOutputInAnyOrder, ()) {
  const LayerDraw draw = *any_layer();
  const HostArray x = integers({draw.tokens + 1, LayerDraw::sum(draw.columns())}, draw.seed, "x");
  struct OfRank {
    HostArray out;
    std::int64_t reductions = 0;
  };
  std::vector<OfRank> ranks(static_cast<std::size_t>(draw.ranks()));
  const SimulationReport report = run_ranks({.world_size = draw.ranks()}, [&](Communicator& world) {
    OneLayer tree = layer_of(draw);
    apply_tensor_parallel(tree, state_on(world, draw), plan_of(TensorParallelStyle::packed_rowwise));
    const Tensor own =
        local_shard(to_device(device(), x, kFloat64), spec(1, draw.columns()), world.rank(), world.size());
    ranks[static_cast<std::size_t>(world.rank())].out = to_host(tree(own));
  });
  const HostArray expected = whole_output(draw, x);
  for (const OfRank& rank : ranks) RC_ASSERT(max_difference(rank.out, expected) == 0.0);
  // P10: one all-reduce is one all-to-all of slices and one all-gather.
  for (const RankStatistics& own : report.ranks) {
    RC_ASSERT(own.calls_of(Operation::all_to_all) == (draw.ranks() > 1 ? 1 : 0));
    RC_ASSERT(own.calls_of(Operation::all_gather) == (draw.ranks() > 1 ? 1 : 0));
  }
}

// Packing rows side by side and then cutting the packed matrix gives what cutting each part and packing gives.
RC_GTEST_PROP(TensorParallel, P22_ShardsOfAPackedMatrixAreThePackedShardsOfItsParts, ()) {
  const LayerDraw draw = *any_layer();
  const int dim = draw.has_bias ? 0 : 1;
  const std::vector<std::int64_t> blocks = draw.rows();
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Shape shape{3, 3};
    shape[dim] = blocks[i];
    parts.push_back(to_device(device(), integers(shape, draw.seed, "part " + std::to_string(i)), kFloat64));
  }
  const Tensor packed = ops::concat(parts, dim);
  std::vector<Tensor> shards;
  for (int rank = 0; rank < draw.ranks(); ++rank) {
    std::vector<Tensor> of_parts;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      of_parts.push_back(local_shard(parts[i], spec(dim, {blocks[i]}), rank, draw.ranks()));
    }
    shards.push_back(local_shard(packed, spec(dim, blocks), rank, draw.ranks()));
    RC_ASSERT(bitwise_equal(ops::contiguous(shards.back()), ops::contiguous(ops::concat(of_parts, dim))));
  }
  RC_ASSERT(bitwise_equal(ops::contiguous(joined_shards(shards, spec(dim, blocks))), packed));
}

RC_GTEST_PROP(TensorParallel, P22_GatheredShardsAreTheWeightsBeforeSharding, ()) {
  const LayerDraw draw = *any_layer();
  const auto style = draw.tokens % 2 == 0 ? TensorParallelStyle::packed_colwise : TensorParallelStyle::packed_rowwise;
  const OneLayer whole = layer_of(draw);
  const auto equal = rank_results(draw.ranks(), [&](Communicator& world) {
    OneLayer tree = layer_of(draw);
    const auto state = state_on(world, draw);
    apply_tensor_parallel(tree, state, plan_of(style));
    const auto gathered = gather_tp_state_dict(tree, *state);
    bool all = gathered.size() == whole.layer().parameters().size();
    for (std::size_t i = 0; all && i < gathered.size(); ++i) {
      all = bitwise_equal(ops::contiguous(gathered[i].second), *whole.layer().parameters()[i].tensor);
    }
    return all ? 1 : 0;
  });
  RC_ASSERT(std::count(equal.begin(), equal.end(), 1) == draw.ranks());
}

}  // namespace
}  // namespace shardproof::test
