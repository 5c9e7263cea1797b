// Qwen-Image: its configuration, its arguments, its rotary tables and its plans. That its numbers are right is shown by
// the oracle tests, which compare it with recorded outputs.
#include "models/qwenimage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/safetensors.h"
#include "models/model_type.h"
#include "parallel/plan.h"
#include "tests/models/forward_fixture.h"
#include "tests/models/refusal.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::refusal_of;
using test::thrown_by;
using ::testing::HasSubstr;

TEST(QwenImageConfig, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "QwenImageTransformer2DModel");
  const QwenImageConfig qwen = qwenimage_config_from_json(config);
  EXPECT_EQ(qwen.width(), 3072);
  EXPECT_EQ(qwen.num_layers, 60);
  EXPECT_EQ(qwen.in_channels, 64);
  EXPECT_EQ(qwen.out_channels, 16);
  EXPECT_FALSE(qwen.zero_cond_t);
  config.set("out_channels", Json());
  EXPECT_EQ(qwenimage_config_from_json(config).out_channels, 64);
}

TEST(QwenImageConfig, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("qwenimage", "rope_theta", 3), HasSubstr("unknown field 'rope_theta'"));
  EXPECT_THAT(refusal_of("qwenimage", "axes_dims_rope", Json::array({8, 4, 2})),
              HasSubstr("key 'axes_dims_rope' adds up to 14, but 'attention_head_dim' is 16"));
  EXPECT_THAT(refusal_of("qwenimage", "axes_dims_rope", Json::array({7, 5, 4})), HasSubstr("every entry must be even"));
  EXPECT_THAT(refusal_of("qwenimage", "axes_dims_rope", Json::array({8, 8})),
              HasSubstr("config.json: key 'axes_dims_rope' has 2 entries; expected 3, for frame, height and width"));
}

TEST(QwenImageConfig, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("qwenimage", "num_layers", 1.5), HasSubstr("key 'num_layers'"));
  EXPECT_THAT(refusal_of("qwenimage", "zero_cond_t", 1), HasSubstr("key 'zero_cond_t'"));
  EXPECT_THAT(refusal_of("qwenimage", "use_layer3d_rope", "yes"), HasSubstr("key 'use_layer3d_rope'"));
  EXPECT_THAT(refusal_of("qwenimage", "use_additional_t_cond", 0), HasSubstr("key 'use_additional_t_cond'"));
  EXPECT_THAT(refusal_of("qwenimage", "patch_size", 0), HasSubstr("key 'patch_size'"));
}

NestedNumbers shapes(std::string_view text) { return test::nested_numbers(parse_json(text, "shapes")); }

class QwenImageForward : public test::ForwardFixture {
 protected:
  QwenImageForward() : ForwardFixture("qwenimage") {}
};

TEST_F(QwenImageForward, RefusesAdaptersAndGuidance) {
  EXPECT_THAT(refusal_with("attention_kwargs", true), HasSubstr("'attention_kwargs'"));
  EXPECT_THAT(refusal_with("guidance", host_zeros({2})),
              HasSubstr("argument 'guidance' of QwenImageTransformer2DModel must be none, got a tensor"));
  EXPECT_EQ(refusal_with("return_dict", true), "accepted");
}

TEST_F(QwenImageForward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("timestep", host_zeros({3})),
              HasSubstr("argument 'timestep' of QwenImageTransformer2DModel is float64 [3]; expected [batch]"));
  EXPECT_THAT(refusal_with("hidden_states", device_zeros({2, 6})), HasSubstr("argument 'hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({1, 12, 20})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states_mask", device_zeros({2, 11})),
              HasSubstr("argument 'encoder_hidden_states_mask' of QwenImageTransformer2DModel is float64 [2, 11]; "
                        "expected [batch, text tokens] of encoder_hidden_states"));
}

TEST_F(QwenImageForward, RefusesImageShapesThatDoNotCoverTheTokens) {
  EXPECT_THAT(refusal_with("img_shapes", std::monostate{}), HasSubstr("whole numbers from 1, got none"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[[1,4,4],[1,2,4]]]")),
              HasSubstr("'img_shapes' of QwenImageTransformer2DModel has 1 samples; expected 2"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[[1,4,4],[1,2,4]],[[1,4,4]]]")),
              HasSubstr("the images of sample 1 have 16 tokens; expected 24, those of hidden_states"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[3,4]")), HasSubstr("got the number 3"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[],[]]")), HasSubstr("got a sample without images"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[[4,4]],[[4,4]]]")), HasSubstr("got a list of 2 numbers"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[[1,4,0]],[[1,4,4]]]")), HasSubstr("got the number 0"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[[1,4,1.5]],[[1,4,4]]]")), HasSubstr("got the number 1.5"));
  EXPECT_THAT(refusal_with("img_shapes", shapes("[[[1,4,[6]]],[[1,4,4]]]")),
              HasSubstr("got a list where a number belongs"));
}

TEST_F(QwenImageForward, EveryArgumentChangesTheResult) {
  expect_every_argument_matters(1);  // with a mask
  expect_every_argument_matters(4);  // with residuals
}

TEST_F(QwenImageForward, ReadsOneShapeASampleAsOneImage) {
  Arguments bare = prepared(), listed = prepared();
  bare.set("img_shapes", shapes("[[1,4,6],[1,4,6]]"));
  listed.set("img_shapes", shapes("[[[1,4,6]],[[1,4,6]]]"));
  EXPECT_EQ(result_of(bare), result_of(listed));
  EXPECT_NE(result_of(bare), result_of(prepared()));
}

TEST_F(QwenImageForward, ReadsMasksOfAnyTypeAsWhatIsNotZero) {
  const Arguments arguments = prepared(1);
  const Tensor mask = arguments.tensor("encoder_hidden_states_mask");
  Arguments weighted = arguments;
  weighted.set("encoder_hidden_states_mask", ops::multiply(ops::cast(mask, kFloat64), -3.0));
  EXPECT_EQ(result_of(weighted), result_of(arguments));
}

// With timestep 0 the rows for zero are the given ones, so that it does not matter which a token takes.
TEST_F(QwenImageForward, ModulatesTheOtherImagesByTimestepZero) {
  Arguments zero = prepared(), one_image = prepared();
  zero.set("timestep", host_zeros({2}));
  one_image.set("timestep", host_zeros({2}));
  const auto with_other_partition_of_the_second = [](Arguments arguments) {
    arguments.set("img_shapes", shapes("[[[1,4,4],[1,2,4]],[[1,4,6]]]"));
    return arguments;
  };
  EXPECT_EQ(result_of(zero), result_of(with_other_partition_of_the_second(one_image)));
  EXPECT_NE(result_of(prepared()), result_of(with_other_partition_of_the_second(prepared())));
}

TEST(QwenImageAdditionalCondition, PicksARowAndMustBeGivenWhereItIsUsed) {
  Json config = find_model_type("qwenimage").hostile_config();
  config.set("use_additional_t_cond", true);
  config.set("zero_cond_t", false);
  test::ModelUnderTest model("qwenimage", config);
  const auto with_condition = [&](std::vector<double> rows) {
    Arguments arguments = model.prepared();
    const auto count = static_cast<std::int64_t>(rows.size());
    arguments.set("additional_t_cond", ops::from_doubles(model.device(), rows, {count}, kInt64));
    return arguments;
  };
  EXPECT_NE(model.result_of(with_condition({0, 1})), model.result_of(with_condition({0, 0})));
  const auto message_of = [](const std::function<void()>& act) {
    const auto error = thrown_by(act);
    return error ? error->message : "accepted";
  };
  EXPECT_THAT(message_of([&] { model.result_of(model.prepared()); }), HasSubstr("additional_t_cond"));
  EXPECT_THAT(message_of([&] { model.result_of(with_condition({0})); }), HasSubstr("argument 'additional_t_cond'"));
  EXPECT_THAT(message_of([&] { model.result_of(with_condition({0, 2})); }), HasSubstr("2"));
  config.set("zero_cond_t", true);
  test::ModelUnderTest both("qwenimage", config);
  EXPECT_THAT(message_of([&] { both.result_of(with_condition({0, 1})); }),
              HasSubstr("with zero_cond_t is offered for one sample, not for 2"));
}

// The table of the model at real widths as (re, im) pairs, of one sample.
class QwenImageTables : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<test::HostArray> ours(TablePrecision precision, DType dtype) {
    Json config = Json::object();
    config.set("_class_name", "QwenImageTransformer2DModel");
    config.set("num_layers", 0);
    config.set("num_attention_heads", 1);
    config.set("use_layer3d_rope", std::string_view(GetParam()) == "qwen_layer3d_rope");
    const std::unique_ptr<Module> model =
        find_model_type("qwenimage").create(config, {.device = &host_, .dtype = dtype, .table_precision = precision});
    const Json& spec = spec_.at("spec");
    const Outputs tables = model->find_module("pos_embed")
                               ->call({{"img_shapes", test::nested_numbers(spec.at("img_shapes").at(0U))},
                                       {"max_txt_seq_len", spec.at("text").as_int()}});
    std::vector<test::HostArray> result;
    for (const Tensor& table : tables.tensors)
      result.push_back(test::to_host(ops::contiguous(table.unflatten(-1, 2, table.size(-1) / 2).permute({0, 2, 1}))));
    return result;
  }
  test::HostArray recorded(const std::string& kind, std::size_t output) {
    return test::to_host(file_.tensor(kind + "." + std::to_string(output), host_));
  }

  std::string path_ = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/" + GetParam();
  Json spec_ = read_json_file(path_ + ".json");
  SafetensorsFile file_{path_ + ".safetensors"};
  HostDevice host_;
};

TEST_P(QwenImageTables, EqualTheRecordedOnesBitForBit) {
  const auto tables = ours(TablePrecision::float32, kFloat32);
  ASSERT_EQ(tables.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(max_difference(tables[i], recorded("fp32", i)), 0.0) << i;
}

TEST_P(QwenImageTables, InDoubleEqualTheRecordedExactOnes) {
  const auto tables = ours(TablePrecision::float64, kFloat64);
  // Angles up to 13, two library functions of half a unit each: a few units of 2^-53.
  for (std::size_t i = 0; i < 2; ++i) EXPECT_LE(max_difference(tables[i], recorded("exact", i)), 8e-15) << i;
}

INSTANTIATE_TEST_SUITE_P(Recorded, QwenImageTables, ::testing::Values("qwen_rope", "qwen_layer3d_rope"),
                         [](const auto& case_info) { return std::string(case_info.param); });

TEST(QwenImageTable, EndsWhereThatOfTheOriginalDoes) {
  HostDevice host;
  const ModelType& type = find_model_type("qwenimage");
  const std::unique_ptr<Module> model = type.create(type.hostile_config(), {.device = &host, .dtype = kFloat64});
  const auto refusal = [&](std::string_view sample, std::int64_t text) {
    const auto error = thrown_by(
        [&] { model->find_module("pos_embed")->call({{"img_shapes", shapes(sample)}, {"max_txt_seq_len", text}}); });
    return error ? error->message : "accepted";
  };
  EXPECT_EQ(refusal("[[1,2,2]]", 4095), "accepted");
  EXPECT_EQ(refusal("[[1,2,2]]", 4096),
            "QwenEmbedRope: text reaches position 4096, but the tables end at 4095; use fewer tokens");
  EXPECT_THAT(refusal("[[4097,1,1]]", 1), HasSubstr("an image reaches position 4096"));
}

TEST(QwenImagePlans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("qwenimage"); }

TEST(QwenImagePlans, DefaultAddsTheControlNetResiduals) {
  const ModelType& qwen = find_model_type("qwenimage");
  const ModelPlans plans = qwen.plans(qwen.hostile_config());
  const auto& shipped = plans.shipped_cp->entries;
  const auto& corrected = plans.default_cp->entries;
  ASSERT_EQ(corrected.size(), shipped.size() + 1);
  EXPECT_TRUE(std::equal(shipped.begin(), shipped.end(), corrected.begin() + 1));
  EXPECT_EQ(corrected.front().first, "");
  EXPECT_EQ(split_key_text(std::get<SplitEntries>(corrected.front().second).front().first), "controlnet_block_samples");
}

}  // namespace
}  // namespace shardproof
