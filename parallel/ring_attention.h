// Ring attention: queries stay, chunks of keys and values come by in the order own, next, next after that, .., and
// partial results are merged by their log-sum-exps. Source: parallelism specification 5.4, 5.5; "Ring Attention with
// Blockwise Transformers" (Liu, Zaharia, Abbeel 2023).
#pragma once

#include <span>

#include "parallel/attention.h"

namespace shardproof {

// q [batch, queries, heads, d]; k, v [batch, own length, heads, d]; `lengths` are the keys of every ring member. The
// mask is normalised; a local key axis covers this member's chunk, a global one the chunks of all members in order.
// Returns the wide type with convert_to_fp32, the queries' type without.
AttentionOutput ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                               double scale, std::span<const std::int64_t> lengths, const ContextParallelConfig& config,
                               Communicator& ring);

}  // namespace shardproof
