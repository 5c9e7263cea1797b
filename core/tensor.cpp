#include "core/tensor.h"

#include <algorithm>

#include "core/error.h"

namespace shardproof {

Device& Tensor::device() const {
  SHARDPROOF_CHECK(storage_ != nullptr, state_error, "a tensor without storage ({}) was used; were weights loaded?",
                   defined_ ? text() : "undefined");
  return storage_->device();
}

bool Tensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] == 0) return true;
    if (shape_[i] != 1 && strides_[i] != expected) return false;
    expected *= shape_[i];
  }
  return true;
}

Tensor Tensor::permute(std::span<const int> axes) const {
  SHARDPROOF_CHECK(static_cast<int>(axes.size()) == rank(), shape_error, "permute of {} names {} axes", text(),
                   axes.size());
  Tensor result = *this;
  unsigned seen = 0;
  for (int i = 0; i < rank(); ++i) {
    const int axis = normalised_axis(axes[static_cast<std::size_t>(i)], rank());
    SHARDPROOF_CHECK((seen & (1U << axis)) == 0, shape_error, "permute of {} names axis {} twice", text(), axis);
    seen |= 1U << axis;
    result.shape_[i] = shape_[axis];
    result.strides_[i] = strides_[axis];
  }
  return result;
}

Tensor Tensor::transpose(int axis_a, int axis_b) const {
  Tensor result = *this;
  const int a = normalised_axis(axis_a, rank());
  const int b = normalised_axis(axis_b, rank());
  std::swap(result.shape_[a], result.shape_[b]);
  std::swap(result.strides_[a], result.strides_[b]);
  return result;
}

Tensor Tensor::narrow(int axis, std::int64_t start, std::int64_t length) const {
  const int a = normalised_axis(axis, rank());
  SHARDPROOF_CHECK(start >= 0 && length >= 0 && start + length <= shape_[a], shape_error,
                   "range [{}, {}) does not lie within axis {} of {}", start, start + length, a, text());
  Tensor result = *this;
  result.offset_ += start * strides_[a];
  result.shape_[a] = length;
  return result;
}

Tensor Tensor::unsqueeze(int axis) const {
  const int a = axis < 0 ? axis + rank() + 1 : axis;
  SHARDPROOF_CHECK(a >= 0 && a <= rank(), shape_error, "cannot insert axis {} into {}", axis, text());
  Tensor result = *this;
  result.shape_ = shape_.inserted(a, 1);
  result.strides_ = strides_.inserted(a, a < rank() ? strides_[a] * shape_[a] : 1);
  return result;
}

Tensor Tensor::squeeze(int axis) const {
  const int a = normalised_axis(axis, rank());
  SHARDPROOF_CHECK(shape_[a] == 1, shape_error, "axis {} of {} does not have size 1", axis, text());
  Tensor result = *this;
  result.shape_ = shape_.erased(a);
  result.strides_ = strides_.erased(a);
  return result;
}

Tensor Tensor::expand(const Shape& shape) const {
  SHARDPROOF_CHECK(shape.rank() >= rank(), shape_error, "cannot expand {} to {}", text(), shape.text());
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = shape;
  const int added = shape.rank() - rank();
  for (int i = 0; i < shape.rank(); ++i) {
    if (i < added) {
      result.strides_[i] = 0;
      continue;
    }
    const std::int64_t size = shape_[i - added];
    SHARDPROOF_CHECK(size == shape[i] || size == 1, shape_error, "cannot expand {} to {}", text(), shape.text());
    result.strides_[i] = size == shape[i] ? strides_[i - added] : 0;
  }
  return result;
}

Tensor Tensor::unflatten(int axis, std::int64_t outer, std::int64_t inner) const {
  const int a = normalised_axis(axis, rank());
  SHARDPROOF_CHECK(outer * inner == shape_[a], shape_error, "axis {} of {} does not split into {} x {}", axis, text(),
                   outer, inner);
  Tensor result = *this;
  result.shape_ = shape_.inserted(a, outer);
  result.shape_[a + 1] = inner;
  result.strides_ = strides_.inserted(a, strides_[a] * inner);
  return result;
}

// Walks both shapes from the last axis: a run of source axes that is contiguous in itself may be cut at will.
bool Tensor::strides_for_view(const Shape& shape, Strides& strides) const {
  if (shape.numel() != numel()) return false;
  strides = shape.contiguous_strides();
  if (numel() == 0 || is_contiguous()) return true;
  int target = shape.rank() - 1;
  int source = rank() - 1;
  while (source >= 0) {
    std::int64_t run = shape_[source];
    std::int64_t base = strides_[source];
    int first = source;
    while (first > 0 && (shape_[first - 1] == 1 || strides_[first - 1] == base * run || run == 1)) {
      if (run == 1) base = strides_[first - 1];
      --first;
      run *= shape_[first];
    }
    std::int64_t filled = 1;
    while (target >= 0 && (filled < run || shape[target] == 1)) {
      strides[target] = base * filled;
      filled *= shape[target];
      --target;
    }
    if (filled != run) return false;
    source = first - 1;
  }
  return true;
}

bool Tensor::can_view(const Shape& shape) const {
  Strides strides;
  return strides_for_view(shape, strides);
}

Tensor Tensor::view(const Shape& shape) const {
  Tensor result = *this;
  SHARDPROOF_CHECK(strides_for_view(shape, result.strides_), shape_error, "{} with strides {} cannot be viewed as {}",
                   text(), strides_.text(), shape.text());
  result.shape_ = shape;
  return result;
}

std::string Tensor::text() const { return defined_ ? std::string(dtype_.name()) + " " + shape_.text() : "no tensor"; }

}  // namespace shardproof
