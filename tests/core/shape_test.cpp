// Shapes, axes and broadcasting.
// Every operation leans on them, and every refusal must name the shapes concerned.
#include "core/shape.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

TEST(Shape, CountsElementsAndContiguousStrides) {
  EXPECT_EQ((Shape{2, 3, 4}).numel(), 24);
  EXPECT_EQ((Shape{2, 3, 4}).contiguous_strides(), (Shape{12, 4, 1}));
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(Shape{}.contiguous_strides(), Shape{});
  EXPECT_EQ((Shape{5, 0, 2}).numel(), 0);
}

TEST(Shape, InsertsErasesAndPrints) {
  const Shape shape{2, 3};
  EXPECT_EQ(shape.inserted(0, 7), (Shape{7, 2, 3}));
  EXPECT_EQ(shape.inserted(2, 7), (Shape{2, 3, 7}));
  EXPECT_EQ(shape.erased(0), (Shape{3}));
  EXPECT_EQ(shape.back(), 3);
  EXPECT_EQ(shape.text(), "[2, 3]");
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_FALSE(shape == (Shape{2, 3, 1}));
  EXPECT_FALSE(shape == (Shape{2, 4}));
}

TEST(Shape, HoldsEightDimensionsAndRefusesMore) {
  Shape shape{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(shape.rank(), 8);
  EXPECT_EQ(thrown_by([&] { shape.push_back(9); }),
            thrown(ErrorKind::shape_error, "more than 8 dimensions are not supported"));
  EXPECT_EQ(thrown_by([&] { shape.inserted(3, 9); }),
            thrown(ErrorKind::shape_error, "more than 8 dimensions are not supported"));
  EXPECT_EQ(thrown_by([] { Shape(std::vector<std::int64_t>(9)); }),
            thrown(ErrorKind::shape_error, "9 dimensions; at most 8 are supported"));
}

TEST(NormalisedAxis, CountsNegativeAxesFromTheEnd) {
  EXPECT_EQ(normalised_axis(-1, 3), 2);
  EXPECT_EQ(normalised_axis(-3, 3), 0);
  EXPECT_EQ(normalised_axis(2, 3), 2);
  for (const int axis : {3, -4}) {
    EXPECT_EQ(
        thrown_by([&] { normalised_axis(axis, 3); }),
        thrown(ErrorKind::shape_error, "axis " + std::to_string(axis) + " does not exist in a tensor of 3 dimensions"));
  }
}

TEST(BroadcastShapes, AlignsAxesAtTheRight) {
  EXPECT_EQ(broadcast_shapes({3, 1, 5}, {4, 1}), (Shape{3, 4, 5}));
  EXPECT_EQ(broadcast_shapes({}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({2, 3}, {}), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({1}, {0}), (Shape{0}));
  EXPECT_EQ(broadcast_shapes({0, 1}, {1, 3}), (Shape{0, 3}));
  EXPECT_EQ(thrown_by([] { broadcast_shapes({2, 3}, {2}); }),
            thrown(ErrorKind::shape_error, "shapes [2, 3] and [2] do not broadcast"));
  EXPECT_EQ(thrown_by([] { broadcast_shapes({0}, {2}); }),
            thrown(ErrorKind::shape_error, "shapes [0] and [2] do not broadcast"));
}

}  // namespace
}  // namespace shardproof::test
