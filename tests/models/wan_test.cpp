// Wan: its configuration, its arguments, its rotary table and its plan. That its numbers are right is shown by the
// oracle tests, which compare it with recorded outputs.
#include "models/wan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/safetensors.h"
#include "models/model_type.h"
#include "tests/models/forward_fixture.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::thrown_by;
using ::testing::HasSubstr;

Json config_with(std::string_view key, Json value) {
  Json config = find_model_type("wan").hostile_config();
  config.set(key, std::move(value));
  return parse_json(config.dump(), "config.json");
}

std::string refusal_of(const Json& config) {
  const auto error = thrown_by([&] { wan_config_from_json(config); });
  return error ? error->message : "accepted";
}

std::string refusal_of(std::string_view key, Json value) { return refusal_of(config_with(key, std::move(value))); }

TEST(WanConfig, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "WanTransformer3DModel");
  config.set("image_dim", Json());
  const WanConfig wan = wan_config_from_json(config);
  EXPECT_EQ(wan.patch_size, (Extents{1, 2, 2}));
  EXPECT_EQ(wan.width(), 5120);
  EXPECT_EQ(wan.ffn_dim, 13824);
  EXPECT_EQ(wan.num_layers, 40);
  EXPECT_EQ(wan.rope_max_seq_len, 1024);
  EXPECT_TRUE(wan.cross_attn_norm);
  EXPECT_FALSE(wan.image_dim || wan.added_kv_proj_dim || wan.pos_embed_seq_len || wan.rope_temporal_skip_len);
}

TEST(WanConfig, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("rope_temporal_skip_len", 8), HasSubstr("unknown field 'rope_temporal_skip_len'"));
  EXPECT_THAT(refusal_of("attention_head_dim", 9),
              HasSubstr("config.json: key 'attention_head_dim' is 9; it must be even and at least 6"));
  EXPECT_THAT(refusal_of("attention_head_dim", 4), HasSubstr("key 'attention_head_dim' is 4"));
  EXPECT_THAT(refusal_of("freq_dim", 31), HasSubstr("config.json: key 'freq_dim' is 31; it must be even"));
  EXPECT_THAT(refusal_of("added_kv_proj_dim", 59),
              HasSubstr("key 'added_kv_proj_dim' is 59, but image keys are made of the model's width 60"));
  EXPECT_THAT(refusal_of("image_dim", Json()),
              HasSubstr("key 'added_kv_proj_dim' is 60, but 'image_dim' is none; image keys need an image embedder"));
  EXPECT_THAT(refusal_of("pos_embed_seq_len", 9), HasSubstr("key 'pos_embed_seq_len' is 9; it must be even"));
  Json config = config_with("image_dim", Json());
  config.set("added_kv_proj_dim", Json());
  config.set("pos_embed_seq_len", 10);
  EXPECT_THAT(refusal_of(config), HasSubstr("key 'pos_embed_seq_len' is 10, but 'image_dim' is none"));
}

TEST(WanConfig, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("patch_size", 2), HasSubstr("config.json: key 'patch_size' must be a list of three numbers"));
  EXPECT_THAT(refusal_of("patch_size", Json::array({1, 2})), HasSubstr("a list of three numbers"));
  EXPECT_THAT(refusal_of("patch_size", Json::array({1, 0, 2})), HasSubstr("key 'patch_size[1]'"));
  EXPECT_THAT(refusal_of("qk_norm", "rms_norm"),
              HasSubstr("config.json: key 'qk_norm' is 'rms_norm'; only 'rms_norm_across_heads' is offered"));
  EXPECT_THAT(refusal_of("qk_norm", 1), HasSubstr("key 'qk_norm'"));
  EXPECT_THAT(refusal_of("cross_attn_norm", 1), HasSubstr("key 'cross_attn_norm'"));
  EXPECT_THAT(refusal_of("eps", 0), HasSubstr("key 'eps' must be a number above zero"));
  EXPECT_THAT(refusal_of("image_dim", 0), HasSubstr("key 'image_dim'"));
  EXPECT_THAT(refusal_of("num_layers", -1), HasSubstr("key 'num_layers'"));
}

class WanForward : public test::ForwardFixture {
 protected:
  WanForward() : ForwardFixture("wan") {}
};

TEST_F(WanForward, RefusesAdaptersAndStructuredResults) {
  EXPECT_THAT(refusal_with("attention_kwargs", true), HasSubstr("'attention_kwargs'"));
  EXPECT_THAT(refusal_with("return_dict", true),
              HasSubstr("argument 'return_dict' of WanTransformer3DModel must be false"));
}

TEST_F(WanForward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 3, 2, 6})),
              HasSubstr("argument 'hidden_states' of WanTransformer3DModel is float64 [2, 3, 2, 6]; expected [batch, "
                        "in_channels, frames, height, width]"));
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 3, 2, 6, 7})),
              HasSubstr("module 'patch_embedding' (Conv3d): float64 [2, 3, 2, 6, 7] must be [batch, 3, multiples of 1, "
                        "2 and 2]"));
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 3, 33, 2, 2})),
              HasSubstr("module 'rope' (WanRotaryPosEmbed): float64 [2, 3, 33, 2, 2] patches need 33 positions, but "
                        "'rope_max_seq_len' is 32"));
  EXPECT_THAT(refusal_with("timestep", host_zeros({3})),
              HasSubstr("argument 'timestep' of WanTransformer3DModel is float64 [3]; expected [batch] or [batch, "
                        "tokens] with the batch of hidden_states"));
  EXPECT_THAT(refusal_with("timestep", host_zeros({2, 23})),
              HasSubstr("argument 'temb' of module 'blocks.0' (WanTransformerBlock) has the 23 tokens of argument "
                        "'timestep' of module '' (WanTransformer3DModel), but hidden_states has 24"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({1, 512, 10})),
              HasSubstr("argument 'encoder_hidden_states' of WanTransformer3DModel"));
}

TEST_F(WanForward, NeedsAnImageAndItsTextWhereItHasKeysForThem) {
  EXPECT_THAT(refusal_with("encoder_hidden_states_image", std::monostate{}),
              HasSubstr("argument 'encoder_hidden_states_image' of WanTransformer3DModel must be given"));
  EXPECT_THAT(refusal_with("encoder_hidden_states_image", device_zeros({1, 5, 9})),
              HasSubstr("expected [batch, image tokens, image_dim] with the batch of hidden_states"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({2, 511, 10})), HasSubstr("expected 512 text tokens"));
}

TEST_F(WanForward, EveryArgumentChangesTheResult) {
  expect_every_argument_matters(0);
  expect_every_argument_matters(1);  // with a timestep a token
}

TEST_F(WanForward, TakesOneTimestepATokenAsOneASampleWhereAllAreEqual) {
  Arguments per_item = prepared(), per_token = prepared();
  per_item.set("timestep", ops::full(host(), {2}, kFloat64, 7.0));
  per_token.set("timestep", ops::full(host(), {2, 24}, kFloat64, 7.0));
  EXPECT_EQ(result_of(per_item), result_of(per_token));
}

TEST(WanWithoutImage, TakesTextsOfAnyLengthAndNoImage) {
  Json config = config_with("image_dim", Json());
  config.set("added_kv_proj_dim", Json());
  config.set("cross_attn_norm", false);
  test::ModelUnderTest model("wan", config);
  const Value text = model.device_zeros({2, 3, 10});
  EXPECT_THAT(
      model.refusal_with("encoder_hidden_states", text),
      HasSubstr("argument 'encoder_hidden_states_image' of WanTransformer3DModel must be none, got a tensor; the "
                "model has no image embedder"));
  Arguments arguments = model.prepared();
  arguments.set("encoder_hidden_states", text);
  arguments.set("encoder_hidden_states_image", std::monostate{});
  EXPECT_EQ(model.result_of(arguments).size(), std::size_t{2 * 2 * 2 * 6 * 8});
}

// Without keys of its own the image stands in front of the text.
TEST(WanWithImageInTheContext, AttendsToBothAsOne) {
  test::ModelUnderTest model("wan", config_with("added_kv_proj_dim", Json()));
  Arguments arguments = model.prepared();
  arguments.set("encoder_hidden_states", model.device_zeros({2, 3, 10}));
  const std::vector<double> with_image = model.result_of(arguments);
  arguments.set("encoder_hidden_states_image", std::monostate{});
  EXPECT_NE(model.result_of(arguments), with_image);
}

TEST(WanWithTwoFrames, TakesTheFeaturesOfBothAsOneSequence) {
  test::ModelUnderTest model("wan", config_with("pos_embed_seq_len", 10));
  const auto refusal = [&](const Shape& shape) {
    return model.refusal_with("encoder_hidden_states_image", model.device_zeros(shape));
  };
  EXPECT_EQ(refusal({4, 5, 9}), "accepted");
  EXPECT_THAT(refusal({2, 5, 9}), HasSubstr("[2 batch, image tokens, image_dim], a first and a last frame a sample"));
  EXPECT_THAT(refusal({4, 6, 9}),
              HasSubstr("argument 'encoder_hidden_states_image' is float64 [4, 6, 9]; expected [2 batch, 5, 9], two "
                        "frames whose tokens together are the 10 of 'pos_embed_seq_len'"));
}

TEST(WanTable, EqualsTheRecordedOne) {
  const std::string path = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/wan_rope";
  const Json latent = read_json_file(path + ".json").at("spec").at("latent");
  const SafetensorsFile file(path + ".safetensors");
  HostDevice host;
  Json config = Json::object();
  config.set("_class_name", "WanTransformer3DModel");
  config.set("num_layers", 0);
  config.set("num_attention_heads", 1);
  const auto tables = [&](TablePrecision precision, DType dtype) {
    const auto model =
        find_model_type("wan").create(config, {.device = &host, .dtype = dtype, .table_precision = precision});
    const Tensor video =
        ops::zeros(host, {1, 16, latent.at(0U).as_int(), latent.at(1U).as_int(), latent.at(2U).as_int()}, dtype);
    return model->find_module("rope")->call({{"hidden_states", video}}).tensors;
  };
  const auto narrow = tables(TablePrecision::float32, kFloat32), exact = tables(TablePrecision::float64, kFloat64);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto recorded = [&](const std::string& kind) {
      return test::to_host(file.tensor(kind + "." + std::to_string(i), host));
    };
    EXPECT_EQ(max_difference(test::to_host(narrow[i]), recorded("fp32")), 0.0) << i;
    // Angles up to 4, two library functions of half a unit each.
    EXPECT_LE(max_difference(test::to_host(exact[i]), recorded("exact")), 2e-15) << i;
  }
}

TEST(WanPlans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("wan"); }

TEST(WanPlans, NeedNoCorrection) {
  const ModelPlans plans = find_model_type("wan").plans(find_model_type("wan").hostile_config());
  EXPECT_EQ(plans.shipped_cp, plans.default_cp);
  EXPECT_FALSE(plans.shipped_tp || plans.default_tp);
}

}  // namespace
}  // namespace shardproof
