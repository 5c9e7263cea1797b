// A fast checksum of a tensor's bytes, for finding out whether they have changed or differ; not a cryptographic one.
// The same on every machine of one byte order and for any number of threads.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace shardproof {

// Of a contiguous tensor in host memory (XXH3 over blocks); 0 for no tensor and for no elements.
std::uint64_t checksum_of(const Tensor& tensor);

}  // namespace shardproof
