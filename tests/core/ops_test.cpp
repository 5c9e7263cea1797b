// The door for computation: movement compositions element by element, norms and rotary embedding against plain loops,
// and the refusals. What a single device operation computes is the business of the device conformance suite.
#include "core/ops.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/eigen_device.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;

class OpsTest : public testing::Test {
 protected:
  Tensor counted(const Shape& shape, DType dtype = kFloat64) { return to_device(*device, identifiers(shape), dtype); }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(OpsTest, ContiguousCopiesOnlyWhatIsNot) {
  const Tensor x = counted({2, 3});
  EXPECT_EQ(ops::contiguous(x).storage(), x.storage());
  const Tensor turned = ops::contiguous(x.transpose(0, 1));
  EXPECT_NE(turned.storage(), x.storage());
  EXPECT_TRUE(turned.is_contiguous());
  EXPECT_THAT(ops::to_doubles(turned), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST_F(OpsTest, CastIsANoOpForTheSameTypeAndKeepsTheMemoryOrderForAnother) {
  const Tensor x = counted({2, 3}).transpose(0, 1);
  EXPECT_EQ(ops::cast(x, kFloat64).storage(), x.storage());
  const Tensor narrow = ops::cast(x, kFloat32);
  EXPECT_EQ(narrow.dtype(), kFloat32);
  EXPECT_EQ(narrow.strides(), x.strides());
  EXPECT_THAT(ops::to_doubles(narrow), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST_F(OpsTest, ReshapeViewsWherePossibleAndInfersOneSize) {
  const Tensor x = counted({2, 6});
  EXPECT_EQ(ops::reshape(x, {3, -1}).shape(), (Shape{3, 4}));
  EXPECT_EQ(ops::reshape(x, {3, 4}).storage(), x.storage());
  EXPECT_THAT(ops::to_doubles(ops::reshape(x.transpose(0, 1), {4, 3})),
              ElementsAre(0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11));
  EXPECT_EQ(ops::reshape(counted({0, 3}), {3, 0}).shape(), (Shape{3, 0}));
}

TEST_F(OpsTest, ReshapeRefusesWhatDoesNotFit) {
  const Tensor x = counted({2, 3});
  EXPECT_EQ(thrown_by([&] { ops::reshape(x, {4, -1}); }),
            thrown(ErrorKind::shape_error, "float64 [2, 3] cannot be reshaped to [4, -1]"));
  EXPECT_EQ(thrown_by([&] { ops::reshape(x, {2, 2}); }),
            thrown(ErrorKind::shape_error, "float64 [2, 3] cannot be reshaped to [2, 2]"));
  EXPECT_EQ(thrown_by([&] { ops::reshape(x, {-1, -1}); }),
            thrown(ErrorKind::shape_error, "reshape to [-1, -1] leaves two sizes open"));
}

TEST_F(OpsTest, ConcatJoinsStridedPartsAlongAnyAxis) {
  const Tensor x = counted({2, 2});
  EXPECT_THAT(ops::to_doubles(ops::concat({x, x.transpose(0, 1)}, 1)), ElementsAre(0, 1, 0, 2, 2, 3, 1, 3));
  EXPECT_THAT(ops::to_doubles(ops::concat({x, x.narrow(0, 0, 1)}, 0)), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_EQ(ops::concat({x, x.narrow(1, 0, 0)}, -1).shape(), (Shape{2, 2}));
  EXPECT_EQ(ops::concat({x}, 0).storage(), x.storage());
}

TEST_F(OpsTest, ConcatRefusesPartsThatDoNotFit) {
  const Tensor x = counted({2, 2});
  EXPECT_EQ(thrown_by([] { ops::concat({}, 0); }), thrown(ErrorKind::shape_error, "concatenation of no tensors"));
  EXPECT_EQ(thrown_by([&] { ops::concat({x, counted({2, 3})}, 0); }),
            thrown(ErrorKind::shape_error, "concatenation of float64 [2, 2] and float64 [2, 3] along axis 0"));
  EXPECT_EQ(thrown_by([&] { ops::concat({x, counted({2})}, 0); }),
            thrown(ErrorKind::shape_error, "concatenation of float64 [2, 2] and float64 [2] along axis 0"));
  EXPECT_EQ(thrown_by([&] { ops::concat({x, counted({2, 2}, kInt64)}, 0); }),
            thrown(ErrorKind::type_error, "concatenation of different element types: float64 [2, 2] and int64 [2, 2]"));
}

TEST_F(OpsTest, ChunkCutsIntoEqualViews) {
  const Tensor x = counted({2, 4});
  const std::vector<Tensor> pieces = ops::chunk(x, 2, 1);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_THAT(ops::to_doubles(pieces[1]), ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(pieces[1].storage(), x.storage());
  EXPECT_EQ(thrown_by([&] { ops::chunk(x, 3, 1); }),
            thrown(ErrorKind::shape_error, "axis 1 of float64 [2, 4] does not divide into 3 equal parts"));
}

TEST_F(OpsTest, FillsAndPoisons) {
  EXPECT_THAT(ops::to_doubles(ops::zeros(*device, {2}, kFloat64)), ElementsAre(0, 0));
  EXPECT_THAT(ops::to_doubles(ops::full(*device, {2}, kInt64, 5)), ElementsAre(5, 5));
  EXPECT_TRUE(std::isnan(ops::to_doubles(ops::padding(*device, {1}, kFloat64)).front()));
  EXPECT_THAT(ops::to_doubles(ops::padding(*device, {1}, kInt64)), ElementsAre(-1));
}

TEST_F(OpsTest, CopyIntoWritesIntoAView) {
  const Tensor target = ops::zeros(*device, {2, 3}, kFloat64);
  ops::copy_into(target.narrow(1, 1, 2), counted({2, 2}));
  EXPECT_THAT(ops::to_doubles(target), ElementsAre(0, 0, 1, 0, 2, 3));
}

TEST_F(OpsTest, GatherRowsPicksByIndex) {
  const std::vector<double> index{2, 0, 2};
  const Tensor picked = ops::gather_rows(counted({3, 2}), ops::from_doubles(*device, index, {3}, kInt64));
  EXPECT_THAT(ops::to_doubles(picked), ElementsAre(4, 5, 0, 1, 4, 5));
}

TEST_F(OpsTest, ElementwiseOperationsBroadcastAndTakeConstants) {
  const Tensor x = counted({2, 2}), row = counted({2});
  EXPECT_THAT(ops::to_doubles(ops::add(x, row)), ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(ops::to_doubles(ops::subtract(x, row)), ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(ops::to_doubles(ops::multiply(x, row)), ElementsAre(0, 1, 0, 3));
  EXPECT_THAT(ops::to_doubles(ops::divide(row, ops::add(x, 1.0))), ElementsAre(0, 0.5, 0, 0.25));
  EXPECT_THAT(ops::to_doubles(ops::multiply(x, -2.0)), ElementsAre(0, -2, -4, -6));
  EXPECT_THAT(ops::to_doubles(ops::sum(x)), ElementsAre(1, 5));
  EXPECT_THAT(ops::to_doubles(ops::mean(x)), ElementsAre(0.5, 2.5));
}

TEST_F(OpsTest, TypesAreNeverMixedImplicitly) {
  const auto error = thrown_by([&] { ops::add(counted({2}), counted({2}, kFloat32)); });
  EXPECT_EQ(error, thrown(ErrorKind::type_error, "add of different element types: float64 [2] and float32 [2]"));
  EXPECT_EQ(thrown_by([&] { ops::add(counted({2}, kInt64), counted({2}, kInt64)); }),
            thrown(ErrorKind::type_error, "add is not defined for int64 [2]"));
}

TEST_F(OpsTest, LayerNormEqualsItsFormula) {
  const HostArray x = random_array({3, 5}, 7, "x", 4.0);
  const HostArray normed = to_host(ops::layer_norm(to_device(*device, x, kFloat64), 0.25));
  for (std::int64_t row = 0; row < 3; ++row) {
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < 5; ++i) mean += x.at({row, i}) / 5;
    for (std::int64_t i = 0; i < 5; ++i) variance += (x.at({row, i}) - mean) * (x.at({row, i}) - mean) / 5;
    for (std::int64_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(normed.at({row, i}), (x.at({row, i}) - mean) / std::sqrt(variance + 0.25), 1e-14);
    }
  }
}

TEST_F(OpsTest, RmsNormEqualsItsFormulaWithAndWithoutWeight) {
  const HostArray x = random_array({3, 5}, 7, "x", 4.0), weight = random_array({5}, 7, "weight");
  const Tensor on_device = to_device(*device, x, kFloat64);
  const HostArray plain = to_host(ops::rms_norm(on_device, {}, 0.25));
  const HostArray weighted = to_host(ops::rms_norm(on_device, to_device(*device, weight, kFloat64), 0.25));
  for (std::int64_t row = 0; row < 3; ++row) {
    double mean_square = 0;
    for (std::int64_t i = 0; i < 5; ++i) mean_square += x.at({row, i}) * x.at({row, i}) / 5;
    for (std::int64_t i = 0; i < 5; ++i) {
      const double expected = x.at({row, i}) / std::sqrt(mean_square + 0.25);
      EXPECT_NEAR(plain.at({row, i}), expected, 1e-14);
      EXPECT_NEAR(weighted.at({row, i}), expected * weight.at({i}), 1e-14);
    }
  }
}

TEST_F(OpsTest, RotaryInterleavedTurnsAdjacentPairs) {
  const HostArray x = random_array({2, 3, 2, 4}, 7, "x"), angles = random_array({3, 2}, 7, "angles", 2.0);
  HostArray cosine({3, 4}), sine({3, 4});
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t c = 0; c < 4; ++c) {
      cosine.at({t, c}) = std::cos(angles.at({t, c / 2}));
      sine.at({t, c}) = std::sin(angles.at({t, c / 2}));
    }
  }
  const HostArray turned = to_host(ops::rotary_interleaved(
      to_device(*device, x, kFloat64), to_device(*device, cosine, kFloat64), to_device(*device, sine, kFloat64)));
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t pair = 0; pair < 2; ++pair) {
          const double a = angles.at({t, pair}), x0 = x.at({b, t, h, 2 * pair}), x1 = x.at({b, t, h, 2 * pair + 1});
          EXPECT_NEAR(turned.at({b, t, h, 2 * pair}), x0 * std::cos(a) - x1 * std::sin(a), 1e-15);
          EXPECT_NEAR(turned.at({b, t, h, 2 * pair + 1}), x1 * std::cos(a) + x0 * std::sin(a), 1e-15);
        }
      }
    }
  }
}

// ChronoEdit's tables have pairs that straddle two axes.
TEST_F(OpsTest, RotaryInterleavedReadsTheFirstCosineAndTheSecondSineOfAPair) {
  const Tensor x = ops::from_doubles(*device, std::vector<double>{2, 3}, {1, 1, 1, 2}, kFloat64);
  const Tensor cosine = ops::from_doubles(*device, std::vector<double>{5, 100}, {1, 2}, kFloat64);
  const Tensor sine = ops::from_doubles(*device, std::vector<double>{100, 7}, {1, 2}, kFloat64);
  EXPECT_THAT(ops::to_doubles(ops::rotary_interleaved(x, cosine, sine)), ElementsAre(2 * 5 - 3 * 7, 3 * 5 + 2 * 7));
}

TEST_F(OpsTest, RotaryInterleavedTakesOneTableAnItemOfTheBatch) {
  const Tensor x = to_device(*device, random_array({2, 3, 2, 4}, 7, "x"), kFloat64);
  const Tensor cosine = to_device(*device, random_array({2, 3, 4}, 7, "cosine"), kFloat64);
  const Tensor sine = to_device(*device, random_array({2, 3, 4}, 7, "sine"), kFloat64);
  const Tensor both = ops::rotary_interleaved(x, cosine, sine);
  for (std::int64_t item = 0; item < 2; ++item) {
    const Tensor alone = ops::rotary_interleaved(x.narrow(0, item, 1), cosine.narrow(0, item, 1).squeeze(0),
                                                 sine.narrow(0, item, 1).squeeze(0));
    EXPECT_TRUE(bitwise_equal(both.narrow(0, item, 1), alone)) << item;
  }
  EXPECT_TRUE(bitwise_equal(ops::rotary_interleaved(x, cosine.narrow(0, 1, 1), sine.narrow(0, 1, 1)).narrow(0, 1, 1),
                            both.narrow(0, 1, 1)));
  EXPECT_TRUE(thrown_by([&] { ops::rotary_interleaved(counted({3, 3, 1, 4}), cosine, sine); }));
}

TEST_F(OpsTest, RotaryInterleavedRefusesTablesOfAnotherLength) {
  EXPECT_EQ(thrown_by([&] { ops::rotary_interleaved(counted({1, 3, 1, 4}), counted({2, 4}), counted({2, 4})); }),
            thrown(ErrorKind::shape_error,
                   "rotary embedding of float64 [1, 3, 1, 4] with tables float64 [2, 4] and float64 [2, 4]: the tables "
                   "must be [tokens, head_dim]"));
}

// Tables for all items and heads, or one for each of them.
TEST_F(OpsTest, RotaryHalvesTurnsPairsThatAreHalfAHeadApart) {
  const HostArray x = random_array({2, 3, 2, 4}, 11, "x");
  const auto expect_turned = [&](const HostArray& cosine, const HostArray& sine, auto value_at) {
    const HostArray turned = to_host(ops::rotary_halves(
        to_device(*device, x, kFloat64), to_device(*device, cosine, kFloat64), to_device(*device, sine, kFloat64)));
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0; t < 3; ++t) {
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t k = 0; k < 2; ++k) {
            const double c = value_at(cosine, b, t, h, k), s = value_at(sine, b, t, h, k);
            const double x0 = x.at({b, t, h, k}), x1 = x.at({b, t, h, k + 2});
            EXPECT_NEAR(turned.at({b, t, h, k}), x0 * c - x1 * s, 1e-15);
            EXPECT_NEAR(turned.at({b, t, h, k + 2}), x1 * c + x0 * s, 1e-15);
          }
        }
      }
    }
  };
  expect_turned(random_array({3, 2}, 11, "cosine"), random_array({3, 2}, 11, "sine"),
                [](const HostArray& table, auto, auto t, auto, auto k) { return table.at({t, k}); });
  expect_turned(random_array({2, 3, 2, 2}, 11, "cosine"), random_array({2, 3, 2, 2}, 11, "sine"),
                [](const HostArray& table, auto b, auto t, auto h, auto k) { return table.at({b, t, h, k}); });
  expect_turned(random_array({1, 3, 2, 2}, 11, "cosine"), random_array({1, 3, 2, 2}, 11, "sine"),
                [](const HostArray& table, auto, auto t, auto h, auto k) { return table.at({0, t, h, k}); });
}

TEST_F(OpsTest, RotaryHalvesRefusesTablesThatDoNotFit) {
  const auto refusal_of = [&](const Shape& table) {
    const auto error = thrown_by([&] { ops::rotary_halves(counted({1, 3, 2, 4}), counted(table), counted(table)); });
    return error ? error->message : "accepted";
  };
  for (const Shape& table : {Shape{3, 4}, Shape{2, 2}, Shape{1, 3, 2}, Shape{2, 3, 2, 2}, Shape{1, 3, 3, 2}}) {
    EXPECT_THAT(refusal_of(table), testing::HasSubstr("the tables must be [tokens, head_dim / 2] or [batch, tokens, "
                                                      "heads, head_dim / 2]"));
  }
}

TEST_F(OpsTest, LogSumExpOperationsTreatMinusInfinityAsEmpty) {
  const double never = -std::numeric_limits<double>::infinity();
  const std::vector<double> left{never, never, 1.0, 1000.0}, right{never, 2.0, never, 0.0};
  const Tensor x = ops::from_doubles(*device, left, {4}, kFloat64),
               y = ops::from_doubles(*device, right, {4}, kFloat64);
  EXPECT_THAT(ops::to_doubles(ops::logaddexp(x, y)), ElementsAre(never, 2.0, 1.0, 1000.0));
  EXPECT_THAT(ops::to_doubles(ops::lse_weight(x, y)), ElementsAre(0.0, 0.0, 1.0, 1.0));
}

TEST_F(OpsTest, DoublesSurviveTheWayToADeviceAndBack) {
  const std::vector<double> values{1.5, -2.25, 1e300};
  EXPECT_EQ(ops::to_doubles(ops::from_doubles(*device, values, {3}, kFloat64)), values);
  const std::vector<double> halfway{1.0 + std::ldexp(1.0, -24)};  // between two float32 numbers: to even
  EXPECT_THAT(ops::to_doubles(ops::from_doubles(*device, halfway, {1}, kFloat32)), ElementsAre(1.0));
}

}  // namespace
}  // namespace shardproof::test
