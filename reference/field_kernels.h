// The two operations of exact arithmetic that do most of its work: the matrix product and attention, over any number of
// threads. What depends on the seed comes in as Functions; divisions by a vanished mass are counted.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/block_pool.h"
#include "core/device.h"
#include "reference/field_functions.h"

namespace shardproof::field {

// As Device::do_matmul, on tensors of "field" or of "field_wide".
void linear(BlockPool& pool, const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias);

// As Device::do_attention, on "field". A value that is poison spoils its head, a key that is poison the rows that
// attend to it.
void attention(BlockPool& pool, const Functions& functions, std::atomic<std::int64_t>& zero_divisions,
               const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
               Value scale);

}  // namespace shardproof::field
