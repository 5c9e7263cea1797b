// Plan files: the recorded plans of every model there and back, and what a hostile file is told.
// tests/data/plans.json holds the plans of the original classes, in plan order.
#include "parallel/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::HasSubstr;

Json recorded_plans() { return read_json_file(std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/plans.json"); }

TEST(PlanJson, ReadsAndWritesTheRecordedPlansOfEveryModelUnchanged) {
  int context_plans = 0, tensor_plans = 0;
  const Json plans = recorded_plans();
  for (const JsonMember& model : plans.members()) {
    if (!model.value.is_object()) continue;
    if (const Json* cp = model.value.find("cp")) {
      ++context_plans;
      const ContextParallelPlan plan = context_parallel_plan_from_json(*cp);
      EXPECT_EQ(plan.entries.size(), cp->size()) << model.key;
      EXPECT_EQ(plan_to_json(plan), *cp) << model.key;
      EXPECT_EQ(context_parallel_plan_from_json(plan_to_json(plan)), plan) << model.key;
    }
    if (const Json* tp = model.value.find("tp")) {
      ++tensor_plans;
      const TensorParallelPlan plan = tensor_parallel_plan_from_json(*tp);
      EXPECT_EQ(plan_to_json(plan), *tp) << model.key;
      EXPECT_EQ(tensor_parallel_plan_from_json(plan_to_json(plan)), plan) << model.key;
    }
  }
  EXPECT_EQ(context_plans, 9);
  EXPECT_EQ(tensor_plans, 4);
}

TEST(PlanJson, ReadsTheFluxPlanAsWhatItMeans) {
  const ContextParallelPlan plan =
      context_parallel_plan_from_json(recorded_plans().at("FluxTransformer2DModel").at("cp"));
  const auto input = [](int dim, int dims) { return ContextParallelInput{.split_dim = dim, .expected_dims = dims}; };
  const ContextParallelPlan expected{
      {{"", SplitEntries{{"hidden_states", input(1, 3)},
                         {"encoder_hidden_states", input(1, 3)},
                         {"img_ids", input(0, 2)},
                         {"txt_ids", input(0, 2)}}},
       {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1, .expected_dims = 3})}}};
  EXPECT_EQ(plan, expected);
}

TEST(PlanJson, ReadsEveryFormOfAnEntry) {
  const PlanFile file = plan_from_json(parse_json(R"({
      "model": "M",
      "cp": {"b.*": {"x": [{"split_dim": 1}, {"split_dim": -1, "expected_dims": 2, "on_mismatch": "error"}],
                     "1": {"split_dim": 0, "expected_dims": null, "split_output": true, "on_mismatch": "skip"}},
             "out": [{"gather_dim": 1}, {"gather_dim": -1, "expected_dims": 4}]},
      "tp": {"b.*.q": "colwise", "b.*.o": {"packed_rowwise": [1, 2]}, "b.*.p": {"packed_colwise": null},
             "b.*.r": "replicated_input_rowwise", "b.*.s": "rowwise"}})",
                                                  "plan.json"));
  EXPECT_EQ(file.model, "M");
  ASSERT_TRUE(file.cp && file.tp);
  const ContextParallelPlan expected{
      {{"b.*",
        SplitEntries{{"x", std::vector{ContextParallelInput{.split_dim = 1},
                                       ContextParallelInput{
                                           .split_dim = -1, .expected_dims = 2, .on_mismatch = OnMismatch::error}}},
                     {1, ContextParallelInput{.split_dim = 0, .split_output = true}}}},
       {"out", GatherEntry(std::vector{ContextParallelOutput{.gather_dim = 1},
                                       ContextParallelOutput{.gather_dim = -1, .expected_dims = 4}})}}};
  EXPECT_EQ(*file.cp, expected);
  const TensorParallelPlan styles{{{"b.*.q", {TensorParallelStyle::colwise}},
                                   {"b.*.o", {TensorParallelStyle::packed_rowwise, std::vector<std::int64_t>{1, 2}}},
                                   {"b.*.p", {TensorParallelStyle::packed_colwise}},
                                   {"b.*.r", {TensorParallelStyle::replicated_input_rowwise}},
                                   {"b.*.s", {TensorParallelStyle::rowwise}}}};
  EXPECT_EQ(*file.tp, styles);
  EXPECT_EQ(plan_from_json(plan_to_json(file)), file);
}

TEST(PlanJson, KeepsTheOrderOfEntries) {
  const ContextParallelPlan plan = context_parallel_plan_from_json(
      parse_json(R"({"b": {"z": {"split_dim": 0}, "a": {"split_dim": 0}}, "a": {}, "": {}})", "p"));
  ASSERT_EQ(plan.entries.size(), 3U);
  EXPECT_EQ(plan.entries[0].first, "b");
  EXPECT_EQ(plan.entries[2].first, "");
  EXPECT_EQ(split_key_text(std::get<SplitEntries>(plan.entries[0].second)[0].first), "z");
}

std::string refusal(const std::string& text) {
  try {
    (void)plan_from_json(parse_json(text, "plan.json"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::file_error) << error.what();
    return error.what();
  }
  return "accepted";
}
std::string cp_refusal(const std::string& cp) { return refusal(R"({"model": "M", "cp": )" + cp + "}"); }
std::string tp_refusal(const std::string& style) { return refusal(R"({"model": "M", "tp": {"x": )" + style + "}}"); }

TEST(PlanJson, RefusesFilesThatAreNoPlanFiles) {
  EXPECT_THAT(refusal("[]"), HasSubstr("plan.json"));
  EXPECT_THAT(refusal("{}"), HasSubstr("model"));
  EXPECT_THAT(refusal(R"({"model": 3})"), HasSubstr("plan.json: key 'model' must be a string, got 3"));
  EXPECT_THAT(refusal(R"({"model": "M", "tensor": {}})"), HasSubstr("tensor"));
  EXPECT_THAT(refusal(R"({"model": "M", "cp": [)"), HasSubstr("plan.json"));
  EXPECT_THAT(cp_refusal(R"({"a": {}, "a": {}})"), HasSubstr("'cp.a'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": 1}, "x": {"split_dim": 1}}})"), HasSubstr("'cp.a.x'"));
  EXPECT_THAT(cp_refusal("3"), HasSubstr("key 'cp'"));
}

TEST(PlanJson, RefusesEntriesOfAnotherFormByTheirPath) {
  EXPECT_EQ(cp_refusal(R"({"a": 3})"), "plan.json: key 'cp.a' must be an object or a list of gather entries, got 3");
  EXPECT_THAT(cp_refusal(R"({"a": {"x": 3}})"), HasSubstr("key 'cp.a.x'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {}}})"), HasSubstr("split_dim"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": "1"}}})"), HasSubstr("key 'cp.a.x.split_dim'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": 1.5}}})"), HasSubstr("key 'cp.a.x.split_dim'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": 99}}})"), HasSubstr("key 'cp.a.x.split_dim'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": 1, "expected_dims": 0}}})"),
              HasSubstr("key 'cp.a.x.expected_dims'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": 1, "split_output": 1}}})"),
              HasSubstr("key 'cp.a.x.split_output'"));
  EXPECT_EQ(cp_refusal(R"({"a": {"x": {"split_dim": 1, "on_mismatch": "warn"}}})"),
            "plan.json: key 'cp.a.x.on_mismatch' must be \"skip\" or \"error\", got \"warn\"");
  EXPECT_THAT(cp_refusal(R"({"a": {"x": {"split_dim": 1, "dim": 2}}})"), HasSubstr("'cp.a.x.dim'"));
  EXPECT_THAT(cp_refusal(R"({"a": {"x": [{"split_dim": 1}, 3]}})"), HasSubstr("key 'cp.a.x[1]'"));
  EXPECT_THAT(cp_refusal(R"({"a": [{"gather_dim": 1}, {}]})"), HasSubstr("key 'cp.a[1]"));
  EXPECT_THAT(cp_refusal(R"({"a": {"gather_dim": 1, "split_dim": 1}})"), HasSubstr("'cp.a.split_dim'"));
  EXPECT_EQ(cp_refusal(R"({"a": {"99999999999999": {"split_dim": 1}}})"),
            "plan.json: key 'cp.a.99999999999999' must be under an output index that is a small number, got "
            "{\"split_dim\":1}");
}

TEST(PlanJson, RefusesStylesThatDoNotExist) {
  const std::string expectation =
      "plan.json: key 'tp.x' must be a style: \"colwise\", \"rowwise\", {\"packed_colwise\": blocks}, "
      "{\"packed_rowwise\": blocks} or \"replicated_input_rowwise\", got ";
  EXPECT_EQ(tp_refusal("\"diagonal\""), expectation + "\"diagonal\"");
  EXPECT_EQ(tp_refusal("3"), expectation + "3");
  EXPECT_EQ(tp_refusal("\"packed_colwise\""), expectation + "\"packed_colwise\"");
  EXPECT_THAT(tp_refusal("{}"),
              HasSubstr("must be an object with exactly one of \"packed_colwise\" and \"packed_rowwise\""));
  EXPECT_THAT(tp_refusal(R"({"packed_colwise": null, "packed_rowwise": null})"),
              HasSubstr("must be an object with exactly one"));
  EXPECT_THAT(tp_refusal(R"({"packed": [1]})"), HasSubstr("'tp.x.packed'"));
  EXPECT_THAT(tp_refusal(R"({"packed_colwise": []})"), HasSubstr("must be a list of at least one block"));
  EXPECT_THAT(tp_refusal(R"({"packed_colwise": [1, 0]})"), HasSubstr("key 'tp.x.packed_colwise[1]'"));
  EXPECT_THAT(tp_refusal(R"({"packed_colwise": 2})"), HasSubstr("key 'tp.x.packed_colwise'"));
}

TEST(PlanJson, NamesTheFileThatCannotBeRead) {
  const auto error = thrown_by([] { read_plan_file("no/such/plan.json"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::file_error);
  EXPECT_THAT(error->message, HasSubstr("no/such/plan.json"));
}

}  // namespace
}  // namespace shardproof::test
