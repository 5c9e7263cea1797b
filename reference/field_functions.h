// What a seed decides about exact arithmetic: the base g of exponentials, with tables of its powers, and the salts by
// which functions that are no polynomials become uninterpreted ones.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/device.h"
#include "reference/field_arithmetic.h"

namespace shardproof::field {

class Functions {
 public:
  explicit Functions(std::uint64_t seed);

  std::uint32_t base() const { return base_; }
  // g^x mod p for x < q; some number for others, which only memory that nobody wrote can hold.
  std::uint32_t exponential(std::uint32_t x) const {
    return multiply_p(low_[x & (kTable - 1)], high_[(x >> kTableBits) & (kTable - 1)]);
  }
  Value unary(UnaryOp op, const Value& x) const {
    return value_of_bits(salted_hash(unary_salts_[static_cast<std::size_t>(op)], pair(x)));
  }
  Wide unary(UnaryOp op, Wide x) const {
    return {value_of_bits(salted_hash(unary_salts_[static_cast<std::size_t>(op)], x.a)).a};
  }
  // The one cast: rounding as an uninterpreted function of the number, which makes an exponent of it as well.
  Value cast(Wide x) const { return value_of_bits(salted_hash(cast_salt_, x.a)); }
  // Cosine and sine of an angle; of 0 they are numbers.
  Value angle(AngleFunction function, double angle) const;

 private:
  static constexpr int kTableBits = 15;
  static constexpr std::uint32_t kTable = 1U << kTableBits;
  static constexpr std::uint64_t pair(const Value& x) { return std::uint64_t{x.b} << 32 | x.a; }

  std::uint32_t base_ = 0;
  std::array<std::uint64_t, 8> unary_salts_{};
  std::uint64_t cast_salt_ = 0;
  std::array<std::uint64_t, 2> angle_salts_{};
  std::vector<std::uint32_t> low_;   // g^i
  std::vector<std::uint32_t> high_;  // g^(2^15 i)
};

}  // namespace shardproof::field
