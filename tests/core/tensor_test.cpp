// Views of tensors: which elements they show, and what they refuse. Elements are their own row-major numbers, so a view
// is checked by reading it.
#include "core/tensor.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/ops.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;

class TensorTest : public testing::Test {
 protected:
  Tensor numbered(const Shape& shape) { return to_device(device, identifiers(shape), kInt64); }
  static std::vector<double> read(const Tensor& x) { return ops::to_doubles(x); }
  HostDevice device;
};

TEST_F(TensorTest, DistinguishesNoTensorADeclaredOneAndOneWithStorage) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.text(), "no tensor");
  EXPECT_EQ(thrown_by([&] { none.device(); }),
            thrown(ErrorKind::state_error, "a tensor without storage (undefined) was used; were weights loaded?"));
  const Tensor declared({2, 3}, kFloat32);
  EXPECT_TRUE(declared.defined());
  EXPECT_FALSE(declared.has_storage());
  EXPECT_EQ(declared.text(), "float32 [2, 3]");
  EXPECT_EQ(declared.bytes(), 24U);
  EXPECT_EQ(thrown_by([&] { declared.device(); }),
            thrown(ErrorKind::state_error, "a tensor without storage (float32 [2, 3]) was used; were weights loaded?"));
  const Tensor stored = numbered({2, 3});
  EXPECT_EQ(&stored.device(), &device);
  EXPECT_TRUE(stored.is_contiguous());
}

TEST_F(TensorTest, CopiesOfAHandleShareStorage) {
  const Tensor x = numbered({2, 3});
  const Tensor y = x.narrow(0, 1, 1);
  EXPECT_EQ(x.storage(), y.storage());
  EXPECT_EQ(y.offset(), 3);
  device.fill(y, 9);
  EXPECT_THAT(read(x), ElementsAre(0, 1, 2, 9, 9, 9));
}

TEST_F(TensorTest, PermutesAndTransposesAxes) {
  const Tensor x = numbered({2, 3, 2});
  EXPECT_EQ(x.permute({2, 0, 1}).shape(), (Shape{2, 2, 3}));
  EXPECT_THAT(read(x.permute({2, 0, 1})), ElementsAre(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11));
  EXPECT_THAT(read(x.permute({-1, 0, 1})), ElementsAre(0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11));
  EXPECT_THAT(read(x.transpose(0, -1)), ElementsAre(0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11));
  EXPECT_FALSE(x.transpose(0, 1).is_contiguous());
  EXPECT_EQ(thrown_by([&] { x.permute({0, 1}); }),
            thrown(ErrorKind::shape_error, "permute of int64 [2, 3, 2] names 2 axes"));
  EXPECT_EQ(thrown_by([&] { x.permute({0, 1, -2}); }),
            thrown(ErrorKind::shape_error, "permute of int64 [2, 3, 2] names axis 1 twice"));
  EXPECT_EQ(thrown_by([&] { x.transpose(0, 3); }),
            thrown(ErrorKind::shape_error, "axis 3 does not exist in a tensor of 3 dimensions"));
}

TEST_F(TensorTest, NarrowsAnAxisToARange) {
  const Tensor x = numbered({3, 4});
  EXPECT_THAT(read(x.narrow(1, 1, 2)), ElementsAre(1, 2, 5, 6, 9, 10));
  EXPECT_THAT(read(x.narrow(-2, 2, 1)), ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(x.narrow(0, 3, 0).shape(), (Shape{0, 4}));
  EXPECT_EQ(thrown_by([&] { x.narrow(1, 3, 2); }),
            thrown(ErrorKind::shape_error, "range [3, 5) does not lie within axis 1 of int64 [3, 4]"));
  EXPECT_EQ(thrown_by([&] { x.narrow(1, -1, 2); })->kind, ErrorKind::shape_error);
  EXPECT_EQ(thrown_by([&] { x.narrow(1, 2, -1); })->kind, ErrorKind::shape_error);
}

TEST_F(TensorTest, InsertsAndRemovesAxesOfSizeOne) {
  const Tensor x = numbered({2, 3});
  EXPECT_EQ(x.unsqueeze(0).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(x.unsqueeze(1).shape(), (Shape{2, 1, 3}));
  EXPECT_TRUE(x.unsqueeze(1).is_contiguous());
  EXPECT_EQ(x.unsqueeze(1).squeeze(1).shape(), x.shape());
  EXPECT_EQ(x.unsqueeze(2).squeeze(-1).strides(), x.strides());
  EXPECT_EQ(thrown_by([&] { x.unsqueeze(3); }),
            thrown(ErrorKind::shape_error, "cannot insert axis 3 into int64 [2, 3]"));
  EXPECT_EQ(thrown_by([&] { x.squeeze(0); }),
            thrown(ErrorKind::shape_error, "axis 0 of int64 [2, 3] does not have size 1"));
}

TEST_F(TensorTest, ExpandsByRepeatingWithoutMemory) {
  const Tensor x = numbered({2, 1});
  EXPECT_THAT(read(x.expand({2, 3})), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(read(x.expand({2, 2, 1})), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(x.expand({4, 2, 3}).strides(), (Shape{0, 1, 0}));
  EXPECT_EQ(x.expand({2, 0}).numel(), 0);
  EXPECT_EQ(thrown_by([&] { x.expand({3, 3}); }),
            thrown(ErrorKind::shape_error, "cannot expand int64 [2, 1] to [3, 3]"));
  EXPECT_EQ(thrown_by([&] { x.expand({2}); }), thrown(ErrorKind::shape_error, "cannot expand int64 [2, 1] to [2]"));
}

TEST_F(TensorTest, UnflattensAnAxis) {
  const Tensor x = numbered({2, 6});
  const Tensor split = x.unflatten(1, 2, 3);
  EXPECT_EQ(split.shape(), (Shape{2, 2, 3}));
  EXPECT_THAT(read(split.transpose(0, 1)), ElementsAre(0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11));
  EXPECT_THAT(read(x.transpose(0, 1).unflatten(0, 3, 2).narrow(0, 1, 1)), ElementsAre(2, 8, 3, 9));
  EXPECT_EQ(thrown_by([&] { x.unflatten(1, 2, 2); }),
            thrown(ErrorKind::shape_error, "axis 1 of int64 [2, 6] does not split into 2 x 2"));
}

TEST_F(TensorTest, ViewsOtherShapesWhereNoElementMustMove) {
  const Tensor x = numbered({4, 3, 2});
  EXPECT_EQ(x.view({12, 2}).strides(), (Shape{2, 1}));
  EXPECT_EQ(x.view({24}).shape(), (Shape{24}));
  EXPECT_EQ(x.view({2, 2, 1, 6}).strides().back(), 1);
  // The rows of a slice of columns stay apart; splitting or joining axes within a row is a view.
  const Tensor columns = x.narrow(1, 0, 2);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_THAT(read(columns.view({4, 4}).narrow(0, 1, 1)), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(read(columns.view({2, 2, 2, 2}).narrow(0, 1, 1).narrow(1, 1, 1)), ElementsAre(18, 19, 20, 21));
  EXPECT_FALSE(columns.can_view({16}));
  EXPECT_FALSE(x.transpose(0, 1).can_view({12, 2}));
  EXPECT_FALSE(x.can_view({5, 5}));
  EXPECT_EQ(thrown_by([&] { columns.view({8, 2}); }),
            thrown(ErrorKind::shape_error, "int64 [4, 2, 2] with strides [6, 2, 1] cannot be viewed as [8, 2]"));
  EXPECT_EQ(thrown_by([&] { x.view({5, 5}); })->kind, ErrorKind::shape_error);
}

TEST_F(TensorTest, ViewsShapesWithAxesOfSizeOneAndZero) {
  const Tensor x = numbered({2, 3});
  EXPECT_EQ(x.view({1, 2, 1, 3, 1}).shape(), (Shape{1, 2, 1, 3, 1}));
  EXPECT_EQ(x.transpose(0, 1).view({3, 1, 2}).shape(), (Shape{3, 1, 2}));
  EXPECT_THAT(read(x.transpose(0, 1).view({1, 3, 2, 1})), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(x.narrow(0, 0, 0).view({3, 0, 7}).shape(), (Shape{3, 0, 7}));
  EXPECT_EQ(numbered({1}).view({}).rank(), 0);
  EXPECT_EQ(numbered({}).view({1, 1}).shape(), (Shape{1, 1}));
  EXPECT_THAT(read(numbered({2, 1, 3}).narrow(2, 0, 2).view({2, 2})), ElementsAre(0, 1, 3, 4));
}

// For every shape with as many elements and every layout: if a view is granted, it shows the same elements in the same
// order; a contiguous tensor grants all.
TEST_F(TensorTest, NeverReordersElementsInAView) {
  const std::vector<Shape> shapes = {{24},    {2, 12},   {12, 2},      {4, 6},       {6, 4},     {2, 3, 4},   {4, 3, 2},
                                     {1, 24}, {3, 1, 8}, {2, 2, 2, 3}, {3, 2, 2, 2}, {24, 1, 1}, {2, 1, 3, 4}};
  int granted = 0, refused = 0;
  for (const Shape& from : shapes) {
    const Tensor whole = numbered(from);
    for (int axis = 0; axis < from.rank(); ++axis) {
      for (const Tensor& x : {whole, whole.transpose(0, axis), whole.narrow(axis, 0, (from[axis] + 1) / 2),
                              whole.unsqueeze(axis).transpose(0, axis)}) {
        for (const Shape& to : shapes) {
          if (to.numel() != x.numel()) continue;
          EXPECT_TRUE(x.can_view(to) || !x.is_contiguous()) << x.strides().text() << " as " << to.text();
          if (!x.can_view(to)) {
            ++refused;
            continue;
          }
          ++granted;
          EXPECT_EQ(read(x.view(to)), read(x)) << x.strides().text() << " as " << to.text();
        }
      }
    }
  }
  EXPECT_GT(granted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace shardproof::test
