// Shapes and strides: a short list of signed 64-bit integers kept inline (at most kMaxRank entries), since small models
// are bound by allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace shardproof {

inline constexpr int kMaxRank = 8;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> values) : Shape(std::span(values.begin(), values.size())) {}
  explicit Shape(std::span<const std::int64_t> values);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) { return values_[static_cast<std::size_t>(axis)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + rank_; }
  std::int64_t back() const { return (*this)[rank_ - 1]; }
  // Appends an entry; throws shape_error past kMaxRank.
  void push_back(std::int64_t value);
  // A copy with `value` inserted before `axis`, or with `axis` removed.
  Shape inserted(int axis, std::int64_t value) const;
  Shape erased(int axis) const;
  // Product of all entries (1 for rank 0).
  std::int64_t numel() const;
  // Strides of a contiguous row-major tensor of this shape.
  Shape contiguous_strides() const;
  // "[2, 16, 64]".
  std::string text() const;
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

using Strides = Shape;

// Maps a possibly negative axis (-1 = last) to 0..rank-1; throws shape_error naming both otherwise.
int normalised_axis(int axis, int rank);
// The shape to which a and b broadcast (right-aligned, sizes equal or 1); throws shape_error naming both.
Shape broadcast_shapes(const Shape& a, const Shape& b);

}  // namespace shardproof
