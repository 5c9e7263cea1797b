// The 16-bit types: every bit pattern, every tie between neighbours and both its sides, and the one rounding from wider
// types.
#include "core/float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "core/element_types.h"

namespace shardproof::test {
namespace {

template <class T>
struct Format;

template <>
struct Format<BFloat16> {
  static constexpr int kExponentBits = 8, kFractionBits = 7;
  static BFloat16 round(double x) { return to_bfloat16(x); }
  static BFloat16 round(float x) { return to_bfloat16(x); }
};

template <>
struct Format<Float16> {
  static constexpr int kExponentBits = 5, kFractionBits = 10;
  static Float16 round(double x) { return to_float16(x); }
  static Float16 round(float x) { return to_float16(x); }
};

// The value of a pattern by the definition of binary floating formats.
template <class T>
double defined_value(std::uint16_t bits) {
  using F = Format<T>;
  const int bias = (1 << (F::kExponentBits - 1)) - 1;
  const int exponent = (bits >> F::kFractionBits) & ((1 << F::kExponentBits) - 1);
  const int fraction = bits & ((1 << F::kFractionBits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << F::kExponentBits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - F::kFractionBits);
  return sign * std::ldexp(fraction + (1 << F::kFractionBits), exponent - bias - F::kFractionBits);
}

template <class T>
class Float16Format : public testing::Test {};
using Formats = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Float16Format, Formats);

TYPED_TEST(Float16Format, ReadsEveryPatternAsDefinedAndWritesItBack) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float value = to_float(TypeParam{bits});
    const double defined = defined_value<TypeParam>(bits);
    if (std::isnan(defined)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(to_float(Format<TypeParam>::round(value)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), defined) << pattern;
    ASSERT_EQ(std::signbit(value), std::signbit(defined)) << pattern;
    ASSERT_EQ(Format<TypeParam>::round(value).bits, bits);
    ASSERT_EQ(Format<TypeParam>::round(static_cast<double>(value)).bits, bits);
  }
}

TYPED_TEST(Float16Format, RoundsToTheNearestWithTiesToEven) {
  using F = Format<TypeParam>;
  const std::uint16_t infinity = static_cast<std::uint16_t>(((1 << F::kExponentBits) - 1) << F::kFractionBits);
  for (std::uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double below = defined_value<TypeParam>(low);
    // Beyond the largest number the next one would stand at the same distance.
    const double above = high == infinity ? 2 * below - defined_value<TypeParam>(static_cast<std::uint16_t>(low - 1))
                                          : defined_value<TypeParam>(high);
    const double middle = (below + above) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : high;
    for (const double sign : {1.0, -1.0}) {
      const std::uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(F::round(sign * middle).bits, even | sign_bit) << middle;
      ASSERT_EQ(F::round(sign * std::nextafter(middle, 0)).bits, low | sign_bit) << middle;
      ASSERT_EQ(F::round(sign * std::nextafter(middle, 1e300)).bits, high | sign_bit) << middle;
      const auto narrow = static_cast<float>(middle);
      ASSERT_EQ(F::round(static_cast<float>(sign) * narrow).bits, even | sign_bit) << middle;
      ASSERT_EQ(F::round(static_cast<float>(sign) * std::nextafter(narrow, 0.0F)).bits, low | sign_bit) << middle;
      ASSERT_EQ(
          F::round(static_cast<float>(sign) * std::nextafter(narrow, std::numeric_limits<float>::infinity())).bits,
          high | sign_bit)
          << middle;
    }
  }
}

TYPED_TEST(Float16Format, KeepsPoisonAndEveryOtherNan) {
  using F = Format<TypeParam>;
  EXPECT_EQ(F::round(poison_element<float>()).bits, 0xFFFF);
  EXPECT_EQ(F::round(poison_element<double>()).bits, 0xFFFF);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(to_float(TypeParam{0xFFFF})) >> 16, 0xFFFFU);
  // NaNs whose payload lies beyond the bits that are kept.
  for (const std::uint32_t bits : {0x7F800001U, 0xFF800001U, 0x7FC00000U, 0x7F801000U}) {
    EXPECT_TRUE(std::isnan(to_float(F::round(std::bit_cast<float>(bits))))) << bits;
  }
}

TYPED_TEST(Float16Format, SaturatesToInfinity) {
  using F = Format<TypeParam>;
  for (const double large : {1e300, 1e39, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(to_float(F::round(large)), std::numeric_limits<float>::infinity()) << large;
    EXPECT_EQ(to_float(F::round(-large)), -std::numeric_limits<float>::infinity()) << large;
  }
}

// 2^40 + 2^32 is a tie of bfloat16 and 1 more decides; float32 would lose that 1.
TEST(Float16OfIntegers, RoundOnce) {
  const std::int64_t tie = (std::int64_t{1} << 40) + (std::int64_t{1} << 32);
  EXPECT_EQ(to_float(to_bfloat16(tie)), 0x1p40F);
  EXPECT_EQ(to_float(to_bfloat16(tie + 1)), 0x1.02p40F);
  EXPECT_EQ(to_float(to_bfloat16(-tie - 1)), -0x1.02p40F);
  const std::int64_t far_tie = (std::int64_t{1} << 62) + (std::int64_t{1} << 54);
  EXPECT_EQ(to_float(to_bfloat16(far_tie)), 0x1p62F);
  EXPECT_EQ(to_float(to_bfloat16(far_tie + 1)), 0x1.02p62F) << "float64 would lose that 1 as well";
  EXPECT_EQ(to_float(to_float16(std::int64_t{2049})), 2048.0F);
  EXPECT_EQ(to_float(to_float16(std::int64_t{2051})), 2052.0F);
  EXPECT_EQ(to_float(to_float16(std::int64_t{70000})), std::numeric_limits<float>::infinity());
}

TEST(ElementConversion, KeepsBoolsAndTruncatesIntegers) {
  EXPECT_EQ(convert_element<double>(Bool8{0}), 0.0);
  EXPECT_EQ(convert_element<std::int64_t>(Bool8{1}), 1);
  EXPECT_EQ(convert_element<Bool8>(-0.0).byte, 0);
  EXPECT_EQ(convert_element<Bool8>(0.25F).byte, 1);
  EXPECT_EQ(convert_element<Bool8>(Float16{0x8000}).byte, 0);
  EXPECT_EQ(convert_element<Bool8>(std::int64_t{-3}).byte, 1);
  EXPECT_EQ(convert_element<std::int64_t>(-2.9), -2);
  EXPECT_EQ(convert_element<std::int64_t>(std::nextafter(0x1p63, 0)), 9223372036854774784);
  for (const double unfit : {0x1p63, -1e300, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(convert_element<std::int64_t>(unfit), std::numeric_limits<std::int64_t>::min());
  }
  EXPECT_EQ(convert_element<std::int64_t>(-0x1p63), std::numeric_limits<std::int64_t>::min());
}

}  // namespace
}  // namespace shardproof::test
