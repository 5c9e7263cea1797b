#include "app/build_info.h"

#include <fmt/format.h>

namespace shardproof {

std::string build_version() { return SHARDPROOF_VERSION; }

std::vector<std::string> build_features() {
  return {"communicator:sim", "device:reference", "device:cpu", "tier:rounding"};
}

std::string version_text() {
  return fmt::format(
      "shardproof {}\n"
      "features   {}\n"
      "not built  tier:exact, device:torch, communicator:mpi, communicator:nccl\n"
      "compiled   {}, GNU C++ {}.{}.{}, for x86-64-v3 (AVX2, FMA, BMI2)\n",
      build_version(), fmt::join(build_features(), ", "), SHARDPROOF_BUILD_TYPE, __GNUC__, __GNUC_MINOR__,
      __GNUC_PATCHLEVEL__);
}

}  // namespace shardproof
