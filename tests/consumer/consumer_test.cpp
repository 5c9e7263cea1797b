// A user's own model and plan, verified on simulated ranks from the user's own test suite.
// It is compiled against the installed package only.
#include <gtest/gtest.h>

#include "parallel/attention.h"
#include "verify/verifier.h"

using namespace shardproof;

struct MyAttention final : Module, AttentionSlot {
  MyAttention() : Module("MyAttention"), to_q(add_child<Linear>("to_q", 8, 8)) {}
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{"x"}};
    return kArguments;
  }
  Outputs forward(Arguments& arguments) override {
    const Tensor x = arguments.tensor("x").unflatten(-1, 2, 4);  // [batch, tokens, heads, head_dim]
    const Tensor q = to_q(arguments.tensor("x")).unflatten(-1, 2, 4);
    return attention(q, x, x, {}, {}, context_parallel()).out;
  }
  Linear& to_q;
};

TEST(MyModel, ComputesTheSameOnEveryRank) {
  ModelType model{.class_name = "MyAttention", .short_name = "mine"};
  model.create = [](const Json&, const ModelContext&) { return std::make_unique<MyAttention>(); };
  model.hostile_config = [] { return Json::object(); };
  model.hostile_cases = [](std::uint64_t seed, Device& host) {
    return std::vector<ModelCase>{{"one", {{"x", random_input(host, seed, "x", {2, 7, 8})}}, {"out"}}};
  };
  const ContextParallelPlan plan{{{"", SplitEntries{{"x", ContextParallelInput{.split_dim = 1}}}},
                                  {"", GatherEntry(ContextParallelOutput{.gather_dim = 1})}}};
  Subject subject = Subject::of_model(model, 1);
  Verifier verifier(subject, {});
  const auto result = verifier.verify("one", {.ring_degree = 3, .ring_anything = true}, plan);
  EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
}
