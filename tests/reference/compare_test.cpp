// The figures of the verdict table on pairs of tensors small enough to see them. Verdicts rest on these, so what is not
// a number, an infinity or another shape must never look like agreement.
#include "reference/compare.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class CompareTest : public testing::Test {
 protected:
  Tensor tensor(std::vector<double> values, DType type = kFloat64) {
    return tensor({static_cast<std::int64_t>(values.size())}, values, type);
  }
  Tensor tensor(const Shape& shape, const std::vector<double>& values, DType type = kFloat64) {
    HostArray array(shape);
    array.values = values;
    return to_device(device, array, type);
  }
  HostDevice device;
};

TEST_F(CompareTest, KnowsTensorsOfOneValue) {
  EXPECT_TRUE(is_constant(tensor({0, 0, -0.0})));
  EXPECT_TRUE(is_constant(tensor({2, 2}, kFloat32)));
  EXPECT_FALSE(is_constant(tensor({2, 2, 3})));
  EXPECT_FALSE(is_constant(tensor({kNan, kNan})));
  EXPECT_FALSE(is_constant(tensor({2}))) << "one element cannot vary";
  EXPECT_FALSE(is_constant(tensor({})));
}

TEST_F(CompareTest, FindsNothingInEqualTensors) {
  const Comparison same = compare(tensor({1, -2, kInfinity, -kInfinity}), tensor({1, -2, kInfinity, -kInfinity}));
  EXPECT_TRUE(same.equal());
  EXPECT_EQ(same.max_abs, 0);
  EXPECT_EQ(same.relative, 0);
  EXPECT_EQ(same.normalised_mean_square, 0);
  EXPECT_EQ(same.max_abs_expected, 2);
  EXPECT_THAT(same.first, IsEmpty());
  EXPECT_THAT(same.worst, IsEmpty());
  EXPECT_TRUE(compare(device.empty({0, 3}, kFloat32), device.empty({0, 3}, kFloat32)).equal());
}

TEST_F(CompareTest, GivesFiguresAndPlacesOfDifferences) {
  const Comparison result = compare(tensor({2, 3}, {0, 1, 2.5, 3, 6, 5}), tensor({2, 3}, {0, 1, 2, 3, 4, 5}, kFloat32));
  EXPECT_FALSE(result.equal());
  EXPECT_EQ(result.max_abs, 2);
  EXPECT_EQ(result.max_abs_expected, 5);
  EXPECT_DOUBLE_EQ(result.relative, 0.4);
  EXPECT_DOUBLE_EQ(result.normalised_mean_square, 4.25 / 55);
  EXPECT_EQ(result.differing, 2);
  EXPECT_THAT(result.first, ElementsAre(0, 2));
  EXPECT_THAT(result.last, ElementsAre(1, 1));
  EXPECT_THAT(result.worst, ElementsAre(1, 1));
  EXPECT_EQ(index_text(result.worst), "[1, 1]");
}

TEST_F(CompareTest, ReadsTensorsInAnyMemoryOrder) {
  const Tensor x = tensor({2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_TRUE(compare(x.transpose(0, 1), tensor({3, 2}, {0, 3, 1, 4, 2, 5})).equal());
}

TEST_F(CompareTest, CountsWhatIsNotANumberAsInfiniteEvenOnBothSides) {
  for (const auto& [actual, expected] :
       {std::pair{kNan, 1.0}, std::pair{1.0, kNan}, std::pair{kNan, kNan}, std::pair{kInfinity, 1.0},
        std::pair{1.0, -kInfinity}, std::pair{kInfinity, -kInfinity}}) {
    const Comparison result = compare(tensor({1, actual, 1}), tensor({1, expected, 1}));
    EXPECT_FALSE(result.equal());
    EXPECT_EQ(result.max_abs, kInfinity);
    EXPECT_EQ(result.relative, kInfinity);
    EXPECT_EQ(result.normalised_mean_square, kInfinity);
    EXPECT_THAT(result.worst, ElementsAre(1));
  }
  EXPECT_FALSE(compare(device.poisoned({2}, kFloat32), device.poisoned({2}, kFloat32)).equal());
}

TEST_F(CompareTest, ReportsAShapeMismatchInsteadOfThrowing) {
  const Comparison result = compare(tensor({2, 2}, {1, 2, 3, 4}), tensor({1, 2, 3}));
  EXPECT_EQ(result.shape_problem, "shape [2, 2], expected [3]");
  EXPECT_FALSE(result.equal());
  EXPECT_EQ(result.max_abs, kInfinity);
  EXPECT_FALSE(compare(device.empty({0, 2}, kFloat32), device.empty({0}, kFloat32)).equal());
}

TEST_F(CompareTest, IsInfinitelyRelativeToNothing) {
  EXPECT_EQ(compare(tensor({0, 1}), tensor({0, 0})).relative, kInfinity);
  EXPECT_EQ(compare(tensor({0, 1}), tensor({0, 0})).normalised_mean_square, kInfinity);
}

TEST_F(CompareTest, GivesTheShareOfAnAllowedError) {
  const Comparison result = compare(tensor({1.5}), tensor({1}));
  EXPECT_EQ(share_of_allowed(result, 2), 0.25);
  EXPECT_EQ(share_of_allowed(result, 0), kInfinity);
  EXPECT_EQ(share_of_allowed(compare(tensor({1}), tensor({1})), 0), 0);
}

TEST_F(CompareTest, DividesTheParallelErrorByTheDenseOne) {
  const Tensor reference = tensor({8, 1}), dense = tensor({8.5, 1});
  const RoundingRatio ratio = rounding_ratio(tensor({8, 3}), dense, reference, 0x1p-24);
  EXPECT_EQ(ratio.parallel_error, 2);
  EXPECT_EQ(ratio.dense_error, 0.5);
  EXPECT_EQ(ratio.ratio, 4);
}

TEST_F(CompareTest, TakesARoundingOfTheLargestValueAsTheLeastDenseError) {
  const Tensor reference = tensor({8, 1});
  EXPECT_EQ(rounding_ratio(tensor({8, 3}), reference, reference, 0x1p-8).ratio, 2 / (8 * 0x1p-8));
  EXPECT_EQ(rounding_ratio(reference, reference, reference, 0x1p-8).ratio, 0);
  EXPECT_EQ(rounding_ratio(tensor({1}), tensor({0}), tensor({0}), 0x1p-8).ratio, kInfinity);
}

TEST_F(CompareTest, HasAnInfiniteRatioWhereTheParallelRunIsNotFinite) {
  const Tensor reference = tensor({8, 1});
  EXPECT_EQ(rounding_ratio(tensor({kNan, 1}), reference, reference, 0x1p-24).ratio, kInfinity);
  EXPECT_EQ(rounding_ratio(tensor({kNan, 1}), tensor({kNan, 1}), reference, 0x1p-24).ratio, kInfinity);
  EXPECT_EQ(rounding_ratio(tensor({8}), reference, reference, 0x1p-24).ratio, kInfinity) << "another shape";
}

TEST_F(CompareTest, KnowsTheUnitRoundoffs) {
  EXPECT_EQ(unit_roundoff(kFloat64), 0x1p-53);
  EXPECT_EQ(unit_roundoff(kFloat32), 0x1p-24);
  EXPECT_EQ(unit_roundoff(kBFloat16), 0x1p-8);
  EXPECT_EQ(unit_roundoff(kFloat16), 0x1p-11);
  EXPECT_EQ(thrown_by([] { unit_roundoff(kInt64); }),
            thrown(ErrorKind::type_error, "element type int64 has no unit roundoff"));
}

}  // namespace
}  // namespace shardproof::test
