// Device: memory and arithmetic on one rank's tensors; the first of the two seams. Public functions check their
// arguments once and call private `do_` virtuals; model and algorithm code calls neither but goes through `core/ops.h`.
//
// Conventions of every `do_` virtual: arguments are checked (types, shapes, device, no memory in flight); `dst` is
// freshly allocated unless said; tensors are strided unless said; sizes may be zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace shardproof {

// silu x*sigmoid(x); gelu with erf; gelu_tanh with tanh; rsqrt 1/sqrt(x); clamp_finite to the largest finite magnitude
// of the element type (NaN stays). Formulas: models specification, section 0.
enum class UnaryOp : std::uint8_t { silu, gelu, gelu_tanh, sigmoid, tanh, rsqrt, clamp_finite };
// logaddexp(x,y) = log(exp x + exp y), -inf for two -inf; lse_weight(x,y) = 1/(1+exp(y-x)), 0 if x = -inf. The last two
// act on log-sum-exps only; lse_weight returns the wide type.
enum class BinaryOp : std::uint8_t { add, sub, mul, div, logaddexp, lse_weight };
enum class ReduceOp : std::uint8_t { sum, mean };
// What the entries of a host table are of their angle.
enum class AngleFunction : std::uint8_t { cosine, sine };

std::string_view op_name(UnaryOp op);
std::string_view op_name(BinaryOp op);
std::string_view op_name(ReduceOp op);

struct AttentionOutput {
  Tensor out;  // [batch, queries, heads, head_dim] in the wide type of q; rows without any key are 0
  Tensor lse;  // [batch, queries, heads] in the log type of q, natural logarithm; rows without any key are -inf
};

class Device {
 public:
  virtual ~Device() = default;

  std::string_view name() const { return do_name(); }
  // True if tensors of the type can live here and, for value types, be computed with.
  bool supports(DType dtype) const { return do_supports(dtype); }

  // A contiguous tensor whose elements are not defined.
  Tensor empty(const Shape& shape, DType dtype);
  // An empty tensor of x's shape that keeps x's memory order (axes sorted by falling stride), so that elementwise work
  // and exchanges that follow need no reordering.
  Tensor empty_in_order_of(const Tensor& x, DType dtype);
  // The same as empty() with every byte 0xFF (NaN, -1, the sentinel of exact scalars): reading it spoils the result
  // visibly.
  Tensor poisoned(const Shape& shape, DType dtype);
  // Copies `bytes` (elements of `dtype`, row-major) into a new contiguous tensor.
  Tensor upload(std::span<const std::byte> bytes, const Shape& shape, DType dtype);
  // Copies the elements of `source` in row-major order to `bytes`.
  void download(std::span<std::byte> bytes, const Tensor& source);
  // dst[..] = convert(src[..]) element by element; dst is an existing tensor, src broadcasts to its shape.
  // bool -> number gives 0 or 1; number -> bool gives x != 0; float -> int64 truncates.
  void copy(const Tensor& dst, const Tensor& src);
  // dst[..] = value in dst's type.
  void fill(const Tensor& dst, double value);
  // Every byte of dst's elements becomes 0xFF.
  void poison(const Tensor& dst);
  Tensor unary(UnaryOp op, const Tensor& x);
  // Broadcasting; both operands of one type.
  Tensor binary(BinaryOp op, const Tensor& x, const Tensor& y);
  // x [.., k], weight [n, k] (rows may be strided), bias [n] or no tensor -> [.., n] = x weight^T + bias. 16-bit types
  // accumulate in float32 and round once.
  Tensor matmul(const Tensor& x, const Tensor& weight, const Tensor& bias);
  // Over the last axis: [.., n] -> [..]; the mean of nothing is an error.
  Tensor reduce(ReduceOp op, const Tensor& x);
  // q [batch, queries, heads, head_dim], k and v [batch, keys, heads, head_dim]; mask no tensor, or bool (true =
  // attend) or a value type (added to the scaled logits; -inf = never), of shape [batch|1, heads|1, queries|1, keys].
  // out = softmax(scale q k^T + mask) v. The output has q's memory order, so that an exchange can follow without a
  // copy.
  AttentionOutput attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale);
  // Two partial results of attention over disjoint keys merged in one pass, bit for bit as parallel/softmax_merge
  // composes it of binary operations; nothing if this device has no such pass for their type.
  std::optional<AttentionOutput> fused_softmax_merge(const AttentionOutput& a, const AttentionOutput& b);
  // Entries of a table as functions of their angles (as many as the shape has elements, row-major), where they are no
  // numbers that the host could compute; nothing for types in which they are.
  std::optional<Tensor> angle_function(AngleFunction function, std::span<const double> angles, const Shape& shape,
                                       DType dtype);
  // table [rows, ..], index int64 [n] -> [n, ..]; an index out of range is a shape_error.
  Tensor gather_rows(const Tensor& table, const Tensor& index);
  // Blocks the host until everything given to this device is done.
  void synchronize() { do_synchronize(); }

 private:
  virtual std::string_view do_name() const = 0;
  virtual bool do_supports(DType dtype) const = 0;
  virtual StoragePointer do_allocate(std::size_t bytes) = 0;
  virtual void do_upload(const Tensor& dst, std::span<const std::byte> bytes) = 0;
  virtual void do_download(std::span<std::byte> bytes, const Tensor& src) = 0;
  virtual void do_copy(const Tensor& dst, const Tensor& src) = 0;  // src has dst's shape (expanded)
  virtual void do_fill(const Tensor& dst, double value) = 0;
  virtual void do_poison(const Tensor& dst) = 0;
  virtual void do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) = 0;
  // x and y have dst's shape (expanded)
  virtual void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) = 0;
  // dst [m, n] contiguous, x [m, k] contiguous, weight [n, k] with unit column stride, bias [n] contiguous or no tensor
  virtual void do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) = 0;
  virtual void do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) = 0;
  // head_dim of q, k, v, out has unit stride; the mask is expanded to [batch, heads, queries, keys] with strides 0
  virtual void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& mask, double scale) = 0;
  // Optional: true for types that do_softmax_merge takes.
  virtual bool do_fuses_softmax_merge(DType out, DType lse) const;
  // dst.out has unit stride along head_dim, and so have a.out and b.out; all have dst's shapes
  virtual void do_softmax_merge(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b);
  // Optional: true for types in which do_angle_function makes the entries of tables.
  virtual bool do_takes_angles(DType dtype) const;
  virtual void do_angle_function(AngleFunction function, const Tensor& dst, std::span<const double> angles);
  // table and dst contiguous
  virtual void do_gather_rows(const Tensor& dst, const Tensor& table, const Tensor& index) = 0;
  virtual void do_synchronize() = 0;
};

// Throws state_error if an operation is still writing to the tensor's memory.
void check_readable(const Tensor& tensor, std::string_view operation);
// Throws state_error if an operation is still writing to or sending from the tensor's memory; gives the tensor's
// storage bytes of its own if it shares them.
void make_writable(const Tensor& tensor, std::string_view operation);

}  // namespace shardproof
