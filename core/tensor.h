// Tensor: a cheap handle on shared storage with offset, shape, strides and element type. Values are never changed
// through a handle outside `core/ops` and devices; views share storage. A tensor without storage carries only shape and
// type (the declared form of a parameter before weights are loaded).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/storage.h"

namespace shardproof {

class Tensor {
 public:
  Tensor() = default;
  // A declared tensor: shape and type, no storage.
  Tensor(Shape shape, DType dtype)
      : shape_(shape), strides_(shape.contiguous_strides()), dtype_(dtype), defined_(true) {}
  // `offset` and `strides` count elements.
  Tensor(StoragePointer storage, DType dtype, Shape shape, Strides strides, std::int64_t offset)
      : storage_(std::move(storage)),
        offset_(offset),
        shape_(shape),
        strides_(strides),
        dtype_(dtype),
        defined_(true) {}

  // False for a default-constructed handle ("no tensor").
  bool defined() const { return defined_; }
  bool has_storage() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int rank() const { return shape_.rank(); }
  // Size along an axis; negative axes count from the end.
  std::int64_t size(int axis) const { return shape_[normalised_axis(axis, rank())]; }
  std::int64_t numel() const { return shape_.numel(); }
  std::int64_t offset() const { return offset_; }
  const StoragePointer& storage() const { return storage_; }
  // Throws state_error for a tensor without storage.
  Device& device() const;
  bool is_contiguous() const;
  // Size in bytes of the elements (not of the storage).
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * dtype_.size(); }
  // First element in host-addressable memory. Only devices and communicators look at bytes.
  std::byte* data() const { return storage_->data() + static_cast<std::size_t>(offset_) * dtype_.size(); }
  template <class T>
  T* data_as() const {
    return reinterpret_cast<T*>(data());
  }

  // Views; all throw shape_error on arguments that do not fit, naming them.
  Tensor permute(std::span<const int> axes) const;
  Tensor permute(std::initializer_list<int> axes) const { return permute(std::span(axes.begin(), axes.size())); }
  Tensor transpose(int axis_a, int axis_b) const;
  Tensor narrow(int axis, std::int64_t start, std::int64_t length) const;
  Tensor unsqueeze(int axis) const;
  Tensor squeeze(int axis) const;
  // Size-1 axes repeated with stride 0, leading axes added; as broadcasting.
  Tensor expand(const Shape& shape) const;
  // Splits `axis` into (size / inner, inner).
  Tensor unflatten(int axis, std::int64_t outer, std::int64_t inner) const;
  // True where `shape` can be had without moving elements.
  bool can_view(const Shape& shape) const;
  Tensor view(const Shape& shape) const;

  // "float32 [2, 16, 64]".
  std::string text() const;

 private:
  bool strides_for_view(const Shape& shape, Strides& strides) const;

  StoragePointer storage_;
  std::int64_t offset_ = 0;
  Shape shape_;
  Strides strides_;
  DType dtype_;
  bool defined_ = false;
};

}  // namespace shardproof
