// Laws of whole models, layers and reductions in exact arithmetic: P1, P5, P15 and P23 on the small test model, P6, P21
// and P22 of the verification specification, section 7. Sums have no rounding there, so that no order of adding may
// show: ranks, tree, ring and random are tried against each other.
#include <algorithm>
#include <string>

#include "core/collectives.h"
#include "parallel/context_parallel.h"
#include "property_tests/exact_attention.h"
#include "property_tests/model_draws.h"

namespace shardproof::test {
namespace {

constexpr ReductionOrder kOrders[] = {ReductionOrder::ranks, ReductionOrder::tree, ReductionOrder::ring,
                                      ReductionOrder::random};

// ---- models

// One model with weights and inputs of a draw: the exact images of random numbers.
class ExactSubject {
 public:
  ExactSubject(const ModelDraw& draw, FieldDevice& device)
      : device_(device),
        config_(draw.config()),
        weights_(config_, device, field_dtype(), draw.seed),
        plan_(small_model_plan(config_)) {}

  Arguments inputs(const ModelDraw& draw) {
    return small_model_inputs(draw.shape(), device_, host_, field_dtype(), draw.seed);
  }
  Tensor dense(const Arguments& arguments) const { return weights_.make_model()->call(arguments).tensors.front(); }
  // Outputs by rank of successive calls on one tree.
  std::vector<std::vector<Tensor>> parallel(const std::vector<Arguments>& calls, const ModeDraw& mode) const {
    return rank_results(options_of(mode), [&](Communicator& world) {
      world.set_gather_form(gather_form_of(mode));
      const auto model = weights_.make_model();
      apply_context_parallel(*model, std::make_shared<const ContextParallelState>(world, mode.config()), plan_);
      std::vector<Tensor> outputs;
      for (const Arguments& call : calls) outputs.push_back(model->call(call).tensors.front());
      return outputs;
    });
  }

 private:
  FieldDevice& device_;
  HostDevice host_;
  SmallModelConfig config_;
  SmallModelWeights weights_;
  ContextParallelPlan plan_;
};

bool all_same(const std::vector<std::vector<Tensor>>& by_rank, const Tensor& expected) {
  return std::all_of(by_rank.begin(), by_rank.end(),
                     [&](const std::vector<Tensor>& own) { return same("output", own.front(), expected); });
}

RC_GTEST_PROP(ExactModel, P1_ParallelEqualsDenseOnAllRanks, ()) {
  const ModelDraw draw = *any_model(any_mode());
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactSubject subject(draw, device);
    const Arguments inputs = subject.inputs(draw);
    return all_same(subject.parallel({inputs}, draw.mode), subject.dense(inputs));
  }));
}

// Under two schedules and both forms of gathers.
RC_GTEST_PROP(ExactModel, P5_GatheredOutputsOfAllRanksAreIdenticalUnderEverySchedule, ()) {
  const ModelDraw draw = *any_model(any_mode());
  ModeDraw other = draw.mode;
  other.schedule_seed += 1 + *rc::gen::inRange<std::uint64_t>(0, 1000);
  other.padded = 1 - other.padded;
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactSubject subject(draw, device);
    const Arguments inputs = subject.inputs(draw);
    const auto outputs = subject.parallel({inputs}, draw.mode);
    const Tensor& first = outputs.front().front();
    return all_same(outputs, first) && all_same(subject.parallel({inputs}, other), first);
  }));
}

// One rank, and two of Ulysses, ring, Unified and their forms for any lengths on four.
RC_GTEST_PROP(ExactModel, P15_EveryModeGivesTheSame, ()) {
  ModelDraw draw = *any_model(any_mode());
  draw.mode.mode = static_cast<int>(Mode::ulysses);
  draw.mode.degree = 2;
  std::vector<ModeDraw> modes;
  for (const int mode : {draw.mode.mode, *rc::gen::inRange(1, kModes)}) {
    modes.push_back(draw.mode);
    modes.back().mode = mode;
    if (modes.back().is(Mode::unified)) modes.back().degree = modes.back().second = 0;  // two by two
  }
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactSubject subject(draw, device);
    const Arguments inputs = subject.inputs(draw);
    const Tensor one = subject.dense(inputs);
    return std::all_of(modes.begin(), modes.end(),
                       [&](const ModeDraw& mode) { return all_same(subject.parallel({inputs}, mode), one); });
  }));
}

// A fresh call is that of another tree, on one rank.
RC_GTEST_PROP(ExactModel, P23_SuccessiveCallsOfDifferentShapesAreLikeFreshOnes, ()) {
  const ModelDraw first = *any_model(any_mode());
  ModelDraw second = *any_model(rc::gen::just(first.mode));
  second.split_context = first.split_context;  // part of the model
  RC_ASSERT(holds_exactly(first.seed, [&](FieldDevice& device) {
    ExactSubject subject(first, device);
    const std::vector<Arguments> calls{subject.inputs(first), subject.inputs(second), subject.inputs(first)};
    const auto results = subject.parallel(calls, first.mode);
    for (std::size_t call = 0; call < calls.size(); ++call) {
      const Tensor fresh = subject.dense(calls[call]);
      for (const auto& own : results) {
        if (!same("output", own[call], fresh)) return false;
      }
    }
    return true;
  }));
}

// ---- reductions

RC_GTEST_PROP(ExactReduction, P6_AllReduceIsTheSumOverRanksInEveryOrder, ()) {
  const auto ranks = static_cast<std::size_t>(1 + *rc::gen::inRange(0, 8));
  const std::int64_t size = *rc::gen::inRange<std::int64_t>(0, 12);
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const ScheduleDraw schedule = *any_schedule();
  RC_ASSERT(holds_exactly(seed, [&](FieldDevice& device) {
    std::vector<Tensor> parts;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      parts.push_back(random_field_tensor(device, seed, "part " + std::to_string(rank), {size, 2}));
    }
    Tensor sum = ops::zeros(device, {size, 2}, field_dtype());
    for (const std::int64_t rank : permutation(static_cast<std::int64_t>(ranks), seed)) {
      sum = ops::add(sum, parts[static_cast<std::size_t>(rank)]);
    }
    for (const ReductionOrder order : kOrders) {
      const auto results = rank_results(schedule.options(ranks), [&](Communicator& world) {
        world.set_reduction_order(order, seed);
        return collectives::all_reduce(world, parts[static_cast<std::size_t>(world.rank())], "test").wait();
      });
      for (const Tensor& result : results) {
        if (!same(reduction_order_name(order), result, sum)) return false;
      }
    }
    return true;
  }));
}

// ---- tensor parallelism

OneLayer layer_of(const LayerDraw& draw, FieldDevice& device) {
  return {draw, [&](std::string_view name, const Shape& shape) {
            return random_field_tensor(device, draw.seed, name, shape);
          }};
}

Tensor layer_input(const LayerDraw& draw, FieldDevice& device) {
  return random_field_tensor(device, draw.seed, "x", {draw.tokens + 1, LayerDraw::sum(draw.columns())});
}

SimulationOptions options_of(const LayerDraw& draw) {
  return {
      .world_size = draw.ranks(), .schedule_seed = draw.seed % 1000, .workers = 1 + static_cast<int>(draw.seed % 2)};
}

RC_GTEST_PROP(ExactTensorParallel, P21_ColumnSlicesJoinedAreTheWholeOutput, ()) {
  const LayerDraw draw = *any_layer();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const Tensor x = layer_input(draw, device);
    const std::vector<Tensor> parts = rank_results(options_of(draw), [&](Communicator& world) {
      OneLayer tree = layer_of(draw, device);
      apply_tensor_parallel(tree, state_on(world, draw), plan_of(TensorParallelStyle::packed_colwise));
      return tree(x);
    });
    OneLayer whole = layer_of(draw, device);
    return same("output", joined_shards(parts, spec(1, draw.rows())), whole(x));
  }));
}

RC_GTEST_PROP(ExactTensorParallel, P21_SumOfPartialResultsAndOneBiasIsTheWholeOutputInEveryOrder, ()) {
  LayerDraw draw = *any_layer();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const Tensor x = layer_input(draw, device);
    OneLayer whole = layer_of(draw, device);
    const Tensor expected = whole(x);
    for (const ReductionOrder order : kOrders) {
      draw.order = static_cast<int>(order);
      const std::vector<Tensor> results = rank_results(options_of(draw), [&](Communicator& world) {
        OneLayer tree = layer_of(draw, device);
        apply_tensor_parallel(tree, state_on(world, draw), plan_of(TensorParallelStyle::packed_rowwise));
        return tree(local_shard(x, spec(1, draw.columns()), world.rank(), world.size()));
      });
      for (const Tensor& result : results) {
        if (!same(reduction_order_name(order), result, expected)) return false;
      }
    }
    return true;
  }));
}

// Packing rows side by side and then cutting the packed matrix gives what cutting each part and packing gives.
RC_GTEST_PROP(ExactTensorParallel, P22_ShardsOfAPackedMatrixAreThePackedShardsOfItsParts, ()) {
  const LayerDraw draw = *any_layer();
  const int dim = draw.has_bias ? 0 : 1;
  const std::vector<std::int64_t> blocks = draw.rows();
  FieldDevice& device = exact_device(draw.seed);
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Shape shape{3, 3};
    shape[dim] = blocks[i];
    parts.push_back(random_field_tensor(device, draw.seed, "part " + std::to_string(i), shape));
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

RC_GTEST_PROP(ExactTensorParallel, P22_GatheredShardsAreTheWeightsBeforeSharding, ()) {
  const LayerDraw draw = *any_layer();
  const auto style = draw.tokens % 2 == 0 ? TensorParallelStyle::packed_colwise : TensorParallelStyle::packed_rowwise;
  FieldDevice& device = exact_device(draw.seed);
  const OneLayer whole = layer_of(draw, device);
  const auto equal = rank_results(options_of(draw), [&](Communicator& world) {
    OneLayer tree = layer_of(draw, device);
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
