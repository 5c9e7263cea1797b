// What the property tests of models and layers draw, for whatever numbers they compute with: the small test model in
// random shapes, and one linear layer made of blocks under tensor parallelism.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops.h"
#include "parallel/tensor_parallel.h"
#include "property_tests/generators.h"
#include "tests/support/small_model.h"

namespace shardproof::test {

// ---- models

struct ModelDraw {
  ModeDraw mode;
  int head_block = 0, head_last = 0;
  int layers = 0;  // + 1
  int batch = 0;   // + 1
  int text = 0, image = 0, context = 0;
  int split_context = 0;
  int per_token = 0;
  int masked = 0;
  std::uint64_t seed = 0;

  SmallModelConfig config() const {
    return {.heads = mode.heads(head_block, head_last),
            .layers = 1 + layers,
            .context = split_context == 0 ? Placement::replicated : Placement::split};
  }
  SmallInputShape shape() const {
    return {.batch = 1 + batch,
            .text = mode.length(text),
            .image = mode.length(image),
            .context = split_context == 0 ? 1 + context : mode.length(context),
            .timestep_per_token = per_token != 0,
            .has_text_mask = masked != 0};
  }
  friend std::ostream& operator<<(std::ostream& out, const ModelDraw& draw) {
    const SmallInputShape shape = draw.shape();
    return out << draw.mode << "; heads " << draw.config().heads << ", layers " << draw.config().layers << ", batch "
               << shape.batch << ", text " << shape.text << ", image " << shape.image << ", context " << shape.context
               << (draw.split_context == 0 ? " whole" : " divided")
               << (draw.per_token == 0 ? "" : ", timestep per token") << (draw.masked == 0 ? "" : ", text mask")
               << ", seed " << draw.seed;
  }
};

inline rc::Gen<ModelDraw> any_model(rc::Gen<ModeDraw> mode) {
  return rc::gen::build<ModelDraw>(
      rc::gen::set(&ModelDraw::mode, std::move(mode)), rc::gen::set(&ModelDraw::head_block, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModelDraw::head_last, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModelDraw::layers, rc::gen::inRange(0, 2)), rc::gen::set(&ModelDraw::batch, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModelDraw::text, rc::gen::inRange(0, 6)), rc::gen::set(&ModelDraw::image, rc::gen::inRange(0, 8)),
      rc::gen::set(&ModelDraw::context, rc::gen::inRange(0, 4)),
      rc::gen::set(&ModelDraw::split_context, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModelDraw::per_token, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModelDraw::masked, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModelDraw::seed, rc::gen::inRange<std::uint64_t>(0, 100000)));
}

// ---- layers

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

inline rc::Gen<LayerDraw> any_layer() {
  const auto small = [](int n) { return rc::gen::inRange(0, n); };
  const auto blocks = [&] { return rc::gen::resize(4, rc::gen::container<std::vector<int>>(small(3))); };
  return rc::gen::build<LayerDraw>(
      rc::gen::set(&LayerDraw::degree, small(5)), rc::gen::set(&LayerDraw::row_blocks, blocks()),
      rc::gen::set(&LayerDraw::column_blocks, blocks()), rc::gen::set(&LayerDraw::tokens, small(4)),
      rc::gen::set(&LayerDraw::has_bias), rc::gen::set(&LayerDraw::scatters), rc::gen::set(&LayerDraw::order, small(4)),
      rc::gen::set(&LayerDraw::seed));
}

// A tree of one layer "layer", with weights by name and shape.
class OneLayer final : public TensorModule {
 public:
  template <class Weights>
  OneLayer(const LayerDraw& draw, const Weights& weights) : TensorModule("OneLayer") {
    const std::int64_t rows = LayerDraw::sum(draw.rows()), columns = LayerDraw::sum(draw.columns());
    layer_ = &add_child<Linear>("layer", columns, rows, draw.has_bias ? Linear::Bias::present : Linear::Bias::absent,
                                Linear::Blocks{.rows = draw.rows(), .columns = draw.columns()});
    assign("weight", weights("weight", Shape{rows, columns}));
    if (draw.has_bias) assign("bias", weights("bias", Shape{rows}));
  }
  Linear& layer() const { return *layer_; }

 private:
  void assign(std::string_view name, Tensor tensor) {
    layer_->assign_parameter(Name(std::string(name)), std::make_shared<const Tensor>(std::move(tensor)));
  }
  Tensor compute(const Tensor& x) const override { return (*layer_)(x); }
  Linear* layer_;
};

inline std::shared_ptr<const TensorParallelState> state_on(Communicator& world, const LayerDraw& draw) {
  world.set_reduction_order(static_cast<ReductionOrder>(draw.order), draw.seed);
  return std::make_shared<const TensorParallelState>(
      world, Mesh({"tp"}, {world.size()}),
      TensorParallelConfig{.tp_degree = world.size(), .device_type = draw.scatters ? "cuda" : "sim"});
}

inline TensorParallelPlan plan_of(TensorParallelStyle style) { return {{{"layer", {style}}}}; }

inline ShardSpec spec(int dim, std::vector<std::int64_t> blocks) { return {"", dim, std::move(blocks)}; }

}  // namespace shardproof::test
