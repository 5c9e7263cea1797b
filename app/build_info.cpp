#include "app/build_info.h"

#include <fmt/format.h>

#include "real/mpi_communicator.h"
#include "real/nccl_communicator.h"
#include "real/torch_device.h"

namespace shardproof {

std::string build_version() { return SHARDPROOF_VERSION; }

std::vector<std::string> build_features() {
  std::vector<std::string> features{"communicator:sim"};
  if (mpi_is_built()) features.emplace_back("communicator:mpi");
  if (nccl_is_built()) features.emplace_back("communicator:nccl");
  features.insert(features.end(), {"device:reference", "device:cpu"});
  if (torch_is_built()) features.emplace_back("device:torch");
  features.insert(features.end(), {"tier:exact", "tier:rounding"});
  return features;
}

std::string version_text() {
  std::vector<std::string> missing;
  if (!torch_is_built()) missing.emplace_back("device:torch");
  if (!mpi_is_built()) missing.emplace_back("communicator:mpi");
  if (!nccl_is_built()) missing.emplace_back("communicator:nccl");
  if (missing.empty()) missing.emplace_back("-");
  return fmt::format(
      "shardproof {}\n"
      "features   {}\n"
      "not built  {}\n"
      "compiled   {}, GNU C++ {}.{}.{}, for x86-64-v3 (AVX2, FMA, BMI2)\n"
      "libraries  {}\n",
      build_version(), fmt::join(build_features(), ", "), fmt::join(missing, ", "), SHARDPROOF_BUILD_TYPE, __GNUC__,
      __GNUC_MINOR__, __GNUC_PATCHLEVEL__, SHARDPROOF_LIBRARIES);
}

}  // namespace shardproof
