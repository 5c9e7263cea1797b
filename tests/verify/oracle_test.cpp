// The dense models against outputs that diffusers recorded.
// What passes here is what every later comparison of dense and parallel runs stands on.
#include "verify/oracle.h"

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/safetensors.h"
#include "tests/core/files/test_files.h"
#include "tests/support/recorded_exports.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OracleOfExport : public ::testing::TestWithParam<std::string> {};

TEST_P(OracleOfExport, AgreesInEveryPrecision) {
  Subject subject = Subject::open((test::recorded_data() / GetParam()).string(), 0);
  for (const std::string& name : subject.case_names()) {
    const std::vector<OracleResult> results = run_oracle(subject, name);
    ASSERT_EQ(results.size(), 4U);
    for (const OracleResult& result : results) {
      const bool is_trace = result.run.find("trace") != std::string::npos;
      EXPECT_TRUE(result.checked || is_trace) << name << " " << result.run;
      if (!result.checked) continue;
      EXPECT_TRUE(result.agrees) << name << " " << result.run << " error " << result.error << " tolerance "
                                 << result.tolerance << " " << result.first_module;
      EXPECT_THAT(result.without_counterpart, IsEmpty());
      EXPECT_GT(result.tolerance, 0.0);
    }
    // The gate of verification 4.3 for goldens: 1e-13 of the largest output.
    EXPECT_LT(results[0].error, 0.1 * results[0].tolerance) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, OracleOfExport, ::testing::ValuesIn(test::recorded_exports()),
                         [](const auto& case_info) {
                           std::string name = case_info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

TEST(Oracle, ComparesTheWholeTraceWhereThereIsOne) {
  Subject subject = Subject::open((test::recorded_data() / "flux/tiny").string(), 0);
  const OracleResult trace = run_oracle(subject, "base").back();
  EXPECT_TRUE(trace.checked);
  EXPECT_TRUE(trace.agrees);
  EXPECT_THAT(trace.note, HasSubstr("136 of 136 entries compared"));
}

// Its rotary tables are recorded as complex numbers.
TEST(Oracle, ComparesComplexTablesOfATrace) {
  Subject subject = Subject::open((test::recorded_data() / "qwenimage/zero_cond_t").string(), 0);
  const OracleResult trace = run_oracle(subject, "base").back();
  EXPECT_TRUE(trace.agrees) << trace.first_module;
  EXPECT_THAT(trace.note, HasSubstr("85 of 85 entries compared"));
}

// Its fp64 outputs come of coordinates in double and frequencies in float32, which neither of our tables has.
TEST(Oracle, AllowsMoreToOneComparisonOfGivenCoordinatesOnly) {
  Subject subject = Subject::open((test::recorded_data() / "ltx/tiny").string(), 0);
  const std::vector<OracleResult> coordinates = run_oracle(subject, "coords");
  const std::vector<OracleResult> grid = run_oracle(subject, "per_token_t");
  EXPECT_EQ(coordinates[1].tolerance, kTableTolerance);
  EXPECT_EQ(coordinates[2].tolerance, 1e-3);
  EXPECT_GT(coordinates[2].error, kTableTolerance);
  EXPECT_EQ(grid[2].tolerance, kTableTolerance);
}

TEST(Oracle, NeedsAnExportDirectory) {
  Subject subject = Subject::open("flux", 0);
  const auto error = test::thrown_by([&] { run_oracle(subject, "even"); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("'flux': recorded outputs are needed"));
}

// A copy of an export whose weights are changed in one place.
class SpoiltWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy(test::recorded_data() / "flux/tiny", folder_);
    HostDevice host;
    const SafetensorsFile weights(test::recorded_data() / "flux/tiny/weights.safetensors");
    std::vector<NamedTensor> changed;
    for (const SafetensorsEntry& entry : weights.entries()) {
      Tensor tensor = weights.tensor(entry.name, host);
      if (entry.name == "transformer_blocks.1.attn.to_k.bias") {
        std::vector<double> values = ops::to_doubles(tensor);
        values[5] += 0.5;
        tensor = ops::from_doubles(host, values, tensor.shape(), kFloat32);
      }
      changed.push_back({entry.name, tensor});
    }
    write_safetensors(folder_ / "weights.safetensors", changed);
  }
  test::TemporaryFolder temporary_;
  fs::path folder_ = temporary_ / "export";
};

TEST_F(SpoiltWeights, AreFoundAndTheFirstModuleIsNamed) {
  Subject subject = Subject::open(folder_.string(), 0);
  const std::vector<OracleResult> results = run_oracle(subject, "base");
  for (const OracleResult& result : results) {
    EXPECT_TRUE(result.checked);
    EXPECT_FALSE(result.agrees) << result.run;
    EXPECT_GT(result.error, result.tolerance);
  }
  EXPECT_EQ(results.back().first_module, "0054:transformer_blocks.1.attn.to_k#0");
}

TEST(Oracle, SaysWhatAnExportDoesNotHold) {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary / "export";
  fs::copy(test::recorded_data() / "flux/uneven", folder);
  fs::remove(folder / "base.outputs.safetensors");
  Subject subject = Subject::open(folder.string(), 0);
  for (const OracleResult& result : run_oracle(subject, "base")) {
    EXPECT_FALSE(result.checked);
    EXPECT_THAT(result.note, HasSubstr("the export has no"));
  }
}

}  // namespace
}  // namespace shardproof
