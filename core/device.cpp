#include "core/device.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/operation_recorder.h"

namespace shardproof {

std::string_view op_name(UnaryOp op) {
  switch (op) {
    case UnaryOp::silu: return "silu";
    case UnaryOp::gelu: return "gelu";
    case UnaryOp::gelu_tanh: return "gelu_tanh";
    case UnaryOp::sigmoid: return "sigmoid";
    case UnaryOp::tanh: return "tanh";
    case UnaryOp::rsqrt: return "rsqrt";
    case UnaryOp::clamp_finite: return "clamp_finite";
  }
  return "?";
}

std::string_view op_name(BinaryOp op) {
  switch (op) {
    case BinaryOp::add: return "add";
    case BinaryOp::sub: return "sub";
    case BinaryOp::mul: return "mul";
    case BinaryOp::div: return "div";
    case BinaryOp::logaddexp: return "logaddexp";
    case BinaryOp::lse_weight: return "lse_weight";
  }
  return "?";
}

std::string_view op_name(ReduceOp op) { return op == ReduceOp::sum ? "sum" : "mean"; }

void check_readable(const Tensor& tensor, std::string_view operation) {
  SHARDPROOF_CHECK(tensor.has_storage(), state_error, "{}: {} has no storage", operation, tensor.text());
  SHARDPROOF_CHECK(tensor.storage()->receive_pending.load(std::memory_order_relaxed) == 0, state_error,
                   "{}: {} is used while it is still being received; wait for the operation that fills it first",
                   operation, tensor.text());
}

void make_writable(const Tensor& tensor, std::string_view operation) {
  check_readable(tensor, operation);
  SHARDPROOF_CHECK(tensor.storage()->send_in_flight.load(std::memory_order_relaxed) == 0, state_error,
                   "{}: {} is changed while it is still being sent; wait for the operation that sends it first",
                   operation, tensor.text());
  tensor.storage()->unshare();
}

namespace {

void check_operand(const Device& device, const Tensor& tensor, std::string_view operation) {
  check_readable(tensor, operation);
  SHARDPROOF_CHECK(&tensor.device() == &device, state_error, "{}: {} lives on device '{}', not on '{}'", operation,
                   tensor.text(), tensor.device().name(), device.name());
}

void check_value(const Tensor& tensor, std::string_view operation) {
  SHARDPROOF_CHECK(tensor.dtype().is_value(), type_error, "{} is not defined for {}", operation, tensor.text());
}

void check_same_type(const Tensor& a, const Tensor& b, std::string_view operation) {
  SHARDPROOF_CHECK(a.dtype() == b.dtype(), type_error, "{} of different element types: {} and {}", operation, a.text(),
                   b.text());
}

bool is_log_operation(BinaryOp op) { return op == BinaryOp::logaddexp || op == BinaryOp::lse_weight; }

Tensor with_unit_last_stride(Device& device, const Tensor& x) {
  if (x.rank() == 0 || x.strides().back() == 1 || x.shape().back() <= 1) return x;
  Tensor copy = device.empty(x.shape(), x.dtype());
  device.copy(copy, x);
  return copy;
}

Tensor contiguous(Device& device, const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor copy = device.empty(x.shape(), x.dtype());
  device.copy(copy, x);
  return copy;
}

}  // namespace

Tensor Device::empty(const Shape& shape, DType dtype) {
  SHARDPROOF_CHECK(do_supports(dtype), type_error, "device '{}' does not support element type {}", name(),
                   dtype.name());
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    SHARDPROOF_CHECK(size >= 0, shape_error, "a tensor cannot have shape {}", shape.text());
    SHARDPROOF_CHECK(!__builtin_mul_overflow(count, size, &count), shape_error, "a tensor of shape {} is too large",
                     shape.text());
  }
  SHARDPROOF_CHECK(count <= INT64_MAX / static_cast<std::int64_t>(dtype.size()), shape_error,
                   "a tensor of shape {} is too large", shape.text());
  return Tensor(do_allocate(static_cast<std::size_t>(count) * dtype.size()), dtype, shape, shape.contiguous_strides(),
                0);
}

Tensor Device::empty_in_order_of(const Tensor& x, DType dtype) {
  std::array<int, kMaxRank> order{};
  for (int i = 0; i < x.rank(); ++i) order[static_cast<std::size_t>(i)] = i;
  const auto axes = std::span(order).first(static_cast<std::size_t>(x.rank()));
  std::stable_sort(axes.begin(), axes.end(), [&](int a, int b) { return x.strides()[a] > x.strides()[b]; });
  std::array<int, kMaxRank> inverse{};
  Shape shape;
  for (int i = 0; i < x.rank(); ++i) {
    shape.push_back(x.shape()[axes[static_cast<std::size_t>(i)]]);
    inverse[static_cast<std::size_t>(axes[static_cast<std::size_t>(i)])] = i;
  }
  return empty(shape, dtype).permute(std::span(inverse).first(static_cast<std::size_t>(x.rank())));
}

Tensor Device::poisoned(const Shape& shape, DType dtype) {
  Tensor result = empty(shape, dtype);
  if (result.numel() > 0) do_poison(result);
  return result;
}

Tensor Device::upload(std::span<const std::byte> bytes, const Shape& shape, DType dtype) {
  Tensor result = empty(shape, dtype);
  SHARDPROOF_CHECK(bytes.size() == result.bytes(), shape_error, "upload of {} bytes to {} of {} bytes", bytes.size(),
                   result.text(), result.bytes());
  if (!bytes.empty()) do_upload(result, bytes);
  return result;
}

void Device::download(std::span<std::byte> bytes, const Tensor& source) {
  check_operand(*this, source, "download");
  SHARDPROOF_CHECK(bytes.size() == source.bytes(), shape_error, "download of {} ({} bytes) to {} bytes", source.text(),
                   source.bytes(), bytes.size());
  if (!bytes.empty()) do_download(bytes, contiguous(*this, source));
}

void Device::copy(const Tensor& dst, const Tensor& src) {
  const ComputationMark mark("copy");
  check_operand(*this, src, "copy");
  check_operand(*this, dst, "copy");
  make_writable(dst, "copy");
  const Tensor expanded = src.expand(dst.shape());
  mark.describe(dst, src);
  if (dst.numel() > 0) do_copy(dst, expanded);
}

void Device::fill(const Tensor& dst, double value) {
  const ComputationMark mark("fill");
  check_operand(*this, dst, "fill");
  make_writable(dst, "fill");
  mark.describe(dst);
  if (dst.numel() > 0) do_fill(dst, value);
}

void Device::poison(const Tensor& dst) {
  check_operand(*this, dst, "poison");
  make_writable(dst, "poison");
  if (dst.numel() > 0) do_poison(dst);
}

Tensor Device::unary(UnaryOp op, const Tensor& x) {
  const ComputationMark mark(op);
  check_operand(*this, x, op_name(op));
  check_value(x, op_name(op));
  Tensor result = empty(x.shape(), x.dtype());
  mark.describe(result, x);
  if (x.numel() > 0) do_unary(op, result, x);
  return result;
}

Tensor Device::binary(BinaryOp op, const Tensor& x, const Tensor& y) {
  const ComputationMark mark(op);
  check_operand(*this, x, op_name(op));
  check_operand(*this, y, op_name(op));
  check_same_type(x, y, op_name(op));
  if (is_log_operation(op)) {
    SHARDPROOF_CHECK(log_dtype(x.dtype()) == x.dtype(), type_error, "{} acts on log-sum-exps, not on {}", op_name(op),
                     x.text());
  } else {
    check_value(x, op_name(op));
  }
  const Shape shape = broadcast_shapes(x.shape(), y.shape());
  Tensor result = empty(shape, op == BinaryOp::lse_weight ? wide_dtype(x.dtype()) : x.dtype());
  mark.describe(result, x, y);
  if (result.numel() > 0) do_binary(op, result, x.expand(shape), y.expand(shape));
  return result;
}

Tensor Device::matmul(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const ComputationMark mark("matmul");
  check_operand(*this, x, "matmul");
  check_operand(*this, weight, "matmul");
  check_value(x, "matmul");
  check_same_type(x, weight, "matmul");
  SHARDPROOF_CHECK(x.rank() >= 1 && weight.rank() == 2 && x.size(-1) == weight.size(1), shape_error,
                   "matmul of {} with weight {}: the last axis must equal the weight's columns", x.text(),
                   weight.text());
  const std::int64_t columns = weight.size(0);
  if (bias.defined()) {
    check_operand(*this, bias, "matmul");
    check_same_type(x, bias, "matmul");
    SHARDPROOF_CHECK(bias.rank() == 1 && bias.size(0) == columns, shape_error, "matmul with weight {} and bias {}",
                     weight.text(), bias.text());
  }
  Shape shape = x.shape();
  shape[x.rank() - 1] = columns;
  Tensor result = empty(shape, x.dtype());
  mark.describe(result, x, weight, bias);
  if (result.numel() == 0) return result;
  const std::int64_t rows = result.numel() / columns;
  const Tensor rows_of_x = contiguous(*this, x).view({rows, weight.size(1)});
  do_matmul(result.view({rows, columns}), rows_of_x, with_unit_last_stride(*this, weight),
            bias.defined() ? contiguous(*this, bias) : bias);
  return result;
}

Tensor Device::reduce(ReduceOp op, const Tensor& x) {
  const ComputationMark mark(op);
  check_operand(*this, x, op_name(op));
  check_value(x, op_name(op));
  SHARDPROOF_CHECK(x.rank() >= 1, shape_error, "{} over the last axis of a scalar", op_name(op));
  SHARDPROOF_CHECK(op == ReduceOp::sum || x.size(-1) > 0, shape_error, "mean over the empty last axis of {}", x.text());
  Tensor result = empty(x.shape().erased(x.rank() - 1), x.dtype());
  mark.describe(result, x);
  if (result.numel() > 0) do_reduce(op, result, x);
  return result;
}

AttentionOutput Device::attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale) {
  const ComputationMark mark("attention");
  for (const Tensor* operand : {&q, &k, &v}) {
    check_operand(*this, *operand, "attention");
    check_value(*operand, "attention");
    check_same_type(q, *operand, "attention");
    SHARDPROOF_CHECK(operand->rank() == 4, shape_error, "attention expects [batch, tokens, heads, head_dim], got {}",
                     operand->text());
  }
  const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), width = q.size(3), keys = k.size(1);
  SHARDPROOF_CHECK(k.shape() == v.shape() && k.size(0) == batch && k.size(2) == heads && k.size(3) == width,
                   shape_error, "attention of q {}, k {}, v {}: batch, heads and head_dim must agree", q.text(),
                   k.text(), v.text());
  const Shape logits{batch, heads, queries, keys};
  Tensor expanded_mask;
  if (mask.defined()) {
    check_operand(*this, mask, "attention");
    SHARDPROOF_CHECK(mask.dtype() == kBool || mask.dtype() == q.dtype() || mask.dtype() == log_dtype(q.dtype()),
                     type_error, "attention mask {} must be bool or of q's type {}", mask.text(), q.dtype().name());
    SHARDPROOF_CHECK(mask.rank() == 4, shape_error, "attention mask {} must be [batch|1, heads|1, queries|1, keys]",
                     mask.text());
    SHARDPROOF_CHECK(mask.size(3) == keys, shape_error, "attention mask {} does not cover {} keys", mask.text(), keys);
    expanded_mask = mask.expand(logits);
  }
  AttentionOutput result{empty_in_order_of(q, wide_dtype(q.dtype())),
                         empty({batch, queries, heads}, log_dtype(q.dtype()))};
  mark.describe(result.out, q, k, v, mask);
  if (result.lse.numel() == 0) return result;
  result.out = with_unit_last_stride(*this, result.out);
  do_attention(result, with_unit_last_stride(*this, q), with_unit_last_stride(*this, k),
               with_unit_last_stride(*this, v), expanded_mask, scale);
  return result;
}

std::optional<AttentionOutput> Device::fused_softmax_merge(const AttentionOutput& a, const AttentionOutput& b) {
  for (const Tensor* operand : {&a.out, &a.lse, &b.out, &b.lse}) check_operand(*this, *operand, "softmax_merge");
  check_same_type(a.out, b.out, "softmax_merge");
  check_same_type(a.lse, b.lse, "softmax_merge");
  SHARDPROOF_CHECK(a.out.shape() == b.out.shape() && a.lse.shape() == b.lse.shape() && a.out.rank() >= 1 &&
                       a.lse.shape() == a.out.shape().erased(a.out.rank() - 1),
                   shape_error, "softmax_merge of {} with {} and {} with {}: expected outputs [.., head_dim] and [..]",
                   a.out.text(), a.lse.text(), b.out.text(), b.lse.text());
  if (!do_fuses_softmax_merge(a.out.dtype(), a.lse.dtype())) return std::nullopt;
  const ComputationMark mark("softmax_merge");
  AttentionOutput result{with_unit_last_stride(*this, empty_in_order_of(a.out, a.out.dtype())),
                         empty_in_order_of(a.lse, a.lse.dtype())};
  mark.describe(result.out, a.out, a.lse, b.out, b.lse);
  if (result.lse.numel() == 0) return result;
  do_softmax_merge(result, {with_unit_last_stride(*this, a.out), a.lse}, {with_unit_last_stride(*this, b.out), b.lse});
  return result;
}

bool Device::do_fuses_softmax_merge(DType, DType) const { return false; }

void Device::do_softmax_merge(const AttentionOutput& dst, const AttentionOutput&, const AttentionOutput&) {
  fail(ErrorKind::internal_error, "device {} was asked to merge {} in one pass and has no such pass", name(),
       dst.out.text());
}

std::optional<Tensor> Device::angle_function(AngleFunction function, std::span<const double> angles, const Shape& shape,
                                             DType dtype) {
  if (!do_takes_angles(dtype)) return std::nullopt;
  Tensor result = empty(shape, dtype);
  SHARDPROOF_CHECK(static_cast<std::int64_t>(angles.size()) == result.numel(), shape_error,
                   "a table of {} angles cannot fill {}", angles.size(), result.text());
  do_angle_function(function, result, angles);
  return result;
}

bool Device::do_takes_angles(DType) const { return false; }

void Device::do_angle_function(AngleFunction, const Tensor& dst, std::span<const double>) {
  fail(ErrorKind::internal_error, "device {} was asked for {} as functions of angles and has none", name(), dst.text());
}

Tensor Device::gather_rows(const Tensor& table, const Tensor& index) {
  const ComputationMark mark("gather_rows");
  check_operand(*this, table, "gather_rows");
  check_operand(*this, index, "gather_rows");
  SHARDPROOF_CHECK(table.rank() >= 1 && index.rank() == 1 && index.dtype() == kInt64, shape_error,
                   "gather_rows expects a table [rows, ..] and int64 indices [n], got {} and {}", table.text(),
                   index.text());
  Shape shape = table.shape();
  shape[0] = index.size(0);
  Tensor result = empty(shape, table.dtype());
  mark.describe(result, table, index);
  if (index.size(0) > 0) do_gather_rows(result, contiguous(*this, table), contiguous(*this, index));
  return result;
}

}  // namespace shardproof
