// FLUX.2: its configuration, its arguments and its plans. That its numbers are right is shown by the oracle tests,
// which compare it with recorded outputs.
#include "models/flux2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "models/model_type.h"
#include "models/state.h"
#include "parallel/plan_json.h"
#include "tests/models/forward_fixture.h"
#include "tests/models/refusal.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::refusal_of;
using ::testing::HasSubstr;

TEST(Flux2Config, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "Flux2Transformer2DModel");
  const Flux2Config flux2 = flux2_config_from_json(config);
  EXPECT_EQ(flux2.width(), 6144);
  EXPECT_EQ(flux2.mlp_width(), 18432);
  EXPECT_EQ(flux2.num_layers, 8);
  EXPECT_EQ(flux2.num_single_layers, 48);
  EXPECT_EQ(flux2.out_channels, 128);
  EXPECT_EQ(flux2.rope_theta, 2000.0);
  EXPECT_TRUE(flux2.guidance_embeds);
}

TEST(Flux2Config, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("flux2", "pooled_projection_dim", 3), HasSubstr("unknown field 'pooled_projection_dim'"));
  EXPECT_THAT(refusal_of("flux2", "axes_dims_rope", Json::array({4, 4, 4, 2})),
              HasSubstr("key 'axes_dims_rope' adds up to 14, but 'attention_head_dim' is 16"));
  EXPECT_THAT(refusal_of("flux2", "axes_dims_rope", Json::array({3, 5, 4, 4})), HasSubstr("every entry must be even"));
  EXPECT_THAT(refusal_of("flux2", "timestep_guidance_channels", 33),
              HasSubstr("config.json: key 'timestep_guidance_channels' is 33; it must be even"));
  EXPECT_THAT(refusal_of("flux2", "mlp_ratio", 0.001),
              HasSubstr("key 'mlp_ratio' is 0.001, which of width 96 gives 0.096 columns"));
}

TEST(Flux2Config, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("flux2", "num_layers", "two"), HasSubstr("key 'num_layers'"));
  EXPECT_THAT(refusal_of("flux2", "num_single_layers", -1), HasSubstr("key 'num_single_layers'"));
  EXPECT_THAT(refusal_of("flux2", "mlp_ratio", -3.0),
              HasSubstr("key 'mlp_ratio' must be a number above zero, got -3.0"));
  EXPECT_THAT(refusal_of("flux2", "rope_theta", 0), HasSubstr("key 'rope_theta' must be a number above zero, got 0"));
  EXPECT_THAT(refusal_of("flux2", "eps", "small"), HasSubstr("key 'eps'"));
  EXPECT_THAT(refusal_of("flux2", "guidance_embeds", 1), HasSubstr("key 'guidance_embeds'"));
}

class Flux2Forward : public test::ForwardFixture {
 protected:
  Flux2Forward() : ForwardFixture("flux2") {}
};

TEST_F(Flux2Forward, RefusesAdaptersCachesAndStructuredResults) {
  EXPECT_THAT(refusal_with("joint_attention_kwargs", true), HasSubstr("'joint_attention_kwargs'"));
  EXPECT_THAT(refusal_with("return_dict", true), HasSubstr("'return_dict'"));
  EXPECT_THAT(refusal_with("kv_cache_mode", std::string("extract")), HasSubstr("'kv_cache_mode'"));
  EXPECT_THAT(refusal_with("num_ref_tokens", std::int64_t{4}), HasSubstr("'num_ref_tokens'"));
  EXPECT_EQ(refusal_with("num_ref_tokens", std::int64_t{0}), "accepted");
  EXPECT_EQ(refusal_with("ref_fixed_timestep", 0.0), "accepted");
}

TEST_F(Flux2Forward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("timestep", host_zeros({3})),
              HasSubstr("argument 'timestep' of Flux2Transformer2DModel is float64 [3]; expected [batch]"));
  EXPECT_THAT(refusal_with("guidance", host_zeros({2, 1})), HasSubstr("argument 'guidance'"));
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 6})), HasSubstr("argument 'hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({1, 12, 20})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("img_ids", host_zeros({0, 24, 4})), HasSubstr("argument 'img_ids'"));
  EXPECT_THAT(refusal_with("txt_ids", host_zeros({12})), HasSubstr("argument 'txt_ids'"));
  EXPECT_THAT(refusal_with("txt_ids", host_zeros({12, 3})), HasSubstr("ids float64 [12, 3] must be [tokens, 4]"));
}

TEST_F(Flux2Forward, TakesTheFirstEntryOfIdsWithABatchAxis) {
  Arguments flat = prepared();
  for (const Name name : {Name("img_ids"), Name("txt_ids")}) {
    const Tensor ids = flat.tensor(name);
    flat.set(name, ids.narrow(0, 0, 1).squeeze(0));
  }
  EXPECT_EQ(result_of(flat), result_of(prepared()));
}

TEST_F(Flux2Forward, EveryArgumentChangesTheResult) { expect_every_argument_matters(); }

TEST_F(Flux2Forward, LeavesTheGuidanceTermOutWhereGuidanceIsNone) {
  Arguments without = prepared();
  without.set("guidance", std::monostate{});
  EXPECT_NE(result_of(without), result_of(prepared()));
}

TEST(Flux2Guidance, IsIgnoredWhereItIsNotEmbedded) {
  Json config = find_model_type("flux2").hostile_config();
  config.set("guidance_embeds", false);
  test::ModelUnderTest model("flux2", config);
  Arguments without = model.prepared();
  without.set("guidance", std::monostate{});
  EXPECT_EQ(model.result_of(without), model.result_of(model.prepared()));
}

TEST(Flux2Plans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("flux2"); }

TEST(Flux2Plans, NeedNoCorrection) {
  const ModelType& flux2 = find_model_type("flux2");
  const ModelPlans plans = flux2.plans(flux2.hostile_config());
  EXPECT_EQ(plans.default_cp, plans.shipped_cp);
  EXPECT_EQ(plans.default_tp, plans.shipped_tp);
}

}  // namespace
}  // namespace shardproof
