// ChronoEdit: what it has of its own beside Wan, its configuration, its rotary table and its plans. That its numbers
// are right is shown by the oracle tests, which compare it with recorded outputs.
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

TEST(ChronoEditConfig, RefusesWhatIsUnknownOrContradictsItself) {
  EXPECT_THAT(refusal_of("chronoedit", "rope_theta", 3),
              HasSubstr("unknown field 'rope_theta'; the fields of this model are"));
  EXPECT_THAT(refusal_of("chronoedit", "rope_temporal_skip_len", 33),
              HasSubstr("config.json: key 'rope_temporal_skip_len' is 33, but 'rope_max_seq_len' is 32"));
  EXPECT_THAT(refusal_of("chronoedit", "rope_temporal_skip_len", 0), HasSubstr("key 'rope_temporal_skip_len'"));
  EXPECT_THAT(refusal_of("chronoedit", "attention_head_dim", 9),
              HasSubstr("key 'attention_head_dim' is 9; it must be even"));
  EXPECT_THAT(refusal_of("chronoedit", "qk_norm", "layer_norm"), HasSubstr("only 'rms_norm_across_heads' is offered"));
  EXPECT_EQ(refusal_of("chronoedit", "rope_temporal_skip_len", Json()), "accepted");
}

class ChronoEditForward : public test::ForwardFixture {
 protected:
  ChronoEditForward() : ForwardFixture("chronoedit") {}
};

TEST_F(ChronoEditForward, AllowsStructuredResultsAndNoAdapters) {
  EXPECT_EQ(refusal_with("return_dict", true), "accepted");
  EXPECT_THAT(refusal_with("attention_kwargs", true),
              HasSubstr("argument 'attention_kwargs' of ChronoEditTransformer3DModel must be none"));
}

TEST_F(ChronoEditForward, EveryArgumentChangesTheResult) {
  expect_every_argument_matters(0);  // with two frames
  expect_every_argument_matters(1);  // with a timestep a token
}

// The tables of a small model: {cosine, sine} of `frames` frames of `height` x `width` patches.
std::vector<test::HostArray> tables_of(std::int64_t head_dim, std::int64_t skip_length, const Shape& grid) {
  HostDevice host;
  Json config = Json::object();
  config.set("num_layers", 0);
  config.set("num_attention_heads", 1);
  config.set("attention_head_dim", head_dim);
  config.set("rope_temporal_skip_len", skip_length);
  const auto model = find_model_type("chronoedit").create(config, {.device = &host, .dtype = kFloat64});
  const Tensor video = ops::zeros(host, {1, 16, grid[0], 2 * grid[1], 2 * grid[2]}, kFloat64);
  std::vector<test::HostArray> result;
  for (const Tensor& table : model->find_module("rope")->call({{"hidden_states", video}}).tensors)
    result.push_back(test::to_host(table));
  return result;
}

std::vector<double> row_of(const test::HostArray& table, std::int64_t row) {
  const std::int64_t width = table.shape[3];
  return {table.values.begin() + row * width, table.values.begin() + (row + 1) * width};
}

// Width 16 has tables of 8, 4 and 4 that are cut at 6, 5 and 5: the fourth pair takes its cosine from the width and its
// sine from the height. Token (1, 1, 2) of two frames.
TEST(ChronoEditTable, EqualsThePrintedVectorWhereAPairStraddlesTwoAxes) {
  const auto tables = tables_of(16, 8, {2, 2, 3});
  const auto is_near = [](std::vector<double> actual, const std::vector<double>& printed) {
    ASSERT_EQ(actual.size(), printed.size());
    for (std::size_t i = 0; i < printed.size(); ++i) EXPECT_NEAR(actual[i], printed[i], 1.1e-6) << i;
  };
  is_near(row_of(tables[0], 6 + 3 + 2), {0.753902, 0.753902, 0.764842, 0.764842, 0.997551, 0.997551, 1, 1, 0.540302,
                                         0.540302, 0.999950, 0.999800, -0.416147, -0.416147, 0.999800, 0.999800});
  is_near(row_of(tables[1], 6 + 3 + 2), {0.656987, 0.656987, 0.644218, 0.644218, 0.069943, 0.069943, 0.001, 0.001,
                                         0.841471, 0.841471, 0.01, 0.019999, 0.909297, 0.909297, 0.019999, 0.019999});
}

TEST(ChronoEditTable, SkipsOnlyBetweenExactlyTwoFrames) {
  const auto two = tables_of(12, 5, {2, 1, 1}), five = tables_of(12, 5, {5, 1, 1});
  EXPECT_EQ(row_of(two[0], 0), row_of(five[0], 0));
  EXPECT_EQ(row_of(two[0], 1), row_of(five[0], 4));
  EXPECT_NE(row_of(two[0], 1), row_of(five[0], 1));
}

TEST(ChronoEditTable, EqualsTheRecordedOne) {
  const std::string path = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/chronoedit_rope_f2";
  const SafetensorsFile file(path + ".safetensors");
  const Json latent = read_json_file(path + ".json").at("spec").at("latent");
  const auto tables =
      tables_of(128, 8, {latent.at(0U).as_int(), latent.at(1U).as_int() / 2, latent.at(2U).as_int() / 2});
  HostDevice host;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto recorded = test::to_host(file.tensor("exact." + std::to_string(i), host));
    // Angles up to 7, two library functions of half a unit each: a few units of 2^-53.
    EXPECT_LE(max_difference(tables[i], recorded), 4e-15) << i;
  }
}

TEST(ChronoEditPlans, AreThoseOfTheRecordedPlanData) { test::expect_shipped_plans_as_recorded("chronoedit"); }

TEST(ChronoEditPlans, DefaultAddsTheTimesteps) {
  const ModelType& type = find_model_type("chronoedit");
  const ModelPlans plans = type.plans(type.hostile_config());
  const auto& shipped = plans.shipped_cp->entries;
  const auto& corrected = plans.default_cp->entries;
  ASSERT_EQ(corrected.size(), shipped.size() + 1);
  EXPECT_TRUE(std::equal(shipped.begin(), shipped.end(), corrected.begin()));
  EXPECT_EQ(corrected.back().first, "");
  EXPECT_EQ(split_key_text(std::get<SplitEntries>(corrected.back().second).front().first), "timestep");
}

}  // namespace
}  // namespace shardproof
