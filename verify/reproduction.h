// A test in C++ that fails on a configuration that was found to fail: what a user adds to a suite of his own, and a
// repair makes pass. It needs GoogleTest and the package, and no file.
#pragma once

#include <string>

#include "verify/shrink.h"

namespace shardproof {

// "default" and "shipped" plans are taken from the model; of another name, the test holds `plans` itself.
struct ReproductionPlan {
  std::string name = "default";
  ParallelPlans plans;
};

// How a given device (DeviceChoice::given) is made: the header, and an expression that is a std::unique_ptr<Device>.
struct ReproductionDevice {
  std::string header;
  std::string expression;
};

// At most 60 lines for the default and shipped plans, and for others of up to about 2,000 characters.
std::string reproducing_test(const ShrinkInput& input, const SmallestFailure& failure, const ReproductionPlan& plan,
                             const ReproductionDevice& device = {});

}  // namespace shardproof
