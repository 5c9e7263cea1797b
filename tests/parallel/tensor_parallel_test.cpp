// Tensor parallelism on small layers: shards and their way back, forward of every style against the whole layer, what
// is refused before anything changes. Ranks are simulated; results are compared outside of them.
#include "parallel/tensor_parallel.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/ops.h"
#include "reference/eigen_device.h"
#include "tests/support/host_array.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A block of two branches: up (colwise), fused (packed columns of 2 parts) and a projection of both (packed rows).
class Block final : public TensorModule {
 public:
  Block(std::int64_t width, std::int64_t inner)
      : TensorModule("Block"),
        up_(add_child<Linear>("up", width, inner)),
        fused_(
            add_child<Linear>("fused", width, 2 * inner, Linear::Bias::absent, Linear::Blocks{.rows = {inner, inner}})),
        down_(add_child<Linear>("down", 2 * inner, width, Linear::Bias::present,
                                Linear::Blocks{.columns = {inner, inner}})) {}

 private:
  Tensor compute(const Tensor& x) const override {
    const std::vector<Tensor> halves = ops::chunk(fused_(x), 2, -1);
    return down_(ops::concat({up_(x), ops::multiply(ops::silu(halves[0]), halves[1])}, -1));
  }
  Linear& up_;
  Linear& fused_;
  Linear& down_;
};

class Net final : public TensorModule {
 public:
  Net(std::int64_t width, std::int64_t inner)
      : TensorModule("Net"), blocks_(add_child<ModuleList>("blocks")), last_(add_child<Linear>("last", width, width)) {
    for (int i = 0; i < 2; ++i) blocks_.append<Block>(width, inner);
    add_child<ModuleList>("empty");
  }

 private:
  Tensor compute(const Tensor& x) const override {
    Tensor y = x;
    for (const auto& block : blocks_.children()) y = ops::add(y, static_cast<Block&>(*block)(y));
    return last_(y);
  }
  ModuleList& blocks_;
  Linear& last_;
};

constexpr std::int64_t kWidth = 6, kInner = 12;

TensorParallelPlan plan_of_net() {
  return {{{"blocks.*.up", {TensorParallelStyle::colwise}},
           {"blocks.*.fused", {TensorParallelStyle::packed_colwise}},
           {"blocks.*.down", {TensorParallelStyle::packed_rowwise, std::vector<std::int64_t>{1, 1}}},
           {"last", {TensorParallelStyle::replicated_input_rowwise}}}};
}

class TensorParallelTest : public testing::Test {
 protected:
  // A tree with weights drawn from a seed.
  std::unique_ptr<Net> net(std::uint64_t seed = 1) {
    auto tree = std::make_unique<Net>(kWidth, kInner);
    for_each_parameter(*tree, [&](const std::string& path, Module& module, const Module::Parameter& parameter) {
      const HostArray values = random_array(parameter.tensor->shape(), seed, path);
      module.assign_parameter(parameter.name, std::make_shared<const Tensor>(to_device(*device, values, kFloat64)));
    });
    return tree;
  }
  Tensor input() { return to_device(*device, random_array({2, 3, kWidth}, 9, "x"), kFloat64); }
  static std::shared_ptr<const TensorParallelState> state_on(Communicator& world, std::string device_type = "sim") {
    return std::make_shared<const TensorParallelState>(
        world, Mesh({"tp"}, {world.size()}),
        TensorParallelConfig{.tp_degree = world.size(), .device_type = std::move(device_type)});
  }
  static Tensor parameter(Module& root, const std::string& layer, std::size_t index) {
    return *root.find_module(layer)->parameters()[index].tensor;
  }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(TensorParallelTest, ComputesWhatTheWholeModelComputesInEveryStyle) {
  const auto whole = net();
  const HostArray expected = to_host((*whole)(input()));
  for (const std::string device_type : {"sim", "cuda"}) {
    for (const int degree : {1, 2, 3, 6}) {
      const std::vector<Tensor> outputs = rank_results(degree, [&](Communicator& world) {
        const auto tree = net();
        apply_tensor_parallel(*tree, state_on(world, device_type), plan_of_net());
        return (*tree)(input());
      });
      for (const Tensor& output : outputs) {
        EXPECT_LT(max_difference(to_host(output), expected) / max_magnitude(expected), 1e-14) << degree;
        EXPECT_EQ(to_host(output), to_host(outputs.front()));
      }
    }
  }
}

TEST_F(TensorParallelTest, GivesEveryRankItsRowsColumnsAndPartsOfBlocks) {
  const auto whole = net();
  const std::vector<std::vector<HostArray>> shards = rank_results(3, [&](Communicator& world) {
    const auto tree = net();
    apply_tensor_parallel(*tree, state_on(world), plan_of_net());
    std::vector<HostArray> own;
    for (const char* layer : {"blocks.1.up", "blocks.1.fused", "blocks.1.down", "last"}) {
      own.push_back(to_host(parameter(*tree, layer, 0)));
    }
    own.push_back(to_host(parameter(*tree, "blocks.1.up", 1)));
    own.push_back(to_host(parameter(*tree, "blocks.1.down", 1)));
    return own;
  });
  const auto rows_from = [](std::int64_t first, std::int64_t count) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), first);
    return rows;
  };
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const std::vector<HostArray>& own = shards[static_cast<std::size_t>(rank)];
    std::vector<std::int64_t> of_both = rows_from(4 * rank, 4);
    for (const std::int64_t row : rows_from(kInner + 4 * rank, 4)) of_both.push_back(row);
    EXPECT_EQ(own[0], selected(to_host(parameter(*whole, "blocks.1.up", 0)), 0, rows_from(4 * rank, 4)));
    EXPECT_EQ(own[1], selected(to_host(parameter(*whole, "blocks.1.fused", 0)), 0, of_both));
    EXPECT_EQ(own[2], selected(to_host(parameter(*whole, "blocks.1.down", 0)), 1, of_both));
    EXPECT_EQ(own[3], selected(to_host(parameter(*whole, "last", 0)), 1, rows_from(2 * rank, 2)));
    EXPECT_EQ(own[4], selected(to_host(parameter(*whole, "blocks.1.up", 1)), 0, rows_from(4 * rank, 4)));
    EXPECT_EQ(own[5], to_host(parameter(*whole, "blocks.1.down", 1)));
  }
}

// Both ways of placing weights, and slices cut by a loader before the plan is applied, give the same shards.
TEST_F(TensorParallelTest, PlacesTheSameShardsByScatterBySliceAndByALoader) {
  const auto shards_by = [&](const std::string& device_type, bool loads_slices) {
    return rank_results(2, [&](Communicator& world) {
      const auto tree = net();
      if (loads_slices) {
        for (const ShardSpec& spec : resolve_tp_shard_specs(*tree, plan_of_net(), 2)) {
          const std::size_t dot = spec.parameter.rfind('.');
          Module& layer = *tree->find_module(spec.parameter.substr(0, dot));
          const std::size_t index = spec.parameter.substr(dot + 1) == "weight" ? 0 : 1;
          const Tensor shard = local_shard(*layer.parameters()[index].tensor, spec, world.rank(), 2);
          layer.assign_parameter(layer.parameters()[index].name, std::make_shared<const Tensor>(shard));
        }
      }
      apply_tensor_parallel(*tree, state_on(world, device_type), plan_of_net(),
                            loads_slices ? WeightsAlreadySharded::yes : WeightsAlreadySharded::no);
      std::vector<HostArray> all;
      for_each_parameter(*tree, [&](const std::string&, Module&, const Module::Parameter& parameter) {
        all.push_back(to_host(*parameter.tensor));
      });
      return all;
    });
  };
  const auto sliced = shards_by("sim", false);
  for (const char* type : {"cuda", "xpu", "cpu", "neuron", "tpu"}) EXPECT_EQ(shards_by(type, false), sliced) << type;
  EXPECT_EQ(shards_by("cuda", true), sliced);
}

TEST_F(TensorParallelTest, TakesTheWeightsOfRankZeroWhereRanksDiffer) {
  const HostArray expected = to_host((*net(1))(input()));
  const std::vector<Tensor> outputs = rank_results(2, [&](Communicator& world) {
    const auto tree = net(1);
    const auto other = net(2);
    if (world.rank() == 1) {
      for (const ShardSpec& spec : resolve_tp_shard_specs(*tree, plan_of_net(), 2)) {
        const std::size_t dot = spec.parameter.rfind('.');
        const std::string layer = spec.parameter.substr(0, dot);
        const std::size_t index = spec.parameter.substr(dot + 1) == "weight" ? 0 : 1;
        Module& mine = *tree->find_module(layer);
        mine.assign_parameter(mine.parameters()[index].name,
                              std::make_shared<const Tensor>(parameter(*other, layer, index)));
      }
    }
    apply_tensor_parallel(*tree, state_on(world, "cuda"), plan_of_net());
    return (*tree)(input());
  });
  for (const Tensor& output : outputs) {
    EXPECT_LT(max_difference(to_host(output), expected) / max_magnitude(expected), 1e-14);
  }
}

TEST_F(TensorParallelTest, RefusesToSliceWeightsThatDiffer) {
  EXPECT_THAT(thrown_by([&] {
                run_ranks({.world_size = 2}, [&](Communicator& world) {
                  const auto tree = net(world.rank() == 0 ? 1 : 2);
                  apply_tensor_parallel(*tree, state_on(world, "neuron"), plan_of_net());
                });
              })->message,
              HasSubstr("parameter 'blocks.0.up.weight' differs between ranks 0 and 1 of the tensor-parallel group; "
                        "device type 'neuron' slices each rank's own weights, so they must be equal"));
}

TEST_F(TensorParallelTest, GathersTheWeightsBackBitForBit) {
  const auto whole = net();
  std::vector<std::pair<std::string, HostArray>> expected;
  for_each_parameter(*whole, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    expected.emplace_back(path, to_host(*parameter.tensor));
  });
  const auto gathered = rank_results(3, [&](Communicator& world) {
    const auto tree = net();
    const auto state = state_on(world);
    apply_tensor_parallel(*tree, state, plan_of_net());
    std::vector<std::pair<std::string, HostArray>> all;
    for (const auto& [path, tensor] : gather_tp_state_dict(*tree, *state)) all.emplace_back(path, to_host(tensor));
    return all;
  });
  for (const auto& of_rank : gathered) EXPECT_EQ(of_rank, expected);
}

// The bias 100, 200, .. of a rowwise layer counts once, whatever the degree.
TEST_F(TensorParallelTest, AddsTheBiasOfARowwiseLayerOnce) {
  const std::vector<Tensor> outputs = rank_results(2, [&](Communicator& world) {
    const auto tree = net();
    Module& last = *tree->find_module("last");
    last.assign_parameter("weight", std::make_shared<const Tensor>(ops::zeros(*device, {kWidth, kWidth}, kFloat64)));
    const std::vector<double> bias{100, 200, 300, 400, 500, 600};
    last.assign_parameter("bias", std::make_shared<const Tensor>(ops::from_doubles(*device, bias, {6}, kFloat64)));
    apply_tensor_parallel(*tree, state_on(world), plan_of_net());
    return (*tree)(input()).narrow(0, 0, 1).narrow(1, 0, 1);
  });
  for (const Tensor& output : outputs) EXPECT_THAT(to_host(output).values, ElementsAre(100, 200, 300, 400, 500, 600));
}

// The worked example of the specification: 1152 rows in blocks 1:1:1:3:3.
TEST(TensorParallelSpecs, CutsEveryBlockByItself) {
  const ShardSpec spec{"w", 0, {128, 128, 128, 384, 384}};
  EXPECT_THAT(ranges_of_rank(spec, 1, 2), ElementsAre(ShardRange{64, 64}, ShardRange{192, 64}, ShardRange{320, 64},
                                                      ShardRange{576, 192}, ShardRange{960, 192}));
}

struct PlanProblem {
  TensorParallelPlan plan;
  ErrorKind kind;
  std::string message;
  int degree = 4;
};

TEST(TensorParallelSpecs, NamesEveryProblemOfAPlan) {
  using Style = TensorParallelStyle;
  const std::vector<PlanProblem> problems{
      {{{{"blocks.*.nothing", {Style::colwise}}}}, ErrorKind::plan_error, "nothing"},
      {{{{"blocks.*.*", {Style::colwise}}}},
       ErrorKind::plan_error,
       "module id 'blocks.*.*': at most one '*' is allowed"},
      {{{{"blocks.*", {Style::colwise}}}},
       ErrorKind::plan_error,
       "plan entry 'blocks.*': module 'blocks.0' is a Block, style 'colwise' needs a Linear"},
      {{{{"last", {Style::packed_rowwise}}}},
       ErrorKind::plan_error,
       "layer 'last': 'packed_rowwise' has no blocks: neither the plan nor the layer gives any"},
      {{{{"last", {Style::packed_colwise, std::vector<std::int64_t>{3, 4}}}}},
       ErrorKind::plan_error,
       "layer 'last': the sum 7 of the blocks [3, 4] does not divide its 6 rows"},
      {{{{"last", {Style::packed_colwise, std::vector<std::int64_t>{3, 0}}}}},
       ErrorKind::plan_error,
       "layer 'last': blocks [3, 0] must be positive"},
      {{{{"blocks.0.fused", {Style::colwise}}}},
       ErrorKind::plan_error,
       "layer 'blocks.0.fused': style 'colwise' would cut across the blocks [12, 12] that its rows are made of; use "
       "'packed_colwise'"},
      {{{{"blocks.0.down", {Style::rowwise}}}},
       ErrorKind::plan_error,
       "layer 'blocks.0.down': style 'rowwise' would cut across the blocks [12, 12] that its columns are made of; use "
       "'packed_rowwise'"},
      {{{{"blocks.0.up", {Style::colwise}}, {"blocks.*.up", {Style::rowwise}}}},
       ErrorKind::plan_error,
       "plan entry 'blocks.*.up': layer 'blocks.0.up' has the style 'colwise' already, not 'rowwise'"},
      {{{{"last", {Style::packed_colwise, std::vector<std::int64_t>{2, 1}}},
         {"last", {Style::packed_colwise, std::vector<std::int64_t>{1, 2}}}}},
       ErrorKind::plan_error,
       "plan entry 'last': layer 'last' is cut into blocks of [4, 2] already, not [2, 4]",
       2},
      {{{{"last", {Style::colwise}}}},
       ErrorKind::shape_error,
       "cannot shard 'last.weight' across 4 ranks: a block of size 6 along dim 0 is not divisible by 4"},
  };
  for (const PlanProblem& problem : problems) {
    Net net(kWidth, kInner);
    const auto error = thrown_by([&] { resolve_tp_shard_specs(net, problem.plan, problem.degree); });
    ASSERT_TRUE(error.has_value()) << problem.message;
    EXPECT_EQ(error->kind, problem.kind) << error->message;
    EXPECT_THAT(error->message, HasSubstr(problem.message));
  }
}

TEST(TensorParallelSpecs, PutsAllProblemsIntoOneError) {
  Net net(kWidth, kInner);
  const TensorParallelPlan plan{
      {{"last", {TensorParallelStyle::colwise}}, {"blocks.*.up", {TensorParallelStyle::colwise}}}};
  EXPECT_EQ(thrown_by([&] { resolve_tp_shard_specs(net, plan, 5); })->message,
            "cannot shard 'last.weight' across 5 ranks: a block of size 6 along dim 0 is not divisible by 5; also: "
            "cannot shard 'blocks.0.up.weight' across 5 ranks: a block of size 12 along dim 0 is not divisible by 5; "
            "also: cannot shard 'blocks.1.up.weight' across 5 ranks: a block of size 12 along dim 0 is not divisible "
            "by 5");
}

TEST(TensorParallelSpecs, NamesALayerOnceHoweverManyOfItsBlocksDoNotDivide) {
  Net net(kWidth, kInner);
  const std::vector<std::int64_t> ones(6, 1);
  const TensorParallelPlan plan{{{"last", {TensorParallelStyle::packed_colwise, ones}}}};
  EXPECT_EQ(thrown_by([&] { resolve_tp_shard_specs(net, plan, 2); })->message,
            "cannot shard 'last.weight' across 2 ranks: a block of size 1 along dim 0 is not divisible by 2");
}

TEST(TensorParallelSpecs, AcceptsALayerNamedTwiceInOneWay) {
  Net net(kWidth, kInner);
  const TensorParallelPlan plan{{{"last", {TensorParallelStyle::packed_colwise, std::vector<std::int64_t>{2, 1}}},
                                 {"last", {TensorParallelStyle::packed_colwise, std::vector<std::int64_t>{4, 2}}}}};
  EXPECT_EQ(resolve_tp_shard_specs(net, plan, 2).size(), 2U);
}

TEST(TensorParallelSpecs, ListsTheLegalDegrees) {
  Net net(kWidth, kInner);
  EXPECT_THAT(legal_tp_degrees(net, plan_of_net(), 12), ElementsAre(1, 2, 3, 6));
  EXPECT_THAT(legal_tp_degrees(net, plan_of_net(), 4), ElementsAre(1, 2));
}

TEST_F(TensorParallelTest, IsAppliedOnceAndLeavesTheModelAsItWasWhenItIsRefused) {
  const auto failures = rank_results(2, [&](Communicator& world) {
    std::vector<std::string> messages;
    const auto tree = net();
    TensorParallelPlan wrong = plan_of_net();
    wrong.entries.push_back({"blocks.0", {TensorParallelStyle::colwise}});
    const auto refused = thrown_by([&] { apply_tensor_parallel(*tree, state_on(world), wrong); });
    messages.push_back(refused->message);
    messages.push_back(tensor_parallel_is_applied(*tree) ? "changed" : "unchanged");
    messages.push_back(parameter(*tree, "last", 0).shape().text());
    apply_tensor_parallel(*tree, state_on(world), plan_of_net());
    messages.push_back(thrown_by([&] { apply_tensor_parallel(*tree, state_on(world), plan_of_net()); })->message);
    return messages;
  });
  for (const auto& messages : failures) {
    EXPECT_THAT(messages, ElementsAre("plan entry 'blocks.0': module 'blocks.0' is a Block, style 'colwise' needs a "
                                      "Linear",
                                      "unchanged", "[6, 6]",
                                      "tensor parallelism is applied to this Net already; it cannot be applied twice"));
  }
}

TEST_F(TensorParallelTest, NamesAParameterThatIsNotTheShardThatItShouldBe) {
  const auto message_of = [&](WeightsAlreadySharded sharded, std::int64_t rows) {
    return thrown_by([&] {
             run_ranks({.world_size = 2}, [&](Communicator& world) {
               const auto tree = net();
               tree->find_module("blocks.0.up")
                   ->assign_parameter("weight",
                                      std::make_shared<const Tensor>(ops::zeros(*device, {rows, kWidth}, kFloat64)));
               apply_tensor_parallel(*tree, state_on(world), {{{"blocks.*.up", {TensorParallelStyle::colwise}}}},
                                     sharded);
             });
           })
        ->message;
  };
  EXPECT_THAT(message_of(WeightsAlreadySharded::yes, 6),
              HasSubstr("parameter 'blocks.0.up.bias' is [12]; expected [6], this rank's shard of [12]"));
  EXPECT_THAT(message_of(WeightsAlreadySharded::yes, 12),
              HasSubstr("parameter 'blocks.0.up.weight' is [12, 6]; expected [6, 6], this rank's shard of [12, 6]"));
  EXPECT_THAT(message_of(WeightsAlreadySharded::no, 6),
              HasSubstr("parameter 'blocks.0.up.weight' is [6, 6]; expected [12, 6], the whole of [12, 6]"));
}

TEST_F(TensorParallelTest, SaysWhatFeedsARowwiseLayerWrongly) {
  EXPECT_THAT(thrown_by([&] {
                run_ranks({.world_size = 2}, [&](Communicator& world) {
                  const auto tree = net();
                  apply_tensor_parallel(*tree, state_on(world), {{{"last", {TensorParallelStyle::rowwise}}}});
                  (*tree)(input());
                });
              })->message,
              HasSubstr("layer 'last' (rowwise over 2 ranks) expects its 3 local columns, got float64 [2, 3, 6]: what "
                        "feeds it must be divided over the ranks, as the output of colwise layers is"));
}

TEST_F(TensorParallelTest, ListsTheDeviceTypesThatItKnows) {
  EXPECT_THAT(thrown_by([&] {
                run_ranks({.world_size = 2}, [&](Communicator& world) { state_on(world, "abacus"); });
              })->message,
              HasSubstr("device_type is 'abacus'; tensor parallelism is offered for cuda, neuron, tpu, xpu, cpu and "
                        "sim"));
}

TEST_F(TensorParallelTest, TakesItsGroupFromTheMesh) {
  const auto groups = rank_results(4, [&](Communicator& world) {
    const TensorParallelState state(world, Mesh({"ring", "tp", "ulysses"}, {1, 2, 2}), {});
    return collectives::all_gather_numbers(state.group(), std::vector<std::int64_t>{world.rank()}, "test: members");
  });
  EXPECT_THAT(groups[0], ElementsAre(0, 2));
  EXPECT_THAT(groups[3], ElementsAre(1, 3));
}

TEST_F(TensorParallelTest, HasNothingToGatherBeforeItIsApplied) {
  EXPECT_THAT(thrown_by([&] {
                run_ranks({.world_size = 2}, [&](Communicator& world) {
                  const auto tree = net();
                  gather_tp_state_dict(*tree, *state_on(world));
                });
              })->message,
              HasSubstr("tensor parallelism is not applied to this Net; its weights are whole"));
}

}  // namespace
}  // namespace shardproof::test
