// Exact arithmetic against sums written out in 128 bits, and the laws that verification builds on: rings of residues,
// exponentials that turn sums into products, a merge that is exact for any partition of the keys, poison that spreads
// through every operation, and errors for what has no meaning.
#include "reference/field_device.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/random.h"
#include "core/tables.h"
#include "parallel/softmax_merge.h"
#include "reference/field_functions.h"
#include "tests/support/device_conformance.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using field::kP;
using field::kQ;
using field::Value;
using testing::Each;
using testing::ElementsAre;

constexpr std::uint64_t kSeed = 7;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// x y modulo m by the longest way.
std::uint32_t product(std::uint64_t x, std::uint64_t y, std::uint32_t modulus) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint32_t>(Wide{x} * y % modulus);
}

class FieldMovement : public testing::TestWithParam<DeviceCase> {};

TEST_P(FieldMovement, Holds) {
  const std::unique_ptr<FieldDevice> device = make_field_device(kSeed);
  GetParam().law.body(*device, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(Laws, FieldMovement, testing::ValuesIn(device_cases({})),
                         [](const auto& instance) { return instance.param.name; });

class FieldTest : public testing::Test {
 protected:
  Tensor random(const Shape& shape, const std::string& name) {
    return random_field_tensor(*device, kSeed, name, shape);
  }
  Tensor numbers(const Shape& shape, std::vector<double> values) {
    HostArray array(shape);
    array.values = std::move(values);
    return to_device(*device, array, field_dtype());
  }
  Tensor elements(const Shape& shape, const std::vector<Value>& values) {
    return device->upload(std::as_bytes(std::span(values)), shape, field_dtype());
  }
  Tensor poisoned(const Shape& shape) { return device->poisoned(shape, field_dtype()); }
  // Where the first element of one axis is poison.
  Tensor with_poison(const Shape& shape, int axis, std::int64_t at) {
    const Tensor x = ops::concat({random(shape, "spoilt")}, 0);
    device->poison(x.narrow(axis, at, 1));
    return x;
  }
  static std::vector<bool> poison_of(const Tensor& x) {
    std::vector<bool> found;
    for (const Value& value : field_elements(x)) found.push_back(field::is_poison(value));
    return found;
  }
  void expect_same(const Tensor& a, const Tensor& b) {
    EXPECT_EQ(a.shape(), b.shape());
    EXPECT_THAT(poison_of(a), Each(false));
    EXPECT_EQ(field_elements(a), field_elements(b));
  }
  void expect_poison(const Tensor& x, const std::string& what) {
    EXPECT_THAT(poison_of(x), Each(true)) << what;
    EXPECT_GT(x.numel(), 0);
  }
  std::unique_ptr<FieldDevice> device = make_field_device(kSeed);
};

TEST_F(FieldTest, TypesAreRelatedAsAttentionNeedsThem) {
  EXPECT_EQ(field_dtype().name(), "field");
  EXPECT_EQ(field_dtype().size(), 8U);
  EXPECT_EQ(wide_dtype(field_dtype()), field_wide_dtype());
  EXPECT_EQ(log_dtype(field_dtype()), field_log_dtype());
  EXPECT_EQ(wide_dtype(field_log_dtype()), field_wide_dtype());
  EXPECT_EQ(log_dtype(field_log_dtype()), field_log_dtype());
  EXPECT_TRUE(field_dtype().is_value() && field_wide_dtype().is_value());
  EXPECT_FALSE(field_log_dtype().is_value());
}

TEST_F(FieldTest, SumsAndProductsObeyTheLawsOfARing) {
  const Tensor x = random({200}, "x"), y = random({200}, "y"), z = random({200}, "z");
  using ops::add, ops::multiply, ops::subtract, ops::divide;
  expect_same(add(x, y), add(y, x));
  expect_same(add(add(x, y), z), add(x, add(y, z)));
  expect_same(multiply(x, y), multiply(y, x));
  expect_same(multiply(multiply(x, y), z), multiply(x, multiply(y, z)));
  expect_same(multiply(x, add(y, z)), add(multiply(x, y), multiply(x, z)));
  expect_same(subtract(add(x, y), y), x);
  expect_same(divide(multiply(x, y), y), x);
  expect_same(add(x, 0.0), x);
  expect_same(multiply(x, 1.0), x);
  const std::vector<Value> a = field_elements(x), b = field_elements(y), c = field_elements(multiply(x, y));
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(c[i].a, product(a[i].a, b[i].a, kP));
    EXPECT_EQ(c[i].b, product(a[i].b, b[i].b, kQ));
  }
}

TEST_F(FieldTest, TheLargestResiduesDoNotOverflow) {
  const Value largest{kP - 1, kQ - 1};  // minus one
  const Tensor x = elements({2}, {largest, largest});
  EXPECT_THAT(field_elements(ops::multiply(x, x)), Each(Value{1, 1}));
  EXPECT_THAT(field_elements(ops::add(x, x)), Each(Value{kP - 2, kQ - 2}));
  for (const std::int64_t depth : {1, 3, 4, 5, 16, 17, 1000, 1001}) {
    const auto count = static_cast<std::size_t>(9 * depth);
    const Tensor rows = elements({9, depth}, std::vector<Value>(count, largest));
    const auto sum = static_cast<std::uint32_t>(depth);
    EXPECT_THAT(field_elements(ops::linear(rows, rows, Tensor())), Each(Value{sum, sum})) << depth;
  }
}

TEST_F(FieldTest, NumbersHaveExactImages) {
  expect_same(ops::add(numbers({3}, {0.5, -0.375, 0x1p-1074}), numbers({3}, {0.5, 0.375, -0x1p-1074})),
              numbers({3}, {1, 0, 0}));
  expect_same(ops::multiply(numbers({2}, {0x1p1000, 1.0 / 3}), numbers({2}, {0x1p-1000, 0x1p60})),
              numbers({2}, {1, 0x1p60 * (1.0 / 3)}));
  EXPECT_EQ(field_elements(numbers({2}, {5, -1})), (std::vector<Value>{{5, 5}, {kP - 1, kQ - 1}}));
  EXPECT_EQ(field::value_of(0.0), (Value{0, 0}));
  EXPECT_TRUE(field::is_poison(field::value_of(std::nan(""))));
  EXPECT_TRUE(field::is_poison(field::value_of(kInfinity)));
  EXPECT_TRUE(field::is_never(field::value_of(-kInfinity)));
  for (const DType type : {kFloat32, kBFloat16, kFloat16, kInt64}) {
    EXPECT_EQ(field_elements(ops::cast(to_device(*device, HostArray({2}, -3.0), type), field_dtype())),
              field_elements(numbers({2}, {-3, -3})));
  }
  EXPECT_EQ(field_elements(ops::cast(to_device(*device, HostArray({1}, 1.0), kBool), field_dtype())),
            (std::vector<Value>{{1, 1}}));
  expect_poison(ops::cast(device->poisoned({2}, kBool), field_dtype()), "bool");
  expect_poison(ops::cast(device->poisoned({2}, kFloat32), field_dtype()), "float32");
  EXPECT_EQ(field_elements(ops::full(*device, {2}, field_wide_dtype(), 0.5)),
            (std::vector<Value>(2, {(kP + 1) / 2, 0})));
}

TEST_F(FieldTest, ProductsEqualTheirSums) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {1, 9, 3}, {9, 1, 4}, {4, 8, 16}, {5, 7, 17}, {13, 6, 33}, {3, 20, 5}, {2, 3, 0}, {0, 3, 2}}) {
    const Tensor x = random({m, k}, "x"), bias = random({n}, "bias");
    const Tensor weight = random({n, k + 3}, "weight").narrow(1, 2, k);  // rows further apart than they are long
    const std::vector<Value> actual = field_elements(ops::linear(x, weight, bias));
    const std::vector<Value> left = field_elements(x), right = field_elements(weight), shift = field_elements(bias);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        Value sum = shift[static_cast<std::size_t>(j)];
        for (std::int64_t t = 0; t < k; ++t) {
          const Value& l = left[static_cast<std::size_t>(i * k + t)];
          const Value& r = right[static_cast<std::size_t>(j * k + t)];
          sum = {static_cast<std::uint32_t>((std::uint64_t{sum.a} + product(l.a, r.a, kP)) % kP),
                 static_cast<std::uint32_t>((std::uint64_t{sum.b} + product(l.b, r.b, kQ)) % kQ)};
        }
        EXPECT_EQ(actual[static_cast<std::size_t>(i * n + j)], sum) << m << " " << n << " " << k;
      }
    }
    const Tensor wide = ops::linear(ops::cast(x, field_wide_dtype()), ops::cast(weight, field_wide_dtype()),
                                    ops::cast(bias, field_wide_dtype()));
    expect_same(wide, ops::cast(ops::linear(x, weight, bias), field_wide_dtype()));
  }
}

TEST_F(FieldTest, SumsAndMeansAreExact) {
  const Tensor x = random({3, 7}, "x");
  Tensor sum = x.narrow(1, 0, 1).squeeze(1);
  for (int i = 1; i < 7; ++i) sum = ops::add(sum, x.narrow(1, i, 1).squeeze(1));
  expect_same(ops::sum(x), sum);
  expect_same(ops::multiply(ops::mean(x), 7.0), sum);
  expect_same(ops::mean(x.transpose(0, 1)), ops::mean(ops::contiguous(x.transpose(0, 1))));
}

TEST_F(FieldTest, WhatIsLargeIsTheSameOnAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  const Tensor x = random({200, 300}, "x"), weight = random({100, 300}, "weight");
  const Tensor q = random({2, 150, 4, 16}, "q"), k = random({2, 170, 4, 16}, "k"), v = random({2, 170, 4, 16}, "v");
  omp_set_num_threads(1);
  const Tensor product_of_one = ops::linear(x, weight, Tensor()), silu_of_one = ops::silu(x);
  const AttentionOutput attention_of_one = ops::attention(q, k, v, Tensor(), 0.25);
  omp_set_num_threads(3);
  expect_same(ops::linear(x, weight, Tensor()), product_of_one);
  expect_same(ops::silu(x), silu_of_one);
  const AttentionOutput attention = ops::attention(q, k, v, Tensor(), 0.25);
  expect_same(attention.out, attention_of_one.out);
  expect_same(attention.lse, attention_of_one.lse);
  omp_set_num_threads(threads);
}

TEST_F(FieldTest, ExponentialsTurnSumsIntoProducts) {
  std::set<std::uint32_t> bases;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const field::Functions functions(seed);
    bases.insert(functions.base());
    EXPECT_EQ(functions.exponential(0), 1U);
    EXPECT_EQ(functions.exponential(1), functions.base());
    EXPECT_NE(functions.base(), 1U);
    EXPECT_EQ(field::multiply_p(functions.exponential(kQ - 1), functions.base()), 1U);  // the order is q
    for (std::uint64_t i = 0; i < 50; ++i) {
      const auto x = static_cast<std::uint32_t>(RandomStream(seed, "x").below(i, kQ));
      const auto y = static_cast<std::uint32_t>(RandomStream(seed, "y").below(i, kQ));
      EXPECT_EQ(functions.exponential(x), field::power_modulo(functions.base(), x, kP));
      EXPECT_EQ(functions.exponential(field::add_modulo(x, y, kQ)),
                field::multiply_p(functions.exponential(x), functions.exponential(y)));
    }
  }
  EXPECT_EQ(bases.size(), 20U);
}

// What attention returns can then be read; whatever is made of it afterwards is another matter.
TEST(FieldDevice, KeepsTheNumberInACastThatIsToBeRead) {
  const std::unique_ptr<FieldDevice> kept = make_field_device(kSeed, FieldCast::kept);
  const Tensor values = random_field_tensor(*kept, kSeed, "x", {5});
  const std::vector<field::Value> before = field_elements(values);
  const std::vector<field::Value> after =
      field_elements(ops::cast(ops::cast(values, field_wide_dtype()), field_dtype()));
  const std::unique_ptr<FieldDevice> hashed = make_field_device(kSeed);
  const Tensor same = random_field_tensor(*hashed, kSeed, "x", {5});
  const std::vector<field::Value> unknown =
      field_elements(ops::cast(ops::cast(same, field_wide_dtype()), field_dtype()));
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].a, before[i].a);
    EXPECT_NE(unknown[i].a, before[i].a);
    EXPECT_EQ(after[i].b, unknown[i].b);
  }
}

TEST_F(FieldTest, FunctionsDependOnOperationSeedAndNothingElse) {
  const Tensor x = random({100}, "x");
  const std::unique_ptr<FieldDevice> same = make_field_device(kSeed), other = make_field_device(kSeed + 1);
  const Tensor on_same = random_field_tensor(*same, kSeed, "x", {100});
  const Tensor on_other = random_field_tensor(*other, kSeed, "x", {100});
  std::set<std::vector<std::uint32_t>> results;
  const auto numbers_of = [](const Tensor& y) {
    std::vector<std::uint32_t> result;
    for (const Value& value : field_elements(y)) result.push_back(value.a);
    return result;
  };
  const UnaryOp functions[] = {UnaryOp::silu,    UnaryOp::gelu, UnaryOp::gelu_tanh,
                               UnaryOp::sigmoid, UnaryOp::tanh, UnaryOp::rsqrt};
  for (const UnaryOp op : functions) {
    EXPECT_EQ(field_elements(device->unary(op, x)), field_elements(same->unary(op, on_same)));
    results.insert(numbers_of(device->unary(op, x)));
    results.insert(numbers_of(other->unary(op, on_other)));
    results.insert(numbers_of(device->unary(op, ops::cast(x, field_wide_dtype()))));
  }
  EXPECT_EQ(results.size(), 18U);
  // Whichever of the two parts changes, both parts of the result do.
  const std::vector<Value> near = field_elements(ops::silu(elements({3}, {{5, 7}, {6, 7}, {5, 8}})));
  EXPECT_NE(near[0].a, near[1].a);
  EXPECT_NE(near[0].b, near[1].b);
  EXPECT_NE(near[0].a, near[2].a);
  EXPECT_NE(near[0].b, near[2].b);
}

TEST_F(FieldTest, TheOneCastHashesTheNumberIntoBothParts) {
  const Tensor x = elements({3}, {{5, 1}, {5, 2}, {6, 1}});
  const Tensor wide = ops::cast(x, field_wide_dtype());
  EXPECT_EQ(field_elements(wide), (std::vector<Value>{{5, 0}, {5, 0}, {6, 0}}));
  const std::vector<Value> cast = field_elements(ops::cast(wide, field_dtype()));
  EXPECT_EQ(cast[0], cast[1]);
  EXPECT_NE(cast[0].a, 5U);
  EXPECT_NE(cast[0].a, cast[2].a);
  EXPECT_NE(cast[0].b, cast[2].b);
}

TEST_F(FieldTest, TablesAreHashesOfAnglesButForZero) {
  const AngleTable table = tables::rotary_angles64(std::vector<double>{0, 1, 2}, 4, 100.0, TablePrecision::float64);
  const std::vector<Value> cosine = field_elements(tables::cosine_on(*device, table, field_dtype(), 2));
  const std::vector<Value> sine = field_elements(tables::sine_on(*device, table, field_dtype(), 1));
  ASSERT_EQ(cosine.size(), 12U);
  ASSERT_EQ(sine.size(), 6U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(cosine[i], (Value{1, 1}));
  EXPECT_EQ(sine[0], (Value{0, 0}));
  const std::set<std::uint32_t> distinct{cosine[4].a, cosine[6].a, cosine[8].a, sine[2].a, sine[3].a, sine[4].a};
  EXPECT_EQ(distinct.size(), 6U);
  EXPECT_EQ(cosine[4], cosine[5]);
  const std::vector<Value> wide = field_elements(tables::cosine_on(*device, table, field_wide_dtype(), 2));
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i].a, cosine[i].a);
  EXPECT_FALSE(device->angle_function(AngleFunction::cosine, table.angles, {3, 2}, kFloat64).has_value());
  EXPECT_EQ(thrown_by([&] { device->angle_function(AngleFunction::sine, table.angles, {7}, field_dtype()); }),
            thrown(ErrorKind::shape_error, "a table of 6 angles cannot fill field [7]"));
}

// ---- attention

struct DenseSums {
  std::vector<std::uint32_t> out;  // [batch, queries, heads, width]
  std::vector<std::uint32_t> mass;
};

// Softmax as its definition has it; `weight_of` gives the exponent that a mask adds, or nothing for a key that is
// masked.
DenseSums sums_of(const field::Functions& functions, const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                  const std::function<std::optional<std::uint32_t>(std::int64_t key)>& bias_of) {
  const std::int64_t queries = q.size(1), keys = k.size(1), heads = q.size(2), width = q.size(3);
  const std::vector<Value> qs = field_elements(q), ks = field_elements(k), vs = field_elements(v);
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t tokens) {
    return static_cast<std::size_t>(((b * tokens + t) * heads + h) * width);
  };
  DenseSums result;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    for (std::int64_t i = 0; i < queries; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<std::uint32_t> sums(static_cast<std::size_t>(width), 0);
        std::uint32_t mass = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          if (!bias_of(j)) continue;
          std::uint64_t logit = 0;
          for (std::size_t c = 0; c < sums.size(); ++c)
            logit += product(qs[at(b, i, h, queries) + c].b, ks[at(b, j, h, keys) + c].b, kQ);
          logit = product(logit % kQ, field::value_of(scale).b, kQ) + std::uint64_t{*bias_of(j)};
          const std::uint32_t weight =
              field::power_modulo(functions.base(), static_cast<std::uint32_t>(logit % kQ), kP);
          mass = field::add_modulo(mass, weight, kP);
          for (std::size_t c = 0; c < sums.size(); ++c)
            sums[c] = field::add_modulo(sums[c], product(weight, vs[at(b, j, h, keys) + c].a, kP), kP);
        }
        for (const std::uint32_t sum : sums)
          result.out.push_back(mass == 0 ? 0 : product(sum, field::inverse_modulo(mass, kP), kP));
        result.mass.push_back(mass);
      }
    }
  }
  return result;
}

std::vector<std::uint32_t> numbers_of(const Tensor& x) {
  std::vector<std::uint32_t> result;
  for (const Value& value : field_elements(x)) result.push_back(value.a);
  return result;
}

TEST_F(FieldTest, AttentionIsTheRatioOfItsSums) {
  for (const auto& [queries, keys, width] :
       std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {3, 5, 4}, {6, 9, 17}, {5, 16, 8}, {2, 0, 3}}) {
    const Tensor q = random({2, queries, 3, width}, "q"), k = random({2, keys, 3, width}, "k");
    const Tensor v = random({2, keys, 3, width}, "v");
    const DenseSums expected =
        sums_of(field::Functions(kSeed), q, k, v, 0.375, [](std::int64_t) { return std::optional<std::uint32_t>(0); });
    const AttentionOutput actual = ops::attention(q, k, v, Tensor(), 0.375);
    EXPECT_EQ(actual.out.dtype(), field_wide_dtype());
    EXPECT_EQ(actual.lse.dtype(), field_log_dtype());
    EXPECT_EQ(numbers_of(actual.out), expected.out);
    EXPECT_EQ(numbers_of(actual.lse), expected.mass);
  }
}

TEST_F(FieldTest, MaskedKeysHaveWeightZeroAndBiasesAreExponents) {
  const Tensor q = random({1, 3, 2, 4}, "q"), k = random({1, 5, 2, 4}, "k"), v = random({1, 5, 2, 4}, "v");
  const auto drops = [](std::int64_t key) { return key == 1 || key == 4; };
  HostArray keep({1, 1, 1, 5}, 1.0), biases({1, 1, 1, 5}, -0.75);
  for (const std::int64_t key : {1, 4}) {
    keep.at({0, 0, 0, key}) = 0;
    biases.at({0, 0, 0, key}) = -kInfinity;
  }
  const auto expect = [&](const Tensor& mask, double bias) {
    const DenseSums expected =
        sums_of(field::Functions(kSeed), q, k, v, 0.5, [&](std::int64_t key) -> std::optional<std::uint32_t> {
          if (drops(key)) return std::nullopt;
          return field::value_of(bias).b;
        });
    const AttentionOutput actual = ops::attention(q, k, v, mask, 0.5);
    EXPECT_EQ(numbers_of(actual.out), expected.out);
    EXPECT_EQ(numbers_of(actual.lse), expected.mass);
  };
  expect(to_device(*device, keep, kBool), 0.0);
  expect(to_device(*device, biases, field_dtype()), -0.75);
  const AttentionOutput none = ops::attention(q, k, v, ops::zeros(*device, {1, 1, 1, 5}, kBool), 0.5);
  EXPECT_THAT(numbers_of(none.out), Each(0U));
  EXPECT_THAT(numbers_of(none.lse), Each(0U));
  EXPECT_EQ(device->zero_divisions(), 0);
}

TEST_F(FieldTest, MergingAnyPartitionOfTheKeysGivesTheWholeSoftmax) {
  const std::int64_t keys = 11;
  const Tensor q = random({2, 4, 3, 5}, "q"), k = random({2, keys, 3, 5}, "k"), v = random({2, keys, 3, 5}, "v");
  const AttentionOutput whole = ops::attention(q, k, v, Tensor(), 0.5);
  for (std::uint64_t partition = 0; partition < 200; ++partition) {
    const RandomStream random_numbers(partition, "partition");
    std::optional<AttentionOutput> merged;
    std::uint64_t next = 0;
    for (std::int64_t start = 0; start < keys;) {
      // Parts without any key occur, and part and whole are merged in either order.
      const std::int64_t length = std::min(keys - start, random_numbers.below(next++, 5));
      const AttentionOutput part =
          ops::attention(q, k.narrow(1, start, length), v.narrow(1, start, length), Tensor(), 0.5);
      if (!merged) {
        merged = part;
      } else {
        merged = random_numbers.below(next++, 2) == 0 ? merge_softmax(*merged, part) : merge_softmax(part, *merged);
      }
      start += length;
    }
    expect_same(merged->out, whole.out);
    expect_same(merged->lse, whole.lse);
  }
}

TEST_F(FieldTest, AVanishedMassIsPoisonAndCounted) {
  // Masses m and p - m cancel.
  const std::vector<field::Mass> masses{{5}, {kP - 5}, {0}, {0}, {3}};
  const Tensor lse = device->upload(std::as_bytes(std::span(masses)), {5}, field_log_dtype());
  const Tensor x = lse.narrow(0, 0, 1), opposite = lse.narrow(0, 1, 1), empty = lse.narrow(0, 2, 1);
  expect_poison(ops::lse_weight(x, opposite), "lse_weight");
  EXPECT_EQ(device->zero_divisions(), 1);
  EXPECT_THAT(numbers_of(ops::lse_weight(empty, x)), ElementsAre(0U));
  EXPECT_THAT(numbers_of(ops::lse_weight(x, empty)), ElementsAre(1U));
  EXPECT_THAT(numbers_of(ops::lse_weight(empty, empty)), ElementsAre(0U));
  EXPECT_THAT(numbers_of(ops::logaddexp(x, lse.narrow(0, 4, 1))), ElementsAre(8U));
  EXPECT_EQ(device->zero_divisions(), 1);
  expect_poison(ops::divide(numbers({1}, {1}), numbers({1}, {0})), "a / 0");
  expect_poison(ops::divide(numbers({1}, {1}), elements({1}, {{3, 0}})), "a / (3, 0)");
  EXPECT_EQ(device->zero_divisions(), 3);
}

// The x with g^x = power, by baby steps and giant steps; power must be a square.
std::uint32_t logarithm(const field::Functions& functions, std::uint32_t power) {
  constexpr std::uint32_t kSteps = 1 << 15;
  std::map<std::uint32_t, std::uint32_t> baby;
  for (std::uint32_t x = 0; x < kSteps; ++x) baby.emplace(functions.exponential(x), x);
  const std::uint32_t back = field::inverse_modulo(functions.exponential(kSteps), kP);
  for (std::uint32_t giant = 0; giant <= kSteps; ++giant, power = field::multiply_p(power, back)) {
    if (const auto found = baby.find(power); found != baby.end()) return giant * kSteps + found->second;
  }
  ADD_FAILURE() << "no power of g";
  return 0;
}

TEST_F(FieldTest, AttentionSaysSoWhereTheMassOfARowVanishes) {
  // g^0 + g^x + g^y = 0 for some y if -(1 + g^x) is a square. Two powers cannot cancel: -1 is none.
  const field::Functions functions(kSeed);
  std::uint32_t x = 0, rest = 0;
  do {
    ++x;
    rest = field::subtract_modulo(0, field::add_modulo(1, functions.exponential(x), kP), kP);
  } while (field::power_modulo(rest, kQ, kP) != 1);
  const Tensor q = elements({1, 1, 1, 1}, {{1, 1}});
  const Tensor k = elements({1, 3, 1, 1}, {{1, 0}, {1, x}, {1, logarithm(functions, rest)}});
  const AttentionOutput output = ops::attention(q, k, k, Tensor(), 1.0);
  expect_poison(output.out, "out");
  expect_poison(output.lse, "lse");
  EXPECT_EQ(device->zero_divisions(), 1);
}

// ---- poison

TEST_F(FieldTest, ElementwiseOperationsSpreadPoison) {
  const Tensor poison = poisoned({5}), x = random({5}, "x");
  for (const UnaryOp op :
       {UnaryOp::silu, UnaryOp::gelu, UnaryOp::gelu_tanh, UnaryOp::sigmoid, UnaryOp::tanh, UnaryOp::rsqrt}) {
    expect_poison(device->unary(op, poison), std::string(op_name(op)));
    expect_poison(device->unary(op, ops::cast(poison, field_wide_dtype())), std::string(op_name(op)));
  }
  const Tensor wide_poison = device->poisoned({5}, field_wide_dtype()), wide = ops::cast(x, field_wide_dtype());
  for (const BinaryOp op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div}) {
    expect_poison(device->binary(op, poison, x), std::string(op_name(op)));
    expect_poison(device->binary(op, x, poison), std::string(op_name(op)));
    expect_poison(device->binary(op, wide_poison, wide), std::string(op_name(op)));
    expect_poison(device->binary(op, wide, wide_poison), std::string(op_name(op)));
  }
  const Tensor log_poison = device->poisoned({2}, field_log_dtype());
  const Tensor masses = ops::full(*device, {2}, field_log_dtype(), -kInfinity);
  for (const BinaryOp op : {BinaryOp::logaddexp, BinaryOp::lse_weight}) {
    expect_poison(device->binary(op, log_poison, masses), std::string(op_name(op)));
    expect_poison(device->binary(op, masses, log_poison), std::string(op_name(op)));
  }
  expect_poison(ops::cast(wide_poison, field_dtype()), "cast");
  // An entry "never" of a mask is no number either.
  expect_poison(ops::add(numbers({1}, {-kInfinity}), numbers({1}, {1})), "never");
}

TEST_F(FieldTest, SumsAndProductsSpreadPoisonToWhatTheyMake) {
  const Tensor x = with_poison({3, 4}, 0, 1);  // the second row
  EXPECT_EQ(poison_of(ops::sum(x)), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(poison_of(ops::mean(x)), (std::vector<bool>{false, true, false}));
  const Tensor weight = random({2, 4}, "weight"), tall = random({3, 4}, "tall"), bias = random({2}, "bias");
  EXPECT_EQ(poison_of(ops::linear(x, weight, bias)), (std::vector<bool>{false, false, true, true, false, false}));
  EXPECT_EQ(poison_of(ops::linear(weight, x, Tensor())), (std::vector<bool>{false, true, false, false, true, false}));
  expect_poison(ops::linear(tall, weight, poisoned({2})), "bias");
  const Tensor zeros = ops::zeros(*device, {2, 4}, field_dtype());
  EXPECT_EQ(poison_of(ops::linear(x, zeros, Tensor())), (std::vector<bool>{false, false, true, true, false, false}));
}

TEST_F(FieldTest, AttentionSpreadsPoisonButNotFromMaskedKeys) {
  const Tensor q = random({1, 2, 1, 4}, "q"), k = random({1, 5, 1, 4}, "k"), v = random({1, 5, 1, 4}, "v");
  EXPECT_EQ(poison_of(ops::attention(with_poison({1, 2, 1, 4}, 1, 1), k, v, Tensor(), 1).lse),
            (std::vector<bool>{false, true}));
  const auto with_bad_end = [&](const Tensor& x) {
    return ops::concat({x.narrow(1, 0, 4), poisoned({1, 1, 1, 4})}, 1);
  };
  const Tensor bad_key = with_bad_end(k), bad_value = with_bad_end(v);
  expect_poison(ops::attention(q, bad_key, v, Tensor(), 1).out, "key");
  expect_poison(ops::attention(q, k, bad_value, Tensor(), 1).out, "value");
  HostArray keep({1, 1, 1, 5}, 1.0);
  keep.at({0, 0, 0, 4}) = 0;
  const Tensor mask = to_device(*device, keep, kBool);
  expect_same(ops::attention(q, bad_key, v, mask, 1).out, ops::attention(q, k, v, mask, 1).out);
  expect_poison(ops::attention(q, k, bad_value, mask, 1).out, "a value with weight 0");
  expect_poison(ops::attention(q, k, v, device->poisoned({1, 1, 1, 5}, kBool), 1).out, "bool mask");
  expect_poison(ops::attention(q, k, v, poisoned({1, 1, 1, 5}), 1).out, "mask of biases");
}

// ---- what has no meaning

TEST_F(FieldTest, RefusesWhatIsNotDefinedInExactArithmetic) {
  const Tensor x = random({2}, "x"), lse = ops::full(*device, {2}, field_log_dtype(), -kInfinity);
  const auto refusal = [](const std::string& what) {
    return thrown(ErrorKind::unsupported_error, what + ": not defined in exact arithmetic");
  };
  EXPECT_EQ(thrown_by([&] { device->unary(UnaryOp::clamp_finite, x); }), refusal("clamp_finite"));
  EXPECT_EQ(thrown_by([&] { ops::cast(x, kFloat64); }), refusal("conversion of field to float64"));
  EXPECT_EQ(thrown_by([&] { ops::cast(x, kBool); }), refusal("conversion of field to bool"));
  EXPECT_EQ(thrown_by([&] { ops::cast(lse, field_dtype()); }), refusal("conversion of field_log to field"));
  EXPECT_EQ(thrown_by([&] { ops::cast(x, field_log_dtype()); }), refusal("conversion of field to field_log"));
  EXPECT_EQ(thrown_by([&] { ops::full(*device, {1}, field_log_dtype(), 0.5); }), refusal("fill: log-sum-exp 0.5"));
}

TEST_F(FieldTest, RefusesTypesThatMustNotBeMixed) {
  const Tensor lse = ops::full(*device, {2}, field_log_dtype(), -kInfinity), x = random({1, 2, 1, 4}, "x");
  EXPECT_EQ(thrown_by([&] { ops::add(lse, lse); }),
            thrown(ErrorKind::type_error, "add is not defined for field_log [2]"));
  EXPECT_EQ(thrown_by([&] { ops::logaddexp(x, x); }),
            thrown(ErrorKind::type_error, "logaddexp acts on log-sum-exps, not on field [1, 2, 1, 4]"));
  const Tensor wide = ops::cast(x, field_wide_dtype());
  EXPECT_EQ(thrown_by([&] { ops::attention(wide, wide, wide, Tensor(), 1); }),
            thrown(ErrorKind::type_error,
                   "attention of field_wide [1, 2, 1, 4]: the accumulator carries no exponents; expected values of "
                   "type field"));
  const Tensor mask = ops::full(*device, {1, 1, 1, 2}, field_log_dtype(), -kInfinity);
  EXPECT_EQ(thrown_by([&] { ops::attention(x, x, x, mask, 1); }),
            thrown(ErrorKind::type_error, "attention mask field_log [1, 1, 2, 2] must be bool or of type field"));
  const Tensor held = to_device(*device, HostArray({2}), kFloat32);
  EXPECT_EQ(thrown_by([&] { ops::silu(held); }),
            thrown(ErrorKind::type_error,
                   "silu: device 'field' holds float32 [2] for conversion only, it does not compute with float32"));
  EXPECT_EQ(thrown_by([&] { field_elements(held); }),
            thrown(ErrorKind::type_error, "float32 [2] holds no elements of exact arithmetic"));
}

TEST_F(FieldTest, FillsWhatHasAnImage) {
  EXPECT_THAT(field_elements(ops::full(*device, {3}, field_dtype(), -2.0)), Each(Value{kP - 2, kQ - 2}));
  EXPECT_THAT(to_host(ops::full(*device, {3}, kFloat32, 0.5)).values, Each(0.5));
  EXPECT_EQ(field_text({17, 4}), "17:4");
  EXPECT_EQ(field_text(field::kPoisonValue), "poison");
}

}  // namespace
}  // namespace shardproof::test
