// Element functions and row sums of the CPU device, written as plain arithmetic that the compiler vectorises. Every
// element is computed by the same operations wherever it lies in a row, so results depend neither on alignment nor on
// the position of an element, and an exact 0, 1, infinity and NaN come out where they should.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>

namespace shardproof::cpu {

template <class Real>
struct ExponentialConstants;

template <>
struct ExponentialConstants<float> {
  using Bits = std::uint32_t;
  static constexpr int kFractionBits = 23;
  static constexpr int kDegree = 7;                   // remainder 0.3466^8 / 8! = 5e-9 of the result
  static constexpr float kRounder = 12582912.0F;      // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kLog2High = 0.693359375F;    // ln 2 to 9 bits
  static constexpr float kLog2Low = -2.12194440e-4F;  // the rest of ln 2
  static constexpr float kLowest = -87.33F;           // 2^-126 = exp(-87.336)
  static constexpr float kHighest = 88.37F;           // 2^127.5 = exp(88.376)
};

template <>
struct ExponentialConstants<double> {
  using Bits = std::uint64_t;
  static constexpr int kFractionBits = 52;
  static constexpr int kDegree = 13;                         // remainder 0.3466^14 / 14! = 4e-18 of the result
  static constexpr double kRounder = 6755399441055744.0;     // 1.5 * 2^52
  static constexpr double kLog2High = 0x1.62e42fefa3800p-1;  // ln 2 to 42 bits
  static constexpr double kLog2Low = 0x1.ef35793c76730p-45;  // the rest of ln 2
  static constexpr double kLowest = -708.39;                 // 2^-1022 = exp(-708.396)
  static constexpr double kHighest = 709.43;                 // 2^1023.5 = exp(709.436)
};

// The Taylor polynomial of exp from term kTerm on, divided by r^kTerm, by Horner's rule.
template <class Real, int kTerm = 0>
inline Real exponential_series(Real r) {
  constexpr Real kInverseFactorial = [] {
    double factorial = 1;
    for (int i = 2; i <= kTerm; ++i) factorial *= i;
    return static_cast<Real>(1 / factorial);
  }();
  if constexpr (kTerm == ExponentialConstants<Real>::kDegree) {
    return kInverseFactorial;
  } else {
    return std::fma(exponential_series<Real, kTerm + 1>(r), r, kInverseFactorial);
  }
}

// exp(x) within 2 units in the last place: x = n ln 2 + r, the Taylor series of exp(r) with |r| <= ln 2 / 2, times 2^n.
// 0 below the smallest normal number, infinity above 2^(emax + 1/2); exp(0) is 1, NaN stays NaN.
template <class Real>
[[gnu::always_inline]] inline Real exponential(Real x) {
  using Constants = ExponentialConstants<Real>;
  using Bits = typename Constants::Bits;
  const Real shifted = std::fma(x, std::numbers::log2e_v<Real>, Constants::kRounder);
  const Real n = shifted - Constants::kRounder;
  const Real r = std::fma(n, -Constants::kLog2Low, std::fma(n, -Constants::kLog2High, x));
  const Real series = exponential_series(r);
  // The low bits of `shifted` hold n; added to the exponent they multiply by 2^n.
  const Bits exponent = std::bit_cast<Bits>(shifted) << Constants::kFractionBits;
  Real result = std::bit_cast<Real>(std::bit_cast<Bits>(series) + exponent);
  result = x < Constants::kLowest ? Real{0} : result;
  result = x > Constants::kHighest ? std::numeric_limits<Real>::infinity() : result;
  return x != x ? x : result;
}

// log(1 + t) for t in [0, 1], NaN for NaN: twice the area tangent of s = t / (2 + t) <= 1/3, by its series in s^2.
template <class Real>
[[gnu::always_inline]] inline Real logarithm_of_one_plus(Real t) {
  constexpr int kTerms = std::same_as<Real, double> ? 17 : 8;  // the rest is below (1/9)^terms / (2 terms + 1)
  const Real s = t / (2 + t), square = s * s;
  Real series = Real{1} / static_cast<Real>(2 * kTerms - 1);
  for (int term = kTerms - 2; term >= 0; --term)
    series = std::fma(series, square, Real{1} / static_cast<Real>(2 * term + 1));
  return 2 * s * series;
}

// Eight floats or four doubles.
template <class Real>
struct Lanes {
  typedef Real Vector __attribute__((vector_size(32)));
  static constexpr std::int64_t kCount = 32 / static_cast<std::int64_t>(sizeof(Real));
  static Vector load(const Real* x) {
    Vector vector;
    std::memcpy(&vector, x, sizeof(vector));
    return vector;
  }
};

// Sum of n contiguous numbers, in an order that depends on n only: four groups of lanes, then the lanes, then the rest.
template <class Real>
inline Real row_sum(const Real* x, std::int64_t n) {
  using Vector = typename Lanes<Real>::Vector;
  constexpr std::int64_t kCount = Lanes<Real>::kCount;
  Vector a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * kCount <= n; i += 4 * kCount) {
    a += Lanes<Real>::load(x + i);
    b += Lanes<Real>::load(x + i + kCount);
    c += Lanes<Real>::load(x + i + 2 * kCount);
    d += Lanes<Real>::load(x + i + 3 * kCount);
  }
  for (; i + kCount <= n; i += kCount) a += Lanes<Real>::load(x + i);
  a = (a + b) + (c + d);
  Real sum = 0;
  for (std::int64_t lane = 0; lane < kCount; ++lane) sum += a[lane];
  for (; i < n; ++i) sum += x[i];
  return sum;
}

// The largest of n contiguous numbers, -infinity for none; NaN is passed over.
template <class Real>
inline Real row_maximum(const Real* x, std::int64_t n) {
  using Vector = typename Lanes<Real>::Vector;
  constexpr std::int64_t kCount = Lanes<Real>::kCount;
  Real largest = -std::numeric_limits<Real>::infinity();
  Vector a = largest - Vector{};
  Vector b = a;
  std::int64_t i = 0;
  for (; i + 2 * kCount <= n; i += 2 * kCount) {
    const Vector first = Lanes<Real>::load(x + i);
    const Vector second = Lanes<Real>::load(x + i + kCount);
    a = first > a ? first : a;
    b = second > b ? second : b;
  }
  for (std::int64_t lane = 0; lane < kCount; ++lane) {
    largest = a[lane] > largest ? a[lane] : largest;
    largest = b[lane] > largest ? b[lane] : largest;
  }
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

}  // namespace shardproof::cpu
