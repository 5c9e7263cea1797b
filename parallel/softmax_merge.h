// Merging partial softmax results: algorithm code over ops, so that every arithmetic runs the very lines that
// production runs.
//
// For two disjoint sets of keys with outputs o1, o2 and log-sum-exps l1, l2:
//   out = w1 o1 + w2 o2 with w1 = 1 / (1 + exp(l2 - l1)), w2 = 1 / (1 + exp(l1 - l2)),  lse = log(exp l1 + exp l2).
// The weights sum to one up to one rounding whatever the magnitude of the log-sum-exps; a set without keys (lse -inf,
// out 0) is the identity. Source: parallelism specification 5.4.
#pragma once

#include "core/device.h"

namespace shardproof {

// out [batch, tokens, heads, head_dim], lse [batch, tokens, heads] in the log type. The merge runs in the type of the
// outputs (which must be equal); the log-sum-exp stays in its own type. Devices that have the whole merge in one pass
// are asked for it first.
AttentionOutput merge_softmax(const AttentionOutput& a, const AttentionOutput& b);
// The same, always from single operations: what a fused pass must equal bit for bit.
AttentionOutput composed_softmax_merge(const AttentionOutput& a, const AttentionOutput& b);

}  // namespace shardproof
