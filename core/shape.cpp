#include "core/shape.h"

#include <algorithm>

#include "core/error.h"

namespace shardproof {

Shape::Shape(std::span<const std::int64_t> values) {
  SHARDPROOF_CHECK(values.size() <= kMaxRank, shape_error, "{} dimensions; at most {} are supported", values.size(),
                   kMaxRank);
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = static_cast<int>(values.size());
}

void Shape::push_back(std::int64_t value) {
  SHARDPROOF_CHECK(rank_ < kMaxRank, shape_error, "more than {} dimensions are not supported", kMaxRank);
  values_[static_cast<std::size_t>(rank_++)] = value;
}

Shape Shape::inserted(int axis, std::int64_t value) const {
  Shape result;
  for (int i = 0; i < axis; ++i) result.push_back((*this)[i]);
  result.push_back(value);
  for (int i = axis; i < rank_; ++i) result.push_back((*this)[i]);
  return result;
}

Shape Shape::erased(int axis) const {
  Shape result;
  for (int i = 0; i < rank_; ++i) {
    if (i != axis) result.push_back((*this)[i]);
  }
  return result;
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= (*this)[i];
  return product;
}

Shape Shape::contiguous_strides() const {
  Shape strides = *this;
  std::int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= (*this)[i];
  }
  return strides;
}

std::string Shape::text() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i == 0 ? "" : ", ") + std::to_string((*this)[i]);
  return text + "]";
}

bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

int normalised_axis(int axis, int rank) {
  const int result = axis < 0 ? axis + rank : axis;
  SHARDPROOF_CHECK(result >= 0 && result < rank, shape_error, "axis {} does not exist in a tensor of {} dimensions",
                   axis, rank);
  return result;
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int i = 0; i < rank; ++i) {
    const int in_a = i - (rank - a.rank());
    const int in_b = i - (rank - b.rank());
    const std::int64_t size_a = in_a < 0 ? 1 : a[in_a];
    const std::int64_t size_b = in_b < 0 ? 1 : b[in_b];
    SHARDPROOF_CHECK(size_a == size_b || size_a == 1 || size_b == 1, shape_error, "shapes {} and {} do not broadcast",
                     a.text(), b.text());
    result.push_back(size_a == 1 ? size_b : size_a);
  }
  return result;
}

}  // namespace shardproof
