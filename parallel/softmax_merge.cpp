#include "parallel/softmax_merge.h"

#include <optional>
#include <utility>

#include "core/ops.h"

namespace shardproof {

AttentionOutput merge_softmax(const AttentionOutput& a, const AttentionOutput& b) {
  if (std::optional<AttentionOutput> fused = ops::fused_softmax_merge(a, b)) return *std::move(fused);
  return composed_softmax_merge(a, b);
}

AttentionOutput composed_softmax_merge(const AttentionOutput& a, const AttentionOutput& b) {
  const Tensor weight_a = ops::cast(ops::lse_weight(a.lse, b.lse), a.out.dtype()).unsqueeze(-1);
  const Tensor weight_b = ops::cast(ops::lse_weight(b.lse, a.lse), b.out.dtype()).unsqueeze(-1);
  return {ops::add(ops::multiply(a.out, weight_a), ops::multiply(b.out, weight_b)), ops::logaddexp(a.lse, b.lse)};
}

}  // namespace shardproof
