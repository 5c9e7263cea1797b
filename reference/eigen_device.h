// The reference device: the plain textbook form of every operation in one element type, written to be obviously right
// and independent of the fast devices, which are compared with it. Eigen stays out of this header.
#pragma once

#include <memory>

#include "core/device.h"

namespace shardproof {

// A device that computes in `value_type`, float64 or float32; throws type_error for others. It holds int64 and bool
// tensors, and tensors of the other plain types for conversion only: arithmetic on those is a type_error.
std::unique_ptr<Device> make_reference_device(DType value_type);

}  // namespace shardproof
