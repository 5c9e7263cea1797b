// Helios: its configuration, its arguments, its history and its plans. That its numbers are right is shown by the
// oracle tests, which compare it with recorded outputs.
#include "models/helios.h"

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
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HeliosConfig, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "HeliosTransformer3DModel");
  const HeliosConfig helios = helios_config_from_json(config);
  EXPECT_EQ(helios.width(), 5120);
  EXPECT_EQ(helios.num_layers, 40);
  EXPECT_EQ(helios.ffn_dim, 13824);
  EXPECT_EQ(helios.rope_dim, (std::vector<std::int64_t>{44, 42, 42}));
  EXPECT_TRUE(helios.guidance_cross_attn);
  EXPECT_FALSE(helios.is_amplify_history);
  EXPECT_EQ(helios.history_scale_mode, "per_head");
}

TEST(HeliosConfig, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("helios", "image_dim", 3), HasSubstr("config.json: unknown field 'image_dim'"));
  EXPECT_THAT(refusal_of("helios", "rope_dim", Json::array({4, 4, 4})),
              HasSubstr("key 'rope_dim' adds up to 12, but 'attention_head_dim' is 14"));
  EXPECT_THAT(refusal_of("helios", "rope_dim", Json::array({10, 4})),
              HasSubstr("key 'rope_dim' has 2 entries; expected 3"));
  EXPECT_THAT(refusal_of("helios", "rope_dim", Json::array({7, 3, 4})),
              HasSubstr("key 'rope_dim' contains 7; every entry"));
  EXPECT_THAT(refusal_of("helios", "history_scale_mode", "both"),
              HasSubstr("key 'history_scale_mode' is 'both'; expected 'per_head' or 'scalar'"));
  EXPECT_THAT(refusal_of("helios", "freq_dim", 15), HasSubstr("key 'freq_dim' is 15; it must be even"));
  EXPECT_THAT(refusal_of("helios", "added_kv_proj_dim", 24),
              HasSubstr("key 'added_kv_proj_dim' is 24; keys and values of an "));
  EXPECT_THAT(refusal_of("helios", "qk_norm", "layer_norm"),
              HasSubstr("key 'qk_norm' is 'layer_norm'; only 'rms_norm_across_heads' is offered"));
  EXPECT_EQ(refusal_of("helios", "added_kv_proj_dim", Json()), "accepted");
}

TEST(HeliosConfig, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("helios", "num_layers", "two"), HasSubstr("key 'num_layers'"));
  EXPECT_THAT(refusal_of("helios", "patch_size", Json::array({1, 2})),
              HasSubstr("key 'patch_size' must be a list of three"));
  EXPECT_THAT(refusal_of("helios", "eps", 0.0), HasSubstr("key 'eps' must be a number above zero"));
  EXPECT_THAT(refusal_of("helios", "zero_history_timestep", 1), HasSubstr("key 'zero_history_timestep'"));
}

class HeliosForward : public test::ForwardFixture {
 protected:
  HeliosForward() : ForwardFixture("helios") {}
  Arguments without(std::initializer_list<Name> names) {
    Arguments arguments = prepared();
    for (const Name name : names) arguments.set(name, std::monostate{});
    return arguments;
  }
};

TEST_F(HeliosForward, EveryArgumentChangesTheResult) { expect_every_argument_matters(); }

TEST_F(HeliosForward, RefusesAdaptersAndTakesStructuredResults) {
  EXPECT_THAT(refusal_with("attention_kwargs", true),
              HasSubstr("argument 'attention_kwargs' of HeliosTransformer3DModel must be none"));
  EXPECT_EQ(refusal_with("return_dict", true), "accepted");
}

TEST_F(HeliosForward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 3, 4})),
              HasSubstr("argument 'hidden_states' of HeliosTransformer3DModel is float64 [2, 3, 4]; expected [batch"));
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 3, 3, 3, 8})),
              AllOf(HasSubstr("module 'patch_embedding'"), HasSubstr("multiples of 1, 2 and 2")));
  EXPECT_THAT(refusal_with("timestep", host_zeros({1})), HasSubstr("argument 'timestep'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({1, 7, 10})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("latents_history_mid", device_zeros({1, 3, 2, 4, 8})),
              HasSubstr("argument 'latents_history_mid'"));
  EXPECT_THAT(refusal_with("indices_hidden_states", host_zeros({1, 3})), HasSubstr("argument 'indices_hidden_states'"));
}

TEST_F(HeliosForward, NamesFrameIndicesThatDoNotCoverTheirTokens) {
  EXPECT_THAT(refusal_with("indices_latents_history_long", host_zeros({2, 9})),
              HasSubstr("argument 'indices_latents_history_long' of HeliosTransformer3DModel is float64 [2, 9], which "
                        "over 2 rows and 4 columns gives 3 positions for 2 tokens"));
}

TEST_F(HeliosForward, CountsFramesFromZeroWithoutIndices) {
  Arguments counted = prepared();
  counted.set("indices_hidden_states",
              ops::from_doubles(host(), std::vector<double>{0, 1, 2, 0, 1, 2}, {2, 3}, kFloat64));
  EXPECT_EQ(result_of(without({"indices_hidden_states"})), result_of(counted));
}

// As in the original: latents and indices only count together.
TEST_F(HeliosForward, LeavesAStreamOutWhoseLatentsOrIndicesAreAbsent) {
  const std::vector<double> neither = result_of(without({"latents_history_long", "indices_latents_history_long"}));
  EXPECT_EQ(result_of(without({"latents_history_long"})), neither);
  EXPECT_EQ(result_of(without({"indices_latents_history_long"})), neither);
  EXPECT_NE(result_of(prepared()), neither);
}

TEST_F(HeliosForward, NeedsTheShortHistoryForTheOthers) {
  EXPECT_THAT(refusal_with("latents_history_short", std::monostate{}),
              HasSubstr("argument 'latents_history_mid' of HeliosTransformer3DModel needs 'latents_history_short' and "
                        "'indices_latents_history_short'"));
}

std::vector<double> result_with(std::string_view key, Json value) {
  Json config = find_model_type("helios").hostile_config();
  config.set(key, std::move(value));
  test::ModelUnderTest model("helios", config);
  return model.result_of(model.prepared());
}

TEST(HeliosSwitches, EachChangesTheResult) {
  const std::vector<double> usual = result_with("in_channels", 3);
  EXPECT_NE(result_with("guidance_cross_attn", false), usual);
  EXPECT_NE(result_with("zero_history_timestep", false), usual);
  EXPECT_NE(result_with("is_amplify_history", false), usual);
  EXPECT_NE(result_with("history_scale_mode", "scalar"), usual);
  EXPECT_NE(result_with("cross_attn_norm", false), usual);
}

// Self-attention of the first block over seven tokens, three of them current, without positions. What its heads return,
// [token][channel], under each of several scales of history. The weights are the same in both modes.
std::vector<std::vector<double>> heads_under(const char* mode, const std::vector<std::vector<double>>& scales) {
  constexpr std::int64_t kWidth = 84, kTokens = 7, kCurrent = 3;
  Json config = find_model_type("helios").hostile_config();
  config.set("history_scale_mode", mode);
  test::ModelUnderTest model("helios", config);
  Module& attention = *model.tree().find_module("blocks.0.attn1");
  const auto on_device = [&](const std::vector<double>& values, const Shape& shape) {
    return std::make_shared<const Tensor>(ops::from_doubles(model.device(), values, shape, kFloat64));
  };
  std::vector<double> unit(kWidth * kWidth), x(kTokens * kWidth);
  for (std::size_t i = 0; i < unit.size(); i += kWidth + 1) unit[i] = 1.0;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * i % 13) - 6.0;
  Module& out = *attention.find_module("to_out.0");
  out.assign_parameter("weight", on_device(unit, {kWidth, kWidth}));
  out.assign_parameter("bias", on_device(std::vector<double>(kWidth), {kWidth}));
  std::vector<std::vector<double>> results;
  for (const std::vector<double>& scale : scales) {
    attention.assign_parameter("history_key_scale", on_device(scale, {std::ssize(scale)}));
    results.push_back(ops::to_doubles(
        attention.call({{"hidden_states", *on_device(x, {1, kTokens, kWidth})}, {"original_context_length", kCurrent}})
            .tensors.front()));
  }
  return results;
}

TEST(HeliosHistory, IsScaledInEveryHeadByItsOwnNumberOrInAllByOne) {
  constexpr std::size_t kHeads = 6, kHeadWidth = 14;
  const std::vector<double> by_head = heads_under("per_head", {{-2.0, 0.5, -0.5, 3.0, -4.0, 1.0}}).front();
  const auto by_one = heads_under("scalar", {{-2.0}, {0.5}, {-0.5}, {3.0}, {-4.0}, {1.0}});
  for (std::size_t head = 0; head < kHeads; ++head) {
    ASSERT_EQ(by_one[head].size(), by_head.size());
    for (std::size_t i = 0; i < by_head.size(); ++i) {
      const bool is_of_head = i / kHeadWidth % kHeads == head;
      EXPECT_EQ(by_one[head][i] == by_head[i], is_of_head) << "head " << head << ", element " << i;
    }
  }
}

TEST(HeliosSwitches, HistoryNeedsItsPatches) {
  Json config = find_model_type("helios").hostile_config();
  config.set("has_multi_term_memory_patch", false);
  test::ModelUnderTest model("helios", config);
  EXPECT_THAT(model.refusal_with("return_dict", false),
              HasSubstr("argument 'latents_history_short' of HeliosTransformer3DModel must be none: the configuration "
                        "has no has_multi_term_memory_patch"));
  constexpr std::size_t kWithoutHistory = 2;
  EXPECT_FALSE(model.result_of(model.prepared(kWithoutHistory)).empty());
}

// Printed vector of the models specification, section 13: frame 6, row 1, column 2.
TEST(HeliosTable, HasThePrintedAngles) {
  Json config = Json::object();
  config.set("num_attention_heads", 1);
  config.set("attention_head_dim", 12);
  config.set("rope_dim", Json::array({4, 4, 4}));
  config.set("num_layers", 0);
  HostDevice host;
  const auto model = find_model_type("helios").create(config, {.device = &host, .dtype = kFloat32});
  const Tensor frames = ops::from_doubles(host, std::vector<double>{6.0}, {1, 1}, kFloat64);
  const Tensor table = model->find_module("rope")
                           ->call({{"frame_indices", frames}, {"height", std::int64_t{2}}, {"width", std::int64_t{3}}})
                           .tensors.front();
  EXPECT_EQ(table.shape(), (Shape{1, 24, 1, 2, 3}));
  const std::vector<double> ours = ops::to_doubles(table.narrow(3, 1, 1).narrow(4, 2, 1));
  const std::vector<double> printed{0.960170,  0.960170,  0.998201, 0.998201, 0.540302,  0.540302,  0.999950, 0.999950,
                                    -0.416147, -0.416147, 0.999800, 0.999800, -0.279415, -0.279415, 0.059964, 0.059964};
  for (std::size_t i = 0; i < printed.size(); ++i) EXPECT_NEAR(ours[i], printed[i], 6e-7) << i;
}

TEST(HeliosPlans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("helios"); }

TEST(HeliosPlans, DefaultHasTheGathersOfTheLayersThatThereAre) {
  const ModelType& helios = find_model_type("helios");
  for (const std::int64_t layers : {2, 40, 41}) {
    Json config = helios.hostile_config();
    config.set("num_layers", layers);
    const ModelPlans plans = helios.plans(config);
    EXPECT_EQ(plans.default_cp->entries.size(), 3 + 3 * static_cast<std::size_t>(layers));
    EXPECT_EQ(plans.default_cp == plans.shipped_cp, layers == 40);
    EXPECT_EQ(plan_problems(*helios.create(config, {}), *plans.default_cp), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace shardproof
