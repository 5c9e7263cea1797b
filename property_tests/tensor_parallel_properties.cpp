// Laws of tensor parallelism: P21 and P22 of the verification specification, section 7, and P10 for the all-reduce.
// Integers as float64, so that sums are exact in any order and equality is equality.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/ops.h"
#include "parallel/tensor_parallel.h"
#include "property_tests/generators.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"

namespace shardproof::test {
namespace {

struct LayerDraw {
  int degree = 0;               // + 1
  std::vector<int> row_blocks;  // each (+ 1) x degree rows
  std::vector<int> column_blocks;
  int tokens = 0;  // + 1
  bool has_bias = false;
  bool scatters = false;
  int order = 0;  // of ReductionOrder
  std::uint64_t seed = 0;

  int ranks() const { return degree + 1; }
  static std::vector<std::int64_t> sizes(const std::vector<int>& blocks, int ranks) {
    std::vector<std::int64_t> result;
    for (const int block : blocks) result.push_back(std::int64_t{block + 1} * ranks);
    if (result.empty()) result.push_back(ranks);
    return result;
  }
  std::vector<std::int64_t> rows() const { return sizes(row_blocks, ranks()); }
  std::vector<std::int64_t> columns() const { return sizes(column_blocks, ranks()); }
  static std::int64_t sum(const std::vector<std::int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  }
  friend void showValue(const LayerDraw& draw, std::ostream& out) {
    out << draw.ranks() << " ranks, rows " << rc::toString(draw.rows()) << ", columns " << rc::toString(draw.columns())
        << ", tokens " << draw.tokens + 1 << (draw.has_bias ? ", bias" : "") << (draw.scatters ? ", scattered" : "")
        << ", order " << draw.order << ", seed " << draw.seed;
  }
};

rc::Gen<LayerDraw> any_layer() {
  const auto small = [](int n) { return rc::gen::inRange(0, n); };
  const auto blocks = [&] { return rc::gen::resize(4, rc::gen::container<std::vector<int>>(small(3))); };
  return rc::gen::build<LayerDraw>(
      rc::gen::set(&LayerDraw::degree, small(5)), rc::gen::set(&LayerDraw::row_blocks, blocks()),
      rc::gen::set(&LayerDraw::column_blocks, blocks()), rc::gen::set(&LayerDraw::tokens, small(4)),
      rc::gen::set(&LayerDraw::has_bias), rc::gen::set(&LayerDraw::scatters), rc::gen::set(&LayerDraw::order, small(4)),
      rc::gen::set(&LayerDraw::seed));
}

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

// A tree of one layer "layer", with the draw's weights.
class OneLayer final : public TensorModule {
 public:
  explicit OneLayer(const LayerDraw& draw) : TensorModule("OneLayer") {
    const std::int64_t rows = LayerDraw::sum(draw.rows()), columns = LayerDraw::sum(draw.columns());
    layer_ = &add_child<Linear>("layer", columns, rows, draw.has_bias ? Linear::Bias::present : Linear::Bias::absent,
                                Linear::Blocks{.rows = draw.rows(), .columns = draw.columns()});
    assign("weight", {rows, columns}, draw.seed);
    if (draw.has_bias) assign("bias", {rows}, draw.seed);
  }
  Linear& layer() const { return *layer_; }

 private:
  void assign(std::string_view name, const Shape& shape, std::uint64_t seed) {
    layer_->assign_parameter(Name(std::string(name)), std::make_shared<const Tensor>(
                                                          to_device(device(), integers(shape, seed, name), kFloat64)));
  }
  Tensor compute(const Tensor& x) const override { return (*layer_)(x); }
  Linear* layer_;
};

std::shared_ptr<const TensorParallelState> state_on(Communicator& world, const LayerDraw& draw) {
  world.set_reduction_order(static_cast<ReductionOrder>(draw.order), draw.seed);
  return std::make_shared<const TensorParallelState>(
      world, Mesh({"tp"}, {world.size()}),
      TensorParallelConfig{.tp_degree = world.size(), .device_type = draw.scatters ? "cuda" : "sim"});
}

TensorParallelPlan plan_of(TensorParallelStyle style) { return {{{"layer", {style}}}}; }

HostArray whole_output(const LayerDraw& draw, const HostArray& x) {
  OneLayer whole(draw);
  return to_host(whole(to_device(device(), x, kFloat64)));
}

ShardSpec spec(int dim, std::vector<std::int64_t> blocks) { return {"", dim, std::move(blocks)}; }

RC_GTEST_PROP(TensorParallel, P21_ColumnSlicesJoinedAreTheWholeOutput, ()) {
  const LayerDraw draw = *any_layer();
  const HostArray x = integers({draw.tokens + 1, LayerDraw::sum(draw.columns())}, draw.seed, "x");
  const std::vector<Tensor> parts = rank_results(draw.ranks(), [&](Communicator& world) {
    OneLayer tree(draw);
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
    OneLayer tree(draw);
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
  const OneLayer whole(draw);
  const auto equal = rank_results(draw.ranks(), [&](Communicator& world) {
    OneLayer tree(draw);
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
