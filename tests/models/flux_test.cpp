// FLUX.1: its configuration, its arguments and the size of its trees. That its numbers are right is shown by the oracle
// tests, which compare it with recorded outputs.
#include "models/flux.h"

#include <malloc.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/ops.h"
#include "models/model_type.h"
#include "models/state.h"
#include "reference/eigen_device.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::thrown_by;
using ::testing::HasSubstr;

Json config_with(std::string_view key, Json value) {
  Json config = find_model_type("flux").hostile_config();
  config.set(key, std::move(value));
  return config;
}

// As if read from a file, so that messages can name the key.
std::string refusal_of(const Json& config) {
  const auto error = thrown_by([&] { flux_config_from_json(parse_json(config.dump(), "config.json")); });
  return error ? error->message : "accepted";
}

TEST(FluxConfig, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "FluxTransformer2DModel");
  const FluxConfig flux = flux_config_from_json(config);
  EXPECT_EQ(flux.width(), 3072);
  EXPECT_EQ(flux.num_layers, 19);
  EXPECT_EQ(flux.num_single_layers, 38);
  EXPECT_EQ(flux.out_channels, 64);
  EXPECT_FALSE(flux.guidance_embeds);
}

TEST(FluxConfig, OutputChannelsFollowInputChannelsWhereNull) {
  EXPECT_EQ(flux_config_from_json(config_with("out_channels", Json())).out_channels, 6);
  EXPECT_EQ(flux_config_from_json(config_with("out_channels", 9)).out_channels, 9);
}

TEST(FluxConfig, RefusesUnknownFieldsByName) {
  EXPECT_THAT(refusal_of(config_with("num_layer", 3)), HasSubstr("unknown field 'num_layer'"));
}

TEST(FluxConfig, RefusesAxesThatDoNotAddUpToTheHeadWidth) {
  EXPECT_THAT(refusal_of(config_with("axes_dims_rope", Json::array({4, 4, 4}))),
              HasSubstr("'axes_dims_rope' adds up to 12, but 'attention_head_dim' is 16"));
  EXPECT_THAT(refusal_of(config_with("axes_dims_rope", Json::array({3, 5, 8}))),
              HasSubstr("'axes_dims_rope' contains 3; every entry must be even"));
}

TEST(FluxConfig, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of(config_with("num_layers", "two")), HasSubstr("num_layers"));
  EXPECT_THAT(refusal_of(config_with("num_attention_heads", 0)), HasSubstr("num_attention_heads"));
  EXPECT_THAT(refusal_of(config_with("num_layers", 1'000'000'000)), HasSubstr("num_layers"));
  EXPECT_THAT(refusal_of(config_with("guidance_embeds", 1)), HasSubstr("guidance_embeds"));
}

class FluxForward : public ::testing::Test {
 protected:
  FluxForward() {
    tree_ = type_.create(type_.hostile_config(), context_);
    assign_state(*tree_, random_state(*tree_, 1, context_));
    raw_ = type_.hostile_cases(1, host_).front().arguments;
  }

  std::string refusal_with(Name name, Value value) {
    Arguments arguments = prepared_arguments(*tree_, raw_, context_, host_);
    arguments.set(name, std::move(value));
    const auto error = thrown_by([&] { tree_->call(arguments); });
    return error ? error->message : "accepted";
  }

  HostDevice host_;
  std::unique_ptr<Device> device_ = make_reference_device(kFloat64);
  ModelContext context_{device_.get(), kFloat64, TablePrecision::float64};
  const ModelType& type_ = find_model_type("flux");
  std::unique_ptr<Module> tree_;
  Arguments raw_;
};

TEST_F(FluxForward, DemandsGuidanceExactlyWhereItIsEmbedded) {
  EXPECT_THAT(refusal_with("guidance", std::monostate{}),
              HasSubstr("'guidance' of FluxTransformer2DModel must be given"));
}

TEST_F(FluxForward, RefusesAdaptersAndStructuredResults) {
  EXPECT_THAT(refusal_with("joint_attention_kwargs", true), HasSubstr("'joint_attention_kwargs'"));
  EXPECT_THAT(refusal_with("return_dict", true), HasSubstr("'return_dict'"));
}

TEST_F(FluxForward, NamesArgumentsWhoseShapesDoNotFit) {
  const auto host_tensor = [&](const Shape& shape) { return ops::zeros(host_, shape, kFloat64); };
  const auto tensor = [&](const Shape& shape) { return ops::zeros(*device_, shape, kFloat64); };
  EXPECT_THAT(refusal_with("timestep", host_tensor({3})),
              HasSubstr("argument 'timestep' of FluxTransformer2DModel is float64 [3]; expected [batch]"));
  EXPECT_THAT(refusal_with("timestep", host_tensor({2, 1})), HasSubstr("argument 'timestep'"));
  EXPECT_THAT(refusal_with("guidance", host_tensor({})), HasSubstr("argument 'guidance'"));
  EXPECT_THAT(refusal_with("hidden_states", tensor({2, 6})), HasSubstr("argument 'hidden_states'"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", tensor({1, 12, 24})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("pooled_projections", tensor({1, 20})), HasSubstr("argument 'pooled_projections'"));
  EXPECT_THAT(refusal_with("img_ids", host_tensor({0, 24, 3})), HasSubstr("argument 'img_ids'"));
  EXPECT_THAT(refusal_with("txt_ids", host_tensor({})), HasSubstr("argument 'txt_ids'"));
}

TEST_F(FluxForward, NamesAnArgumentThatItDoesNotHave) {
  EXPECT_THAT(refusal_with("image", std::monostate{}), HasSubstr("has no argument 'image'"));
}

TEST_F(FluxForward, TakesTheFirstEntryOfIdsWithABatchAxis) {
  const Arguments flat = prepared_arguments(*tree_, raw_, context_, host_);
  Arguments batched = flat;
  for (const Name name : {Name("img_ids"), Name("txt_ids")}) {
    const Tensor ids = flat.tensor(name);
    batched.set(name, ops::concat({ids.unsqueeze(0), ops::zeros(host_, {1, ids.size(0), ids.size(1)}, kFloat64)}, 0));
  }
  EXPECT_EQ(ops::to_doubles(tree_->call(flat).tensors[0]), ops::to_doubles(tree_->call(batched).tensors[0]));
}

TEST_F(FluxForward, EveryArgumentChangesTheResult) {
  const Arguments arguments = prepared_arguments(*tree_, raw_, context_, host_);
  const std::vector<double> before = ops::to_doubles(tree_->call(arguments).tensors[0]);
  for (const auto& [name, value] : arguments.entries()) {
    const auto* tensor = std::get_if<Tensor>(&value);
    ASSERT_NE(tensor, nullptr) << name.text();
    std::vector<double> changed = ops::to_doubles(*tensor);
    changed.back() += 0.25;
    Arguments other = arguments;
    other.set(name, ops::from_doubles(tensor->device(), changed, tensor->shape(), tensor->dtype()));
    EXPECT_NE(ops::to_doubles(tree_->call(other).tensors[0]), before) << name.text();
  }
}

TEST(FluxTree, OfFiftySevenBlocksTakesAtMost300KilobytesARank) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator of a sanitizer keeps no count of bytes in use";
#endif
  Json config = Json::object();
  config.set("_class_name", "FluxTransformer2DModel");
  config.set("attention_head_dim", 4);
  config.set("num_attention_heads", 1);
  config.set("axes_dims_rope", Json::array({2, 2}));
  const ModelContext context{nullptr, kFloat32, TablePrecision::float32};
  const auto create = [&] { return find_model_type("flux").create(config, context); };
  const std::unique_ptr<Module> first = create();  // interns the names
  HostDevice host;
  const ModelContext on_host{&host, kFloat32, TablePrecision::float32};
  const ModelState state = random_state(*first, 0, on_host);
  const std::size_t before = mallinfo2().uordblks;
  constexpr int kTrees = 8;
  std::vector<std::unique_ptr<Module>> trees;
  for (int i = 0; i < kTrees; ++i) {
    trees.push_back(create());
    assign_state(*trees.back(), state);
  }
  const std::size_t per_tree = (mallinfo2().uordblks - before) / kTrees;
  EXPECT_GT(per_tree, 50'000U);
  EXPECT_LE(per_tree, 300'000U);
}

TEST(ModelTypes, AreFoundByClassAndShortNameAndListedOtherwise) {
  EXPECT_EQ(&find_model_type("flux"), &find_model_type("FluxTransformer2DModel"));
  const auto error = thrown_by([] { find_model_type("flx"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::usage_error);
  EXPECT_THAT(error->message, ::testing::StartsWith("no model is named 'flx'; known: "));
  EXPECT_THAT(error->message, HasSubstr("flux (FluxTransformer2DModel), flux2 (Flux2Transformer2DModel)"));
}

TEST(ModelTypes, DrawTheSameWeightsAndInputsFromTheSameSeedOnly) {
  HostDevice host;
  const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  const ModelContext context{device.get(), kFloat64, TablePrecision::float64};
  for (const ModelType& type : model_types()) {
    const std::unique_ptr<Module> tree = type.create(type.hostile_config(), context);
    const ModelState one = random_state(*tree, 7, context), same = random_state(*tree, 7, context),
                     other = random_state(*tree, 8, context);
    ASSERT_FALSE(one.tensors.empty());
    for (std::size_t i = 0; i < one.tensors.size(); ++i) {
      EXPECT_EQ(ops::to_doubles(*one.tensors[i]), ops::to_doubles(*same.tensors[i])) << one.names[i];
      EXPECT_NE(ops::to_doubles(*one.tensors[i]), ops::to_doubles(*other.tensors[i])) << one.names[i];
    }
    EXPECT_GE(type.hostile_cases(7, host).size(), 3U);
  }
}

TEST(PreparedArguments, RefuseElementTypesThatDoNotFitTheKind) {
  HostDevice host;
  const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  const ModelContext context{device.get(), kFloat64, TablePrecision::float64};
  const ModelType& type = find_model_type("probe");
  const std::unique_ptr<Module> tree = type.create(type.hostile_config(), context);
  const auto refusal = [&](Name name, DType dtype) {
    const auto error =
        thrown_by([&] { prepared_arguments(*tree, {{name, ops::zeros(host, {2, 3}, dtype)}}, context, host); });
    return error ? error->message : "accepted";
  };
  EXPECT_THAT(refusal("hidden_states", kInt64),
              HasSubstr("argument 'hidden_states' is int64 [2, 3]; a floating type is expected"));
  EXPECT_EQ(refusal("encoder_hidden_states_mask", kInt64), "accepted");
  EXPECT_THAT(refusal("timestep", kBool), HasSubstr("argument 'timestep' is bool [2, 3]; a number is expected"));
  EXPECT_EQ(refusal("encoder_hidden_states_mask", kBool), "accepted");
}

}  // namespace
}  // namespace shardproof
