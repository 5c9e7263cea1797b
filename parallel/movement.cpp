#include "parallel/movement.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "core/ops.h"
#include "core/sharding.h"

namespace shardproof {
namespace {

// Heads that are missing to a multiple of `members`.
std::int64_t head_pads(std::int64_t heads, std::int64_t members) { return (members - heads % members) % members; }

bool can_divide_heads(std::int64_t heads, std::int64_t members, Division division) {
  const std::int64_t pads = head_pads(heads, members);
  return pads == 0 || (division == Division::balanced && pads < (heads + pads) / members);
}

// Degrees that can divide the heads, for messages.
std::string legal_degrees_text(std::int64_t heads, Division division) {
  constexpr std::size_t kListed = 16;
  std::vector<std::int64_t> degrees;
  for (std::int64_t degree = 1; degree <= heads && degrees.size() < kListed; ++degree) {
    if (can_divide_heads(heads, degree, division)) degrees.push_back(degree);
  }
  return fmt::format("{}{}", fmt::join(degrees, ", "), degrees.size() == kListed ? ", .." : "");
}

// What an equal division of `size` could be instead.
std::string legal_lengths_text(std::int64_t size, std::int64_t members) {
  const std::int64_t lower = size / members * members;
  std::string text = lower > 0 ? fmt::format("the nearest legal lengths are {} and {}", lower, lower + members)
                               : fmt::format("the next legal length is {}", members);
  if (size >= members) text += fmt::format("; ulysses_anything or ring_anything would accept {}", size);
  return text;
}

// [.., axis, ..] with `axis` first; the inverse is rows_to_axis.
Tensor axis_to_rows(const Tensor& x, int axis) {
  std::array<int, kMaxRank> order{};
  order[0] = axis;
  for (int i = 0, next = 1; i < x.rank(); ++i) {
    if (i != axis) order[static_cast<std::size_t>(next++)] = i;
  }
  return x.permute(std::span(order).first(static_cast<std::size_t>(x.rank())));
}

Tensor rows_to_axis(const Tensor& rows, int axis) {
  std::array<int, kMaxRank> order{};
  for (int i = 0, next = 1; i < rows.rank(); ++i) order[static_cast<std::size_t>(i)] = i == axis ? 0 : next++;
  return rows.permute(std::span(order).first(static_cast<std::size_t>(rows.rank())));
}

// [tokens, batch, real, d] -> [tokens, batch, local, d]; the pads are moved and dropped, never read.
Tensor with_head_pads(const Tensor& rows, const HeadLayout& layout) {
  const std::int64_t real = rows.size(2);
  if (real == layout.local) return rows;
  Shape shape = rows.shape();
  shape[2] = layout.local;
  const Tensor padded = ops::padding(rows.device(), shape, rows.dtype());
  ops::copy_into(padded.narrow(2, 0, real), rows);
  return padded;
}

}  // namespace

Tensor shard(const Tensor& x, int axis, const Communicator& group, Division division, std::string_view what) {
  const int a = normalised_axis(axis, x.rank());
  const std::int64_t size = x.size(a);
  const int members = group.size();
  if (division == Division::equal) {
    SHARDPROOF_REFUSE_UNLESS(size % members == 0, shape_error,
                             "{}: axis {} has {} entries, which {} ranks cannot divide equally; {}", what, a, size,
                             members, legal_lengths_text(size, members));
    return x.narrow(a, group.rank() * (size / members), size / members);
  }
  SHARDPROOF_REFUSE_UNLESS(size >= members, shape_error,
                           "{}: axis {} has {} entries, fewer than the {} ranks; at least {} are needed", what, a, size,
                           members, members);
  return x.narrow(a, balanced_offset(size, members, group.rank()), balanced_size(size, members, group.rank()));
}

std::vector<std::int64_t> gather_size_by_comm(std::int64_t size, Communicator& group, std::string_view purpose) {
  return collectives::all_gather_numbers(group, std::span(&size, 1), purpose);
}

Tensor gather(const Tensor& part, int axis, Communicator& group, Division division, std::string_view purpose) {
  const int a = normalised_axis(axis, part.rank());
  const Tensor rows = axis_to_rows(part, a);
  if (division == Division::equal) return rows_to_axis(collectives::all_gather(group, rows, purpose).wait(), a);
  const std::vector<std::int64_t> sizes = gather_size_by_comm(rows.size(0), group, purpose);
  return rows_to_axis(collectives::all_gather(group, rows, sizes, purpose).wait().joined(), a);
}

HeadLayout head_layout(std::int64_t heads, int members, Division division) {
  const std::int64_t pads = head_pads(heads, members);
  const std::int64_t local = (heads + pads) / members;
  if (can_divide_heads(heads, members, division)) return {heads, members, local, pads};
  if (division == Division::equal) {
    refuse(
        ErrorKind::shape_error,
        "{} attention heads cannot be divided among ulysses_degree {}; it must divide the heads: {} (ulysses_anything "
        "accepts {})",
        heads, members, legal_degrees_text(heads, Division::equal), legal_degrees_text(heads, Division::balanced));
  }
  refuse(
      ErrorKind::shape_error,
      "head padding number {} should be less than the new local head number {}: {} heads with ulysses_degree {} leave "
      "the last rank without a head; legal degrees are {}",
      pads, local, heads, members, legal_degrees_text(heads, Division::balanced));
}

Pending<Tensor> scatter_heads(const Tensor& x, const HeadLayout& layout, std::span<const std::int64_t> lengths,
                              Communicator& group, std::string_view purpose) {
  const std::int64_t batch = x.size(0), tokens = x.size(1), width = x.size(3);
  const int members = layout.members;
  const std::int64_t rows = tokens * members;
  Tensor send;
  if (layout.pads == 0) {
    send = ops::contiguous(x.unflatten(2, members, layout.local).permute({2, 1, 0, 3, 4}))
               .view({rows, batch, layout.local, width});
  } else {
    send = ops::padding(x.device(), {rows, batch, layout.local, width}, x.dtype());
    const Tensor by_token = x.permute({1, 0, 2, 3});
    for (int member = 0; member < members; ++member) {
      const std::int64_t real = layout.real(member);
      ops::copy_into(send.narrow(0, member * tokens, tokens).narrow(2, 0, real),
                     by_token.narrow(2, layout.first(member), real));
    }
  }
  const std::vector<std::int64_t> send_counts(static_cast<std::size_t>(members), tokens);
  const std::int64_t real = layout.real(group.rank());
  Pending<Tensor> received = collectives::all_to_all(group, send, send_counts, lengths, purpose);
  return std::move(received).then(
      [real](const Tensor& buffer) { return buffer.narrow(2, 0, real).permute({1, 0, 2, 3}); });
}

Pending<Tensor> gather_heads(const Tensor& x, const HeadLayout& layout, std::span<const std::int64_t> lengths,
                             Communicator& group, std::string_view purpose) {
  const std::int64_t batch = x.size(0), width = x.size(3);
  const std::int64_t tokens = lengths[static_cast<std::size_t>(group.rank())];
  const Tensor rows = with_head_pads(x.permute({1, 0, 2, 3}), layout);
  const std::vector<std::int64_t> receive_counts(static_cast<std::size_t>(layout.members), tokens);
  Pending<Tensor> received = collectives::all_to_all(group, rows, lengths, receive_counts, purpose);
  return std::move(received).then([layout, batch, tokens, width](const Tensor& buffer) {
    const Tensor by_member = buffer.view({layout.members, tokens, batch, layout.local, width}).permute({2, 1, 0, 3, 4});
    const Tensor joined = ops::contiguous(by_member).view({batch, tokens, layout.members * layout.local, width});
    return joined.narrow(2, 0, layout.heads);
  });
}

Tensor pack_keys_values(const Tensor& k, const Tensor& v) {
  return ops::concat({k.permute({1, 0, 2, 3}).unsqueeze(1), v.permute({1, 0, 2, 3}).unsqueeze(1)}, 1);
}

Tensor unpack_keys(const Tensor& packed) { return packed.narrow(1, 0, 1).squeeze(1).permute({1, 0, 2, 3}); }
Tensor unpack_values(const Tensor& packed) { return packed.narrow(1, 1, 1).squeeze(1).permute({1, 0, 2, 3}); }

int chunk_at_step(int rank, int step, int members) { return (rank + step) % members; }

Pending<Tensor> rotate(const Tensor& rows, std::int64_t receive_rows, Communicator& group, std::string_view purpose) {
  const int next = chunk_at_step(group.rank(), 1, group.size());
  const int previous = chunk_at_step(group.rank(), group.size() - 1, group.size());
  return collectives::exchange(group, rows, previous, next, receive_rows, purpose);
}

}  // namespace shardproof
