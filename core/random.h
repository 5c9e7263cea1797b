// Counter-based random values: each is a pure function of (seed, name, index), so that it does not depend on order,
// rank, time or what else was drawn. The generator is Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011): ten rounds of multiplication turn a 128-bit counter and a 64-bit key into 128
// random bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace shardproof {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;
PhiloxCounter philox_4x32_10(PhiloxCounter counter, PhiloxKey key);

// A 64-bit hash of the text that is the same on every machine and in every version: FNV-1a, then a mixing step that
// makes every bit depend on all bytes.
std::uint64_t stable_hash(std::string_view text);

// The random values of one name. The kinds of values (bits, uniform, normal, below) are independent of each other.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name) : seed_(seed), name_hash_(stable_hash(name)) {}

  std::uint64_t bits(std::uint64_t index) const;
  // Multiples of 2^-53 in [0, 1).
  double uniform(std::uint64_t index) const;
  // In [low, high); throws usage_error unless low < high.
  double uniform(std::uint64_t index, double low, double high) const;
  // Standard normal, by the method of Box and Muller: values 2i and 2i+1 are the cosine and the sine half of the i-th
  // pair. No magnitude exceeds 8.58.
  double normal(std::uint64_t index) const;
  // Uniform in 0 .. n-1; no value's probability is off by more than 2^-64 of itself. Throws usage_error unless n >= 1.
  std::int64_t below(std::uint64_t index, std::int64_t n) const;

  // values[i] = uniform(first + i) or normal(first + i).
  void fill_uniform(std::span<double> values, std::uint64_t first = 0) const;
  void fill_normal(std::span<double> values, std::uint64_t first = 0) const;

 private:
  enum class Kind : std::uint64_t { bits, uniform, normal, below };
  struct Block {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
  };
  Block block(Kind kind, std::uint64_t index) const;
  std::array<double, 2> normal_pair(std::uint64_t pair) const;

  std::uint64_t seed_;
  std::uint64_t name_hash_;
};

}  // namespace shardproof
