#include "core/ops.h"

#include <array>

#include "core/error.h"

namespace shardproof::ops {
namespace {

Tensor unary(UnaryOp op, const Tensor& x) { return x.device().unary(op, x); }
Tensor binary(BinaryOp op, const Tensor& x, const Tensor& y) { return x.device().binary(op, x, y); }

// A constant as a tensor without axes; it broadcasts to everything.
Tensor constant_like(const Tensor& x, double value) { return full(x.device(), Shape{}, x.dtype(), value); }

}  // namespace

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  const Tensor result = x.device().empty(x.shape(), x.dtype());
  x.device().copy(result, x);
  return result;
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor result = x.device().empty_in_order_of(x, dtype);
  x.device().copy(result, x);
  return result;
}

Tensor reshape(const Tensor& x, Shape shape) {
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      SHARDPROOF_CHECK(unknown < 0, shape_error, "reshape to {} leaves two sizes open", shape.text());
      unknown = i;
    } else {
      known *= shape[i];
    }
  }
  if (unknown >= 0) {
    SHARDPROOF_CHECK(known > 0 && x.numel() % known == 0, shape_error, "{} cannot be reshaped to {}", x.text(),
                     shape.text());
    shape[unknown] = x.numel() / known;
  }
  SHARDPROOF_CHECK(shape.numel() == x.numel(), shape_error, "{} cannot be reshaped to {}", x.text(), shape.text());
  return x.can_view(shape) ? x.view(shape) : contiguous(x).view(shape);
}

Tensor concat(std::span<const Tensor> parts, int axis) {
  SHARDPROOF_CHECK(!parts.empty(), shape_error, "concatenation of no tensors");
  const Tensor& first = parts.front();
  if (parts.size() == 1) return first;
  const int a = normalised_axis(axis, first.rank());
  Shape shape = first.shape();
  shape[a] = 0;
  for (const Tensor& part : parts) {
    SHARDPROOF_CHECK(part.dtype() == first.dtype(), type_error, "concatenation of different element types: {} and {}",
                     first.text(), part.text());
    SHARDPROOF_CHECK(part.rank() == first.rank() && part.shape().erased(a) == first.shape().erased(a), shape_error,
                     "concatenation of {} and {} along axis {}", first.text(), part.text(), a);
    shape[a] += part.shape()[a];
  }
  const Tensor result = first.device().empty(shape, first.dtype());
  std::int64_t start = 0;
  for (const Tensor& part : parts) {
    first.device().copy(result.narrow(a, start, part.shape()[a]), part);
    start += part.shape()[a];
  }
  return result;
}

Tensor concat(std::initializer_list<Tensor> parts, int axis) {
  return concat(std::span(parts.begin(), parts.size()), axis);
}

std::vector<Tensor> chunk(const Tensor& x, int parts, int axis) {
  const std::int64_t size = x.size(axis);
  SHARDPROOF_CHECK(parts >= 1 && size % parts == 0, shape_error, "axis {} of {} does not divide into {} equal parts",
                   axis, x.text(), parts);
  std::vector<Tensor> pieces;
  pieces.reserve(static_cast<std::size_t>(parts));
  for (int i = 0; i < parts; ++i) pieces.push_back(x.narrow(axis, i * (size / parts), size / parts));
  return pieces;
}

void copy_into(const Tensor& target, const Tensor& source) { target.device().copy(target, source); }

Tensor padding(Device& device, const Shape& shape, DType dtype) { return device.poisoned(shape, dtype); }

Tensor zeros(Device& device, const Shape& shape, DType dtype) { return full(device, shape, dtype, 0.0); }

Tensor full(Device& device, const Shape& shape, DType dtype, double value) {
  const Tensor result = device.empty(shape, dtype);
  device.fill(result, value);
  return result;
}

Tensor gather_rows(const Tensor& table, const Tensor& index) { return table.device().gather_rows(table, index); }

Tensor add(const Tensor& x, const Tensor& y) { return binary(BinaryOp::add, x, y); }
Tensor subtract(const Tensor& x, const Tensor& y) { return binary(BinaryOp::sub, x, y); }
Tensor multiply(const Tensor& x, const Tensor& y) { return binary(BinaryOp::mul, x, y); }
Tensor divide(const Tensor& x, const Tensor& y) { return binary(BinaryOp::div, x, y); }
Tensor add(const Tensor& x, double constant) { return add(x, constant_like(x, constant)); }
Tensor multiply(const Tensor& x, double constant) { return multiply(x, constant_like(x, constant)); }
Tensor silu(const Tensor& x) { return unary(UnaryOp::silu, x); }
Tensor gelu(const Tensor& x) { return unary(UnaryOp::gelu, x); }
Tensor gelu_tanh(const Tensor& x) { return unary(UnaryOp::gelu_tanh, x); }
Tensor sigmoid(const Tensor& x) { return unary(UnaryOp::sigmoid, x); }
Tensor tanh(const Tensor& x) { return unary(UnaryOp::tanh, x); }
Tensor rsqrt(const Tensor& x) { return unary(UnaryOp::rsqrt, x); }
Tensor clamp_to_float16(const Tensor& x) { return x.dtype() == kFloat16 ? unary(UnaryOp::clamp_finite, x) : x; }
Tensor logaddexp(const Tensor& x, const Tensor& y) { return binary(BinaryOp::logaddexp, x, y); }
Tensor lse_weight(const Tensor& x, const Tensor& y) { return binary(BinaryOp::lse_weight, x, y); }

Tensor sum(const Tensor& x) { return x.device().reduce(ReduceOp::sum, x); }
Tensor mean(const Tensor& x) { return x.device().reduce(ReduceOp::mean, x); }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) { return x.device().matmul(x, weight, bias); }

Tensor layer_norm(const Tensor& x, double eps) {
  const Tensor wide = cast(x, wide_dtype(x.dtype()));
  const Tensor centred = subtract(wide, mean(wide).unsqueeze(-1));
  const Tensor variance = mean(multiply(centred, centred)).unsqueeze(-1);
  return cast(multiply(centred, rsqrt(add(variance, eps))), x.dtype());
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor wide = cast(x, wide_dtype(x.dtype()));
  const Tensor mean_square = mean(multiply(wide, wide)).unsqueeze(-1);
  Tensor normed = multiply(wide, rsqrt(add(mean_square, eps)));
  if (weight.defined()) normed = multiply(normed, cast(weight, normed.dtype()));
  return cast(normed, x.dtype());
}

Tensor rotary_interleaved(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const bool has_table =
      cosine.rank() == 2 || (cosine.rank() == 3 && (cosine.size(0) == 1 || cosine.size(0) == x.size(0)));
  SHARDPROOF_CHECK(x.rank() == 4 && has_table && cosine.shape() == sine.shape() && cosine.size(-2) == x.size(1) &&
                       cosine.size(-1) == x.size(3) && x.size(3) % 2 == 0,
                   shape_error, "rotary embedding of {} with tables {} and {}: the tables must be [tokens, head_dim]",
                   x.text(), cosine.text(), sine.text());
  const std::int64_t pairs = x.size(3) / 2;
  const Tensor wide = cast(x, cosine.dtype()).unflatten(-1, pairs, 2);
  const auto table = [&](const Tensor& t, std::int64_t entry) {
    return t.unflatten(-1, pairs, 2).narrow(-1, entry, 1).unsqueeze(-3);
  };
  const Tensor c = table(cosine, 0), s = table(sine, 1);
  const Tensor x0 = wide.narrow(-1, 0, 1), x1 = wide.narrow(-1, 1, 1);
  const Tensor first = subtract(multiply(x0, c), multiply(x1, s));
  const Tensor second = add(multiply(x1, c), multiply(x0, s));
  return cast(concat({first, second}, -1).view(x.shape()), x.dtype());
}

Tensor rotary_halves(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const auto fits = [](std::int64_t of_table, std::int64_t of_x) { return of_table == 1 || of_table == of_x; };
  const bool has_table = cosine.rank() == 2 || (cosine.rank() == 4 && x.rank() == 4 &&
                                                fits(cosine.size(0), x.size(0)) && fits(cosine.size(2), x.size(2)));
  const int token_axis = cosine.rank() == 2 ? 0 : 1;
  SHARDPROOF_CHECK(x.rank() == 4 && has_table && cosine.shape() == sine.shape() &&
                       cosine.size(token_axis) == x.size(1) && 2 * cosine.size(-1) == x.size(3),
                   shape_error,
                   "rotary embedding of {} with tables {} and {}: the tables must be [tokens, head_dim / 2] or [batch, "
                   "tokens, heads, head_dim / 2]",
                   x.text(), cosine.text(), sine.text());
  const Tensor wide = cast(x, cosine.dtype());
  const Tensor c = cosine.rank() == 2 ? cosine.unsqueeze(1) : cosine, s = sine.rank() == 2 ? sine.unsqueeze(1) : sine;
  const std::int64_t half = x.size(3) / 2;
  const Tensor x0 = wide.narrow(-1, 0, half), x1 = wide.narrow(-1, half, half);
  const Tensor first = subtract(multiply(x0, c), multiply(x1, s));
  const Tensor second = add(multiply(x1, c), multiply(x0, s));
  return cast(concat({first, second}, -1), x.dtype());
}

AttentionOutput attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale) {
  return q.device().attention(q, k, v, mask, scale);
}

std::optional<AttentionOutput> fused_softmax_merge(const AttentionOutput& a, const AttentionOutput& b) {
  return a.out.device().fused_softmax_merge(a, b);
}

std::vector<double> to_doubles(const Tensor& x) {
  const Tensor wide = contiguous(cast(x, kFloat64));
  std::vector<double> values(static_cast<std::size_t>(wide.numel()));
  wide.device().download(std::as_writable_bytes(std::span(values)), wide);
  return values;
}

Tensor from_doubles(Device& device, std::span<const double> values, const Shape& shape, DType dtype) {
  return cast(device.upload(std::as_bytes(values), shape, kFloat64), dtype);
}

}  // namespace shardproof::ops
