// Where the tests of the device of LibTorch compute: on the CPU, or on a GPU if SHARDPROOF_TEST_TORCH_PLACE says cuda.
// Without one all tests of the program are then skipped, with the reason.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include <gtest/gtest.h>

#include "core/error.h"
#include "real/torch_device.h"

namespace shardproof::test {

inline TorchDeviceOptions torch_place_to_test() {
  const char* const place = std::getenv("SHARDPROOF_TEST_TORCH_PLACE");
  return {.place = place != nullptr && std::string_view(place) == "cuda" ? TorchPlace::cuda : TorchPlace::cpu};
}

inline std::unique_ptr<Device> torch_device_to_test() { return make_torch_device(torch_place_to_test()); }

class TorchPlaceEnvironment : public testing::Environment {
  void SetUp() override {
    try {
      torch_device_to_test();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::unsupported_error) throw;
      GTEST_SKIP() << error.what();
    }
  }
};
inline const testing::Environment* const kTorchPlaceEnvironment =
    testing::AddGlobalTestEnvironment(new TorchPlaceEnvironment);

}  // namespace shardproof::test
