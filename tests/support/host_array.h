// Plain arrays of doubles with a shape, for tests that state what must come out without the code under test: rows
// selected by index lists, attention as nested loops, differences that notice NaN and infinities.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace shardproof::test {

struct HostArray {
  Shape shape;
  std::vector<double> values;  // row-major

  HostArray() = default;
  explicit HostArray(const Shape& shape_, double value = 0.0)
      : shape(shape_), values(static_cast<std::size_t>(shape_.numel()), value) {}
  double& at(std::initializer_list<std::int64_t> index) { return values[offset(index)]; }
  double at(std::initializer_list<std::int64_t> index) const { return values[offset(index)]; }
  bool empty() const { return shape.rank() == 0; }
  friend bool operator==(const HostArray&, const HostArray&) = default;

 private:
  std::size_t offset(std::initializer_list<std::int64_t> index) const;
};

// Standard normal times `deviation`, a function of (seed, name, index) only.
HostArray random_array(const Shape& shape, std::uint64_t seed, std::string_view name, double deviation = 1.0);
// 0, 1, 2, ..: every element its own identifier.
HostArray identifiers(const Shape& shape);
// The entries `indices` of one axis, in that order.
HostArray selected(const HostArray& array, int axis, std::span<const std::int64_t> indices);

// Writes `part` to the entries `indices` of one axis.
void assign(HostArray& array, int axis, std::span<const std::int64_t> indices, const HostArray& part);
// Side by side along one axis; all other sizes equal.
HostArray joined(const HostArray& a, const HostArray& b, int axis);

HostArray to_host(const Tensor& tensor);
Tensor to_device(Device& device, const HostArray& array, DType dtype);

// Largest |a - b|; equal infinities differ by 0, everything with a NaN and every other pair with an infinity by
// infinity. Arrays of different shape differ by infinity.
double max_difference(const HostArray& a, const HostArray& b);
// Largest |x| of the finite elements.
double max_magnitude(const HostArray& array);
// Same shape, type and bytes of all elements.
bool bitwise_equal(const Tensor& a, const Tensor& b);

// Softmax over the whole row, as nested loops. q [batch, queries, heads, d], k and v [batch, keys, heads, d]; `bias`
// empty or [batch|1, heads|1, queries|1, keys], added to the scaled logits, -inf = never.
struct DenseAttention {
  HostArray out;  // [batch, queries, heads, d]; rows without any key are 0
  HostArray lse;  // [batch, queries, heads]; rows without any key are -inf
};
DenseAttention dense_attention(const HostArray& q, const HostArray& k, const HostArray& v, const HostArray& bias,
                               double scale);

}  // namespace shardproof::test
