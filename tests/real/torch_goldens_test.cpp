// The device of LibTorch computes every recorded export: dense against what diffusers returned, and on simulated ranks
// against dense, in float64 and float32. A second opinion on the project's own devices, by arithmetic that none of
// them shares. One process for all: LibTorch takes half a second to start.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "real/torch_device.h"
#include "sim/device_mover.h"
#include "tests/real/torch_place.h"
#include "tests/support/recorded_exports.h"
#include "verify/oracle.h"
#include "verify/verifier.h"

namespace shardproof::test {
namespace {

// What simulated ranks move lies in host memory, but on a GPU.
struct GivenDevice {
  std::unique_ptr<Device> device = torch_device_to_test();
  DeviceMover mover{*device};
  VerifierOptions options(DType dtype) {
    return {.dtype = dtype,
            .device = DeviceChoice::given,
            .given_device = device.get(),
            .workers = 2,
            .mover = torch_place_to_test().place == TorchPlace::cuda ? &mover : nullptr,
            .modules = false,
            .extremes = false};
  }
};

class TorchOnExport : public testing::TestWithParam<std::string> {};

TEST_P(TorchOnExport, AgreesWithDiffusers) {
  GivenDevice given;
  Subject subject = Subject::open((recorded_data() / GetParam()).string(), 0);
  for (const std::string& name : subject.case_names()) {
    for (const OracleResult& result : run_oracle(subject, name, given.device.get())) {
      const bool is_trace = result.run.find("trace") != std::string::npos;
      EXPECT_TRUE(result.checked || is_trace) << name << " " << result.run;
      if (!result.checked) continue;
      EXPECT_TRUE(result.agrees) << name << " " << result.run << " error " << result.error << " of " << result.tolerance
                                 << " " << result.first_module;
    }
  }
}

TEST_P(TorchOnExport, IsTheSameOnSimulatedRanks) {
  GivenDevice given;
  Subject subject = Subject::open((recorded_data() / GetParam()).string(), 0);
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  std::vector<ParallelConfig> configurations;
  if (plans.cp && !plans.cp->entries.empty()) {
    configurations.push_back(
        {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2, .ulysses_anything = true}});
    configurations.push_back({.context_parallel_config = ContextParallelConfig{
                                  .ring_degree = 3, .rotate_method = "alltoall", .ring_anything = true}});
  }
  if (plans.tp) configurations.push_back({.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}});
  ASSERT_FALSE(configurations.empty());
  for (const DType dtype : {kFloat64, kFloat32}) {
    Verifier verifier(subject, given.options(dtype));
    for (const std::string& name : subject.case_names()) {
      for (const ParallelConfig& config : configurations) {
        const VerificationResult result = verifier.verify(name, config, plans);
        EXPECT_EQ(result.verdict, Verdict::rounding_equivalent)
            << name << " " << dtype.name() << " " << mode_name(config) << ": " << result.reason;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, TorchOnExport, testing::ValuesIn(recorded_exports()), [](const auto& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

}  // namespace
}  // namespace shardproof::test
