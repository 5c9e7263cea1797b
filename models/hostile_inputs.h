// Inputs that the hostile cases of several models share: masks that drop single keys or whole shards, and timesteps
// that differ between the entries of a batch.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"

namespace shardproof {

enum class Masking : std::uint8_t {
  none,
  keys,         // four keys in ten, at random
  whole_shard,  // besides, the first item loses its first third of keys and the others lose everything after it
};

// bool [batch, tokens], true = attend; drawn from (seed, name).
Tensor random_key_mask(Device& host, std::uint64_t seed, const std::string& name, std::int64_t batch,
                       std::int64_t tokens, Masking masking);
// float32 [batch]: first, first + step, ..
Tensor ramp(Device& host, std::int64_t batch, double first, double step);

}  // namespace shardproof
