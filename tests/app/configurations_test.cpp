// From options to configurations and plans.
// What a run without any of the naming options covers is pinned here.
#include "app/configurations.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::message_of;

TEST(RequestedConfigurations, AreTheDefaultSetWithoutANamingOption) {
  const RequestedConfigurations requested = requested_configurations({.sources = {"flux"}});
  EXPECT_FALSE(requested.is_named);
  EXPECT_EQ(requested.list.size(), default_configurations().size());
  EXPECT_TRUE(std::all_of(requested.list.begin(), requested.list.end(),
                          [](const auto& configuration) { return configuration.context.convert_to_fp32; }));
}

TEST(RequestedConfigurations, KeepOneRotateMethodAndAllThatDoNotRotate) {
  const RequestedConfigurations requested =
      requested_configurations({.sources = {"flux"}, .rotate_method = "alltoall", .convert_to_fp32 = false});
  EXPECT_FALSE(requested.is_named);
  int rings = 0;
  int others = 0;
  for (const RequestedConfiguration& configuration : requested.list) {
    EXPECT_FALSE(configuration.context.convert_to_fp32);
    const bool rotates = effective_ring_degree(configuration.context) > 1;
    (rotates ? rings : others)++;
    EXPECT_EQ(configuration.context.rotate_method, rotates ? "alltoall" : "allgather");
  }
  EXPECT_EQ(rings, 7);
  EXPECT_EQ(others, 6);
}

// Tensor parallelism of degree 1 shards nothing and asks for nothing.
TEST(RequestedConfigurations, AreTheDefaultSetForATensorParallelDegreeOfOne) {
  Options options;
  options.tp_degree = 1;
  EXPECT_FALSE(requested_configurations(options).is_named);
}

TEST(RequestedConfigurations, AreOneAsSoonAsAnyNamingOptionIsGiven) {
  const std::vector<std::function<void(Options&)>> namings{
      [](Options& options) { options.ring_degree = 2; },
      [](Options& options) { options.ulysses_degree = 2; },
      [](Options& options) { options.tp_degree = 2; },
      [](Options& options) { options.mesh = Mesh::parse("ring=2,ulysses=2"); },
      [](Options& options) { options.ulysses_anything = true; },
      [](Options& options) { options.ring_anything = true; },
  };
  for (const auto& name : namings) {
    Options options;
    name(options);
    const RequestedConfigurations requested = requested_configurations(options);
    EXPECT_TRUE(requested.is_named);
    ASSERT_EQ(requested.list.size(), 1U);
    EXPECT_EQ(requested.list.front().context.rotate_method, "allgather");
  }
}

TEST(RequestedConfigurations, TakeADimensionTpForTensorParallelism) {
  Options options;
  options.mesh = Mesh::parse("ring=2,ulysses=1,tp=4");
  const RequestedConfiguration configuration = requested_configurations(options).list.front();
  EXPECT_EQ(configuration.tp_degree, 4);
  EXPECT_EQ(requested_mode(configuration), "tp+ring");
  EXPECT_EQ(requested_mesh(configuration), "ring=2,ulysses=1,tp=4");
}

TEST(RequestedConfigurations, NameModeAndMeshWithTensorParallelism) {
  EXPECT_EQ(requested_mode({{.ring_degree = 2, .ulysses_degree = 2}, 1}), "unified");
  EXPECT_EQ(requested_mesh({{.ring_degree = 2, .ulysses_degree = 2}, 1}), "ring=2,ulysses=2");
  EXPECT_EQ(requested_mode({{}, 2}), "tp");
  EXPECT_EQ(requested_mesh({{}, 2}), "ring=1,ulysses=1,tp=2");
  EXPECT_EQ(requested_mode({{.ulysses_degree = 2}, 2}), "tp+ulysses");
}

TEST(PlanOfModel, SaysWhenThereIsNone) {
  ModelType model;
  model.class_name = "SomeModel";
  model.plans = [](const Json&) { return ModelPlans{.default_cp = ContextParallelPlan{}}; };
  EXPECT_EQ(plan_of_model(model, Json(), "default"), ContextParallelPlan{});
  EXPECT_EQ(message_of(ErrorKind::usage_error, [&] { plan_of_model(model, Json(), "shipped"); }),
            "--plan shipped: SomeModel has no shipped context-parallel plan; expected a plan file");
}

TEST(PlanOfModel, IsEmptyWhereTheModelHasNoneAtAll) {
  ModelType model;
  model.plans = [](const Json&) { return ModelPlans{}; };
  EXPECT_EQ(plan_of_model(model, Json(), "default"), ContextParallelPlan{});
  EXPECT_EQ(plan_of_model(model, Json(), "shipped"), ContextParallelPlan{});
}

TEST(RequestedPlan, NotesThatAModelHasNone) {
  const Subject with_none = Subject::open("qwenimage21", 0), with_one = Subject::open("flux", 0);
  EXPECT_EQ(
      requested_plan({}, with_none).notes,
      std::vector<std::string>{"QwenImage21Transformer2DModel has no context-parallel plan; nothing of it is divided"});
  EXPECT_TRUE(requested_plan({}, with_one).notes.empty());
}

TEST(PlanOfModel, TakesTheOneThatIsAskedFor) {
  ModelType model;
  const ContextParallelPlan plan{{{"a", GatherEntry(ContextParallelOutput{.gather_dim = 1})}}};
  model.plans = [&](const Json&) { return ModelPlans{.shipped_cp = ContextParallelPlan{}, .default_cp = plan}; };
  EXPECT_EQ(plan_of_model(model, Json(), "default"), plan);
  EXPECT_EQ(plan_of_model(model, Json(), "shipped"), ContextParallelPlan{});
}

TEST(RequestedCases, AreAllUnlessOneIsNamed) {
  const Subject subject = Subject::open("flux", 0);
  const std::vector<std::string> all = subject.case_names();
  EXPECT_EQ(requested_cases({}, subject), all);
  EXPECT_EQ(requested_cases({.sources = {}, .case_name = "all"}, subject), all);
  EXPECT_EQ(requested_cases({.sources = {}, .case_name = all[1]}, subject), (std::vector<std::string>{all[1]}));
}

}  // namespace
}  // namespace shardproof
