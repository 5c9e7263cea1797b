// Attention of the CPU device: tiles of queries against tiles of keys with a running maximum and sum (online softmax),
// so that the score matrix never exists as a whole. Tile sizes are constants; a group of query tiles is a unit of work.
#pragma once

#include "core/block_pool.h"
#include "core/device.h"

namespace shardproof::cpu {

// dst.out and dst.lse as Device::do_attention states them, for the four floating types.
void attention(BlockPool& pool, const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& mask, double scale);

}  // namespace shardproof::cpu
