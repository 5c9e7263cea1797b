// In the place of cupti_activity.cpp where the build found no headers of CUPTI (tools/setup_nccl.sh fetches them): what
// asks for it is refused.
#include "core/error.h"
#include "real/device_activity.h"

namespace shardproof {

std::unique_ptr<DeviceActivity> watch_device_activity() {
  fail(ErrorKind::unsupported_error,
       "what GPUs do cannot be seen: this build has no CUPTI; run tools/setup_nccl.sh and configure again");
}

bool device_activity_is_built() { return false; }

}  // namespace shardproof
