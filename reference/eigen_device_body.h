// EigenDevice<Scalar>: the template behind the reference devices, included only by the files that define one. What
// depends on the kind of scalar stands in ScalarRules<Scalar>: its element types, constants, the element functions and
// the weights of a row of logits, so that scalars without order or exponential can be added.
//
// A specialisation of ScalarRules offers:
//   name()                              the device's name
//   computes(dtype)                     true for element types whose elements are Scalars
//   holds(dtype)                        true for all element types that may live on the device
//   from_double(x), poison()            constants
//   unary(op, x), binary(op, x, y)      element functions
//   softmax(logits, attended, lse)      replaces a row of logits by unnormalised weights, 0 where not attended; gives
//   the
//                                       log-sum-exp; returns the sum of the weights
//   is_never(bias)                      true for an additive mask entry that removes its key
//   is_empty(sum)                       true if the row of weights has no key
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include "core/element_types.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "core/strided_loop.h"

namespace shardproof {

template <class Scalar>
struct ScalarRules;

template <class Scalar>
class EigenDevice final : public HostDevice {
 private:
  using Rules = ScalarRules<Scalar>;
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
  using RowStride = Eigen::OuterStride<>;
  using ConstMatrixMap = Eigen::Map<const Matrix, Eigen::Unaligned, RowStride>;
  using ConstVectorMap = Eigen::Map<const Vector>;

  std::string_view do_name() const override { return Rules::name(); }
  bool do_supports(DType dtype) const override { return Rules::holds(dtype); }
  void do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) override;
  void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) override;
  void do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) override;
  void do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) override;
  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override;

  void check_computes(const Tensor& x, std::string_view operation) const {
    SHARDPROOF_CHECK(Rules::computes(x.dtype()), type_error,
                     "{}: device '{}' holds {} for conversion only, it does not compute with {}", operation,
                     this->name(), x.text(), x.dtype().name());
  }
  // Rows of one head: element (token, channel) at token * stride + channel.
  static ConstMatrixMap head_matrix(const Tensor& x, std::int64_t batch, std::int64_t head) {
    return ConstMatrixMap(x.data_as<Scalar>() + batch * x.strides()[0] + head * x.strides()[2], x.size(1), x.size(3),
                          RowStride(x.strides()[1]));
  }
  // Adds the mask's row to the logits, and clears `attended` where the mask removes a key.
  static void apply_mask(const Tensor& mask, std::int64_t batch, std::int64_t head, std::int64_t query, Vector& logits,
                         std::vector<bool>& attended);
};

// Calls `body` with the operation as a constant, so that the loop in it is compiled for that operation alone.
template <class Body>
void with_constant(UnaryOp op, const Body& body) {
  switch (op) {
    case UnaryOp::silu: return body(std::integral_constant<UnaryOp, UnaryOp::silu>());
    case UnaryOp::gelu: return body(std::integral_constant<UnaryOp, UnaryOp::gelu>());
    case UnaryOp::gelu_tanh: return body(std::integral_constant<UnaryOp, UnaryOp::gelu_tanh>());
    case UnaryOp::sigmoid: return body(std::integral_constant<UnaryOp, UnaryOp::sigmoid>());
    case UnaryOp::tanh: return body(std::integral_constant<UnaryOp, UnaryOp::tanh>());
    case UnaryOp::rsqrt: return body(std::integral_constant<UnaryOp, UnaryOp::rsqrt>());
    case UnaryOp::clamp_finite: return body(std::integral_constant<UnaryOp, UnaryOp::clamp_finite>());
  }
}

template <class Body>
void with_constant(BinaryOp op, const Body& body) {
  switch (op) {
    case BinaryOp::add: return body(std::integral_constant<BinaryOp, BinaryOp::add>());
    case BinaryOp::sub: return body(std::integral_constant<BinaryOp, BinaryOp::sub>());
    case BinaryOp::mul: return body(std::integral_constant<BinaryOp, BinaryOp::mul>());
    case BinaryOp::div: return body(std::integral_constant<BinaryOp, BinaryOp::div>());
    case BinaryOp::logaddexp: return body(std::integral_constant<BinaryOp, BinaryOp::logaddexp>());
    case BinaryOp::lse_weight: return body(std::integral_constant<BinaryOp, BinaryOp::lse_weight>());
  }
}

template <class Scalar>
void EigenDevice<Scalar>::do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) {
  check_computes(x, op_name(op));
  const StridedLoop<2> loop(dst.shape(), {&dst.strides(), &x.strides()});
  const std::int64_t count = loop.inner_size(), to = loop.inner_stride(0), from = loop.inner_stride(1);
  with_constant(op, [&](auto constant) {
    loop.for_all_rows([&](const StridedLoop<2>::Offsets& offset) {
      Scalar* result = dst.data_as<Scalar>() + offset[0];
      const Scalar* value = x.data_as<Scalar>() + offset[1];
      for (std::int64_t i = 0; i < count; ++i) result[i * to] = Rules::unary(constant, value[i * from]);
    });
  });
}

template <class Scalar>
void EigenDevice<Scalar>::do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) {
  check_computes(x, op_name(op));
  const StridedLoop<3> loop(dst.shape(), {&dst.strides(), &x.strides(), &y.strides()});
  const std::int64_t count = loop.inner_size(), to = loop.inner_stride(0);
  const std::int64_t left_stride = loop.inner_stride(1), right_stride = loop.inner_stride(2);
  with_constant(op, [&](auto constant) {
    loop.for_all_rows([&](const StridedLoop<3>::Offsets& offset) {
      Scalar* result = dst.data_as<Scalar>() + offset[0];
      const Scalar* left = x.data_as<Scalar>() + offset[1];
      const Scalar* right = y.data_as<Scalar>() + offset[2];
      if (to == 1 && left_stride == 1 && right_stride == 1) {
        for (std::int64_t i = 0; i < count; ++i) result[i] = Rules::binary(constant, left[i], right[i]);
        return;
      }
      for (std::int64_t i = 0; i < count; ++i)
        result[i * to] = Rules::binary(constant, left[i * left_stride], right[i * right_stride]);
    });
  });
}

template <class Scalar>
void EigenDevice<Scalar>::do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_computes(x, "matmul");
  const ConstMatrixMap rows(x.data_as<Scalar>(), x.size(0), x.size(1), RowStride(x.size(1)));
  const ConstMatrixMap weights(weight.data_as<Scalar>(), weight.size(0), weight.size(1),
                               RowStride(weight.strides()[0]));
  Eigen::Map<Matrix> result(dst.data_as<Scalar>(), dst.size(0), dst.size(1));
  result.noalias() = rows * weights.transpose();
  if (bias.defined()) result.rowwise() += ConstVectorMap(bias.data_as<Scalar>(), bias.size(0)).transpose();
}

template <class Scalar>
void EigenDevice<Scalar>::do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) {
  check_computes(x, op_name(op));
  const std::int64_t count = x.size(-1);
  const std::int64_t stride = x.strides().back();
  const Strides row_strides = x.strides().erased(x.rank() - 1);
  const StridedLoop<2> loop(dst.shape(), {&dst.strides(), &row_strides});
  loop.for_all_rows([&](const StridedLoop<2>::Offsets& offset) {
    for (std::int64_t i = 0; i < loop.inner_size(); ++i) {
      const Scalar* row = x.data_as<Scalar>() + offset[1] + i * loop.inner_stride(1);
      Scalar sum = Rules::from_double(0);
      for (std::int64_t j = 0; j < count; ++j) sum = sum + row[j * stride];
      if (op == ReduceOp::mean) sum = sum / Rules::from_double(static_cast<double>(count));
      dst.data_as<Scalar>()[offset[0] + i * loop.inner_stride(0)] = sum;
    }
  });
}

template <class Scalar>
void EigenDevice<Scalar>::apply_mask(const Tensor& mask, std::int64_t batch, std::int64_t head, std::int64_t query,
                                     Vector& logits, std::vector<bool>& attended) {
  const Strides& stride = mask.strides();
  const std::int64_t first = batch * stride[0] + head * stride[1] + query * stride[2];
  for (std::int64_t key = 0; key < mask.size(3); ++key) {
    const std::int64_t entry = first + key * stride[3];
    bool keep = true;
    if (mask.dtype() == kBool) {
      const std::uint8_t flag = mask.data_as<Bool8>()[entry].byte;
      keep = flag != 0;
      if (flag > 1) logits[key] = Rules::poison();
    } else {
      const Scalar bias = mask.data_as<Scalar>()[entry];
      keep = !Rules::is_never(bias);
      if (keep) logits[key] = logits[key] + bias;
    }
    attended[static_cast<std::size_t>(key)] = keep;
  }
}

template <class Scalar>
void EigenDevice<Scalar>::do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& mask, double scale) {
  check_computes(q, "attention");
  const Scalar factor = Rules::from_double(scale);
  const std::int64_t queries = q.size(1), heads = q.size(2), width = q.size(3), keys = k.size(1);
  Vector logits(keys), result(width);
  std::vector<bool> attended(static_cast<std::size_t>(keys));
  for (std::int64_t batch = 0; batch < q.size(0); ++batch) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const ConstMatrixMap query_rows = head_matrix(q, batch, head);
      const ConstMatrixMap key_rows = head_matrix(k, batch, head);
      const ConstMatrixMap value_rows = head_matrix(v, batch, head);
      for (std::int64_t query = 0; query < queries; ++query) {
        logits.noalias() = key_rows * query_rows.row(query).transpose();
        logits *= factor;
        attended.assign(attended.size(), true);
        if (mask.defined()) apply_mask(mask, batch, head, query, logits, attended);
        Scalar lse;
        const Scalar sum = Rules::softmax(logits, attended, lse);
        if (Rules::is_empty(sum)) {
          result.setConstant(Rules::from_double(0));
        } else {
          result.noalias() = value_rows.transpose() * logits;
          result /= sum;
        }
        const Strides& stride = dst.out.strides();
        Scalar* out = dst.out.data_as<Scalar>() + batch * stride[0] + query * stride[1] + head * stride[2];
        for (std::int64_t i = 0; i < width; ++i) out[i] = result[i];
        const Strides& lse_stride = dst.lse.strides();
        dst.lse.data_as<Scalar>()[batch * lse_stride[0] + query * lse_stride[1] + head * lse_stride[2]] = lse;
      }
    }
  }
}

}  // namespace shardproof
