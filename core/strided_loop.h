// StridedLoop: walks several strided operands of one shape together. Axes of size 1 are dropped, axes that every
// operand stores as one run are joined, and axes are sorted so that the first operand (the result) is written in memory
// order; what remains is rows of `inner_size()` elements. Element-wise operations and copies are loops over such rows.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/shape.h"

namespace shardproof {

template <int kOperands>
class StridedLoop {
 public:
  using Offsets = std::array<std::int64_t, kOperands>;

  // `strides` of every operand, already expanded to `shape`; the result first.
  StridedLoop(const Shape& shape, const std::array<const Strides*, kOperands>& strides) {
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (shape[axis] == 1) continue;
      Axis next{.size = shape[axis], .strides = {}};
      for (int i = 0; i < kOperands; ++i) next.strides[at(i)] = (*strides[at(i)])[axis];
      insert(next);
    }
    join();
  }

  std::int64_t inner_size() const { return axes_[0].size; }
  std::int64_t inner_stride(int operand) const { return axes_[0].strides[at(operand)]; }
  std::int64_t rows() const { return product_from(1); }

  // Axis 0 is the inner one. Axes beyond rank() have size 1.
  int rank() const { return rank_; }
  std::int64_t size(int axis) const { return axes_[at(axis)].size; }
  std::int64_t stride(int operand, int axis) const { return axes_[at(axis)].strides[at(operand)]; }
  void swap_axes(int a, int b) { std::swap(axes_[at(a)], axes_[at(b)]); }

  // Calls row(offsets) for rows [first, last) in order, offsets in elements.
  template <class Row>
  void for_rows(std::int64_t first, std::int64_t last, Row&& row) const {
    for_blocks<1>(first, last, std::forward<Row>(row));
  }
  template <class Row>
  void for_all_rows(Row&& row) const {
    for_blocks<1>(0, rows(), std::forward<Row>(row));
  }
  // The same over blocks of the inner two axes.
  template <class Plane>
  void for_planes(std::int64_t first, std::int64_t last, Plane&& plane) const {
    for_blocks<2>(first, last, std::forward<Plane>(plane));
  }
  std::int64_t planes() const { return product_from(2); }

 private:
  struct Axis {
    std::int64_t size = 1;
    Offsets strides{};
  };

  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

  // Keeps axes sorted by the result's stride, smallest first; equal strides keep their order.
  void insert(const Axis& next) {
    int position = rank_;
    for (; position > 0 && axes_[at(position - 1)].strides[0] > next.strides[0]; --position) {
      axes_[at(position)] = axes_[at(position - 1)];
    }
    axes_[at(position)] = next;
    ++rank_;
  }

  void join() {
    int kept = 0;
    for (int axis = 1; axis < rank_; ++axis) {
      bool joined = true;
      for (int i = 0; i < kOperands; ++i) {
        joined = joined && axes_[at(axis)].strides[at(i)] == axes_[at(kept)].strides[at(i)] * axes_[at(kept)].size;
      }
      if (joined) {
        axes_[at(kept)].size *= axes_[at(axis)].size;
      } else {
        axes_[at(++kept)] = axes_[at(axis)];
      }
    }
    for (int axis = kept + 1; axis < rank_; ++axis) axes_[at(axis)] = Axis{};
    rank_ = rank_ == 0 ? 0 : kept + 1;
  }

  std::int64_t product_from(int axis) const {
    std::int64_t product = 1;
    for (; axis < rank_; ++axis) product *= axes_[at(axis)].size;
    return product;
  }

  template <int kFirstAxis, class Block>
  void for_blocks(std::int64_t first, std::int64_t last, Block&& block) const {
    std::array<std::int64_t, kMaxRank> index{};
    Offsets offsets{};
    std::int64_t rest = first;
    for (int axis = kFirstAxis; axis < rank_; ++axis) {
      index[at(axis)] = rest % axes_[at(axis)].size;
      rest /= axes_[at(axis)].size;
      for (int i = 0; i < kOperands; ++i) offsets[at(i)] += index[at(axis)] * axes_[at(axis)].strides[at(i)];
    }
    for (std::int64_t done = first; done < last; ++done) {
      block(std::as_const(offsets));
      for (int axis = kFirstAxis; axis < rank_; ++axis) {
        const Axis& current = axes_[at(axis)];
        for (int i = 0; i < kOperands; ++i) offsets[at(i)] += current.strides[at(i)];
        if (++index[at(axis)] < current.size) break;
        index[at(axis)] = 0;
        for (int i = 0; i < kOperands; ++i) offsets[at(i)] -= current.size * current.strides[at(i)];
      }
    }
  }

  std::array<Axis, kMaxRank> axes_{};
  int rank_ = 0;
};

}  // namespace shardproof
