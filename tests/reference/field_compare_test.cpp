// Tensors of exact arithmetic are equal in both residues or not at all, poison is equal to nothing, and what differs is
// named by index and value.
#include "reference/field_compare.h"

#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/field_device.h"

namespace shardproof {
namespace {

using field::Value;
using testing::ElementsAre;
using testing::IsEmpty;

class FieldCompare : public testing::Test {
 protected:
  Tensor tensor(const std::vector<Value>& values) {
    return device->upload(std::as_bytes(std::span(values)), {2, 2}, field_dtype());
  }
  std::unique_ptr<FieldDevice> device = make_field_device(0);
};

TEST_F(FieldCompare, FindsNothingBetweenEqualTensors) {
  const Tensor x = tensor({{1, 2}, {3, 4}, {5, 6}, {7, 8}});
  const ExactComparison found = compare_exact(x, tensor({{1, 2}, {3, 4}, {5, 6}, {7, 8}}));
  EXPECT_TRUE(found.equal());
  EXPECT_THAT(found.first, IsEmpty());
  EXPECT_FALSE(holds_poison(x));
}

TEST_F(FieldCompare, NoticesEitherPart) {
  const ExactComparison found =
      compare_exact(tensor({{1, 2}, {3, 5}, {5, 6}, {8, 8}}), tensor({{1, 2}, {3, 4}, {5, 6}, {7, 8}}));
  EXPECT_EQ(found.differing, 2);
  EXPECT_EQ(found.poisoned, 0);
  EXPECT_THAT(found.first, ElementsAre(0, 1));
  EXPECT_THAT(found.last, ElementsAre(1, 1));
  EXPECT_EQ(found.first_actual, "3:5");
  EXPECT_EQ(found.first_expected, "3:4");
}

TEST_F(FieldCompare, NeverTakesPoisonForEqual) {
  const Tensor x = tensor({{1, 2}, field::kPoisonValue, {5, 6}, {7, 8}});
  const ExactComparison found = compare_exact(x, x);
  EXPECT_EQ(found.differing, 1);
  EXPECT_EQ(found.poisoned, 1);
  EXPECT_EQ(found.first_actual, "poison");
  EXPECT_TRUE(holds_poison(x));
}

TEST_F(FieldCompare, NamesShapesThatDiffer) {
  const Tensor x = tensor({{1, 2}, {3, 4}, {5, 6}, {7, 8}});
  const ExactComparison found = compare_exact(x.view({4}), x);
  EXPECT_EQ(found.shape_problem, "shape [4], expected [2, 2]");
  EXPECT_FALSE(found.equal());
  EXPECT_EQ(found.differing, 4);
}

}  // namespace
}  // namespace shardproof
