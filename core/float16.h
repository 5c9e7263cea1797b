// The two 16-bit floating types as bit patterns, and their conversion from and to float32, float64 and int64: round to
// nearest, ties to even, in one rounding; NaN stays NaN with its leading payload bits, so that poison (all bits one)
// stays poison. Integer arithmetic and selects only, so that loops over arrays vectorise.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace shardproof {

struct BFloat16 {  // 1 sign, 8 exponent, 7 fraction bits
  std::uint16_t bits;
};
struct Float16 {  // 1 sign, 5 exponent, 10 fraction bits
  std::uint16_t bits;
};

constexpr float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

constexpr float to_float(Float16 x) {
  constexpr std::uint32_t kExponentGap = (127U - 15U) << 23;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7FFFU) << 13;
  const std::uint32_t normal = magnitude + kExponentGap;
  const std::uint32_t infinite_or_nan = normal + kExponentGap;
  // Subnormal: 2^-14 + fraction is representable in float32, and so is the difference.
  const float subnormal = std::bit_cast<float>(normal + (1U << 23)) - std::bit_cast<float>(kExponentGap + (1U << 23));
  std::uint32_t result = normal;
  result = (x.bits & 0x7C00U) == 0x7C00U ? infinite_or_nan : result;
  result = (x.bits & 0x7C00U) == 0 ? std::bit_cast<std::uint32_t>(subnormal) : result;
  return std::bit_cast<float>(result | sign);
}

constexpr BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded)};
}

constexpr Float16 to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t shifted = magnitude - ((127U - 15U) << 23);
  const std::uint32_t normal = (shifted + 0xFFFU + ((shifted >> 13) & 1U)) >> 13;
  // Below 2^-14 the spacing of float16 is that of float32 at 0.5, so the addition does the rounding.
  const std::uint32_t small = magnitude < 0x38800000U ? magnitude : 0U;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(small) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  const std::uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  std::uint32_t result = normal;
  result = magnitude < 0x38800000U ? subnormal : result;
  result = magnitude >= 0x47800000U ? 0x7C00U : result;
  result = magnitude > 0x7F800000U ? nan : result;
  return {static_cast<std::uint16_t>(result | sign)};
}

// Rounds to float32 so that a second rounding to a 16-bit type gives what one rounding would: towards zero, with the
// last bit set where something was lost.
template <class Wide>
float round_to_odd_float(Wide x) {
  const auto nearest = static_cast<float>(x);
  const auto back = static_cast<Wide>(nearest);
  if (back == x || std::isnan(nearest)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(back) > std::fabs(x)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

inline BFloat16 to_bfloat16(double x) { return to_bfloat16(round_to_odd_float(x)); }
inline Float16 to_float16(double x) { return to_float16(round_to_odd_float(x)); }
// A long double holds every int64.
inline BFloat16 to_bfloat16(std::int64_t x) { return to_bfloat16(round_to_odd_float(static_cast<long double>(x))); }
inline Float16 to_float16(std::int64_t x) { return to_float16(round_to_odd_float(static_cast<long double>(x))); }

}  // namespace shardproof
