// A fast checksum of a tensor's bytes or of a text, for finding out whether they have changed or differ; not a
// cryptographic one.
// The same on every machine of one byte order and for any number of threads.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace shardproof {

// Of a contiguous tensor in host memory (XXH3 over blocks); 0 for no tensor and for no elements.
std::uint64_t checksum_of(const Tensor& tensor);
// XXH3 of the text.
std::uint64_t checksum_of(std::string_view text);

}  // namespace shardproof
