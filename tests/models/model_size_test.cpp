// Sizes of small models as text, and what every model makes of them: a case of exactly that size, with the features
// that were asked for and no other.
#include "models/model_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/host_memory.h"
#include "models/model_type.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

template <class Code>
std::string usage_problem(const Code& code) {
  const std::optional<test::ThrownError> error = test::thrown_by(code);
  return error && error->kind == ErrorKind::usage_error ? error->message : "no usage_error";
}

TEST(ModelSize, IsReadAndWritten) {
  const ModelSize size{5, 7, 3, 2, 4, {"key_mask", "per_token"}};
  EXPECT_EQ(size_text(size), "text=5,image=7,heads=3,layers=2,batch=4,with=key_mask+per_token");
  EXPECT_EQ(parse_model_size(size_text(size)), size);
  EXPECT_EQ(parse_model_size("heads=9"), (ModelSize{.heads = 9}));
  EXPECT_TRUE(size.has("per_token"));
  EXPECT_FALSE(size.has("per"));
}

TEST(ModelSize, IsRefusedByItsPart) {
  const auto message = [](const char* text) { return usage_problem([&] { parse_model_size(text); }); };
  EXPECT_THAT(message("tokens=3"), HasSubstr("'tokens=3' is no part of a size; expected NAME=NUMBER with text, image"));
  EXPECT_THAT(message("text"), HasSubstr("'text' is no part of a size"));
  EXPECT_THAT(message(""), HasSubstr("'' is no part of a size"));
  EXPECT_THAT(message("text=0"), HasSubstr("'text' has the value '0'; expected an integer from 1 to 4096"));
  EXPECT_THAT(message("batch=4097"), HasSubstr("'batch' has the value '4097'"));
  EXPECT_THAT(message("heads=2x"), HasSubstr("'heads' has the value '2x'"));
  EXPECT_THAT(message("text=1,text=1"), HasSubstr("'text' is given twice; expected once"));
}

class SizedModel : public testing::TestWithParam<std::string> {
 protected:
  HostDevice host_;
};

// Every feature that a case has is found in it, and none that it has not, so that a search can leave features out.
TEST_P(SizedModel, HasTheFeaturesThatWereAskedFor) {
  const ModelType& model = find_model_type(GetParam());
  for (const CaseFeature& feature : model.features) {
    const ModelSize with{.text = 3, .image = 8, .layers = 1, .batch = 2, .with = {feature.name}};
    ModelSize without = with;
    without.with.clear();
    const Json config = sized_config(model, Json::object(), with);
    EXPECT_TRUE(feature.is_in(model.sized_case(config, with, 1, host_).arguments)) << feature.name;
    EXPECT_FALSE(feature.is_in(model.sized_case(config, without, 1, host_).arguments)) << feature.name;
  }
}

TEST_P(SizedModel, RunsInEverySizeWithEveryFeature) {
  const ModelType& model = find_model_type(GetParam());
  std::vector<std::string> all;
  for (const CaseFeature& feature : model.features) all.push_back(feature.name);
  const ModelContext context{&host_, kFloat32, TablePrecision::float32};
  for (const ModelSize& size : {ModelSize{1, 4, 1, 1, 1, {}}, ModelSize{2, 8, 3, 2, 2, all}}) {
    const Json config = sized_config(model, Json::object(), size);
    const std::unique_ptr<Module> tree = model.create(config, context);
    const ModelCase made = model.sized_case(config, size, 1, host_);
    const Tensor image = made.arguments.tensor("hidden_states");
    EXPECT_EQ(image.shape()[0], size.batch) << size_text(size);
    EXPECT_NO_THROW(prepared_arguments(*tree, made.arguments, context, host_)) << size_text(size);
    EXPECT_EQ(model.attention_heads(config), size.heads) << size_text(size);
  }
}

TEST_P(SizedModel, RefusesAFeatureThatItDoesNotHave) {
  const ModelType& model = find_model_type(GetParam());
  const std::string message = usage_problem([&] { sized_config(model, Json::object(), {.with = {"no such"}}); });
  EXPECT_THAT(message, HasSubstr("cases of " + model.class_name + " have no feature 'no such'; expected "));
}

INSTANTIATE_TEST_SUITE_P(, SizedModel,
                         testing::Values("flux", "flux2", "qwenimage", "qwenimage21", "wan", "chronoedit", "ltx",
                                         "ltx2", "helios", "minimax_h3", "probe"),
                         [](const auto& parameter) { return parameter.param; });

TEST(SizedConfig, KeepsSwitchesWordsAndNullsOfTheSettings) {
  const ModelType& model = find_model_type("wan");
  Json settings = Json::object();
  settings.set("image_dim", Json());
  settings.set("added_kv_proj_dim", Json());
  settings.set("ffn_dim", 9999);
  const Json config = sized_config(model, settings, {.heads = 3});
  EXPECT_TRUE(config.at("image_dim").is_null());
  EXPECT_EQ(config.at("ffn_dim").as_int(), 40);
  EXPECT_EQ(config.at("num_attention_heads").as_int(), 3);
  HostDevice host;
  const ModelCase made = model.sized_case(config, {.text = 2}, 1, host);
  EXPECT_FALSE(made.arguments.optional_tensor("encoder_hidden_states_image").defined());
  EXPECT_EQ(made.arguments.tensor("encoder_hidden_states").shape()[1], 2);
}

TEST(SizedConfig, IsRefusedForAModelWithoutSizes) {
  ModelType model = find_model_type("flux");
  model.sized_case = nullptr;
  const std::string message = usage_problem([&] { sized_config(model, Json::object(), {}); });
  EXPECT_THAT(message, HasSubstr("FluxTransformer2DModel has no sizes"));
}

}  // namespace
}  // namespace shardproof
