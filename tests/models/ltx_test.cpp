// LTX: its configuration, its arguments and its plans. That its numbers are right is shown by the oracle tests, which
// compare it with recorded outputs; its rotary tables are tested with the other tables.
#include "models/ltx.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "models/model_type.h"
#include "tests/models/forward_fixture.h"
#include "tests/models/refusal.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::refusal_of;
using test::thrown_by;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LtxConfig, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "LTXVideoTransformer3DModel");
  const LtxConfig ltx = ltx_config_from_json(config);
  EXPECT_EQ(ltx.width(), 2048);
  EXPECT_EQ(ltx.cross_attention_dim, 2048);
  EXPECT_EQ(ltx.num_layers, 28);
  EXPECT_EQ(ltx.caption_channels, 4096);
  EXPECT_FALSE(ltx.norm_elementwise_affine);
  EXPECT_TRUE(ltx.attention_bias && ltx.attention_out_bias);
}

TEST(LtxConfig, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("ltx", "rope_theta", 3), HasSubstr("unknown field 'rope_theta'"));
  EXPECT_THAT(
      refusal_of("ltx", "cross_attention_dim", 64),
      HasSubstr("config.json: key 'cross_attention_dim' is 64, but the projected text has the model's width 80"));
  EXPECT_THAT(refusal_of("ltx", "activation_fn", "gelu"),
              HasSubstr("config.json: key 'activation_fn' is 'gelu'; only 'gelu-approximate' is offered"));
  EXPECT_THAT(refusal_of("ltx", "qk_norm", "layer_norm"), HasSubstr("only 'rms_norm_across_heads' is offered"));
  Json config = find_model_type("ltx").hostile_config();
  config.set("num_attention_heads", 3);
  config.set("attention_head_dim", 5);
  config.set("cross_attention_dim", 15);
  const auto error = thrown_by([&] { ltx_config_from_json(config); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("make an odd width, which has no rotary pairs"));
}

TEST(LtxConfig, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("ltx", "patch_size", Json::array({1, 2, 2})), HasSubstr("key 'patch_size'"));
  EXPECT_THAT(refusal_of("ltx", "patch_size_t", 0), HasSubstr("key 'patch_size_t'"));
  EXPECT_THAT(refusal_of("ltx", "norm_elementwise_affine", 1), HasSubstr("key 'norm_elementwise_affine'"));
  EXPECT_THAT(refusal_of("ltx", "attention_bias", "yes"), HasSubstr("key 'attention_bias'"));
  EXPECT_THAT(refusal_of("ltx", "norm_eps", 0), HasSubstr("key 'norm_eps' must be a number above zero"));
}

TEST(LtxConfig, DecidesWhichLayersHaveBiasesAndNormWeights) {
  Json config = find_model_type("ltx").hostile_config();
  const auto has = [&](std::string_view path, std::string_view parameter) {
    const auto model = find_model_type("ltx").create(config, {});
    const auto& parameters = model->find_module(path)->parameters();
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const Module::Parameter& known) { return known.name.text() == parameter; });
  };
  EXPECT_TRUE(has("transformer_blocks.0.attn1.to_q", "bias") && has("transformer_blocks.0.attn2.to_out.0", "bias"));
  EXPECT_TRUE(has("transformer_blocks.1.norm1", "weight") && has("transformer_blocks.1.norm2", "weight"));
  config.set("attention_bias", false);
  config.set("attention_out_bias", false);
  config.set("norm_elementwise_affine", false);
  EXPECT_FALSE(has("transformer_blocks.0.attn1.to_q", "bias") || has("transformer_blocks.0.attn2.to_out.0", "bias"));
  EXPECT_FALSE(has("transformer_blocks.1.norm1", "weight") || has("transformer_blocks.1.norm2", "weight"));
  EXPECT_TRUE(has("transformer_blocks.0.ff.net.2", "bias") && has("transformer_blocks.0.attn1.norm_q", "weight"));
}

class LtxForward : public test::ForwardFixture {
 protected:
  LtxForward() : ForwardFixture("ltx") {}
};

TEST_F(LtxForward, RefusesAdaptersAndStructuredResults) {
  EXPECT_THAT(refusal_with("attention_kwargs", true), HasSubstr("'attention_kwargs'"));
  EXPECT_THAT(refusal_with("return_dict", true),
              HasSubstr("argument 'return_dict' of LTXVideoTransformer3DModel must be false"));
}

TEST_F(LtxForward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 24})), HasSubstr("argument 'hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({1, 12, 14})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_attention_mask", device_zeros({2, 11})),
              HasSubstr("argument 'encoder_attention_mask' of LTXVideoTransformer3DModel is float64 [2, 11]; expected "
                        "[batch, text tokens] of encoder_hidden_states"));
  EXPECT_THAT(refusal_with("timestep", host_zeros({1, 24})),
              HasSubstr("expected [batch] or [batch, tokens] with the batch of hidden_states"));
  EXPECT_THAT(
      refusal_with("timestep", host_zeros({2, 23})),
      HasSubstr("argument 'timestep' of module '' (LTXVideoTransformer3DModel) has 23 tokens, but hidden_states "
                "has 24"));
  EXPECT_THAT(refusal_with("video_coords", host_zeros({2, 2, 24})),
              HasSubstr("argument 'video_coords' of LTXVideoTransformer3DModel is float64 [2, 2, 24]; expected [batch, "
                        "3, tokens]"));
}

TEST_F(LtxForward, RefusesGridsThatDoNotCoverTheTokens) {
  EXPECT_THAT(refusal_with("num_frames", std::monostate{}),
              HasSubstr("argument 'num_frames' of module 'rope' (LTXVideoRotaryPosEmbed) must be a whole number from 1 "
                        "where 'video_coords' is not given, got none"));
  EXPECT_THAT(refusal_with("height", std::int64_t{0}), HasSubstr("argument 'height' of module 'rope'"));
  EXPECT_THAT(refusal_with("width", 1.5), HasSubstr("argument 'width' of module 'rope'"));
  const std::string of_table = "make a rotary table of 30 tokens, but hidden_states has 24";
  EXPECT_THAT(refusal_with("width", std::int64_t{5}), HasSubstr(of_table));
  EXPECT_THAT(refusal_with("video_coords", host_zeros({2, 3, 30})), HasSubstr(of_table));
}

TEST_F(LtxForward, RefusesAGridWhoseTableWouldFillTheMemory) {
  EXPECT_THAT(refusal_with("height", std::int64_t{1} << 62),
              AllOf(HasSubstr("module 'rope' (LTXVideoRotaryPosEmbed): a grid of "),
                    HasSubstr(" x 4611686018427387904 x "), HasSubstr("at most 1048576 tokens are expected")));
}

TEST_F(LtxForward, RefusesScalesThatAreNotThreeNumbers) {
  const auto refusal = [&](Value value) { return refusal_with("rope_interpolation_scale", std::move(value)); };
  const std::string words =
      "argument 'rope_interpolation_scale' of module 'rope' (LTXVideoRotaryPosEmbed) must be a "
      "list of three numbers, got ";
  const NestedNumbers number{1.0}, pair{std::vector<NestedNumbers>{number, number}};
  EXPECT_THAT(refusal(2.0), HasSubstr(words));
  EXPECT_THAT(refusal(pair), HasSubstr(words));
  EXPECT_THAT(refusal(NestedNumbers{std::vector<NestedNumbers>{number, number, pair}}), HasSubstr(words));
  EXPECT_EQ(refusal(NestedNumbers{std::vector<NestedNumbers>{number, number, number}}), "accepted");
  EXPECT_EQ(refusal(std::monostate{}), "accepted");
}

TEST_F(LtxForward, EveryArgumentChangesTheResult) {
  expect_every_argument_matters(0);
  expect_every_argument_matters(1);  // with a mask, a scale and a timestep a token
  expect_every_argument_matters(2);  // with coordinates
}

TEST_F(LtxForward, TakesCoordinatesAsItsScaledGrid) {
  Arguments grid = prepared(), coordinates = prepared();
  const NestedNumbers scale{std::vector<NestedNumbers>{{0.5}, {32.0}, {16.0}}};
  grid.set("rope_interpolation_scale", scale);
  std::vector<double> values;
  for (int item = 0; item < 2; ++item) {
    for (int axis = 0; axis < 3; ++axis) {
      for (int token = 0; token < 24; ++token) {
        const int position = axis == 0 ? token / 12 : axis == 1 ? token / 4 % 3 : token % 4;
        values.push_back(position * (axis == 0 ? 0.5 : axis == 1 ? 32.0 : 16.0));
      }
    }
  }
  coordinates.set("video_coords", ops::from_doubles(host(), values, {2, 3, 24}, kFloat64));
  EXPECT_EQ(result_of(grid), result_of(coordinates));
  EXPECT_NE(result_of(grid), result_of(prepared()));
}

TEST_F(LtxForward, ScalesItsGridByThePatchesOfItsConfiguration) {
  Json config = find_model_type("ltx").hostile_config();
  config.set("patch_size", 2);
  config.set("patch_size_t", 4);
  test::ModelUnderTest patched("ltx", config);
  const auto with_scale = [](Arguments arguments, double frame, double side) {
    arguments.set("rope_interpolation_scale", NestedNumbers{std::vector<NestedNumbers>{{frame}, {side}, {side}}});
    return arguments;
  };
  EXPECT_EQ(patched.result_of(with_scale(patched.prepared(), 0.5, 16.0)), result_of(with_scale(prepared(), 2.0, 32.0)));
}

TEST_F(LtxForward, AddsTenThousandBelowToTheLogitsOfKeysThatItDrops) {
  const Arguments arguments = prepared(1);
  Arguments as_numbers = arguments;
  as_numbers.set("encoder_attention_mask", ops::cast(arguments.tensor("encoder_attention_mask"), kFloat64));
  EXPECT_EQ(result_of(as_numbers), result_of(arguments));
  Arguments all_dropped = arguments, none_dropped = arguments;
  all_dropped.set("encoder_attention_mask", device_zeros({2, 12}));
  none_dropped.set("encoder_attention_mask", std::monostate{});
  // Equal shares for all keys, whichever constant was added to each; 1e-12 of it is lost where logits are large.
  const std::vector<double> dropped = result_of(all_dropped), plain = result_of(none_dropped);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(dropped[i], plain[i], 1e-9);
}

TEST(LtxPlans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("ltx"); }

TEST(LtxPlans, DefaultAddsTheTimesteps) {
  const ModelType& type = find_model_type("ltx");
  const ModelPlans plans = type.plans(type.hostile_config());
  const auto& shipped = std::get<SplitEntries>(plans.shipped_cp->entries.front().second);
  const auto& corrected = std::get<SplitEntries>(plans.default_cp->entries.front().second);
  ASSERT_EQ(corrected.size(), shipped.size() + 1);
  EXPECT_TRUE(std::equal(shipped.begin(), shipped.end(), corrected.begin()));
  EXPECT_EQ(split_key_text(corrected.back().first), "timestep");
  EXPECT_TRUE(std::equal(plans.shipped_cp->entries.begin() + 1, plans.shipped_cp->entries.end(),
                         plans.default_cp->entries.begin() + 1));
}

}  // namespace
}  // namespace shardproof
