#include "sim/cpu_products.h"

#include <omp.h>

#include <algorithm>

#include <dnnl.h>
#include <Eigen/Core>

#include "core/host_parallel.h"
#include "sim/cpu_elements.h"

namespace shardproof::cpu {
namespace {

template <class Real>
using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Real>
auto eigen_map(MatrixView<Real> view) {
  using Plain = Matrix<std::remove_const_t<Real>>;
  using Mapped = std::conditional_t<std::is_const_v<Real>, const Plain, Plain>;
  return Eigen::Map<Mapped, Eigen::Unaligned, Eigen::OuterStride<>>(view.data, view.rows, view.columns,
                                                                    Eigen::OuterStride<>(view.stride));
}

// One thread computes the products inside; the count that was set comes back at the end of the scope.
class OneThread {
 public:
  OneThread() : count_(omp_get_max_threads()) {
    if (count_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (count_ != 1) omp_set_num_threads(count_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int count_;
};

// c = before * c + scale a op(b), by the kernel that the library picks for this processor.
void float32_product(MatrixView<float> c, float before, MatrixView<const float> a, MatrixView<const float> b,
                     char transposed, float scale) {
  const OneThread one_thread;
  const std::int64_t depth = a.columns;
  const dnnl_status_t status = dnnl_sgemm('N', transposed, c.rows, c.columns, depth, scale, a.data, a.stride, b.data,
                                          b.stride, before, c.data, c.stride);
  SHARDPROOF_CHECK(status == dnnl_success, internal_error,
                   "the float32 product [{}, {}] x [{}, {}] failed in oneDNN with status {}", c.rows, depth, depth,
                   c.columns, static_cast<int>(status));
}

}  // namespace

template <>
void multiply_transposed<float>(MatrixView<float> c, MatrixView<const float> a, MatrixView<const float> b,
                                float scale) {
  if (c.rows == 0 || c.columns == 0) return;
  if (a.columns == 0) {
    eigen_map(c).setZero();
    return;
  }
  float32_product(c, 0.0F, a, b, 'T', scale);
}

template <>
void multiply_transposed<double>(MatrixView<double> c, MatrixView<const double> a, MatrixView<const double> b,
                                 double scale) {
  eigen_map(c).noalias() = scale * eigen_map(a) * eigen_map(b).transpose();
}

template <>
void multiply<float>(MatrixView<float> c, MatrixView<const float> a, MatrixView<const float> b, Product product) {
  if (c.rows == 0 || c.columns == 0) return;
  if (a.columns == 0) {
    if (product == Product::replaces) eigen_map(c).setZero();
    return;
  }
  float32_product(c, product == Product::adds ? 1.0F : 0.0F, a, b, 'N', 1.0F);
}

template <>
void multiply<double>(MatrixView<double> c, MatrixView<const double> a, MatrixView<const double> b, Product product) {
  if (product == Product::adds) {
    eigen_map(c).noalias() += eigen_map(a) * eigen_map(b);
  } else {
    eigen_map(c).noalias() = eigen_map(a) * eigen_map(b);
  }
}

namespace {

constexpr std::int64_t kTileRows = 512;
constexpr std::int64_t kTileColumns = 256;

template <class Storage>
struct LinearTile {
  const Tensor& dst;
  const Tensor& x;
  const Tensor& weight;
  const Tensor& bias;
  std::int64_t first_row, rows, first_column, columns;

  using Real = Accumulator<Storage>;
  static constexpr bool kConverts = !std::same_as<Storage, Real>;

  static std::int64_t scratch_elements(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    return kConverts ? (rows + columns) * depth + rows * columns : 0;
  }

  MatrixView<const Real> operand(const Storage* data, std::int64_t count, std::int64_t stride, Real*& scratch) const {
    const std::int64_t depth = x.size(1);
    if constexpr (kConverts) {
      Real* converted = scratch;
      scratch += count * depth;
      load_rows(converted, data, count, depth, stride);
      return {converted, count, depth, depth};
    } else {
      return {data, count, depth, stride};
    }
  }

  void compute(Real* scratch) const {
    const std::int64_t x_stride = x.size(1), weight_stride = weight.strides()[0], dst_stride = dst.size(1);
    const auto left = operand(x.data_as<Storage>() + first_row * x_stride, rows, x_stride, scratch);
    const auto right =
        operand(weight.data_as<Storage>() + first_column * weight_stride, columns, weight_stride, scratch);
    Storage* target = dst.data_as<Storage>() + first_row * dst_stride + first_column;
    MatrixView<Real> product{scratch, rows, columns, columns};
    if constexpr (!kConverts) product = {target, rows, columns, dst_stride};
    multiply_transposed<Real>(product, left, right);
    const Storage* shift = bias.defined() ? bias.data_as<Storage>() + first_column : nullptr;
    if (!kConverts && shift == nullptr) return;
    for (std::int64_t i = 0; i < rows; ++i) {
      const Real* sums = product.data + i * product.stride;
      Storage* result = target + i * dst_stride;
      if (shift == nullptr) {
        for (std::int64_t j = 0; j < columns; ++j) result[j] = store<Storage>(sums[j]);
      } else {
        for (std::int64_t j = 0; j < columns; ++j) result[j] = store<Storage>(sums[j] + load(shift[j]));
      }
    }
  }
};

template <class Storage>
void linear_of(BlockPool& pool, const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  using Real = Accumulator<Storage>;
  const std::int64_t m = dst.size(0), n = dst.size(1), k = x.size(1);
  const std::int64_t column_tiles = (n + kTileColumns - 1) / kTileColumns;
  const std::int64_t tiles = column_tiles * ((m + kTileRows - 1) / kTileRows);
  const int threads = threads_for(m * n * k / 8, tiles);
  const std::int64_t scratch =
      LinearTile<Storage>::scratch_elements(std::min(m, kTileRows), std::min(n, kTileColumns), k);
  const PoolBlock block(pool, static_cast<std::size_t>(scratch * threads) * sizeof(Real));
  Real* const all_scratch = block.data_as<Real>();
  const auto compute = [&](std::int64_t tile, int thread) {
    const std::int64_t row = tile / column_tiles * kTileRows, column = tile % column_tiles * kTileColumns;
    const LinearTile<Storage> part{
        dst, x, weight, bias, row, std::min(kTileRows, m - row), column, std::min(kTileColumns, n - column)};
    part.compute(all_scratch + scratch * thread);
  };
  if (threads == 1) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) compute(tile, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t tile = 0; tile < tiles; ++tile) compute(tile, omp_get_thread_num());
}

}  // namespace

void linear(BlockPool& pool, const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  visit_floating(dst.dtype(), "matmul",
                 [&](auto type) { linear_of<typename decltype(type)::type>(pool, dst, x, weight, bias); });
}

}  // namespace shardproof::cpu
