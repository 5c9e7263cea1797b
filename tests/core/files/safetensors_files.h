// What the tests of safetensors files share: files made by hand from a header and data, and tensors with counted
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace shardproof::test {

// The bytes of a file with this header, whether that makes sense or not.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes.append(header).append(data);
}

inline std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor.device().download(bytes, tensor);
  return bytes;
}

// A tensor of any type whose bytes are start, start + 1, ...; of a bool, their lowest bit.
inline Tensor counted(Device& device, const Shape& shape, DType dtype, unsigned start = 0) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape.numel()) * dtype.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((start + i) & (dtype == kBool ? 1U : 0xFFU));
  }
  return device.upload(bytes, shape, dtype);
}

}  // namespace shardproof::test
