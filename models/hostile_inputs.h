// Inputs that the hostile cases of several models share: masks that drop single keys or whole shards, and timesteps
// that differ between the entries of a batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "models/model_type.h"

namespace shardproof {

enum class Masking : std::uint8_t {
  none,
  keys,         // four keys in ten, at random
  whole_shard,  // besides, the first item loses its first third of keys and the others lose everything after it
};

// The masking of a size: the feature "shard_mask" or "key_mask", or none.
Masking masking_of(const ModelSize& size);
// These two features, of a model whose key mask is that argument.
std::vector<CaseFeature> mask_features(const std::string& argument);
// "per_token": the argument has one value a token, two axes instead of one.
CaseFeature per_token_feature(const std::string& argument);
// The first sample has several images, by the argument img_shapes (sample -> images -> extents).
CaseFeature several_images_feature(std::string name);

// bool [batch, tokens], true = attend; drawn from (seed, name).
Tensor random_key_mask(Device& host, std::uint64_t seed, const std::string& name, std::int64_t batch,
                       std::int64_t tokens, Masking masking);
// float32 [batch]: first, first + step, ..
Tensor ramp(Device& host, std::int64_t batch, double first, double step);

}  // namespace shardproof
