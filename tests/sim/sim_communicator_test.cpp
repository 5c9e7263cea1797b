// The communicator of simulated ranks against the laws of a communicator: several world sizes, numbers of workers,
// scheduler seeds and both orders.
#include "sim/sim_communicator.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "reference/eigen_device.h"
#include "sim/device_mover.h"
#include "sim/simulation.h"
#include "tests/support/communicator_conformance.h"

namespace shardproof::test {
namespace {

class SimCommunicatorLaw : public testing::TestWithParam<CommunicatorLaw> {
 protected:
  SimCommunicatorLaw() {
    tools_.device = float64_.get();
    tools_.summing = {{float64_.get(), kFloat64}, {float32_.get(), kFloat32}};
  }

  Device& device() const { return *float64_; }

  void check(int world_size, SimulationOptions options) {
    const RankRunner runner = [&](int size, const std::function<void(Communicator & world)>& body) {
      options.world_size = size;
      run_ranks(options, body);
    };
    SCOPED_TRACE("world of " + std::to_string(world_size) + ", workers " + std::to_string(options.workers) + ", seed " +
                 std::to_string(options.schedule_seed));
    EXPECT_NO_THROW(check_communicator_law(GetParam(), world_size, runner, tools_));
  }

 private:
  std::unique_ptr<Device> float64_ = make_reference_device(kFloat64);
  std::unique_ptr<Device> float32_ = make_reference_device(kFloat32);
  ConformanceTools tools_;
};

TEST_P(SimCommunicatorLaw, HoldsForEveryWorldSize) {
  for (const int world_size : {1, 2, 3, 4, 5, 8, 13}) check(world_size, {});
}

TEST_P(SimCommunicatorLaw, HoldsForEveryScheduleAndNumberOfWorkers) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const int workers : {1, 2, 3}) {
      SimulationOptions options;
      options.schedule_seed = seed;
      options.workers = workers;
      options.strict_order = seed != 2;
      check(6, options);
    }
  }
}

// As in memory that the host does not reach.
TEST_P(SimCommunicatorLaw, HoldsWhereTheDeviceMovesTheData) {
  DeviceMover mover(device());
  for (const int world_size : {1, 2, 5}) check(world_size, {.workers = 2, .mover = &mover});
}

INSTANTIATE_TEST_SUITE_P(Laws, SimCommunicatorLaw,
                         testing::ValuesIn(communicator_laws().begin(), communicator_laws().end()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace shardproof::test
