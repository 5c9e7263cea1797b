// Matrix products of the CPU device: single-threaded kernels on one tile (oneDNN for float32, which picks its code by
// the processor it runs on; Eigen for float64), and the linear layer cut into tiles whose sizes depend on shapes only.
// All matrices are row-major with a row stride counted in elements.
#pragma once

#include <cstdint>

#include "core/block_pool.h"
#include "core/tensor.h"

namespace shardproof::cpu {

template <class Real>
struct MatrixView {
  Real* data;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stride;
};

// c = scale a b^T; a [m, k], b [n, k].
template <class Real>
void multiply_transposed(MatrixView<Real> c, MatrixView<const Real> a, MatrixView<const Real> b, Real scale = 1);
// c = a b, or c += a b; a [m, k], b [k, n].
enum class Product : bool { replaces, adds };
template <class Real>
void multiply(MatrixView<Real> c, MatrixView<const Real> a, MatrixView<const Real> b, Product product);

// dst = x weight^T + bias as Device::do_matmul states it, for the four floating types.
void linear(BlockPool& pool, const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace shardproof::cpu
