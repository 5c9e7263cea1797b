// The scalar of exact arithmetic: a pair of residues, of p = 2 q + 1 and of q, both prime. The first part carries a
// number, the second the same number as an exponent, so that exp(x) = g^x.b mod p turns sums into products for any g of
// order q. Sums and products have no rounding, hence no order: what an algorithm computes in another order is equal,
// and what it computes wrongly differs but for a chance of one in 2^30. Source: verification specification, section 2.
#pragma once

#include <bit>
#include <cstdint>

namespace shardproof::field {

inline constexpr std::uint32_t kP = 2147483579;
inline constexpr std::uint32_t kQ = 1073741789;

// What no residue is: the highest bit of either part is set. Poison spreads through every operation; "never" is the
// entry -infinity of an additive mask, and poison to everything else.
inline constexpr std::uint32_t kPoison = 0xFFFFFFFF;
inline constexpr std::uint32_t kNever = 0xFFFFFFFE;

struct Value {  // of the type "field"
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  friend bool operator==(const Value&, const Value&) = default;
};
struct Wide {  // of "field_wide", the accumulator: numbers only, so that nothing but the one cast makes exponents of it
  std::uint32_t a = 0;
  friend bool operator==(const Wide&, const Wide&) = default;
};
struct Mass {  // of "field_log": a log-sum-exp carried as the sum itself
  std::uint32_t a = 0;
  friend bool operator==(const Mass&, const Mass&) = default;
};

constexpr bool is_prime(std::uint32_t n) {
  for (std::uint32_t divisor = 2; divisor <= n / divisor; ++divisor) {
    if (n % divisor == 0) return false;
  }
  return n > 1;
}
static_assert(is_prime(kP) && is_prime(kQ) && kP == 2 * kQ + 1);

constexpr std::uint32_t add_modulo(std::uint32_t x, std::uint32_t y, std::uint32_t modulus) {
  const std::uint32_t sum = x + y, less = sum - modulus;
  return less < sum ? less : sum;
}
constexpr std::uint32_t subtract_modulo(std::uint32_t x, std::uint32_t y, std::uint32_t modulus) {
  const std::uint32_t difference = x - y, more = difference + modulus;
  return more < difference ? more : difference;
}
// Any 64-bit number below 2^62 modulo p and q, without a division: 2^31 = 69 mod p, 2^30 = 35 mod q.
constexpr std::uint32_t reduce_p(std::uint64_t x) {
  constexpr std::uint64_t kLow = (1ULL << 31) - 1;
  x = (x & kLow) + (x >> 31) * 69;
  x = (x & kLow) + (x >> 31) * 69;
  const auto rest = static_cast<std::uint32_t>(x);
  return rest - kP < rest ? rest - kP : rest;
}
constexpr std::uint32_t reduce_q(std::uint64_t x) {
  constexpr std::uint64_t kLow = (1ULL << 30) - 1;
  x = (x & kLow) + (x >> 30) * 35;
  x = (x & kLow) + (x >> 30) * 35;
  const auto rest = static_cast<std::uint32_t>(x);
  return rest - kQ < rest ? rest - kQ : rest;
}
constexpr std::uint32_t multiply_p(std::uint32_t x, std::uint32_t y) { return reduce_p(std::uint64_t{x} * y); }
constexpr std::uint32_t multiply_q(std::uint32_t x, std::uint32_t y) { return reduce_q(std::uint64_t{x} * y); }

constexpr std::uint32_t power_modulo(std::uint64_t base, std::uint32_t exponent, std::uint32_t modulus) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1, base = base * base % modulus) {
    if ((exponent & 1) != 0) result = result * base % modulus;
  }
  return static_cast<std::uint32_t>(result);
}
// By Euclid's algorithm; x must not be 0.
constexpr std::uint32_t inverse_modulo(std::uint32_t x, std::uint32_t modulus) {
  std::int64_t r0 = modulus, r1 = x, t0 = 0, t1 = 1;
  while (r1 != 0) {
    const std::int64_t quotient = r0 / r1, r2 = r0 - quotient * r1, t2 = t0 - quotient * t1;
    r0 = r1;
    r1 = r2;
    t0 = t1;
    t1 = t2;
  }
  return static_cast<std::uint32_t>(t0 < 0 ? t0 + modulus : t0);
}

constexpr bool is_poison(const Value& x) { return ((x.a | x.b) >> 31) != 0; }
constexpr bool is_poison(Wide x) { return x.a >> 31 != 0; }
constexpr bool is_poison(Mass x) { return x.a >> 31 != 0; }
constexpr bool is_never(const Value& x) { return x.a == kNever && x.b == kNever; }
inline constexpr Value kPoisonValue{kPoison, kPoison};
inline constexpr Value kNeverValue{kNever, kNever};
inline constexpr Wide kPoisonWide{kPoison};

// The operations below expect residues; what is done about poison stands with their callers.
constexpr Value add(const Value& x, const Value& y) { return {add_modulo(x.a, y.a, kP), add_modulo(x.b, y.b, kQ)}; }
constexpr Value subtract(const Value& x, const Value& y) {
  return {subtract_modulo(x.a, y.a, kP), subtract_modulo(x.b, y.b, kQ)};
}
constexpr Value multiply(const Value& x, const Value& y) { return {multiply_p(x.a, y.a), multiply_q(x.b, y.b)}; }
constexpr bool has_inverse(const Value& x) { return x.a != 0 && x.b != 0; }
constexpr Value inverse(const Value& x) { return {inverse_modulo(x.a, kP), inverse_modulo(x.b, kQ)}; }
constexpr Wide add(Wide x, Wide y) { return {add_modulo(x.a, y.a, kP)}; }
constexpr Wide subtract(Wide x, Wide y) { return {subtract_modulo(x.a, y.a, kP)}; }
constexpr Wide multiply(Wide x, Wide y) { return {multiply_p(x.a, y.a)}; }
constexpr bool has_inverse(Wide x) { return x.a != 0; }
constexpr Wide inverse(Wide x) { return {inverse_modulo(x.a, kP)}; }

// The exact image of a double m 2^e; -infinity is "never", what else is no number is poison.
Value value_of(double x);

// An uninterpreted function: 64 bits of a salt and of x in which no bit of the result follows simply from either. The
// steps are those of the finaliser of MurmurHash3 and SplitMix (public domain), twice.
constexpr std::uint64_t salted_hash(std::uint64_t salt, std::uint64_t x) {
  constexpr auto kMix = [](std::uint64_t y) {
    y = (y ^ (y >> 30)) * 0xBF58476D1CE4E5B9ULL;
    y = (y ^ (y >> 27)) * 0x94D049BB133111EBULL;
    return y ^ (y >> 31);
  };
  return kMix(kMix(x ^ salt) + std::rotl(salt, 32));
}
// Residues from the halves of 64 random bits.
constexpr Value value_of_bits(std::uint64_t bits) {
  return {static_cast<std::uint32_t>(((bits >> 32) * kP) >> 32),
          static_cast<std::uint32_t>(((bits & 0xFFFFFFFF) * kQ) >> 32)};
}

}  // namespace shardproof::field
