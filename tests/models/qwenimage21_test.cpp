// Qwen-Image 2.1: its configuration, its arguments, its rotary table, its mask and its plan. That its numbers are right
// is shown by the oracle tests, which compare it with recorded outputs.
#include "models/qwenimage21.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/safetensors.h"
#include "models/model_type.h"
#include "tests/models/forward_fixture.h"
#include "tests/models/refusal.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::refusal_of;
using ::testing::HasSubstr;

TEST(QwenImage21Config, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "QwenImage21Transformer2DModel");
  const QwenImage21Config qwen = qwenimage21_config_from_json(config);
  EXPECT_EQ(qwen.width(), 4096);
  EXPECT_EQ(qwen.num_layers, 32);
  EXPECT_EQ(qwen.mlp_ratio, 3);
  EXPECT_EQ(qwen.out_channels, 64);
  EXPECT_TRUE(qwen.causal_condition);
  config.set("in_channels", 7);
  config.set("out_channels", Json());
  EXPECT_EQ(qwenimage21_config_from_json(config).out_channels, 7);
}

TEST(QwenImage21Config, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("qwenimage21", "joint_attention_dim", 3), HasSubstr("unknown field 'joint_attention_dim'"));
  EXPECT_THAT(refusal_of("qwenimage21", "axes_dims_rope", Json::array({8, 4, 2})),
              HasSubstr("key 'axes_dims_rope' adds up to 14, but 'attention_head_dim' is 16"));
  EXPECT_THAT(refusal_of("qwenimage21", "axes_dims_rope", Json::array({7, 5, 4})),
              HasSubstr("every entry must be even"));
  EXPECT_THAT(refusal_of("qwenimage21", "axes_dims_rope", Json::array({4, 4, 4, 4})),
              HasSubstr("has 4 entries; expected 3"));
}

TEST(QwenImage21Config, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("qwenimage21", "mlp_ratio", 2.5), HasSubstr("key 'mlp_ratio'"));
  EXPECT_THAT(refusal_of("qwenimage21", "mlp_ratio", 0), HasSubstr("key 'mlp_ratio'"));
  EXPECT_THAT(refusal_of("qwenimage21", "eps", 0), HasSubstr("key 'eps' must be a number above zero"));
  EXPECT_THAT(refusal_of("qwenimage21", "causal_condition", "yes"), HasSubstr("key 'causal_condition'"));
  EXPECT_THAT(refusal_of("qwenimage21", "context_in_dim", -1), HasSubstr("key 'context_in_dim'"));
}

// The first case: two samples of text, an image of 2 x 4, text and a target of 4 x 4.
class QwenImage21Forward : public test::ForwardFixture {
 protected:
  QwenImage21Forward() : ForwardFixture("qwenimage21") {}
  std::string with_shapes(std::string_view shapes) {
    return refusal_with("img_shapes", test::nested_numbers(parse_json(shapes, "shapes")));
  }
  // 't' a text row, 'i' an image slot; one string a sample.
  Tensor slots(const std::vector<std::string>& samples) {
    std::vector<double> marks;
    for (const std::string& sample : samples) {
      for (const char slot : sample) marks.push_back(slot == 'i' ? 1.0 : 0.0);
    }
    return ops::from_doubles(device(), marks,
                             {static_cast<std::int64_t>(samples.size()), static_cast<std::int64_t>(samples[0].size())},
                             kBool);
  }
  std::string with_slots(const std::string& one, const std::string& other) {
    return refusal_with("img_mask", slots({one, other}));
  }
};

TEST_F(QwenImage21Forward, RefusesAdaptersAndCaches) {
  EXPECT_THAT(refusal_with("attention_kwargs", true), HasSubstr("'attention_kwargs'"));
  EXPECT_THAT(refusal_with("kv_cache", true), HasSubstr("'kv_cache'"));
  EXPECT_THAT(refusal_with("kv_cache_mode", std::string("extract")),
              HasSubstr("argument 'kv_cache_mode' of QwenImage21Transformer2DModel must be none, got"));
  EXPECT_EQ(refusal_with("kv_cache", false), "accepted");
  EXPECT_EQ(refusal_with("return_dict", true), "accepted");
}

TEST_F(QwenImage21Forward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("timestep", host_zeros({1})),
              HasSubstr("argument 'timestep' of QwenImage21Transformer2DModel is float64 [1]; expected [batch]"));
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 6})), HasSubstr("argument 'hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({1, 10, 20})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states_mask", device_zeros({2, 9})),
              HasSubstr("argument 'encoder_hidden_states_mask'"));
  EXPECT_THAT(refusal_with("img_mask", device_zeros({1, 14})), HasSubstr("argument 'img_mask'"));
}

TEST_F(QwenImage21Forward, RefusesImagesThatDoNotFitTheTokens) {
  EXPECT_THAT(with_shapes("[[[1,2,4],[1,4,3]],[[1,2,4],[1,4,3]]]"),
              HasSubstr("the images of sample 0 have 20 tokens; expected 24"));
  EXPECT_THAT(with_shapes("[[[1,2,4],[1,4,4]],[[1,4,4],[1,2,4]]]"), HasSubstr("all samples must have the same images"));
  EXPECT_THAT(with_shapes("[[[2,2,2],[1,4,4]],[[2,2,2],[1,4,4]]]"),
              HasSubstr("an image of [2, 2, 2]; expected one frame and a multiple of 4 tokens"));
  EXPECT_THAT(with_shapes("[[[1,2,3],[1,6,3]],[[1,2,3],[1,6,3]]]"), HasSubstr("an image of [1, 2, 3]"));
}

TEST_F(QwenImage21Forward, RefusesSlotsThatDoNotFitTheImages) {
  EXPECT_EQ(with_slots("tttiitttttiiii", "tttiitttttiiii"), "accepted");
  EXPECT_THAT(with_slots("tttiitttttiiii", "ttttiittttiiii"),
              HasSubstr("slot 3 differs between samples 0 and 1; all samples must be alike"));
  EXPECT_THAT(with_slots("tttititttiiii", "tttititttiiii"), HasSubstr("slot 4 is text inside an image"));
  EXPECT_THAT(with_slots("tttiitttttiii", "tttiitttttiii"),
              HasSubstr("has 20 latent tokens in its image slots; expected those of all 2 images"));
  EXPECT_THAT(with_slots("tttiitttttiiiii", "tttiitttttiiiii"), HasSubstr("slot 14 is an image slot, but all images"));
  EXPECT_THAT(with_slots("tttiitttttiiiit", "tttiitttttiiiit"),
              HasSubstr("slot 14 is text, but encoder_hidden_states ends before it"));
}

TEST_F(QwenImage21Forward, ReturnsTheWholeJointSequence) {
  // 3 + 8 + 5 + 16 tokens of 5 channels, two samples.
  EXPECT_EQ(result_of(prepared()).size(), 2U * 32U * 5U);
}

// What an image slot stands on is taken from the latent tokens; its text row is never read. Everything before an image
// is blind to it, and the tokens of one image see each other.
TEST_F(QwenImage21Forward, IsCausalButInsideImages) {
  const Arguments arguments = prepared();
  const std::vector<double> before = result_of(arguments);
  const auto first_change = [&](Name name, std::int64_t row) {
    const Tensor& tensor = arguments.tensor(name);
    std::vector<double> values = ops::to_doubles(tensor);
    values[static_cast<std::size_t>(row * tensor.size(2))] += 1.0;
    Arguments other = arguments;
    other.set(name, ops::from_doubles(device(), values, tensor.shape(), kFloat64));
    const std::vector<double> after = result_of(other);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i] != after[i]) return static_cast<int>(i / 5);
    }
    return -1;
  };
  EXPECT_EQ(first_change("encoder_hidden_states", 1), 1);
  EXPECT_EQ(first_change("encoder_hidden_states", 3), -1);  // an image slot
  EXPECT_EQ(first_change("encoder_hidden_states", 5), 11);  // text after the first image
  EXPECT_EQ(first_change("hidden_states", 7), 3);           // the last token of the first image changes its first
  EXPECT_EQ(first_change("hidden_states", 23), 16);         // and so for the target
}

TEST_F(QwenImage21Forward, DropsTextThatTheMaskDrops) {
  Arguments all = prepared(), none_dropped = prepared(), one_dropped = prepared();
  std::vector<double> marks(20, 1.0);
  none_dropped.set("encoder_hidden_states_mask", ops::from_doubles(device(), marks, {2, 10}, kBool));
  marks[0] = 0.0;
  one_dropped.set("encoder_hidden_states_mask", ops::from_doubles(device(), marks, {2, 10}, kBool));
  EXPECT_EQ(result_of(none_dropped), result_of(all));
  EXPECT_NE(result_of(one_dropped), result_of(all));
}

// With timestep 0 the extra row for zero is the given one.
TEST(QwenImage21CausalCondition, TakesTheRowForZeroOutsideTheTarget) {
  Json config = find_model_type("qwenimage21").hostile_config();
  test::ModelUnderTest causal("qwenimage21", config);
  config.set("causal_condition", false);
  test::ModelUnderTest plain("qwenimage21", config);
  const auto at_zero = [](test::ModelUnderTest& model) {
    Arguments arguments = model.prepared();
    arguments.set("timestep", model.host_zeros({2}));
    return model.result_of(arguments);
  };
  EXPECT_EQ(at_zero(causal), at_zero(plain));
  EXPECT_NE(causal.result_of(causal.prepared()), plain.result_of(plain.prepared()));
}

// Table of the model at real widths, as (re, im) pairs.
test::HostArray table_of(const Json& spec, HostDevice& host, TablePrecision precision, DType dtype) {
  Json config = Json::object();
  config.set("_class_name", "QwenImage21Transformer2DModel");
  config.set("num_layers", 0);
  config.set("num_attention_heads", 1);
  const std::unique_ptr<Module> model =
      find_model_type("qwenimage21").create(config, {.device = &host, .dtype = dtype, .table_precision = precision});
  std::vector<double> ids;
  const auto tokens = static_cast<std::int64_t>(spec.at("image_pad_mask").size());
  std::int64_t next = 0;
  std::size_t image = 0;
  for (std::int64_t token = 0; token < tokens;) {
    if (!spec.at("image_pad_mask").at(static_cast<std::size_t>(token)).as_bool()) {
      for (int axis = 0; axis < 3; ++axis) ids.push_back(static_cast<double>(next));
      ++next;
      ++token;
      continue;
    }
    const std::int64_t height = spec.at("img_shapes").at(image).at(1U).as_int();
    const std::int64_t width = spec.at("img_shapes").at(image).at(2U).as_int();
    for (std::int64_t i = 0; i < height * width; ++i) {
      ids.push_back(static_cast<double>(next));
      ids.push_back(static_cast<double>(i / width - (height - height / 2)));
      ids.push_back(static_cast<double>(i % width - (width - width / 2)));
    }
    next += std::max(height, width);
    token += height * width;
    ++image;
  }
  const Tensor table = model->find_module("pos_embed")
                           ->call({{"ids", ops::from_doubles(host, ids, {tokens, 3}, kFloat64)}})
                           .tensors.front();
  return test::to_host(ops::contiguous(table.unflatten(-1, 2, table.size(-1) / 2).permute({0, 2, 1})));
}

TEST(QwenImage21Table, EqualsTheRecordedOne) {
  const std::string path = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/qwen21_rope";
  const Json spec = read_json_file(path + ".json");
  const SafetensorsFile file(path + ".safetensors");
  HostDevice host;
  const auto difference = [&](TablePrecision precision, DType dtype, const char* recorded) {
    return max_difference(table_of(spec.at("spec"), host, precision, dtype),
                          test::to_host(file.tensor(recorded, host)));
  };
  EXPECT_EQ(difference(TablePrecision::float32, kFloat32, "fp32.0"), 0.0);
  // Angles up to 13, two library functions of half a unit each: a few units of 2^-53.
  EXPECT_LE(difference(TablePrecision::float64, kFloat64, "exact.0"), 8e-15);
}

TEST(QwenImage21Plans, AreThoseOfTheRecordedPlanData) {
  test::expect_shipped_plans_as_recorded("qwenimage21");
  const ModelType& qwen = find_model_type("qwenimage21");
  const ModelPlans plans = qwen.plans(qwen.hostile_config());
  EXPECT_FALSE(plans.default_cp.has_value());
  EXPECT_EQ(plans.default_tp, plans.shipped_tp);
}

}  // namespace
}  // namespace shardproof
