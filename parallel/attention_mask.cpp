#include "parallel/attention_mask.h"

#include "core/error.h"
#include "core/ops.h"

namespace shardproof {
namespace {

Tensor with_four_axes(const Tensor& values) {
  switch (values.rank()) {
    case 2: return values.unsqueeze(1).unsqueeze(1);
    case 3: return values.unsqueeze(1);
    case 4: return values;
    default: fail(ErrorKind::shape_error, "an attention mask must have 2, 3 or 4 dimensions, got {}", values.text());
  }
}

void check_axis(const Tensor& values, int axis, bool declared_one, std::int64_t full, std::string_view name) {
  const std::int64_t expected = declared_one ? 1 : full;
  SHARDPROOF_CHECK(values.size(axis) == expected, shape_error,
                   "attention mask {}: its {} axis is declared '{}' and must have size {}, not {}", values.text(), name,
                   declared_one ? "one" : (axis == 1 ? "all" : "local"), expected, values.size(axis));
}

}  // namespace

AttentionMask normalised_mask(const AttentionMask& mask, const Tensor& q, std::int64_t local_keys) {
  if (!mask.defined()) return mask;
  AttentionMask result = mask;
  result.values = with_four_axes(mask.values);
  const Tensor& values = result.values;
  SHARDPROOF_CHECK(values.size(0) == 1 || values.size(0) == q.size(0), shape_error,
                   "attention mask {} must have batch {} or 1, not {}", values.text(), q.size(0), values.size(0));
  check_axis(values, 1, mask.head_axis == HeadAxis::one, q.size(2), "head");
  check_axis(values, 2, mask.query_axis == QueryAxis::one, q.size(1), "query");
  SHARDPROOF_CHECK(mask.key_axis == KeyAxis::global || values.size(3) == local_keys, shape_error,
                   "attention mask {}: its key axis is declared 'local' and must cover {} keys, not {}", values.text(),
                   local_keys, values.size(3));
  return result;
}

void check_mask_for_exchange(const AttentionMask& mask) {
  if (!mask.defined()) return;
  SHARDPROOF_REFUSE_UNLESS(
      mask.key_axis == KeyAxis::global || mask.query_axis == QueryAxis::one, unsupported_error,
      "attention mask {} has a local query axis and a local key axis: it says nothing about the keys of "
      "other ranks; it "
      "needs the global key axis",
      mask.values.text());
}

Tensor mask_to_rows(const Tensor& values) { return ops::contiguous(values.permute({3, 0, 1, 2})); }
Tensor mask_from_rows(const Tensor& rows) { return rows.permute({1, 2, 3, 0}); }

AttentionMask mask_after_head_scatter(const AttentionMask& mask, const HeadLayout& layout,
                                      std::span<const std::int64_t> query_lengths,
                                      std::span<const std::int64_t> key_lengths, Communicator& group) {
  if (!mask.defined()) return mask;
  AttentionMask result = mask;
  if (mask.key_axis == KeyAxis::local) {
    const Tensor rows = mask_to_rows(mask.values);
    result.values =
        mask_from_rows(collectives::all_gather(group, rows, key_lengths, "ulysses: key mask").wait().joined());
  }
  if (mask.query_axis == QueryAxis::local) {
    const Tensor rows = ops::contiguous(result.values.permute({2, 0, 1, 3}));
    result.values = collectives::all_gather(group, rows, query_lengths, "ulysses: query rows of the mask")
                        .wait()
                        .joined()
                        .permute({1, 2, 0, 3});
  }
  // One gather serves all members; each then keeps the heads that it computes.
  if (mask.head_axis == HeadAxis::all) {
    result.values = result.values.narrow(1, layout.first(group.rank()), layout.real(group.rank()));
  }
  return result;
}

}  // namespace shardproof
