// Attention of the device of LibTorch on tensors of torch: by one of ATen's fused kernels where one applies, in its
// textbook form otherwise. Apart from the device, since it is the one part that knows the kernels.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardproof {

// All tensors are views of ours, [batch, heads, tokens, head_dim] but for those that say so.
struct TorchAttention {
  at::Tensor q, k, v;
  at::Tensor mask;  // none, [batch, heads, queries, keys] of bytes (0, 1, or 0xFF for poison), or numbers to be added
  double scale = 1.0;
  c10::ScalarType wide = at::kFloat;  // of the results
  at::Tensor out;                     // written
  at::Tensor lse;                     // written; [batch, heads, queries]
};
void torch_attention(const TorchAttention& attention);

}  // namespace shardproof
