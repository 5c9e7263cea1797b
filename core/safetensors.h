// Safetensors: the file format in which model weights travel. Eight bytes of little-endian header length N, N bytes of
// JSON {name: {dtype, shape, data_offsets}, "__metadata__": {text: text}}, then the data, row-major and without gaps.
// A file is checked completely when it is opened and read through a memory map, so that a tensor or a slice of one
// costs only its own bytes. Every defect is one file_error that names file, tensor, value and expectation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace shardproof {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Shape shape;
  std::size_t begin = 0;  // bytes from the start of the data
  std::size_t end = 0;
};

// The part [start, start + length) of one axis.
struct AxisRange {
  int axis = 0;  // negative axes count from the end
  std::int64_t start = 0;
  std::int64_t length = 0;
};

class SafetensorsFile {
 public:
  // Throws file_error for a file that is not exactly as the format demands. Element types: F64, F32, BF16, F16, I64,
  // BOOL; others are refused by name.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return map_->path(); }
  // In the order of the header.
  std::span<const SafetensorsEntry> entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr if the file does not hold the tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  // Throws file_error if the file does not hold the tensor.
  const SafetensorsEntry& at(std::string_view name) const;

  // The tensor's bytes in the memory map; valid as long as this object.
  std::span<const std::byte> bytes(std::string_view name) const;
  // The whole tensor on the device, in its stored type. Throws file_error for a BOOL byte other than 0 and 1.
  Tensor tensor(std::string_view name, Device& device) const;
  // The part of the tensor inside all ranges (at most one an axis; other axes whole); only its bytes are read. Throws
  // shape_error for a range that does not lie within the tensor.
  Tensor slice(std::string_view name, std::span<const AxisRange> ranges, Device& device) const;
  Tensor slice(std::string_view name, std::initializer_list<AxisRange> ranges, Device& device) const {
    return slice(name, std::span(ranges.begin(), ranges.size()), device);
  }
  // On a HostDevice: the tensor as read-only memory of the file itself, which stays mapped while the tensor lives. On
  // other devices, and where the bytes are not aligned to the elements: as tensor().
  Tensor tensor_view(std::string_view name, Device& device) const;

  // Bytes of tensor data copied to devices so far; views copy none.
  std::size_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  std::span<const std::byte> data_of(const SafetensorsEntry& entry) const {
    return data_.subspan(entry.begin, entry.end - entry.begin);
  }
  // No tensor where the device cannot use the file's own memory.
  Tensor mapped_tensor(const SafetensorsEntry& entry, Device& device) const;
  void check_values(const SafetensorsEntry& entry, std::span<const std::byte> bytes) const;

  std::shared_ptr<const MappedFile> map_;
  std::span<const std::byte> data_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> index_;  // names live in entries_
  std::map<std::string, std::string> metadata_;
  mutable std::atomic<std::size_t> bytes_read_{0};
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Writes the tensors (of any device, strided or not) atomically; the header keeps their order. The same tensors give
// the same bytes; data begins at a multiple of 64 bytes and every tensor at a multiple of its element size. Throws
// usage_error for a name that stands twice, is "__metadata__" or is not UTF-8, type_error for an element type that the
// format does not have, file_error where writing fails.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

struct DeclaredTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

// The same file from tensors that are made one at a time: values_of(i) is asked once for each and must be as declared
// (usage_error). For files that are larger than the memory that is to hold them.
void write_safetensors(const std::filesystem::path& path, std::span<const DeclaredTensor> tensors,
                       const std::function<Tensor(std::size_t)>& values_of,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace shardproof
