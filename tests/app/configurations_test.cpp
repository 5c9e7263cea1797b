// From options to configurations and plans.
// What a run without any of the naming options covers is pinned here.
#include "app/configurations.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::message_of;

const ParallelPlans kContext{.cp = ContextParallelPlan{}};
const ParallelPlans kBoth{.cp = ContextParallelPlan{}, .tp = TensorParallelPlan{}};

TEST(RequestedConfigurations, AreTheDefaultSetOfWhatTheModelHasPlansFor) {
  const Options options{.sources = {"flux"}};
  const RequestedConfigurations context = requested_configurations(options, kContext);
  EXPECT_FALSE(context.is_named);
  EXPECT_EQ(context.list.size(), default_configurations().size());
  const RequestedConfigurations both = requested_configurations(options, kBoth);
  EXPECT_EQ(both.list.size(), default_configurations().size() + default_tensor_parallel_configurations().size());
  for (const ParallelConfig& configuration : both.list) {
    if (configuration.context_parallel_config) {
      EXPECT_TRUE(configuration.context_parallel_config->convert_to_fp32);
    }
  }
  EXPECT_EQ(requested_configurations(options, {.tp = TensorParallelPlan{}}).list.size(), 3U);
}

TEST(RequestedConfigurations, KeepOneRotateMethodAndAllThatDoNotRotate) {
  const RequestedConfigurations requested =
      requested_configurations({.sources = {"flux"}, .rotate_method = "alltoall", .convert_to_fp32 = false}, kContext);
  EXPECT_FALSE(requested.is_named);
  int rings = 0;
  int others = 0;
  for (const ParallelConfig& configuration : requested.list) {
    const ContextParallelConfig& context = *configuration.context_parallel_config;
    EXPECT_FALSE(context.convert_to_fp32);
    const bool rotates = effective_ring_degree(context) > 1;
    (rotates ? rings : others)++;
    EXPECT_EQ(context.rotate_method, rotates ? "alltoall" : "allgather");
  }
  EXPECT_EQ(rings, 7);
  EXPECT_EQ(others, 6);
}

// Such a run would be the dense one; the default set is not what was asked for either.
TEST(RequestedConfigurations, RefuseDegreesThatAreAllOne) {
  const auto refusal = [](const Options& options) {
    return message_of(ErrorKind::usage_error, [&] { (void)requested_configurations(options, kBoth); });
  };
  const std::string expectation =
      ": on one rank nothing is divided; expected at least one degree of 2 or more, or no degree at all for every mode";
  EXPECT_EQ(refusal({.sources = {"flux"}, .tp_degree = 1}), "--tp-degree 1" + expectation);
  EXPECT_EQ(refusal({.sources = {"flux"}, .ring_degree = 1}), "--ring-degree 1" + expectation);
  EXPECT_EQ(refusal({.sources = {"flux"}, .ulysses_degree = 1}), "--ulysses-degree 1" + expectation);
  EXPECT_EQ(refusal({.sources = {"flux"}, .ring_degree = 1, .ulysses_degree = 1, .tp_degree = 1}),
            "--tp-degree 1 --ring-degree 1 --ulysses-degree 1" + expectation);
}

// As in a mesh, a degree of 1 says that this kind is not used.
TEST(RequestedConfigurations, TakeADegreeOfOneBesideALargerOne) {
  const auto mode = [](const Options& options) {
    const RequestedConfigurations requested = requested_configurations(options, kBoth);
    EXPECT_TRUE(requested.is_named);
    return mode_name(requested.list.front());
  };
  EXPECT_EQ(mode({.sources = {"flux"}, .ring_degree = 2, .tp_degree = 1}), "ring");
  EXPECT_EQ(mode({.sources = {"flux"}, .ring_degree = 1, .ulysses_degree = 2}), "ulysses");
  EXPECT_EQ(mode({.sources = {"flux"}, .ring_degree = 1, .tp_degree = 2}), "tp");
}

// Dimensions of size 1 are those that a common mesh leaves unused; without tensor parallelism nothing would be left.
TEST(RequestedConfigurations, DivideNoTokensOnAMeshWhoseRingAndUlyssesAreOne) {
  const auto context_on = [](const char* mesh) {
    Options options;
    options.mesh = Mesh::parse(mesh);
    return requested_configurations(options, kBoth).list.front().context_parallel_config.has_value();
  };
  EXPECT_FALSE(context_on("tp=2,ring=1,ulysses=1"));
  EXPECT_FALSE(context_on("dp=2,ulysses=1,ring=1,tp=2"));
  EXPECT_TRUE(context_on("tp=1,ring=1,ulysses=1"));
  EXPECT_TRUE(context_on("tp=2,ring=1,ulysses=2"));
  EXPECT_TRUE(context_on("tp=2,ring=1"));
}

TEST(RequestedConfigurations, AreOneAsSoonAsAnyNamingOptionIsGiven) {
  const std::vector<std::pair<std::function<void(Options&)>, std::string>> namings{
      {[](Options& options) { options.ring_degree = 2; }, "ring"},
      {[](Options& options) { options.ulysses_degree = 2; }, "ulysses"},
      {[](Options& options) { options.tp_degree = 2; }, "tp"},
      {[](Options& options) { options.mesh = Mesh::parse("ring=2,ulysses=2"); }, "unified"},
      {[](Options& options) { options.mesh = Mesh::parse("tp=2,dp=3"); }, "tp"},
      {[](Options& options) { options.mesh = Mesh::parse("ring=1,tp=2,ulysses=1"); }, "tp"},
      {[](Options& options) { options.ulysses_anything = true; }, "none"},
      {[](Options& options) { options.ring_anything = true; }, "none"},
  };
  for (const auto& [name, mode] : namings) {
    Options options;
    name(options);
    const RequestedConfigurations requested = requested_configurations(options, kBoth);
    EXPECT_TRUE(requested.is_named);
    ASSERT_EQ(requested.list.size(), 1U);
    EXPECT_EQ(mode_name(requested.list.front()), mode);
  }
}

TEST(RequestedConfigurations, TakeADimensionTpForTensorParallelism) {
  Options options;
  options.mesh = Mesh::parse("ring=2,ulysses=1,tp=4");
  const ParallelConfig configuration = requested_configurations(options, kBoth).list.front();
  EXPECT_EQ(effective_tp_degree(configuration), 4);
  EXPECT_EQ(mode_name(configuration), "tp+ring");
  EXPECT_EQ(effective_mesh(configuration).text(), "ring=2,ulysses=1,tp=4");
}

TEST(RequestedConfigurations, PutTensorParallelismFirstInTheMeshTheyMake) {
  Options options;
  options.tp_degree = 2;
  options.ulysses_degree = 3;
  EXPECT_EQ(effective_mesh(requested_configurations(options, kBoth).list.front()).text(), "tp=2,ring=1,ulysses=3");
}

TEST(NamedPlans, SayWhenThereIsNoneOfThatName) {
  ModelType model;
  model.class_name = "SomeModel";
  model.plans = [](const Json&) { return ModelPlans{.default_cp = ContextParallelPlan{}}; };
  EXPECT_EQ(named_plans(model, Json(), "default").cp, ContextParallelPlan{});
  EXPECT_EQ(message_of(ErrorKind::usage_error, [&] { named_plans(model, Json(), "shipped"); }),
            "--plan shipped: SomeModel has no shipped context-parallel plan; expected a plan file");
}

TEST(NamedPlans, AreEmptyWhereTheModelHasNoneAtAll) {
  ModelType model;
  model.plans = [](const Json&) { return ModelPlans{}; };
  EXPECT_EQ(named_plans(model, Json(), "default").cp, ContextParallelPlan{});
  EXPECT_EQ(named_plans(model, Json(), "shipped").cp, ContextParallelPlan{});
  EXPECT_FALSE(named_plans(model, Json(), "default").tp.has_value());
}

TEST(RequestedPlan, NotesThatAModelHasNone) {
  const Subject with_none = Subject::open("qwenimage21", 0), with_one = Subject::open("flux", 0);
  EXPECT_EQ(
      requested_plan({}, with_none).notes,
      std::vector<std::string>{"QwenImage21Transformer2DModel has no context-parallel plan; nothing of it is divided"});
  EXPECT_TRUE(requested_plan({}, with_one).notes.empty());
}

TEST(NamedPlans, AreTheOnesThatAreAskedFor) {
  ModelType model;
  const ContextParallelPlan plan{{{"a", GatherEntry(ContextParallelOutput{.gather_dim = 1})}}};
  model.plans = [&](const Json&) { return ModelPlans{.shipped_cp = ContextParallelPlan{}, .default_cp = plan}; };
  EXPECT_EQ(named_plans(model, Json(), "default").cp, plan);
  EXPECT_EQ(named_plans(model, Json(), "shipped").cp, ContextParallelPlan{});
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
