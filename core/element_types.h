// The C++ types behind the six plain element types, the conversion of one element, and the step from a DType to its C++
// type. Only devices and files look at elements.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"
#include "core/float16.h"

namespace shardproof {

// One byte, 0 or 1; 0xFF is poison.
struct Bool8 {
  std::uint8_t byte;
};

// All bytes 0xFF: NaN, -1.
template <class T>
T poison_element() {
  std::array<std::uint8_t, sizeof(T)> bytes;
  bytes.fill(0xFF);
  return std::bit_cast<T>(bytes);
}

template <class To, class From>
To convert_element(From value) {
  if constexpr (std::same_as<To, From>) {
    return value;
  } else if constexpr (std::same_as<From, Bool8>) {
    return value.byte > 1 ? poison_element<To>() : convert_element<To>(static_cast<float>(value.byte));
  } else if constexpr (std::same_as<From, BFloat16> || std::same_as<From, Float16>) {
    return convert_element<To>(to_float(value));
  } else if constexpr (std::same_as<To, Bool8>) {
    return {static_cast<std::uint8_t>(value != From{0} ? 1 : 0)};
  } else if constexpr (std::same_as<To, BFloat16>) {
    return to_bfloat16(value);
  } else if constexpr (std::same_as<To, Float16>) {
    return to_float16(value);
  } else if constexpr (std::same_as<To, std::int64_t>) {
    // What int64 does not hold, NaN included, becomes its lowest value.
    const bool fits = value >= From{-0x1p63F} && value < From{0x1p63F};
    return fits ? static_cast<std::int64_t>(value) : std::numeric_limits<std::int64_t>::min();
  } else {
    return static_cast<To>(value);
  }
}

// Calls visitor(std::type_identity<T>{}) with the C++ type of a plain element type; throws type_error for others,
// naming `operation`.
template <class Visitor>
decltype(auto) visit_plain_dtype(DType dtype, std::string_view operation, Visitor&& visitor) {
  if (dtype == kFloat64) return visitor(std::type_identity<double>{});
  if (dtype == kFloat32) return visitor(std::type_identity<float>{});
  if (dtype == kBFloat16) return visitor(std::type_identity<BFloat16>{});
  if (dtype == kFloat16) return visitor(std::type_identity<Float16>{});
  if (dtype == kInt64) return visitor(std::type_identity<std::int64_t>{});
  if (dtype == kBool) return visitor(std::type_identity<Bool8>{});
  fail(ErrorKind::type_error, "{} is not defined for element type {}", operation, dtype.name());
}

}  // namespace shardproof
