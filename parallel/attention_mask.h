// Masks whose axes are declared by the caller and never guessed from sizes, and what becomes of them on the way to the
// keys that they describe. Source: parallelism specification 5.7.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "parallel/movement.h"

namespace shardproof {

enum class KeyAxis : std::uint8_t {
  local,   // this rank's keys
  global,  // all keys of the context-parallel group, in flat-rank-major order: piece of rank 0, piece of rank 1, ..
};
enum class QueryAxis : std::uint8_t { one, local };
enum class HeadAxis : std::uint8_t { one, all };

// bool (true = attend) or of the queries' type (added to the scaled logits; -inf = never).
struct AttentionMask {
  // [batch|1, keys], [batch|1, queries, keys] or [batch|1, heads|1, queries|1, keys].
  Tensor values = {};
  KeyAxis key_axis = KeyAxis::local;
  QueryAxis query_axis = QueryAxis::one;
  HeadAxis head_axis = HeadAxis::one;

  bool defined() const { return values.defined(); }
};

// The mask as [batch|1, heads|1, queries|1, keys], checked against q [batch, queries, heads, d] and, for a local key
// axis, the number of local keys. shape_error naming the axis that does not fit its declaration. A mask that is not
// defined stays so.
AttentionMask normalised_mask(const AttentionMask& mask, const Tensor& q, std::int64_t local_keys);

// unsupported_error for declarations that cannot describe remote keys: a local key axis with a local query axis.
void check_mask_for_exchange(const AttentionMask& mask);

// The mask as a member of a Ulysses group needs it, for its own heads: a local key axis becomes the group's keys
// (gathered by the true lengths, in member order); a local query axis becomes the group's queries; of all heads its own
// stay.
AttentionMask mask_after_head_scatter(const AttentionMask& mask, const HeadLayout& layout,
                                      std::span<const std::int64_t> query_lengths,
                                      std::span<const std::int64_t> key_lengths, Communicator& group);

// A mask with a local key axis as rows [keys, batch|1, heads|1, 1] that can travel with their chunk, and back.
Tensor mask_to_rows(const Tensor& values);
Tensor mask_from_rows(const Tensor& rows);

}  // namespace shardproof
