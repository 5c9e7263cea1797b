#include "sim/cpu_device.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>

#include <Eigen/Core>

#include "core/host_memory.h"
#include "core/host_parallel.h"
#include "core/strided_loop.h"
#include "sim/cpu_attention.h"
#include "sim/cpu_elements.h"
#include "sim/cpu_math.h"
#include "sim/cpu_products.h"

namespace shardproof {
namespace cpu {
namespace {

// Calls row(offsets, first, count) for pieces of all rows, on several threads where the work is large; an element costs
// `steps`. The pieces depend on the shape only, and no result depends on how rows are cut.
template <int kOperands, class Row>
void for_row_pieces(const StridedLoop<kOperands>& loop, std::int64_t steps, const Row& row) {
  using Offsets = typename StridedLoop<kOperands>::Offsets;
  const std::int64_t size = loop.inner_size(), rows = loop.rows();
  const int threads = threads_for(size * rows * steps, size * rows);
  if (threads == 1) {
    loop.for_all_rows([&](const Offsets& offsets) { row(offsets, 0, size); });
    return;
  }
  const std::int64_t piece = std::max<std::int64_t>(1, 16 * 1024 / steps);
  const std::int64_t pieces = (size + piece - 1) / piece;
  const std::int64_t rows_together = std::max<std::int64_t>(1, piece / size);
  const std::int64_t groups = (rows + rows_together - 1) / rows_together;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t unit = 0; unit < groups * pieces; ++unit) {
    const std::int64_t first_row = unit / pieces * rows_together;
    const std::int64_t first = unit % pieces * piece, count = std::min(piece, size - first);
    loop.for_rows(first_row, std::min(rows, first_row + rows_together),
                  [&](const Offsets& offsets) { row(offsets, first, count); });
  }
}

// The element functions. `function` maps accumulators to an accumulator.
template <class Storage, class Function>
void map_unary(const Tensor& dst, const Tensor& x, const Function& function) {
  const StridedLoop<2> loop(dst.shape(), {&dst.strides(), &x.strides()});
  const std::int64_t stride = loop.inner_stride(1);
  Storage* const dst_data = dst.data_as<Storage>();
  const Storage* const x_data = x.data_as<Storage>();
  for_row_pieces(loop, 1, [&](const StridedLoop<2>::Offsets& offsets, std::int64_t first, std::int64_t count) {
    Storage* result = dst_data + offsets[0] + first;
    const Storage* value = x_data + offsets[1] + first * stride;
    if (stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) result[i] = store<Storage>(function(load(value[i])));
    } else {
      for (std::int64_t i = 0; i < count; ++i) result[i] = store<Storage>(function(load(value[i * stride])));
    }
  });
}

template <class Storage, class Function>
void map_binary(const Tensor& dst, const Tensor& x, const Tensor& y, const Function& function) {
  const StridedLoop<3> loop(dst.shape(), {&dst.strides(), &x.strides(), &y.strides()});
  const std::int64_t x_stride = loop.inner_stride(1), y_stride = loop.inner_stride(2);
  Storage* const dst_data = dst.data_as<Storage>();
  const Storage* const x_data = x.data_as<Storage>();
  const Storage* const y_data = y.data_as<Storage>();
  for_row_pieces(loop, 1, [&](const StridedLoop<3>::Offsets& offsets, std::int64_t first, std::int64_t count) {
    Storage* result = dst_data + offsets[0] + first;
    const Storage* left = x_data + offsets[1] + first * x_stride;
    const Storage* right = y_data + offsets[2] + first * y_stride;
    if (x_stride == 1 && y_stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) result[i] = store<Storage>(function(load(left[i]), load(right[i])));
    } else if (x_stride == 1 && y_stride == 0) {
      const auto constant = load(*right);
      for (std::int64_t i = 0; i < count; ++i) result[i] = store<Storage>(function(load(left[i]), constant));
    } else if (x_stride == 0 && y_stride == 1) {
      const auto constant = load(*left);
      for (std::int64_t i = 0; i < count; ++i) result[i] = store<Storage>(function(constant, load(right[i])));
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        result[i] = store<Storage>(function(load(left[i * x_stride]), load(right[i * y_stride])));
      }
    }
  });
}

// The largest finite value of an element type, as its accumulator holds it.
template <class Storage>
constexpr Accumulator<Storage> largest_finite() {
  if constexpr (std::is_same_v<Storage, Float16>) {
    return 65504.0F;
  } else if constexpr (std::is_same_v<Storage, BFloat16>) {
    return 0x1.FEp127F;
  } else {
    return std::numeric_limits<Storage>::max();
  }
}

template <class Storage>
void unary_of(UnaryOp op, const Tensor& dst, const Tensor& x) {
  using Real = Accumulator<Storage>;
  switch (op) {
    case UnaryOp::silu: return map_unary<Storage>(dst, x, [](Real a) { return a / (1 + exponential(-a)); });
    case UnaryOp::sigmoid: return map_unary<Storage>(dst, x, [](Real a) { return 1 / (1 + exponential(-a)); });
    case UnaryOp::rsqrt: return map_unary<Storage>(dst, x, [](Real a) { return 1 / std::sqrt(a); });
    case UnaryOp::clamp_finite:
      return map_unary<Storage>(dst, x, [](Real a) {
        constexpr Real kLargest = largest_finite<Storage>();
        return a > kLargest ? kLargest : (a < -kLargest ? -kLargest : a);
      });
    case UnaryOp::tanh: return map_unary<Storage>(dst, x, [](Real a) { return std::tanh(a); });
    case UnaryOp::gelu:
      return map_unary<Storage>(
          dst, x, [](Real a) { return a * Real(0.5) * (1 + std::erf(a * (std::numbers::sqrt2_v<Real> / 2))); });
    case UnaryOp::gelu_tanh:
      // (1 + tanh(u)) / 2 is the sigmoid of 2u.
      return map_unary<Storage>(dst, x, [](Real a) {
        constexpr Real kSlope = static_cast<Real>(1.5957691216057307117597842397375);  // 2 sqrt(2 / pi)
        const Real argument = kSlope * (a + Real(0.044715) * a * a * a);
        return a / (1 + exponential(-argument));
      });
  }
}

template <class Real>
[[gnu::always_inline]] inline Real logaddexp(Real x, Real y) {
  constexpr Real kNothing = -std::numeric_limits<Real>::infinity();
  const Real larger = x > y ? x : y, smaller = x > y ? y : x;  // a NaN ends up in `smaller` or in both
  const Real sum = larger + logarithm_of_one_plus(exponential(smaller - larger));
  return x == kNothing ? y : (y == kNothing ? x : sum);
}

template <class Real>
[[gnu::always_inline]] inline Real lse_weight(Real x, Real y) {
  const bool nothing = x == -std::numeric_limits<Real>::infinity() && y == y;
  return nothing ? Real{0} : 1 / (1 + exponential(y - x));
}

template <class Storage>
void binary_of(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) {
  using Real = Accumulator<Storage>;
  switch (op) {
    case BinaryOp::add: return map_binary<Storage>(dst, x, y, [](Real a, Real b) { return a + b; });
    case BinaryOp::sub: return map_binary<Storage>(dst, x, y, [](Real a, Real b) { return a - b; });
    case BinaryOp::mul: return map_binary<Storage>(dst, x, y, [](Real a, Real b) { return a * b; });
    case BinaryOp::div: return map_binary<Storage>(dst, x, y, [](Real a, Real b) { return a / b; });
    case BinaryOp::logaddexp: return map_binary<Storage>(dst, x, y, [](Real a, Real b) { return logaddexp(a, b); });
    case BinaryOp::lse_weight: return map_binary<Storage>(dst, x, y, [](Real a, Real b) { return lse_weight(a, b); });
  }
}

// One pass over the rows: both weights, the weighted sum, the new log-sum-exp, each by the operations that binary_of
// has for it.
template <class Real>
void merge_of(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b) {
  const int last = dst.out.rank() - 1;
  const Strides dst_rows = dst.out.strides().erased(last), a_rows = a.out.strides().erased(last),
                b_rows = b.out.strides().erased(last);
  const StridedLoop<6> loop(dst.lse.shape(),
                            {&dst_rows, &a_rows, &b_rows, &dst.lse.strides(), &a.lse.strides(), &b.lse.strides()});
  const std::int64_t width = dst.out.size(last);
  Real* const out = dst.out.data_as<Real>();
  Real* const lse = dst.lse.data_as<Real>();
  const Real *const a_out = a.out.data_as<Real>(), *const b_out = b.out.data_as<Real>();
  const Real *const a_lse = a.lse.data_as<Real>(), *const b_lse = b.lse.data_as<Real>();
  constexpr std::int64_t kBlock = 64;  // rows whose weights are computed side by side
  const auto merge_rows = [&](const StridedLoop<6>::Offsets& offsets, std::int64_t first, std::int64_t count) {
    const auto at = [&](int operand, std::int64_t i) {
      return offsets[static_cast<std::size_t>(operand)] + i * loop.inner_stride(operand);
    };
    std::array<Real, kBlock> x, y, weight_a, weight_b, sum;
    for (std::int64_t start = first; start < first + count; start += kBlock) {
      const auto rows = static_cast<std::size_t>(std::min(kBlock, first + count - start));
      for (std::size_t i = 0; i < rows; ++i) {
        x[i] = a_lse[at(4, start + static_cast<std::int64_t>(i))];
        y[i] = b_lse[at(5, start + static_cast<std::int64_t>(i))];
      }
      for (std::size_t i = 0; i < rows; ++i) weight_a[i] = lse_weight(x[i], y[i]);
      for (std::size_t i = 0; i < rows; ++i) weight_b[i] = lse_weight(y[i], x[i]);
      for (std::size_t i = 0; i < rows; ++i) sum[i] = logaddexp(x[i], y[i]);
      for (std::size_t i = 0; i < rows; ++i) {
        const std::int64_t row = start + static_cast<std::int64_t>(i);
        const Real *from_a = a_out + at(1, row), *from_b = b_out + at(2, row);
        Real* to = out + at(0, row);
        for (std::int64_t j = 0; j < width; ++j) to[j] = from_a[j] * weight_a[i] + from_b[j] * weight_b[i];
        lse[at(3, row)] = sum[i];
      }
    }
  };
  for_row_pieces(loop, std::max<std::int64_t>(1, width), merge_rows);
}

// Sums blocks of a fixed length and then the blocks, whatever the stride.
template <class Storage>
Accumulator<Storage> sum_of_row(const Storage* row, std::int64_t count, std::int64_t stride) {
  using Real = Accumulator<Storage>;
  constexpr std::int64_t kBlock = 256;
  std::array<Real, kBlock> block;
  Real total = 0;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t length = std::min(kBlock, count - first);
    const Storage* source = row + first * stride;
    if constexpr (std::same_as<Storage, Real>) {
      if (stride == 1) {
        total += row_sum(source, length);
        continue;
      }
    }
    for (std::int64_t i = 0; i < length; ++i) block[static_cast<std::size_t>(i)] = load(source[i * stride]);
    total += row_sum<Real>(block.data(), length);
  }
  return total;
}

template <class Storage>
void reduce_of(ReduceOp op, const Tensor& dst, const Tensor& x) {
  using Real = Accumulator<Storage>;
  const std::int64_t count = x.size(-1), stride = x.strides().back();
  const Real divisor = op == ReduceOp::mean ? static_cast<Real>(count) : Real{1};
  const Strides row_strides = x.strides().erased(x.rank() - 1);
  const StridedLoop<2> loop(dst.shape(), {&dst.strides(), &row_strides});
  const std::int64_t dst_stride = loop.inner_stride(0), x_stride = loop.inner_stride(1);
  Storage* const dst_data = dst.data_as<Storage>();
  const Storage* const x_data = x.data_as<Storage>();
  const auto reduce_rows = [&](const StridedLoop<2>::Offsets& offsets, std::int64_t first, std::int64_t rows) {
    for (std::int64_t i = first; i < first + rows; ++i) {
      const Storage* row = x_data + offsets[1] + i * x_stride;
      dst_data[offsets[0] + i * dst_stride] = store<Storage>(sum_of_row(row, count, stride) / divisor);
    }
  };
  for_row_pieces(loop, std::max<std::int64_t>(1, count), reduce_rows);
}

class CpuDevice final : public HostDevice {
 private:
  std::string_view do_name() const override { return "cpu"; }
  bool do_supports(DType dtype) const override {
    return dtype.category() == DTypeCategory::floating || dtype == kInt64 || dtype == kBool;
  }
  void do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) override {
    visit_floating(x.dtype(), op_name(op), [&](auto type) { unary_of<typename decltype(type)::type>(op, dst, x); });
  }
  void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) override {
    visit_floating(x.dtype(), op_name(op), [&](auto type) { binary_of<typename decltype(type)::type>(op, dst, x, y); });
  }
  void do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) override {
    cpu::linear(pool(), dst, x, weight, bias);
  }
  void do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) override {
    visit_floating(x.dtype(), op_name(op), [&](auto type) { reduce_of<typename decltype(type)::type>(op, dst, x); });
  }
  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override {
    cpu::attention(pool(), dst, q, k, v, mask, scale);
  }
  bool do_fuses_softmax_merge(DType out, DType lse) const override {
    return out == lse && (out == kFloat64 || out == kFloat32);
  }
  void do_softmax_merge(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b) override {
    if (dst.out.dtype() == kFloat64) return merge_of<double>(dst, a, b);
    merge_of<float>(dst, a, b);
  }
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Device> make_cpu_device() {
  // Eigen cuts its products by cache sizes that it reads from the processor; fixed ones give the same bits everywhere.
  static std::once_flag once;
  std::call_once(once, [] { Eigen::setCpuCacheSizes(32 * 1024, 1024 * 1024, 16 * 1024 * 1024); });
  return std::make_unique<cpu::CpuDevice>();
}

}  // namespace shardproof
