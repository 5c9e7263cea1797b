#include "reference/field_functions.h"

#include <bit>
#include <cmath>
#include <cstdlib>

#include "core/random.h"

namespace shardproof::field {

namespace {

// Images of 2^e for all exponents that a double's 53 bits can have.
class PowersOfTwo {
 public:
  PowersOfTwo() {
    Value up{1, 1}, down{1, 1};
    const Value half{(kP + 1) / 2, (kQ + 1) / 2};
    for (int exponent = 0; exponent <= kMost; ++exponent) {
      powers_[at(exponent)] = up;
      powers_[at(-exponent)] = down;
      up = add(up, up);
      down = multiply(down, half);
    }
  }
  const Value& operator[](int exponent) const { return powers_[at(exponent)]; }

 private:
  static constexpr int kMost = 1200;
  static constexpr std::size_t at(int exponent) { return static_cast<std::size_t>(exponent + kMost); }
  std::array<Value, 2 * kMost + 1> powers_;
};

}  // namespace

Value value_of(double x) {
  static const PowersOfTwo kPowers;
  if (!std::isfinite(x)) return std::isinf(x) && x < 0 ? kNeverValue : kPoisonValue;
  int exponent = 0;
  const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
  const auto magnitude = static_cast<std::uint64_t>(std::abs(mantissa));
  const Value whole{static_cast<std::uint32_t>(magnitude % kP), static_cast<std::uint32_t>(magnitude % kQ)};
  const Value image = multiply(whole, kPowers[mantissa == 0 ? 0 : exponent - 53]);
  return mantissa < 0 ? subtract({0, 0}, image) : image;
}

Functions::Functions(std::uint64_t seed) : low_(kTable), high_(kTable) {
  const RandomStream random(seed, "exact arithmetic");
  std::uint64_t next = 0;
  // The squares are the group of order q; every one but 1 generates it.
  do {
    const auto root = static_cast<std::uint32_t>(random.below(next++, kP - 1) + 1);
    base_ = multiply_p(root, root);
  } while (base_ == 1);
  for (std::uint64_t& salt : unary_salts_) salt = random.bits(next++);
  for (std::uint64_t& salt : angle_salts_) salt = random.bits(next++);
  cast_salt_ = random.bits(next++);
  low_[0] = high_[0] = 1;
  for (std::uint32_t i = 1; i < kTable; ++i) low_[i] = multiply_p(low_[i - 1], base_);
  const std::uint32_t step = multiply_p(low_[kTable - 1], base_);
  for (std::uint32_t i = 1; i < kTable; ++i) high_[i] = multiply_p(high_[i - 1], step);
}

Value Functions::angle(AngleFunction function, double angle) const {
  if (angle == 0) return value_of(function == AngleFunction::cosine ? 1 : 0);
  return value_of_bits(
      salted_hash(angle_salts_[function == AngleFunction::cosine ? 0 : 1], std::bit_cast<std::uint64_t>(angle)));
}

}  // namespace shardproof::field
