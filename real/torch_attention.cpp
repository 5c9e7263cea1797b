// The fused kernels of ATen and the textbook form. No kernel is called with a mask: they have no answer for a row that
// may attend to nothing, and not all of them take every kind.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>

#include "real/torch_attention_body.h"

namespace shardproof {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Attended {
  at::Tensor out;  // [batch, heads, queries, head_dim]
  at::Tensor lse;  // [batch, heads, queries]
};

// The textbook form. A masked key has weight 0 whatever its logit; a row without any key is 0, and its log-sum-exp
// -inf.
Attended textbook_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                            double scale) {
  at::Tensor logits = at::matmul(q.mul(scale), k.transpose(-2, -1));
  if (mask.defined() && mask.scalar_type() == at::kByte) {
    logits = logits.masked_fill(mask.eq(0), kMinusInfinity)
                 .masked_fill(mask.gt(1), std::numeric_limits<double>::quiet_NaN());
  } else if (mask.defined()) {
    logits = logits.add(mask).masked_fill(mask.eq(kMinusInfinity), kMinusInfinity);
  }
  const at::Tensor largest = logits.amax(-1, true);
  const at::Tensor origin = largest.masked_fill(largest.eq(kMinusInfinity), 0);  // of a row without any key
  const at::Tensor weights = logits.sub(origin).exp();
  const at::Tensor sum = weights.sum(-1, true);
  const at::Tensor out = at::matmul(weights, v).div(sum).masked_fill(sum.eq(0), 0);
  return {out, sum.log().add(origin).squeeze(-1)};
}

// The CPU's kernel. It rounds its result to the type of the queries, so it is given the wide type, in which attention
// is to return it; its bits depend on strides, so it is given one order, that in which queries are computed. It takes a
// logit that is no number for a masked key: nothing here where there may be one.
std::optional<Attended> fused_attention_on_cpu(const TorchAttention& attention) {
  const auto prepared = [&](const at::Tensor& x) {
    return x.to(attention.wide).transpose(1, 2).contiguous().transpose(1, 2);
  };
  const at::Tensor q = prepared(attention.q), k = prepared(attention.k);
  const double sum = q.sum().add(k.sum()).item().toDouble();
  if (std::isnan(sum)) return std::nullopt;
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, prepared(attention.v), 0.0, false,
                                                                    std::nullopt, attention.scale);
  return Attended{out, lse};
}

// On a GPU, the kernel of which ATen says that it applies to these operands; nothing where none does.
std::optional<Attended> fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const auto choice =
      static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, false, scale, false));
  const std::int64_t width = q.size(-1), queries = q.size(-2);
  switch (choice) {
    case at::SDPBackend::flash_attention: {
      // It takes widths that 8 divides; columns of zeros change nothing.
      const std::array<std::int64_t, 2> padding{0, (8 - width % 8) % 8};
      const auto padded = [&](const at::Tensor& x) { return padding[1] == 0 ? x : at::constant_pad_nd(x, padding); };
      auto result = at::_scaled_dot_product_flash_attention(padded(q), padded(k), padded(v), 0.0, false, false, scale);
      return Attended{std::get<0>(result).narrow(-1, 0, width), std::get<1>(result)};
    }
    case at::SDPBackend::efficient_attention: {
      auto result = at::_scaled_dot_product_efficient_attention(q, k, v, std::nullopt, true, 0.0, false, scale);
      return Attended{std::get<0>(result), std::get<1>(result).narrow(-1, 0, queries)};  // rows padded to 32
    }
    case at::SDPBackend::cudnn_attention: {
      auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt, true, 0.0, false, false, scale);
      const at::Tensor lse = std::get<1>(result);
      return Attended{std::get<0>(result), lse.dim() == 4 ? lse.squeeze(-1) : lse};
    }
    default: return std::nullopt;
  }
}

}  // namespace

void torch_attention(const TorchAttention& attention) {
  const auto& [q, k, v, mask, scale, wide, out, lse] = attention;
  if (k.size(2) == 0) {
    out.zero_();
    lse.fill_(kMinusInfinity);
    return;
  }
  std::optional<Attended> result;
  if (!mask.defined() && q.size(3) > 0) {
    result = q.is_cpu() ? fused_attention_on_cpu(attention) : fused_attention(q, k, v, scale);
  }
  if (!result) {
    const auto widened = [&](const at::Tensor& x) { return x.to(wide).contiguous(); };
    const bool is_bias = mask.defined() && mask.scalar_type() != at::kByte;
    result = textbook_attention(widened(q), widened(k), widened(v), is_bias ? mask.to(wide) : mask, scale);
  }
  out.copy_(result->out);
  lse.copy_(result->lse);
}

}  // namespace shardproof
