// Plans against a model: what module ids name, and every problem that is found before anything changes.
// The model is the small test model with three blocks.
#include "parallel/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/small_model.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PlanTest : public testing::Test {
 protected:
  std::vector<std::string> resolved(std::string_view id) {
    std::vector<std::string> paths;
    for (Module* module : resolve_module_id(model, id)) paths.push_back(module->path());
    return paths;
  }
  std::string refusal(std::string_view id) {
    const auto error = thrown_by([&] { resolve_module_id(model, id); });
    if (!error) return "accepted";
    EXPECT_EQ(error->kind, ErrorKind::plan_error);
    return error->message;
  }
  // The problem of one entry on the root, without its prefix.
  std::vector<std::string> problems(const SplitKey& key, const SplitEntry& entry) {
    return plan_problems(model, {{{"", SplitEntries{{key, entry}}}}});
  }
  SmallModel model{{.layers = 3}};
};

ContextParallelInput input(int dim, std::optional<int> dims = std::nullopt, bool output = false) {
  return {.split_dim = dim, .expected_dims = dims, .split_output = output};
}

TEST_F(PlanTest, ResolvesRootNamesElementsAndOneWildcard) {
  EXPECT_THAT(resolved(""), ElementsAre(""));
  EXPECT_THAT(resolved("proj_out"), ElementsAre("proj_out"));
  EXPECT_THAT(resolved("blocks.1"), ElementsAre("blocks.1"));
  EXPECT_THAT(resolved("blocks.2.attn.to_q"), ElementsAre("blocks.2.attn.to_q"));
  EXPECT_THAT(resolved("blocks.*"), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(resolved("blocks.*.attn.to_q"),
              ElementsAre("blocks.0.attn.to_q", "blocks.1.attn.to_q", "blocks.2.attn.to_q"));
}

TEST_F(PlanTest, RefusesIdsThatNameNothingAndSaysWhatExists) {
  EXPECT_EQ(refusal("rope"),
            "module id 'rope': 'rope' was not found in '' (SmallModel); it has x_embedder, text_embedder, "
            "context_embedder, blocks, proj_out");
  EXPECT_EQ(refusal("blocks.first"),
            "module id 'blocks.first': 'first' was not found in 'blocks' (ModuleList); its elements are 0..2");
  EXPECT_EQ(refusal("proj_out.weight"),
            "module id 'proj_out.weight': 'weight' was not found in 'proj_out' (Linear); it has no children");
  EXPECT_EQ(refusal("blocks.3"),
            "module id 'blocks.3': index 3 is past the end of 'blocks' (ModuleList), which has 3 elements");
  EXPECT_EQ(refusal("blocks.01"),
            "module id 'blocks.01': '01' was not found in 'blocks' (ModuleList); its elements are 0..2");
  EXPECT_EQ(refusal("blocks.-1"),
            "module id 'blocks.-1': '-1' was not found in 'blocks' (ModuleList); its elements are 0..2");
}

TEST_F(PlanTest, RefusesWildcardsThatAreTwoOrStandNoList) {
  EXPECT_EQ(refusal("*.*"), "module id '*.*': at most one '*' is allowed");
  EXPECT_EQ(refusal("*"), "module id '*': '*' stands for the elements of a module list, but '' is a SmallModel");
  EXPECT_EQ(refusal("blocks.0.*"),
            "module id 'blocks.0.*': '*' stands for the elements of a module list, but 'blocks.0' is a SmallBlock");
  EXPECT_EQ(refusal("blocks*"),
            "module id 'blocks*': 'blocks*' was not found in '' (SmallModel); it has x_embedder, text_embedder, "
            "context_embedder, blocks, proj_out");
}

TEST_F(PlanTest, RefusesEmptyAtoms) {
  EXPECT_EQ(refusal("blocks."), "module id 'blocks.' ends with a dot");
  EXPECT_THAT(refusal(".blocks"), testing::StartsWith("module id '.blocks': '' was not found in ''"));
  EXPECT_THAT(refusal("blocks..0"), testing::StartsWith("module id 'blocks..0': '' was not found in 'blocks'"));
}

TEST_F(PlanTest, HasNoProblemsWithAPlanThatFits) {
  EXPECT_THAT(plan_problems(model, small_model_plan({})), IsEmpty());
  EXPECT_THAT(problems("hidden_states", input(-2, 3)), IsEmpty());
  EXPECT_THAT(problems("hidden_states", input(7)), IsEmpty());
  EXPECT_THAT(problems(1, input(1, 3, true)), IsEmpty());
  // In a list an entry with split_output leaves its element whole.
  EXPECT_THAT(problems("controlnet_samples", std::vector{input(1, 3), input(1, 3, true)}), IsEmpty());
}

std::string problem(std::string_view name, std::string_view what) {
  return "plan entry '" + std::string(name) + "' of module id '' (module ''): " + std::string(what);
}

TEST_F(PlanTest, FindsArgumentsThatDoNotExist) {
  EXPECT_THAT(problems("hidden_state", input(1)),
              ElementsAre(problem("hidden_state",
                                  "is not an argument of SmallModel; its arguments are hidden_states, "
                                  "encoder_hidden_states, context, timestep, text_mask, img_ids, txt_ids, "
                                  "controlnet_samples")));
}

TEST_F(PlanTest, FindsKeysThatDoNotMatchSplitOutput) {
  EXPECT_THAT(problems("hidden_states", input(1, 3, true)),
              ElementsAre(problem("hidden_states",
                                  "is an argument name and cannot have split_output=true; use an output index")));
  EXPECT_THAT(problems(0, input(1, 3)), ElementsAre(problem("0", "is an output index and needs split_output=true")));
  EXPECT_THAT(problems(-1, input(1, 3, true)), ElementsAre(problem("-1", "is a negative output index")));
  EXPECT_THAT(problems(0, std::vector{input(1, 3, true)}),
              ElementsAre(problem("0", "is an output index, which takes one entry and no list")));
}

TEST_F(PlanTest, FindsDimsThatCannotBe) {
  EXPECT_THAT(problems("hidden_states", input(-1)),
              ElementsAre(problem("hidden_states", "has split_dim -1; a negative one needs expected_dims")));
  EXPECT_THAT(problems("hidden_states", input(3, 3)),
              ElementsAre(problem("hidden_states", "has split_dim 3, which lies outside expected_dims 3")));
  EXPECT_THAT(problems("hidden_states", input(-4, 3)),
              ElementsAre(problem("hidden_states", "has split_dim -4, which lies outside expected_dims 3")));
  EXPECT_THAT(problems("hidden_states", input(0, 0)),
              ElementsAre(problem("hidden_states", "has expected_dims 0; it must be at least 1"),
                          problem("hidden_states", "has split_dim 0, which lies outside expected_dims 0")));
}

TEST_F(PlanTest, FindsEmptyListsAndDuplicates) {
  EXPECT_THAT(problems("controlnet_samples", std::vector<ContextParallelInput>{}),
              ElementsAre(problem("controlnet_samples", "lists no entries")));
  const ContextParallelPlan twice{{{"", SplitEntries{{"hidden_states", input(1)}, {"hidden_states", input(1)}}},
                                   {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1})},
                                   {"proj_out", GatherEntry(std::vector<ContextParallelOutput>{})}}};
  EXPECT_THAT(
      plan_problems(model, twice),
      ElementsAre(problem("hidden_states", "stands twice in the plan"), "module id 'proj_out' stands twice in the plan",
                  "plan entry 'gather' of module id 'proj_out' (module 'proj_out'): lists no outputs"));
}

TEST_F(PlanTest, JudgesGatherDimsLikeSplitDims) {
  const ContextParallelPlan plan{
      {{"proj_out", GatherEntry(std::vector{ContextParallelOutput{.gather_dim = -1},
                                            ContextParallelOutput{.gather_dim = 3, .expected_dims = 3}})}}};
  EXPECT_THAT(plan_problems(model, plan),
              ElementsAre("plan entry 'gather' of module id 'proj_out' (module 'proj_out'): has gather_dim -1; a "
                          "negative one needs expected_dims",
                          "plan entry 'gather' of module id 'proj_out' (module 'proj_out'): has gather_dim 3, which "
                          "lies outside expected_dims 3"));
}

TEST_F(PlanTest, ListsTheProblemsOfAllEntriesInPlanOrder) {
  const ContextParallelPlan plan{
      {{"norm", SplitEntries{}}, {"blocks.*", SplitEntries{{"mask", input(1)}}}, {"blocks.5", SplitEntries{}}}};
  const std::vector<std::string> found = plan_problems(model, plan);
  ASSERT_EQ(found.size(), 5U);
  EXPECT_THAT(found[0], testing::StartsWith("module id 'norm'"));
  EXPECT_THAT(found[1], testing::StartsWith("plan entry 'mask' of module id 'blocks.*' (module 'blocks.0')"));
  EXPECT_THAT(found[3], testing::StartsWith("plan entry 'mask' of module id 'blocks.*' (module 'blocks.2')"));
  EXPECT_THAT(found[4], testing::StartsWith("module id 'blocks.5'"));
}

TEST(PlanEntries, CompareByValueAndPrintReadably) {
  EXPECT_EQ(input(1, 3), input(1, 3));
  EXPECT_FALSE(input(1, 3) == input(1));
  EXPECT_EQ(input(1, 3).text(), "ContextParallelInput(split_dim=1, expected_dims=3, split_output=false)");
  EXPECT_EQ((ContextParallelInput{.split_dim = -1, .split_output = true, .on_mismatch = OnMismatch::error}).text(),
            "ContextParallelInput(split_dim=-1, expected_dims=none, split_output=true, on_mismatch=error)");
  EXPECT_EQ((ContextParallelOutput{.gather_dim = 1, .expected_dims = 3}).text(),
            "ContextParallelOutput(gather_dim=1, expected_dims=3)");
  EXPECT_EQ(ContextParallelOutput{}.text(), "ContextParallelOutput(gather_dim=0, expected_dims=none)");
}

TEST(TensorParallelStyles, HaveTheNamesOfTheApi) {
  EXPECT_EQ(style_name(TensorParallelStyle::colwise), "colwise");
  EXPECT_EQ(style_name(TensorParallelStyle::rowwise), "rowwise");
  EXPECT_EQ(style_name(TensorParallelStyle::packed_colwise), "packed_colwise");
  EXPECT_EQ(style_name(TensorParallelStyle::packed_rowwise), "packed_rowwise");
  EXPECT_EQ(style_name(TensorParallelStyle::replicated_input_rowwise), "replicated_input_rowwise");
}

}  // namespace
}  // namespace shardproof::test
