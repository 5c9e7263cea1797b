#include "reference/field_product.h"

#include <immintrin.h>

#include "reference/field_arithmetic.h"

namespace shardproof::field {
namespace {

// 2^32 modulo the prime, and how many products can be added to a folded sum: kTerms (m - 1)^2 + (kFold + 1) 2^32 must
// stay below 2^64.
template <Modulus kModulus>
struct Prime;
template <>
struct Prime<Modulus::p> {
  static constexpr std::uint64_t kFold = 138;
  static constexpr std::int64_t kTerms = 4;
  static constexpr std::uint32_t kValue = kP;
};
template <>
struct Prime<Modulus::q> {
  static constexpr std::uint64_t kFold = 140;
  static constexpr std::int64_t kTerms = 16;
  static constexpr std::uint32_t kValue = kQ;
};
static_assert((1ULL << 32) % kP == Prime<Modulus::p>::kFold && (1ULL << 32) % kQ == Prime<Modulus::q>::kFold);

template <Modulus kModulus>
constexpr bool sums_fit() {
  using Of = Prime<kModulus>;
  const std::uint64_t square = std::uint64_t{Of::kValue - 1} * (Of::kValue - 1);
  return square <= (UINT64_MAX - ((Of::kFold + 1) << 32)) / Of::kTerms;
}
static_assert(sums_fit<Modulus::p>() && sums_fit<Modulus::q>());

template <Modulus kModulus>
__m256i fold(__m256i sum) {
  const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
  const __m256i factor = _mm256_set1_epi64x(Prime<kModulus>::kFold);
  return _mm256_add_epi64(_mm256_and_si256(sum, low), _mm256_mul_epu32(_mm256_srli_epi64(sum, 32), factor));
}

template <Modulus kModulus>
__m256i load_panel(const std::uint64_t* entries) {
  const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(entries));
  if constexpr (kModulus == Modulus::p) return loaded;
  return _mm256_shuffle_epi32(loaded, 0xF5);  // the upper half of each entry, twice
}

template <Modulus kModulus, int kRows>
void multiply_tile(std::uint32_t (&sums)[kRowTile][kPanel], const Rows& rows, const std::uint64_t* panel,
                   std::int64_t depth) {
  __m256i sum[kRows][2];
  for (auto& row : sum) row[0] = row[1] = _mm256_setzero_si256();
  constexpr std::int64_t kTerms = Prime<kModulus>::kTerms;
  const auto multiply_add = [&](std::int64_t t) {
    const __m256i left = load_panel<kModulus>(panel + t * kPanel);
    const __m256i right = load_panel<kModulus>(panel + t * kPanel + kPanel / 2);
    for (int i = 0; i < kRows; ++i) {
      const __m256i element = _mm256_set1_epi32(static_cast<int>(rows.data[i * rows.stride + t * rows.step]));
      sum[i][0] = _mm256_add_epi64(sum[i][0], _mm256_mul_epu32(left, element));
      sum[i][1] = _mm256_add_epi64(sum[i][1], _mm256_mul_epu32(right, element));
    }
  };
  const auto fold_all = [&] {
    for (auto& row : sum) {
      row[0] = fold<kModulus>(row[0]);
      row[1] = fold<kModulus>(row[1]);
    }
  };
  std::int64_t t = 0;
  for (; t + kTerms <= depth; t += kTerms) {
    for (std::int64_t term = 0; term < kTerms; ++term) multiply_add(t + term);
    fold_all();
  }
  for (; t < depth; ++t) multiply_add(t);
  for (int i = 0; i < kRows; ++i) {
    alignas(32) std::uint64_t totals[kPanel];
    _mm256_store_si256(reinterpret_cast<__m256i*>(totals), sum[i][0]);
    _mm256_store_si256(reinterpret_cast<__m256i*>(totals + kPanel / 2), sum[i][1]);
    for (std::int64_t j = 0; j < kPanel; ++j)
      sums[i][j] = static_cast<std::uint32_t>(totals[j] % Prime<kModulus>::kValue);
  }
}

template <Modulus kModulus>
void multiply_rows(std::uint32_t (&sums)[kRowTile][kPanel], const Rows& rows, std::int64_t count,
                   const std::uint64_t* panel, std::int64_t depth) {
  switch (count) {
    case 1: return multiply_tile<kModulus, 1>(sums, rows, panel, depth);
    case 2: return multiply_tile<kModulus, 2>(sums, rows, panel, depth);
    case 3: return multiply_tile<kModulus, 3>(sums, rows, panel, depth);
    default: return multiply_tile<kModulus, 4>(sums, rows, panel, depth);
  }
}

}  // namespace

void multiply_panel(Modulus modulus, std::uint32_t (&sums)[kRowTile][kPanel], const Rows& rows, std::int64_t count,
                    const std::uint64_t* panel, std::int64_t depth) {
  if (modulus == Modulus::p) return multiply_rows<Modulus::p>(sums, rows, count, panel, depth);
  multiply_rows<Modulus::q>(sums, rows, count, panel, depth);
}

}  // namespace shardproof::field
