// Ulysses attention: each rank trades its tokens of all heads for all tokens of its heads, attends, and trades back.
// Source: parallelism specification 5.2, 5.3; "DeepSpeed Ulysses" (Jacobs et al. 2023).
#pragma once

#include <functional>
#include <span>

#include "parallel/attention.h"

namespace shardproof {

// Attention over the tokens of one Ulysses group, for this rank's heads.
using InnerAttention =
    std::function<AttentionOutput(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask)>;

// q [batch, query_lengths[own], heads, d]; k, v [batch, key_lengths[own], heads, d]; lengths of every member of
// `group`. The mask is normalised. The output is cast to the queries' type before it travels back; the log-sum-exp
// travels only if asked for.
AttentionResult ulysses_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                                  bool return_lse, std::span<const std::int64_t> query_lengths,
                                  std::span<const std::int64_t> key_lengths, Division head_division,
                                  Communicator& group, const InnerAttention& inner);

}  // namespace shardproof
