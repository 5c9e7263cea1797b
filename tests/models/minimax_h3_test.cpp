// MiniMax-H3: its configuration, its arguments, how its rows are packed, and its plan. That its numbers are right is
// shown by the oracle tests, which compare it with recorded outputs.
#include "models/minimax_h3.h"

#include <cmath>

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

TEST(MiniMaxH3Config, TakesTheDefaultsOfTheOriginalForAbsentFields) {
  Json config = Json::object();
  config.set("_class_name", "MiniMaxH3Transformer3DModel");
  const MiniMaxH3Config minimax = minimax_h3_config_from_json(config);
  EXPECT_EQ(minimax.num_attention_heads, 56);
  EXPECT_EQ(minimax.hidden_size, 5376);
  EXPECT_EQ(minimax.patch_channels(), 96);
  EXPECT_EQ(minimax.num_layers, 50);
  EXPECT_EQ(minimax.time_embed_dim, 2688);
  EXPECT_EQ(minimax.norm_eps, 1e-5);
}

TEST(MiniMaxH3Config, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("minimax_h3", "out_channels", 3), HasSubstr("config.json: unknown field 'out_channels'"));
  EXPECT_THAT(refusal_of("minimax_h3", "rope_freq_dim", 3),
              HasSubstr("key 'rope_freq_dim' is 3, which rotates 18 channels, but 'attention_head_dim' is 14"));
  EXPECT_THAT(refusal_of("minimax_h3", "freq_dim", 15), HasSubstr("key 'freq_dim' is 15; it must be even"));
}

TEST(MiniMaxH3Config, RefusesWrongTypesAndSizes) {
  EXPECT_THAT(refusal_of("minimax_h3", "num_layers", "two"), HasSubstr("key 'num_layers'"));
  EXPECT_THAT(refusal_of("minimax_h3", "patch_size", 2), HasSubstr("key 'patch_size' must be a list of three numbers"));
  EXPECT_THAT(refusal_of("minimax_h3", "qk_norm_eps", 0.0), HasSubstr("key 'qk_norm_eps' must be a number above zero"));
  EXPECT_THAT(refusal_of("minimax_h3", "audio_in_channels", 0), HasSubstr("key 'audio_in_channels'"));
}

class MiniMaxH3Forward : public test::ForwardFixture {
 protected:
  MiniMaxH3Forward() : ForwardFixture("minimax_h3") {}
  Tensor indices(const std::vector<double>& values) {
    return ops::from_doubles(device(), values, {static_cast<std::int64_t>(values.size())}, kInt64);
  }
  std::vector<double> entries(const Arguments& arguments, Name name) { return ops::to_doubles(arguments.tensor(name)); }
};

TEST_F(MiniMaxH3Forward, EveryArgumentChangesTheResult) { expect_every_argument_matters(); }

TEST_F(MiniMaxH3Forward, RefusesAdaptersAndTakesStructuredResults) {
  EXPECT_THAT(refusal_with("attention_kwargs", true),
              HasSubstr("argument 'attention_kwargs' of MiniMaxH3Transformer3DModel must be none"));
  EXPECT_EQ(refusal_with("return_dict", true), "accepted");
}

TEST_F(MiniMaxH3Forward, NamesArgumentsWhoseShapesDoNotFit) {
  EXPECT_THAT(refusal_with("audio_hidden_states", device_zeros({1, 9, 5})),
              HasSubstr("argument 'audio_hidden_states' of MiniMaxH3Transformer3DModel is float64 [1, 9, 5]"));
  EXPECT_THAT(refusal_with("encoder_hidden_states", device_zeros({2, 10})),
              HasSubstr("argument 'encoder_hidden_states'"));
  EXPECT_THAT(refusal_with("video_indices", indices({0, 1, 2})), HasSubstr("argument 'video_indices'"));
  EXPECT_THAT(refusal_with("timestep_indices", indices({0, 1, 2})),
              HasSubstr("argument 'timestep_indices' of MiniMaxH3Transformer3DModel is int64 [3]; expected [rows]"));
  EXPECT_THAT(refusal_with("position_ids", host_zeros({36, 2})), HasSubstr("argument 'position_ids'"));
  EXPECT_THAT(refusal_with("timestep", host_zeros({2, 1})), HasSubstr("argument 'timestep'"));
  EXPECT_THAT(refusal_with("token_tags", indices({})), HasSubstr("argument 'token_tags'"));
}

TEST_F(MiniMaxH3Forward, NamesIndicesThatPointNowhere) {
  const auto with_first = [&](Name name, double first) {
    std::vector<double> values = entries(prepared(), name);
    values.front() = first;
    return refusal_with(name, indices(values));
  };
  EXPECT_THAT(with_first("token_tags", 3.0), HasSubstr("argument 'token_tags' of MiniMaxH3Transformer3DModel holds 3; "
                                                       "kinds of rows are numbered from 0 to 2"));
  EXPECT_THAT(with_first("timestep_indices", 3.0), HasSubstr("holds 3; timesteps are numbered from 0 to 2"));
  EXPECT_THAT(with_first("audio_indices", 36.0), HasSubstr("holds 36; rows are numbered from 0 to 35"));
  EXPECT_THAT(with_first("text_indices", -1.0), HasSubstr("holds -1; rows are numbered from 0 to 35"));
}

// Rows of one kind may stand in any order: their outputs follow.
TEST_F(MiniMaxH3Forward, ReturnsTheTokensOfTheVideoInTheOrderOfTheirIndices) {
  const Arguments arguments = prepared();
  Arguments swapped = arguments;
  std::vector<double> rows = entries(arguments, "video_indices");
  std::swap(rows[0], rows[1]);
  swapped.set("video_indices", indices(rows));
  const Tensor& video = arguments.tensor("hidden_states");
  swapped.set("hidden_states",
              ops::concat({video.narrow(1, 1, 1), video.narrow(1, 0, 1), video.narrow(1, 2, video.size(1) - 2)}, 1));
  const std::vector<double> before = result_of(arguments), after = result_of(swapped);
  constexpr std::ptrdiff_t kChannels = 12;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + kChannels, after.begin() + kChannels));
  EXPECT_TRUE(std::equal(before.begin() + kChannels, before.begin() + 2 * kChannels, after.begin()));
}

// Without refiner layers a text token reaches nothing but its row: where audio goes over that, it is gone, and the row
// that it left is the same whichever audio row took its place.
TEST(MiniMaxH3Packing, WritesAudioOverTextAndLeavesRowsWithoutAnIndexEmpty) {
  Json config = find_model_type("minimax_h3").hostile_config();
  config.set("num_refiner_layers", 0);
  test::ModelUnderTest model("minimax_h3", config);
  const Arguments arguments = model.prepared();
  const std::vector<double> audio = ops::to_doubles(arguments.tensor("audio_indices"));
  const auto with_first_text_at = [&](double row) {
    Arguments moved = arguments;
    std::vector<double> text = ops::to_doubles(arguments.tensor("text_indices"));
    text.front() = row;
    moved.set("text_indices",
              ops::from_doubles(model.device(), text, {static_cast<std::int64_t>(text.size())}, kInt64));
    return moved;
  };
  const std::vector<double> covered = model.result_of(with_first_text_at(audio[0]));
  EXPECT_NE(covered, model.result_of(arguments));
  EXPECT_EQ(covered, model.result_of(with_first_text_at(audio[1])));
  Arguments other_text = with_first_text_at(audio[0]);
  const Tensor& text = arguments.tensor("encoder_hidden_states");
  other_text.set("encoder_hidden_states",
                 ops::concat({ops::multiply(text.narrow(1, 0, 1), 2.0), text.narrow(1, 1, text.size(1) - 1)}, 1));
  EXPECT_EQ(model.result_of(other_text), covered);
}

TEST(MiniMaxH3Table, EqualsTheRecordedOne) {
  const std::string path = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/minimax_rope";
  const Json spec = read_json_file(path + ".json").at("spec");
  const SafetensorsFile file(path + ".safetensors");
  std::vector<double> positions;
  for (const Json& row : spec.at("position_ids").items()) {
    for (const Json& position : row.items()) positions.push_back(position.as_double());
  }
  Json config = Json::object();
  config.set("num_layers", 0);
  config.set("num_refiner_layers", 0);
  config.set("rope_freq_dim", spec.at("rope_freq_dim").as_int());
  HostDevice host;
  const auto tables = [&](TablePrecision precision, DType dtype) {
    const auto model =
        find_model_type("minimax_h3").create(config, {.device = &host, .dtype = dtype, .table_precision = precision});
    const auto rows = static_cast<std::int64_t>(positions.size()) / 3;
    return model->find_module("rope")
        ->call({{"position_ids", ops::from_doubles(host, positions, {rows, 3}, kFloat64)}})
        .tensors;
  };
  const auto narrow = tables(TablePrecision::float32, kFloat32), exact = tables(TablePrecision::float64, kFloat64);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto recorded = [&](const std::string& kind) {
      return test::to_host(file.tensor(kind + "." + std::to_string(i), host));
    };
    // One unit in the last place of a cosine or sine, in which math libraries differ.
    EXPECT_LE(max_difference(test::to_host(narrow[i]), recorded("fp32")), std::ldexp(1.0, -24)) << i;
    // Angles up to 59, of a power and a product: three units of these, and half a unit of two library functions.
    EXPECT_LE(max_difference(test::to_host(exact[i]), recorded("exact")), 3e-14) << i;
  }
}

TEST(MiniMaxH3Plans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("minimax_h3"); }

TEST(MiniMaxH3Plans, NeedNoCorrection) {
  const ModelType& minimax = find_model_type("minimax_h3");
  const ModelPlans plans = minimax.plans(minimax.hostile_config());
  EXPECT_EQ(plans.default_cp, plans.shipped_cp);
  EXPECT_FALSE(plans.shipped_tp.has_value());
}

}  // namespace
}  // namespace shardproof
