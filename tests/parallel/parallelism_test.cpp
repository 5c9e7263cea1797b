// Context and tensor parallelism together on the small model: every mode times every order of mesh dimensions against
// the dense run, and the order in which enabling reports what is wrong.
#include "parallel/parallelism.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "parallel/context_parallel.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"
#include "tests/support/small_model.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TensorParallelPlan tensor_plan() {
  TensorParallelPlan plan;
  for (const char* attention : {"attn", "cross_attn"}) {
    for (const char* layer : {"to_q", "to_k", "to_v"}) {
      plan.entries.push_back({std::string("blocks.*.") + attention + "." + layer, {TensorParallelStyle::colwise}});
    }
    plan.entries.push_back({std::string("blocks.*.") + attention + ".to_out", {TensorParallelStyle::rowwise}});
  }
  return plan;
}

// "plan_error: what it says", or "completed".
class ParallelismTest : public testing::Test {
 protected:
  Outputs run(Communicator& world, const ParallelConfig& parallel, const SmallInputShape& shape) {
    const auto model = weights.make_model();
    const ParallelState state = enable_parallelism(*model, world, parallel, plans);
    return model->call(small_model_inputs(shape, *device, host, kFloat64, 1));
  }
  double worst_difference(const ParallelConfig& parallel, const SmallInputShape& shape) {
    const HostArray dense =
        to_host(weights.make_model()->call(small_model_inputs(shape, *device, host, kFloat64, 1)).tensors.front());
    double worst = 0.0;
    for (const Outputs& outputs : rank_results(effective_mesh(parallel).size(),
                                               [&](Communicator& world) { return run(world, parallel, shape); })) {
      worst = std::max(worst, max_difference(to_host(outputs.tensors.front()), dense) / max_magnitude(dense));
    }
    return worst;
  }
  std::string enabled(int world_size, const ParallelConfig& parallel, const ParallelPlans& with) {
    return outcome_of([&] {
      run_ranks({.world_size = world_size},
                [&](Communicator& world) { enable_parallelism(*weights.make_model(), world, parallel, with); });
    });
  }

  SmallModelConfig config{.heads = 4, .layers = 2};
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
  HostDevice host;
  SmallModelWeights weights{config, *device, kFloat64, 1};
  ParallelPlans plans{.cp = small_model_plan(config), .tp = tensor_plan(), .attention_heads = 4};
};

TEST_F(ParallelismTest, TensorParallelismAloneEqualsTheDenseModelAtEveryLegalDegree) {
  for (const int degree : {1, 2, 4}) {
    EXPECT_LT(worst_difference({.tensor_parallel_config = TensorParallelConfig{.tp_degree = degree}}, {}), 1e-14);
  }
}

TEST_F(ParallelismTest, BothTogetherEqualTheDenseModelInEveryModeAndOrderOfDimensions) {
  const std::vector<ContextParallelConfig> modes{
      {.ulysses_degree = 2},
      {.ring_degree = 2},
      {.ring_degree = 2, .rotate_method = "alltoall"},
      {.ring_degree = 2, .ulysses_degree = 2},
      {.ulysses_degree = 2, .ulysses_anything = true},
      {.ring_degree = 3, .ring_anything = true},
  };
  const std::vector<std::vector<std::string>> orders{{"tp", "ring", "ulysses"}, {"ring", "tp", "ulysses"},
                                                     {"ring", "ulysses", "tp"}, {"ulysses", "ring", "tp"},
                                                     {"tp", "ulysses", "ring"}, {"ulysses", "tp", "ring"}};
  for (ContextParallelConfig mode : modes) {
    const bool is_ragged = mode.ulysses_anything || mode.ring_anything;
    const SmallInputShape shape = is_ragged ? SmallInputShape{.batch = 2, .text = 5, .image = 7} : SmallInputShape{};
    for (const auto& order : orders) {
      std::vector<int> sizes;
      for (const std::string& name : order) {
        sizes.push_back(name == "tp" ? 2 : (name == "ring" ? mode.ring_degree : mode.ulysses_degree).value_or(1));
      }
      mode.mesh = Mesh(order, sizes);
      const ParallelConfig both{.context_parallel_config = mode,
                                .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
      EXPECT_LT(worst_difference(both, shape), 1e-14) << mode_name(both) << " " << mode.mesh->text();
    }
    mode.mesh.reset();
    const ParallelConfig made{.context_parallel_config = mode,
                              .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
    EXPECT_EQ(effective_mesh(made).names(), (std::vector<std::string>{"tp", "ring", "ulysses"}));
    EXPECT_LT(worst_difference(made, shape), 1e-14) << mode_name(made);
  }
}

// Groups come from mesh coordinates: tp=2, ulysses=2 in this order gives {0, 2}, {1, 3} and {0, 1}, {2, 3}.
TEST_F(ParallelismTest, TakesTheGroupsOfBothKindsFromTheCoordinates) {
  const ParallelConfig both{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2},
                            .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  const auto groups = rank_results(4, [&](Communicator& world) {
    const ParallelState state = set_up_parallelism(world, both);
    const auto members = [](const Communicator& group) {
      return std::vector<int>(group.members().begin(), group.members().end());
    };
    return std::pair(members(state.tp->group()), members(state.cp->ulysses()));
  });
  EXPECT_THAT(groups[1].first, ElementsAre(1, 3));
  EXPECT_THAT(groups[1].second, ElementsAre(0, 1));
  EXPECT_THAT(groups[2].first, ElementsAre(0, 2));
  EXPECT_THAT(groups[2].second, ElementsAre(2, 3));
}

// (H / T) mod U: 4 heads over tp 2 leave 2, which 4 Ulysses ranks cannot share out.
TEST_F(ParallelismTest, AppliesTheHeadRuleToTheHeadsThatARankHas) {
  const ParallelConfig both{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 4},
                            .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  EXPECT_THAT(outcome_of([&] { worst_difference(both, {}); }),
              HasSubstr("2 attention heads cannot be divided among ulysses_degree 4"));
}

// ---- enabling

TEST_F(ParallelismTest, AcceptsABareConfigurationOfEitherKind) {
  const auto results = rank_results(2, [&](Communicator& world) {
    const auto one = weights.make_model(), two = weights.make_model();
    const ParallelState context = enable_parallelism(*one, world, ContextParallelConfig{.ring_degree = 2}, plans);
    const ParallelState tensor = enable_parallelism(*two, world, TensorParallelConfig{.tp_degree = 2}, plans);
    return context.cp->ring_degree() == 2 && context.tp == nullptr && context_parallel_is_applied(*one) &&
           tensor.tp->degree() == 2 && tensor.cp == nullptr && tensor_parallel_is_applied(*two);
  });
  EXPECT_THAT(results, ElementsAre(true, true));
}

TEST_F(ParallelismTest, DoesNothingWithoutAConfigurationOrForADegreeOfOne) {
  const auto results = rank_results(3, [&](Communicator& world) {
    const auto model = weights.make_model();
    const ParallelState neither = enable_parallelism(*model, world, ParallelConfig{}, {});
    const ParallelState one = enable_parallelism(*model, world, TensorParallelConfig{.tp_degree = 1}, {});
    return neither.cp == nullptr && neither.tp == nullptr && one.tp == nullptr && !tensor_parallel_is_applied(*model) &&
           !context_parallel_is_applied(*model);
  });
  EXPECT_THAT(results, ElementsAre(true, true, true));
}

TEST_F(ParallelismTest, ReportsInTheOrderOfTheSpecification) {
  const ContextParallelConfig two{.ulysses_degree = 2};
  const TensorParallelConfig tensor{.tp_degree = 2};
  EXPECT_THAT(enabled(2, {.context_parallel_config = ContextParallelConfig{}}, {}),
              StartsWith("config_error: rank 0: either ring_degree or ulysses_degree must be greater than 1"));
  EXPECT_THAT(enabled(3, {.context_parallel_config = two}, {}),
              StartsWith("config_error: rank 0: ring_degree 1 x ulysses_degree 2 in the mesh"));
  EXPECT_THAT(enabled(3, {.tensor_parallel_config = tensor}, plans),
              StartsWith("config_error: rank 0: the mesh 'tp=2' has 2 ranks, but 3 take part; they must be equal"));
  EXPECT_THAT(enabled(2, {.tensor_parallel_config = tensor}, {.cp = plans.cp}),
              StartsWith("plan_error: rank 0: SmallModel has no tensor-parallel plan; give one, or leave tensor "
                         "parallelism away"));
  EXPECT_THAT(
      enabled(2, {.tensor_parallel_config = tensor}, {.tp = TensorParallelPlan{}}),
      StartsWith("plan_error: rank 0: the tensor-parallel plan for SmallModel shards no layer; every rank would "
                 "compute everything"));
  EXPECT_THAT(enabled(3, {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 3}}, plans),
              StartsWith("shape_error: rank 0: the 4 attention heads of SmallModel are not divisible by tp_degree 3; "
                         "legal degrees are 1, 2, 4"));
  EXPECT_THAT(enabled(2, {.context_parallel_config = two}, {.tp = plans.tp}),
              StartsWith("plan_error: rank 0: SmallModel has no context-parallel plan; give one"));
  const ParallelPlans faulty{.cp = ContextParallelPlan{{{"rope", SplitEntries{}}}}};
  EXPECT_THAT(enabled(2, {.context_parallel_config = two}, faulty),
              StartsWith("plan_error: rank 0: module id 'rope': 'rope' was not found"));
}

TEST_F(ParallelismTest, LeavesTheModelAloneWhereEitherPlanIsWrong) {
  const ParallelConfig both{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2},
                            .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  ParallelPlans faulty = plans;
  faulty.cp = ContextParallelPlan{{{"rope", SplitEntries{}}}};
  const auto results = rank_results(4, [&](Communicator& world) {
    const auto model = weights.make_model();
    const bool refused = thrown_by([&] { enable_parallelism(*model, world, both, faulty); }).has_value();
    return refused && !tensor_parallel_is_applied(*model) && !context_parallel_is_applied(*model);
  });
  EXPECT_THAT(results, testing::Each(true));
}

TEST_F(ParallelismTest, IsEnabledOnce) {
  const auto messages = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const TensorParallelConfig tensor{.tp_degree = 2};
    const ParallelState state = enable_parallelism(*model, world, tensor, plans);
    return outcome_of([&] { enable_parallelism(*model, world, ContextParallelConfig{.ring_degree = 2}, plans); });
  });
  EXPECT_THAT(messages, testing::Each("state_error: parallelism is enabled for this SmallModel already; it cannot be "
                                      "enabled twice"));
}

TEST(ParallelConfigMesh, MustBeOneForBothKinds) {
  const TensorParallelConfig of_two{.tp_degree = 2};
  const auto problems = [](const ParallelConfig& config) {
    std::string text;
    for (const Problem& problem : validate(config)) text += problem.message + "\n";
    return text;
  };
  EXPECT_EQ(problems({.context_parallel_config = ContextParallelConfig{.mesh = Mesh::parse("ring=2,ulysses=1")},
                      .tensor_parallel_config = of_two}),
            "mesh: 'ring=2,ulysses=1' has no dimension 'tp'; context and tensor parallelism together need one mesh "
            "with the dimensions 'tp', 'ring' and 'ulysses'\n");
  EXPECT_EQ(problems({.context_parallel_config = ContextParallelConfig{.mesh = Mesh::parse("ring=2,ulysses=1")},
                      .tensor_parallel_config = TensorParallelConfig{.mesh = Mesh::parse("tp=2")}}),
            "context parallelism has the mesh 'ring=2,ulysses=1' and tensor parallelism 'tp=2'; both must be in one "
            "mesh with the dimensions 'tp', 'ring' and 'ulysses'\n");
  const ParallelConfig inside{
      .context_parallel_config = ContextParallelConfig{.mesh = Mesh::parse("fsdp=3,ring=2,tp=4,ulysses=1")},
      .tensor_parallel_config = of_two};
  EXPECT_EQ(problems(inside), "");
  EXPECT_EQ(effective_tp_degree(inside), 4) << "the mesh wins";
  EXPECT_EQ(mode_name(inside), "tp+ring");
  EXPECT_EQ(effective_mesh(inside).size(), 24);
  EXPECT_EQ(effective_tp_degree(TensorParallelConfig{.tp_degree = 7, .mesh = Mesh::parse("fsdp=3")}), 3);
  EXPECT_EQ(mode_name(ParallelConfig{.tensor_parallel_config = of_two}), "tp");
}

}  // namespace
}  // namespace shardproof::test
