// The plans of the models are what the recorded plan data say.
// A plan that drifted from the data would verify something that nobody runs.
#include <gtest/gtest.h>

#include "models/model_type.h"
#include "parallel/plan_json.h"

namespace shardproof {
namespace {

TEST(FluxPlans, AreThoseOfTheRecordedPlanData) {
  const Json plans = read_json_file(std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/plans.json");
  const Json& recorded = plans.at("FluxTransformer2DModel");
  const ModelType& flux = find_model_type("flux");
  const ModelPlans ours = flux.plans(flux.hostile_config());
  EXPECT_EQ(*ours.shipped_cp, context_parallel_plan_from_json(recorded.at("cp")));
  EXPECT_EQ(*ours.shipped_tp, tensor_parallel_plan_from_json(recorded.at("tp")));
}

TEST(FluxPlans, DefaultAddsTheControlNetResiduals) {
  const ModelType& flux = find_model_type("flux");
  const ModelPlans ours = flux.plans(flux.hostile_config());
  const auto& shipped = std::get<SplitEntries>(ours.shipped_cp->entries[0].second);
  const auto& corrected = std::get<SplitEntries>(ours.default_cp->entries[0].second);
  ASSERT_EQ(corrected.size(), shipped.size() + 2);
  EXPECT_TRUE(std::equal(shipped.begin(), shipped.end(), corrected.begin()));
  EXPECT_EQ(split_key_text(corrected[4].first), "controlnet_block_samples");
  EXPECT_EQ(split_key_text(corrected[5].first), "controlnet_single_block_samples");
}

TEST(ModelPlans, FitTheModelsThatTheyBelongTo) {
  for (const ModelType& type : model_types()) {
    const Json config = type.hostile_config();
    const std::unique_ptr<Module> tree = type.create(config, {});
    const ModelPlans plans = type.plans(config);
    ASSERT_EQ(plans.shipped_cp.has_value(), plans.default_cp.has_value()) << type.class_name;
    for (const auto& plan : {plans.shipped_cp, plans.default_cp}) {
      if (!plan.has_value()) continue;  // its attention refuses, which its own tests show
      // That of Helios is made for 40 layers and has gathers of layers that are not there.
      const bool fits = type.short_name != "helios" || plan == plans.default_cp;
      EXPECT_EQ(plan_problems(*tree, *plan).empty(), fits) << type.class_name;
      EXPECT_EQ(context_parallel_plan_from_json(plan_to_json(*plan)), *plan);
    }
  }
}

}  // namespace
}  // namespace shardproof
