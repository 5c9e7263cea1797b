// The fast CPU device of the simulator: float64, float32 and the 16-bit types (stored in 16 bits, computed in float32,
// rounded once). Work is cut into tiles that depend on shapes only, so results do not depend on the number of OpenMP
// threads; small work starts no threads. Safe to use from several threads at once, as simulated ranks do.
#pragma once

#include <memory>

#include "core/device.h"

namespace shardproof {

// A device named "cpu" for the six plain element types.
std::unique_ptr<Device> make_cpu_device();

}  // namespace shardproof
