// Context parallelism on a whole small model: hooks that are registered, removed and refused without a trace; entries
// that divide, skip and gather; enabling in the order of reporting; replicas with inputs of their own.
#include "parallel/context_parallel.h"

#include <array>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "reference/eigen_device.h"
#include "tests/support/attention_problem.h"
#include "tests/support/rank_results.h"
#include "tests/support/small_model.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr double kTolerance = 1e-12;  // relative; two layers of float64

ContextParallelInput input(int dim, int dims) { return {.split_dim = dim, .expected_dims = dims}; }

// All hooks of a tree, and where attention has a state.
std::string fingerprint(Module& root) {
  std::string text;
  root.for_each_module([&](Module& module) {
    if (module.has_hooks()) text += module.path() + ":\n" + module.hooks().describe();
    const auto* slot = dynamic_cast<const AttentionSlot*>(&module);
    if (slot != nullptr && slot->context_parallel() != nullptr) text += module.path() + ": state\n";
  });
  return text;
}

// "plan_error: what it says", or "completed".
class ContextParallelTest : public testing::Test {
 protected:
  using State = std::shared_ptr<const ContextParallelState>;
  using RankBody = std::function<std::vector<std::string>(SmallModel& model, const State& state, Communicator& world)>;

  // What a body observes on every rank, with a model and a state; all ranks must observe the same.
  std::vector<std::string> observed(const ContextParallelConfig& mode, const RankBody& body) {
    const auto results = rank_results(effective_mesh(mode).size(), [&](Communicator& world) {
      const auto model = weights.make_model();
      return body(*model, std::make_shared<const ContextParallelState>(world, mode), world);
    });
    for (const auto& result : results) EXPECT_EQ(result, results.front());
    return results.front();
  }
  Arguments inputs(const SmallInputShape& shape = {}, std::uint64_t seed = 1) {
    return small_model_inputs(shape, *device, host, kFloat64, seed);
  }
  HostArray dense(const Arguments& arguments) { return to_host(weights.make_model()->call(arguments).tensors.front()); }
  // The outcome of one parallel call under a plan.
  std::string call_under(const ContextParallelPlan& cp_plan, const Arguments& arguments) {
    return outcome_of([&] {
      observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
        apply_context_parallel(model, state, cp_plan);
        model.call(arguments);
        return std::vector<std::string>{};
      });
    });
  }

  SmallModelConfig config{.heads = 6, .layers = 2};
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
  HostDevice host;
  SmallModelWeights weights{config, *device, kFloat64, 1};
  ContextParallelPlan plan = small_model_plan(config);
};

double relative_difference(const HostArray& actual, const HostArray& expected) {
  return max_difference(actual, expected) / max_magnitude(expected);
}

// ---- equal to dense

TEST_F(ContextParallelTest, EqualsDenseInEveryModeWithEveryKindOfInput) {
  for (const ContextParallelConfig& mode :
       {ulysses_config(2), ulysses_config(3), ulysses_config(4, Lengths::anything), ring_config(3, "allgather"),
        ring_config(4, "alltoall", Lengths::anything), ring_config(3, "allgather", Lengths::anything),
        unified_config(2, 2, "alltoall"), unified_config(2, 3, "allgather")}) {
    const bool anything = mode.ulysses_anything || mode.ring_anything;
    SmallModelConfig small = config;
    if (mode.ulysses_anything) small.heads = 7;
    const SmallModelWeights own(small, *device, kFloat64, 2);
    for (const bool per_token : {true, false}) {
      const SmallInputShape shape{.batch = 2,
                                  .text = anything ? 7 : 12,
                                  .image = anything ? 11 : 24,
                                  .timestep_per_token = per_token,
                                  .has_text_mask = per_token};
      const Arguments arguments = inputs(shape);
      const HostArray expected = to_host(own.make_model()->call(arguments).tensors.front());
      const auto outputs = rank_results(effective_mesh(mode).size(), [&](Communicator& world) {
        const auto model = own.make_model();
        apply_context_parallel(*model, std::make_shared<const ContextParallelState>(world, mode), plan);
        return to_host(model->call(arguments).tensors.front());
      });
      for (const HostArray& output : outputs) {
        EXPECT_LE(relative_difference(output, expected), kTolerance) << mode_name(mode) << " " << per_token;
        EXPECT_EQ(output.values, outputs.front().values) << mode_name(mode);
      }
    }
  }
}

TEST_F(ContextParallelTest, EqualsDenseWithADividedContext) {
  config.context = Placement::split;
  const SmallModelWeights own(config, *device, kFloat64, 2);
  const Arguments arguments = inputs({.batch = 2, .text = 8, .image = 12, .context = 4});
  const HostArray expected = to_host(own.make_model()->call(arguments).tensors.front());
  const auto outputs = rank_results(4, [&](Communicator& world) {
    const auto model = own.make_model();
    const State state = std::make_shared<const ContextParallelState>(world, unified_config(2, 2, "allgather"));
    apply_context_parallel(*model, state, small_model_plan(config));
    const HostArray output = to_host(model->call(arguments).tensors.front());
    return std::pair(output, state->attention_exchanges());
  });
  for (const auto& [output, exchanges] : outputs) {
    EXPECT_LE(relative_difference(output, expected), kTolerance);
    EXPECT_EQ(exchanges, 4);  // joint and cross attention of two layers
  }
}

// Buffers and lengths of one call must not live on in the next.
TEST_F(ContextParallelTest, EqualsDenseInSuccessiveCallsOfDifferentShapes) {
  const std::vector<SmallInputShape> shapes{{.batch = 2, .text = 7, .image = 11},
                                            {.batch = 1, .text = 5, .image = 17, .context = 3},
                                            {.batch = 2, .text = 7, .image = 11, .has_text_mask = false}};
  std::vector<Arguments> calls;
  for (std::size_t i = 0; i < shapes.size(); ++i) calls.push_back(inputs(shapes[i], i));
  const auto outputs = rank_results(3, [&](Communicator& world) {
    const auto model = weights.make_model();
    apply_context_parallel(
        *model, std::make_shared<const ContextParallelState>(world, ring_config(3, "alltoall", Lengths::anything)),
        plan);
    std::vector<HostArray> results;
    for (const Arguments& call : calls) results.push_back(to_host(model->call(call).tensors.front()));
    return results;
  });
  for (std::size_t i = 0; i < calls.size(); ++i) {
    for (const auto& results : outputs) EXPECT_LE(relative_difference(results[i], dense(calls[i])), kTolerance) << i;
  }
}

TEST_F(ContextParallelTest, RunsReplicasOnInputsOfTheirOwn) {
  for (const std::string mesh_text : {"ring=2,ulysses=1,fsdp=2", "dp=2,ulysses=2,ring=1", "ulysses=2,dp=3,ring=2"}) {
    const Mesh mesh = Mesh::parse(mesh_text);
    const ContextParallelConfig mode{.mesh = mesh};
    constexpr std::array<std::string_view, 2> kFlat{"ring", "ulysses"};
    const auto outputs = rank_results(mesh.size(), [&](Communicator& world) {
      const auto model = weights.make_model();
      apply_context_parallel(*model, std::make_shared<const ContextParallelState>(world, mode), plan);
      const auto replica = static_cast<std::uint64_t>(mesh.group_number(world.rank(), kFlat));
      return to_host(model->call(inputs({}, 10 + replica)).tensors.front());
    });
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const auto replica = static_cast<std::uint64_t>(mesh.group_number(rank, kFlat));
      EXPECT_LE(relative_difference(outputs[static_cast<std::size_t>(rank)], dense(inputs({}, 10 + replica))),
                kTolerance)
          << mesh_text << ", rank " << rank;
    }
  }
}

// ---- hooks

TEST_F(ContextParallelTest, RegistersNamedHooksAndGivesEveryAttentionTheState) {
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    const bool before = context_parallel_is_applied(model);
    apply_context_parallel(model, state, plan);
    return std::vector<std::string>{before ? "applied" : "free",
                                    context_parallel_is_applied(model) ? "applied" : "free", fingerprint(model)};
  });
  EXPECT_THAT(seen, ElementsAre("free", "applied",
                                ":\n(0) cp_input--- - ContextParallelSplitHook\n"
                                "blocks.0.attn: state\nblocks.0.cross_attn: state\n"
                                "blocks.1.attn: state\nblocks.1.cross_attn: state\n"
                                "proj_out:\n(0) cp_output---proj_out - ContextParallelGatherHook\n"));
}

TEST_F(ContextParallelTest, NamesHooksByPatternSoThatTwoPatternsMeetOnOneModule) {
  const ContextParallelPlan patterns{{{"blocks.0", SplitEntries{{"hidden_states", input(1, 3)}}},
                                      {"blocks.*", SplitEntries{{"attention_mask", input(1, 2)}}},
                                      {"blocks.*", GatherEntry(std::vector<ContextParallelOutput>(2))}}};
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    apply_context_parallel(model, state, patterns);
    std::vector<std::string> result{model.find_module("blocks.0")->hooks().describe(),
                                    model.find_module("blocks.1")->hooks().describe()};
    remove_context_parallel(model, patterns);
    result.push_back(fingerprint(model));
    return result;
  });
  EXPECT_THAT(seen, ElementsAre("(0) cp_input---blocks.0 - ContextParallelSplitHook\n"
                                "(1) cp_input---blocks.* - ContextParallelSplitHook\n"
                                "(2) cp_output---blocks.* - ContextParallelGatherHook\n",
                                "(0) cp_input---blocks.* - ContextParallelSplitHook\n"
                                "(1) cp_output---blocks.* - ContextParallelGatherHook\n",
                                ""));
}

TEST_F(ContextParallelTest, ReturnsToTheDenseBitsWhenRemoved) {
  const Arguments arguments = inputs();
  const HostArray expected = dense(arguments);
  const auto outputs = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const State state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
    apply_context_parallel(*model, state, plan);
    model->call(arguments);
    remove_context_parallel(*model, plan);
    const std::string left = fingerprint(*model);
    const HostArray after = to_host(model->call(arguments).tensors.front());
    apply_context_parallel(*model, state, plan);  // and again
    const HostArray again = to_host(model->call(arguments).tensors.front());
    return std::tuple(left, after, again);
  });
  for (const auto& [left, after, again] : outputs) {
    EXPECT_EQ(left, "");
    EXPECT_EQ(after.values, expected.values);
    EXPECT_LE(relative_difference(again, expected), kTolerance);
  }
}

TEST_F(ContextParallelTest, RemovesNothingForAPlanThatDoesNotFit) {
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    apply_context_parallel(model, state, plan);
    const std::string before = fingerprint(model);
    const ContextParallelPlan other{{{"", SplitEntries{}}, {"rope", SplitEntries{}}}};
    const std::string error = outcome_of([&] { remove_context_parallel(model, other); });
    return std::vector<std::string>{error, fingerprint(model) == before ? "unchanged" : fingerprint(model)};
  });
  EXPECT_THAT(seen, ElementsAre(StartsWith("plan_error: module id 'rope': 'rope' was not found"), "unchanged"));
}

TEST_F(ContextParallelTest, RefusesASecondApplicationAndLeavesTheFirst) {
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    apply_context_parallel(model, state, plan);
    const std::string before = fingerprint(model);
    const std::string error = outcome_of([&] { apply_context_parallel(model, state, {}); });
    return std::vector<std::string>{error, fingerprint(model) == before ? "unchanged" : fingerprint(model)};
  });
  EXPECT_THAT(seen, ElementsAre("state_error: context parallelism is applied to this SmallModel already; it cannot be "
                                "applied twice (remove it first)",
                                "unchanged"));
}

// A plan without entries leaves no hook; the attention modules carry the mark.
TEST_F(ContextParallelTest, RefusesASecondApplicationAfterAPlanWithoutEntries) {
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    apply_context_parallel(model, state, {});
    return std::vector<std::string>{outcome_of([&] { apply_context_parallel(model, state, plan); })};
  });
  EXPECT_THAT(seen, ElementsAre(StartsWith("state_error: context parallelism is applied to this SmallModel already")));
}

// A model without attention carries the mark in its hooks.
TEST_F(ContextParallelTest, RefusesASecondApplicationToAModuleWithoutAttention) {
  const ContextParallelPlan first{{{"", SplitEntries{{"hidden_states", input(1, 3)}}}}};
  const ContextParallelPlan second{{{"", GatherEntry(ContextParallelOutput{.gather_dim = 1})}}};
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    Module& linear = *model.find_module("proj_out");
    apply_context_parallel(linear, state, first);
    const std::string error = outcome_of([&] { apply_context_parallel(linear, state, second); });
    remove_context_parallel(linear, first);
    return std::vector<std::string>{error, outcome_of([&] { apply_context_parallel(linear, state, second); })};
  });
  EXPECT_THAT(
      seen, ElementsAre(StartsWith("state_error: context parallelism is applied to this Linear already"), "completed"));
}

TEST_F(ContextParallelTest, LeavesTheModelAsItWasWhenAPlanIsRefused) {
  const ContextParallelPlan faulty{{{"", SplitEntries{{"hidden_states", input(1, 3)}}},
                                    {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1})},
                                    {"blocks.*", SplitEntries{{"mask", input(1, 2)}}},
                                    {"norm", SplitEntries{}}}};
  const auto seen = observed(ulysses_config(2), [&](SmallModel& model, const State& state, Communicator&) {
    const std::string error = outcome_of([&] { apply_context_parallel(model, state, faulty); });
    const std::string left = fingerprint(model);
    // A failure does not count as applied.
    return std::vector<std::string>{error, left, outcome_of([&] { apply_context_parallel(model, state, plan); })};
  });
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_THAT(seen[0],
              StartsWith("plan_error: plan entry 'mask' of module id 'blocks.*' (module 'blocks.0'): is not an "
                         "argument of SmallBlock"));
  EXPECT_THAT(seen[0], HasSubstr("; also: plan entry 'mask' of module id 'blocks.*' (module 'blocks.1')"));
  EXPECT_THAT(seen[0], HasSubstr("; also: module id 'norm': 'norm' was not found"));
  EXPECT_EQ(seen[1], "");
  EXPECT_EQ(seen[2], "completed");
}

class UnsupportedAttention final : public Module, public AttentionSlot {
 public:
  UnsupportedAttention() : Module("UnsupportedAttention") {}
  std::span<const ArgumentSpec> forward_arguments() const override { return {}; }
  Outputs forward(Arguments&) override { return Outputs(Tensor()); }
  std::string_view context_parallel_obstacle() const override { return "it is deaf"; }
};

TEST_F(ContextParallelTest, LooksAtEveryAttentionModule) {
  const auto seen = observed(ulysses_config(2), [&](SmallModel&, const State& state, Communicator&) {
    ModuleList list;
    list.append<SmallModel>(config);
    list.append<UnsupportedAttention>();
    return std::vector<std::string>{outcome_of([&] { apply_context_parallel(list, state, {}); }), fingerprint(list)};
  });
  EXPECT_THAT(seen,
              ElementsAre("unsupported_error: the attention of module '1' (UnsupportedAttention) does not support "
                          "context parallelism: it is deaf",
                          ""));
}

// ---- entries at run time

TEST_F(ContextParallelTest, SkipsAndReportsAValueOfAnotherRank) {
  const Arguments arguments = inputs({.timestep_per_token = false});
  const HostArray expected = dense(arguments);
  const auto results = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const State state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
    apply_context_parallel(*model, state, plan);
    const HostArray output = to_host(model->call(arguments).tensors.front());
    model->call(arguments);
    return std::pair(output, state->skipped());
  });
  for (const auto& [output, skipped] : results) {
    EXPECT_LE(relative_difference(output, expected), kTolerance);
    ASSERT_EQ(skipped.size(), 1U);
    EXPECT_EQ(skipped[0].module, "");
    EXPECT_EQ(skipped[0].argument, "timestep");
    EXPECT_EQ(skipped[0].reason, "1 dimension, plan expects 2");
  }
}

TEST_F(ContextParallelTest, RecordsOnceWhichArgumentsWereNotGiven) {
  Arguments without = inputs({.has_text_mask = false});
  Arguments none = without;
  none.set("text_mask", Value());
  const auto results = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const State state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
    apply_context_parallel(*model, state, plan);
    model->call(without);
    model->call(none);
    return state->omitted();
  });
  for (const std::vector<SkippedEntry>& omitted : results) {
    const auto is_mask = [](const SkippedEntry& entry) { return entry.argument == "text_mask"; };
    ASSERT_EQ(std::count_if(omitted.begin(), omitted.end(), is_mask), 1);
    EXPECT_EQ(*std::find_if(omitted.begin(), omitted.end(), is_mask), (SkippedEntry{"", "text_mask", "not given"}));
  }
}

TEST_F(ContextParallelTest, RefusesAValueOfAnotherRankWhereTheEntrySaysSo) {
  auto& entries = std::get<SplitEntries>(plan.entries[0].second);
  std::get<ContextParallelInput>(entries[2].second).on_mismatch = OnMismatch::error;
  EXPECT_THAT(
      call_under(plan, inputs({.timestep_per_token = false})),
      StartsWith("shape_error: rank 0: argument 'timestep' of module '' (SmallModel): 1 dimension, plan expects "
                 "2\n"));
}

TEST_F(ContextParallelTest, LeavesAbsentAndNoneArgumentsToTheirDefaults) {
  Arguments arguments = inputs({.has_text_mask = false});
  EXPECT_EQ(arguments.find("text_mask"), nullptr);
  EXPECT_EQ(call_under(plan, arguments), "completed");
  arguments.set("text_mask", Value());
  arguments.set("controlnet_samples", Value());
  EXPECT_EQ(call_under(plan, arguments), "completed");
}

TEST_F(ContextParallelTest, DividesEveryElementOfAListByOneEntry) {
  Arguments arguments = inputs({.batch = 2, .text = 4, .image = 8});
  std::vector<Tensor> samples;
  for (const char* name : {"first", "second"}) {
    samples.push_back(to_device(*device, random_array({2, 8, 24}, 1, name), kFloat64));
  }
  arguments.set("controlnet_samples", samples);
  const HostArray expected = dense(arguments);
  const auto results = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const State state = std::make_shared<const ContextParallelState>(world, ring_config(2, "alltoall"));
    apply_context_parallel(*model, state, plan);
    return to_host(model->call(arguments).tensors.front());
  });
  for (const HostArray& output : results) EXPECT_LE(relative_difference(output, expected), kTolerance);
}

// Calls a module that returns its list argument, with hooks of its own.
class EchoModule final : public Module {
 public:
  EchoModule() : Module("EchoModule") {}
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{"list", ArgumentKind::value}, {"flag", ArgumentKind::setting}};
    return kArguments;
  }
  Outputs forward(Arguments& arguments) override { return Outputs(arguments.tensor_list("list")); }
};

class EntryTest : public testing::Test {
 protected:
  // Shapes that rank 1 of two sees after an echo under the entry, or the error.
  std::string echo(const ModuleEntry& entry, const Arguments& arguments) {
    std::vector<std::string> seen;
    const std::string error = outcome_of([&] {
      seen = rank_results(2, [&](Communicator& world) {
        EchoModule module;
        const auto state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
        apply_context_parallel(module, state, {{{"", entry}}});
        std::string text;
        for (const Tensor& output : module.call(arguments).tensors) text += output.shape().text() + " ";
        for (const SkippedEntry& skipped : state->skipped()) text += skipped.argument + ": " + skipped.reason + " ";
        return text;
      });
    });
    return seen.empty() ? error : seen[1];
  }
  Tensor tensor(const Shape& shape) { return ops::zeros(device, shape, kInt64); }
  Arguments list(std::vector<Tensor> tensors) { return {{"list", std::move(tensors)}}; }
  HostDevice device;
};

TEST_F(EntryTest, DividesAListElementByElement) {
  const SplitEntries entries{{"list", std::vector{ContextParallelInput{.split_dim = 0},
                                                  ContextParallelInput{.split_dim = -1, .expected_dims = 2}}}};
  EXPECT_EQ(echo(entries, list({tensor({4, 6}), tensor({4, 6})})), "[2, 6] [4, 3] ");
}

TEST_F(EntryTest, LeavesListElementsMarkedAsOutputsWhole) {
  const SplitEntries entries{{"list", std::vector{ContextParallelInput{.split_dim = 0, .split_output = true},
                                                  ContextParallelInput{.split_dim = 0}}}};
  EXPECT_EQ(echo(entries, list({tensor({4}), tensor({4})})), "[4] [2] ");
}

TEST_F(EntryTest, ReportsSkippedElementsByTheirIndex) {
  EXPECT_EQ(echo(SplitEntries{{"list", input(0, 1)}}, list({tensor({4}), tensor({4, 4})})),
            "[2] [4, 4] list.1: 2 dimensions, plan expects 1 ");
}

TEST_F(EntryTest, DividesOutputsByIndex) {
  const SplitEntries entries{{1, ContextParallelInput{.split_dim = 1, .split_output = true}}};
  EXPECT_EQ(echo(entries, list({tensor({4, 4}), tensor({4, 4})})), "[4, 4] [4, 2] ");
  EXPECT_THAT(
      echo(entries, list({tensor({4, 4})})),
      StartsWith("plan_error: rank 0: plan entry '1' of module '' (EchoModule): the module returned 1 output\n"));
  EXPECT_THAT(echo(entries, list({tensor({4, 4}), tensor({4, 3})})),
              StartsWith("shape_error: rank 0: output 1 of module '' (EchoModule): axis 1 has 3 entries, which 2 ranks "
                         "cannot divide equally; the nearest legal lengths are 2 and 4"));
}

TEST_F(EntryTest, RefusesListsOfAnotherLengthAndOtherKinds) {
  const SplitEntries entries{{"list", std::vector{ContextParallelInput{.split_dim = 0}}}};
  EXPECT_THAT(echo(entries, list({tensor({4}), tensor({4})})),
              StartsWith("plan_error: rank 0: argument 'list' of module '' (EchoModule): the plan has 1 entries for a "
                         "list of 2\n"));
  EXPECT_THAT(
      echo(entries, {{"list", tensor({4})}}),
      StartsWith("plan_error: rank 0: argument 'list' of module '' (EchoModule): the plan lists several entries "
                 "for a single tensor\n"));
  EXPECT_THAT(echo(SplitEntries{{"flag", ContextParallelInput{.split_dim = 0}}}, {{"flag", true}}),
              StartsWith("plan_error: rank 0: argument 'flag' of module '' (EchoModule): a bool cannot be divided; a "
                         "tensor or a list of tensors is expected\n"));
}

TEST_F(EntryTest, NamesAnAxisThatTheTensorDoesNotHave) {
  EXPECT_THAT(
      echo(SplitEntries{{"list", ContextParallelInput{.split_dim = 2}}}, list({tensor({4, 4})})),
      StartsWith("shape_error: rank 0: argument 'list.0' of module '' (EchoModule) has 2 dimensions; the plan's "
                 "split_dim 2 lies outside them\n"));
  EXPECT_THAT(
      echo(GatherEntry(ContextParallelOutput{.gather_dim = 1}), list({tensor({4})})),
      StartsWith("shape_error: rank 0: output 0 of module '' (EchoModule) has 1 dimension; the plan's gather_dim "
                 "1 lies outside them\n"));
}

TEST_F(EntryTest, GathersEveryOutputThatThePlanLists) {
  const GatherEntry both(
      std::vector{ContextParallelOutput{.gather_dim = 0}, ContextParallelOutput{.gather_dim = -1, .expected_dims = 2}});
  EXPECT_EQ(echo(both, list({tensor({2, 3}), tensor({2, 3})})), "[4, 3] [2, 6] ");
  EXPECT_THAT(echo(both, list({tensor({2, 3})})),
              StartsWith("plan_error: rank 0: module '' (EchoModule) returned 1 output, but the plan gathers 2\n"));
  EXPECT_THAT(echo(both, list({tensor({2, 3}), tensor({2})})),
              StartsWith("shape_error: rank 0: output 1 of module '' (EchoModule) has 1 dimension, plan expects 2"));
}

TEST_F(EntryTest, ChecksOutputsOnlyWhereThereIsSomethingToSplit) {
  EXPECT_EQ(echo(SplitEntries{{"list", input(0, 1)}}, list({})), "");
}

}  // namespace
}  // namespace shardproof::test
