#include "parallel/ulysses_attention.h"

#include "core/ops.h"

namespace shardproof {

AttentionResult ulysses_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                                  bool return_lse, std::span<const std::int64_t> query_lengths,
                                  std::span<const std::int64_t> key_lengths, Division head_division,
                                  Communicator& group, const InnerAttention& inner) {
  const HeadLayout layout = head_layout(q.size(2), group.size(), head_division);
  // Whether a mask exists is part of the signature, so that ranks which disagree are told.
  Pending<Tensor> moving_q = scatter_heads(
      q, layout, query_lengths, group, mask.defined() ? "ulysses: heads of q, mask follows" : "ulysses: heads of q");
  Pending<Tensor> moving_k = scatter_heads(k, layout, key_lengths, group, "ulysses: heads of k");
  Pending<Tensor> moving_v = scatter_heads(v, layout, key_lengths, group, "ulysses: heads of v");
  const AttentionMask own_mask = mask_after_head_scatter(mask, layout, query_lengths, key_lengths, group);
  const Tensor all_q = moving_q.wait();
  const Tensor all_k = moving_k.wait();
  const Tensor all_v = moving_v.wait();
  const AttentionOutput local = inner(all_q, all_k, all_v, own_mask);
  const Tensor out = ops::cast(local.out, q.dtype());
  Pending<Tensor> moving_out = gather_heads(out, layout, query_lengths, group, "ulysses: heads of the output");
  AttentionResult result;
  if (return_lse) {
    Pending<Tensor> moving_lse =
        gather_heads(local.lse.unsqueeze(-1), layout, query_lengths, group, "ulysses: heads of the log-sum-exp");
    result.out = moving_out.wait();
    result.lse = moving_lse.wait().squeeze(-1);
  } else {
    result.out = moving_out.wait();
  }
  return result;
}

}  // namespace shardproof
