// Where elements go, and nothing else: dividing a tensor among ranks and putting it together again, moving heads for
// tokens (Ulysses), gathering and rotating key-value chunks (ring). Attention is these functions plus local attention
// and merges; run on integer identifiers they prove the layout. Source: parallelism specification 4.7, 5.2, 5.3, 5.4.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/collectives.h"
#include "core/tensor.h"

namespace shardproof {

// ---- plans: dividing along an axis
// -----------------------------------------------------------------------------------

enum class Division : std::uint8_t {
  equal,     // the size must be a multiple of the number of ranks
  balanced,  // the first (size mod ranks) ranks get one more; the size must be at least the number of ranks
};

// This member's part of x along `axis`, a view. shape_error (naming `what`, the axis, the size, the degree and the
// nearest legal sizes) if the division has no meaning.
Tensor shard(const Tensor& x, int axis, const Communicator& group, Division division, std::string_view what);
// All members' parts along `axis`, in member order, on every member. With Division::balanced the sizes are exchanged,
// never derived from a total.
Tensor gather(const Tensor& part, int axis, Communicator& group, Division division, std::string_view purpose);
// What every member has, in member order: a host-side collective, to be called anew every time.
std::vector<std::int64_t> gather_size_by_comm(std::int64_t size, Communicator& group, std::string_view purpose);

// ---- Ulysses: tokens for heads
// ---------------------------------------------------------------------------------------

// How H heads stand on U members: member j has heads [j*local, j*local + real(j)); only the last has pads.
struct HeadLayout {
  std::int64_t heads = 0;
  int members = 1;
  std::int64_t local = 0;  // heads a member after padding
  std::int64_t pads = 0;   // members * local - heads
  std::int64_t first(int member) const { return member * local; }
  std::int64_t real(int member) const { return member + 1 == members ? local - pads : local; }
};
// With Division::equal, heads must be a multiple of members. With Division::balanced, pads = members - heads mod
// members (0 if it divides) must be less than local. shape_error with the legal degrees otherwise.
HeadLayout head_layout(std::int64_t heads, int members, Division division);

// x [batch, tokens_r, heads, d] -> [batch, sum of lengths, real heads of this member, d], tokens in member order.
// `lengths` are the tokens of every member. The result is a view in the memory order [tokens, batch, heads, d].
Pending<Tensor> scatter_heads(const Tensor& x, const HeadLayout& layout, std::span<const std::int64_t> lengths,
                              Communicator& group, std::string_view purpose);
// The way back: x [batch, sum of lengths, real heads of this member, d] -> [batch, tokens_r, heads, d].
Pending<Tensor> gather_heads(const Tensor& x, const HeadLayout& layout, std::span<const std::int64_t> lengths,
                             Communicator& group, std::string_view purpose);

// ---- Ring: chunks of keys and values
// -----------------------------------------------------------------------------------

// k, v [batch, tokens, heads, d] as one buffer [tokens, 2, batch, heads, d], so that chunks are row slices.
Tensor pack_keys_values(const Tensor& k, const Tensor& v);
// Views [batch, tokens, heads, d] into such a buffer.
Tensor unpack_keys(const Tensor& packed);
Tensor unpack_values(const Tensor& packed);
// The chunk that ring member `rank` uses at `step`: its own first, then the next higher ranks, cyclically.
int chunk_at_step(int rank, int step, int members);
// Sends rows to the previous member and receives `receive_rows` rows from the next one: after i rotations a member
// holds the chunk chunk_at_step(rank, i).
Pending<Tensor> rotate(const Tensor& rows, std::int64_t receive_rows, Communicator& group, std::string_view purpose);

}  // namespace shardproof
