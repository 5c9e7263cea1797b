// The door for computation: models and algorithms compute through these functions and no others, so that recording,
// checking and differentiation can be added in one place. Operations are functional: they return new tensors (or
// views). Element types are never mixed implicitly. Compositions that a device may offer fused later are written here
// from its primitives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace shardproof::ops {

// Movement. All take strided tensors.
Tensor contiguous(const Tensor& x);
// The same elements in another type of the same device; a no-op if the type is equal.
Tensor cast(const Tensor& x, DType dtype);
// A view where possible, otherwise a copy. At most one size may be -1 (inferred).
Tensor reshape(const Tensor& x, Shape shape);
// Along `axis`; all other sizes and the types equal. One tensor is returned as it is.
Tensor concat(std::span<const Tensor> parts, int axis);
Tensor concat(std::initializer_list<Tensor> parts, int axis);
// `parts` equal pieces along `axis`, as views; shape_error if the size does not divide.
std::vector<Tensor> chunk(const Tensor& x, int parts, int axis);
// Writes into an existing tensor that nothing is receiving or sending; for buffers that are about to be sent.
void copy_into(const Tensor& target, const Tensor& source);
// A buffer for rows or heads that are moved but never read: every byte is poison.
Tensor padding(Device& device, const Shape& shape, DType dtype);
Tensor zeros(Device& device, const Shape& shape, DType dtype);
Tensor full(Device& device, const Shape& shape, DType dtype, double value);
// table [rows, ..], index int64 [n] -> [n, ..].
Tensor gather_rows(const Tensor& table, const Tensor& index);

// Elementwise, broadcasting.
Tensor add(const Tensor& x, const Tensor& y);
Tensor subtract(const Tensor& x, const Tensor& y);
Tensor multiply(const Tensor& x, const Tensor& y);
Tensor divide(const Tensor& x, const Tensor& y);
Tensor add(const Tensor& x, double constant);
Tensor multiply(const Tensor& x, double constant);
Tensor silu(const Tensor& x);
Tensor gelu(const Tensor& x);
Tensor gelu_tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor rsqrt(const Tensor& x);
// Clamps to +-65504 if x is float16, as the original models do after blocks; other types pass unchanged.
Tensor clamp_to_float16(const Tensor& x);
// On log-sum-exps: log(exp x + exp y), and exp x / (exp x + exp y) in the wide type (0 where x is -inf).
Tensor logaddexp(const Tensor& x, const Tensor& y);
Tensor lse_weight(const Tensor& x, const Tensor& y);

// Over the last axis, which disappears: [.., n] -> [..].
Tensor sum(const Tensor& x);
Tensor mean(const Tensor& x);

// x [.., k], weight [n, k], bias [n] or no tensor -> [.., n].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);
// (x - mean) / sqrt(variance + eps) over the last axis, biased variance, computed in the wide type and rounded once.
Tensor layer_norm(const Tensor& x, double eps);
// x / sqrt(mean(x^2) + eps) * weight over the last axis; weight [n] or no tensor; in the wide type, rounded once.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
// Rotary embedding of adjacent pairs: x [batch, tokens, heads, head_dim], cosine and sine [tokens, head_dim], or
// [batch|1, tokens, head_dim] where the items differ, with each value standing twice (where the two differ, the first
// cosine and the second sine count). (x0, x1) -> (x0 cos - x1 sin, x1 cos + x0 sin), in the tables' type, rounded once
// to x's type.
Tensor rotary_interleaved(const Tensor& x, const Tensor& cosine, const Tensor& sine);
// The same of pairs (k, k + head_dim/2): cosine and sine [tokens, head_dim/2], or [batch|1, tokens, heads|1,
// head_dim/2].
Tensor rotary_halves(const Tensor& x, const Tensor& cosine, const Tensor& sine);
// As Device::attention.
AttentionOutput attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale);
// As Device::fused_softmax_merge: nothing where the merge has to be composed.
std::optional<AttentionOutput> fused_softmax_merge(const AttentionOutput& a, const AttentionOutput& b);

// The elements in row-major order as doubles; only for plain types. For comparison and host-side tables.
std::vector<double> to_doubles(const Tensor& x);
// A tensor of `dtype` on `device` from doubles (rounded to nearest even by the device's copy).
Tensor from_doubles(Device& device, std::span<const double> values, const Shape& shape, DType dtype);

}  // namespace shardproof::ops
