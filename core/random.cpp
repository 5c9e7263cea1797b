#include "core/random.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/host_parallel.h"

namespace shardproof {

namespace {

__extension__ using Unsigned128 = unsigned __int128;

constexpr std::uint32_t low_half(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high_half(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32U); }
constexpr std::uint64_t joined(std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32U | low; }

constexpr std::int64_t kStepsOfADraw = 32;

// The upper 53 bits as a multiple of 2^-53 in [0, 1).
double unit_interval(std::uint64_t bits) { return static_cast<double>(bits >> 11U) * 0x1p-53; }

// The multipliers of MurmurHash3's finalizer: a bijection in which every input bit affects every output bit.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 33U)) * 0xFF51AFD7ED558CCDULL;
  x = (x ^ (x >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return x ^ (x >> 33U);
}

}  // namespace

PhiloxCounter philox_4x32_10(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // square root of 3, less 1
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high_half(product1) ^ counter[1] ^ key[0], low_half(product1), high_half(product0) ^ counter[3] ^ key[1],
               low_half(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

std::uint64_t stable_hash(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001B3ULL;
  return mixed(hash);
}

// The counter holds the index and the stream, the key the seed: distinct draws have distinct inputs, up to collisions
// of the name's hash.
RandomStream::Block RandomStream::block(Kind kind, std::uint64_t index) const {
  const std::uint64_t stream = name_hash_ + static_cast<std::uint64_t>(kind) * 0x9E3779B97F4A7C15ULL;
  const PhiloxCounter words = philox_4x32_10({low_half(index), high_half(index), low_half(stream), high_half(stream)},
                                             {low_half(seed_), high_half(seed_)});
  return {joined(words[0], words[1]), joined(words[2], words[3])};
}

std::uint64_t RandomStream::bits(std::uint64_t index) const { return block(Kind::bits, index).low; }

double RandomStream::uniform(std::uint64_t index) const { return unit_interval(block(Kind::uniform, index).low); }

double RandomStream::uniform(std::uint64_t index, double low, double high) const {
  SHARDPROOF_CHECK(low < high, usage_error, "uniform values from [{}, {}): the range is empty", low, high);
  const double value = low + (high - low) * uniform(index);
  // The sum may round up to the bound.
  return value < high ? value : std::nextafter(high, low);
}

std::array<double, 2> RandomStream::normal_pair(std::uint64_t pair) const {
  const Block random = block(Kind::normal, pair);
  const double radius = std::sqrt(-2.0 * std::log(unit_interval(random.low) + 0x1p-53));
  const double angle = 2.0 * std::numbers::pi * unit_interval(random.high);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double RandomStream::normal(std::uint64_t index) const { return normal_pair(index / 2)[index % 2]; }

// (a 128-bit random number x n) / 2^128, rounded down.
std::int64_t RandomStream::below(std::uint64_t index, std::int64_t n) const {
  SHARDPROOF_CHECK(n >= 1, usage_error, "a random integer below {}: the bound must be at least 1", n);
  const Block random = block(Kind::below, index);
  const auto bound = static_cast<std::uint64_t>(n);
  const auto carry = static_cast<std::uint64_t>(static_cast<Unsigned128>(random.low) * bound >> 64U);
  return static_cast<std::int64_t>((static_cast<Unsigned128>(random.high) * bound + carry) >> 64U);
}

void RandomStream::fill_uniform(std::span<double> values, std::uint64_t first) const {
  for_ranges(static_cast<std::int64_t>(values.size()), kStepsOfADraw, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      values[i] = uniform(first + i);
    }
  });
}

void RandomStream::fill_normal(std::span<double> values, std::uint64_t first) const {
  // Normal values are drawn in pairs, the first of which has an even index.
  if (first % 2 == 1 && !values.empty()) {
    values[0] = normal(first++);
    values = values.subspan(1);
  }
  for_ranges(static_cast<std::int64_t>(values.size() / 2), 2 * kStepsOfADraw,
             [&](std::int64_t begin, std::int64_t end) {
               for (auto pair = static_cast<std::size_t>(begin); pair < static_cast<std::size_t>(end); ++pair) {
                 const std::array<double, 2> drawn = normal_pair(first / 2 + pair);
                 values[2 * pair] = drawn[0];
                 values[2 * pair + 1] = drawn[1];
               }
             });
  if (values.size() % 2 == 1) values.back() = normal(first + values.size() - 1);
}

}  // namespace shardproof
