// Random values: the published vectors of the generator, values computed independently from its definition, and that
// each value depends on seed, name and index only. Statistical bounds are five standard deviations of the statistic;
// the values are fixed, so the tests are deterministic.
#include "core/random.h"

#include <cmath>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

constexpr std::uint64_t kSeed = 0x123456789ABCDEF0;

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double mean_product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum / static_cast<double>(a.size());
}

TEST(Philox, GivesThePublishedVectors) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(philox_4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox_4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox_4x32_10({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (PhiloxCounter{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(StableHash, NeverChanges) {
  EXPECT_EQ(stable_hash(""), 0xEFD01F60BA992926);
  EXPECT_EQ(stable_hash("a"), 0x82A2A958A9BECE5B);
  EXPECT_EQ(stable_hash("x_embedder.weight"), 0x606C04AA7D2A1F3B);
}

TEST(RandomStream, NeverChanges) {
  const RandomStream random(kSeed, "x_embedder.weight");
  EXPECT_EQ(random.bits(0), 0x51C5B6A0FD02F540);
  EXPECT_EQ(random.bits(1), 0x7BB192D3702806E9);
  EXPECT_EQ(random.bits(std::uint64_t{1} << 40U), 0x5D977F244F8FA86C);
  EXPECT_EQ(random.uniform(0), 0x1.0d526840d5400p-9);
  EXPECT_EQ(random.uniform(1), 0x1.edccafe57fd40p-5);
  EXPECT_EQ(random.below(0, 7), 6);
  EXPECT_EQ(random.below(1, 1'000'003), 431'143);
  EXPECT_EQ(random.below(1, 9223372036854775807), 3976585233700714985);
  // The logarithm and the cosine of another library may differ in the last bit.
  EXPECT_DOUBLE_EQ(random.normal(0), -0.6058237173656629);
  EXPECT_DOUBLE_EQ(random.normal(1), -0.38408740180204237);
  EXPECT_DOUBLE_EQ(random.normal(2), 2.0836084477482184);
  EXPECT_DOUBLE_EQ(random.normal(3), 0.5560207902101522);
}

TEST(RandomStream, DependsOnSeedNameIndexAndKindOnly) {
  const RandomStream random(kSeed, "a");
  const double last_first = random.uniform(999);
  for (std::uint64_t i = 0; i < 999; ++i) (void)random.uniform(i);
  EXPECT_EQ(random.uniform(999), last_first);
  EXPECT_EQ(RandomStream(kSeed, "a").uniform(999), last_first);
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {kSeed, kSeed + 1, std::uint64_t{0}, kSeed << 32U}) {
    for (const char* name : {"", "a", "b", "aa", "a.b"}) {
      for (std::uint64_t i = 0; i < 500; ++i) seen.insert(RandomStream(seed, name).bits(i));
    }
  }
  EXPECT_EQ(seen.size(), 4U * 5U * 500U);
}

TEST(RandomStream, FillsWithTheSameValuesFromAnyStart) {
  const RandomStream random(3, "fill");
  for (const std::uint64_t first : {0U, 1U, 7U}) {
    for (const std::size_t count : {0U, 1U, 2U, 5U, 8U}) {
      std::vector<double> normals(count);
      std::vector<double> uniforms(count);
      random.fill_normal(normals, first);
      random.fill_uniform(uniforms, first);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(normals[i], random.normal(first + i));
        EXPECT_EQ(uniforms[i], random.uniform(first + i));
      }
    }
  }
}

TEST(RandomStream, DrawsUniformValues) {
  constexpr int kCount = 100'000;
  std::vector<double> values(kCount);
  RandomStream(5, "uniform").fill_uniform(values);
  for (const double value : values) {
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
  }
  // Variance of a value 1/12, of its square 4/45.
  EXPECT_NEAR(mean_of(values), 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(mean_product(values, values), 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
}

TEST(RandomStream, KeepsUniformValuesInsideTheirRange) {
  const RandomStream random(5, "range");
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double value = random.uniform(i, -3.0, 2.0);
    EXPECT_GE(value, -3.0);
    EXPECT_LT(value, 2.0);
    EXPECT_EQ(random.uniform(i, 1.0, std::nextafter(1.0, 2.0)), 1.0);  // half of the sums round up to the bound
  }
  EXPECT_EQ(test::message_of(ErrorKind::usage_error, [&] { (void)random.uniform(0, 2.0, 2.0); }),
            "uniform values from [2, 2): the range is empty");
}

TEST(RandomStream, DrawsNormalValues) {
  constexpr int kCount = 100'000;
  std::vector<double> values(kCount);
  RandomStream(5, "normal").fill_normal(values);
  std::vector<double> squares;
  std::vector<double> next;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_LT(std::abs(values[i]), 8.58);
    squares.push_back(values[i] * values[i]);
    next.push_back(values[i ^ 1U]);  // the other half of the pair
  }
  // Variances: x 1, x^2 2, x^3 15, x^4 96; of the product of independent values 1, of their squares' 8 (here every
  // product counts twice, which doubles the variance of the mean).
  EXPECT_NEAR(mean_of(values), 0.0, 5 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(mean_of(squares), 1.0, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(mean_product(squares, values), 0.0, 5 * std::sqrt(15.0 / kCount));
  EXPECT_NEAR(mean_product(squares, squares), 3.0, 5 * std::sqrt(96.0 / kCount));
  EXPECT_NEAR(mean_product(values, next), 0.0, 5 * std::sqrt(2.0 / kCount));
}

TEST(RandomStream, DrawsKindsAndNamesIndependently) {
  constexpr int kCount = 100'000;
  const RandomStream random(5, "one");
  std::vector<double> uniforms(kCount);
  std::vector<double> normals(kCount);
  std::vector<double> others(kCount);
  std::vector<double> integers(kCount);
  random.fill_uniform(uniforms);
  random.fill_normal(normals);
  RandomStream(5, "two").fill_normal(others);
  for (std::size_t i = 0; i < uniforms.size(); ++i) {
    uniforms[i] = (uniforms[i] - 0.5) * std::sqrt(12.0);
    integers[i] = static_cast<double>(random.below(i, 2)) * 2 - 1;
  }
  const double bound = 5 / std::sqrt(kCount);  // products of standardised independent values have variance 1
  EXPECT_NEAR(mean_product(uniforms, normals), 0.0, bound);
  EXPECT_NEAR(mean_product(others, normals), 0.0, bound);
  EXPECT_NEAR(mean_product(integers, normals), 0.0, bound);
  EXPECT_NEAR(mean_product(integers, uniforms), 0.0, bound);
}

TEST(RandomStream, DrawsIntegersBelowTheBoundEvenly) {
  constexpr int kCount = 70'000;
  constexpr std::int64_t kBound = 7;
  const RandomStream random(5, "below");
  std::vector<int> counts(kBound);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const std::int64_t value = random.below(i, kBound);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, kBound);
    ++counts[static_cast<std::size_t>(value)];
    EXPECT_EQ(random.below(i, 1), 0);
  }
  for (const int count : counts) EXPECT_NEAR(count, kCount / 7.0, 5 * std::sqrt(kCount * (1.0 / 7) * (6.0 / 7)));
  EXPECT_EQ(test::message_of(ErrorKind::usage_error, [&] { (void)random.below(0, 0); }),
            "a random integer below 0: the bound must be at least 1");
}

}  // namespace
}  // namespace shardproof
