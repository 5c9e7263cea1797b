// The merge of partial softmax results: worked values, the empty set, extreme log-sum-exps, and the types it runs in.
// Tolerances count roundings of the type (unit = half a step at 1).
#include "parallel/softmax_merge.h"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

class SoftmaxMergeTest : public testing::TestWithParam<DType> {
 protected:
  AttentionOutput part(double out, double lse) {
    return {ops::full(*device, {1, 1, 1, 1}, GetParam(), out), ops::full(*device, {1, 1, 1}, GetParam(), lse)};
  }
  static double value(const Tensor& tensor) { return ops::to_doubles(tensor).front(); }
  double unit() const { return GetParam() == kFloat64 ? std::ldexp(1.0, -53) : std::ldexp(1.0, -24); }
  std::unique_ptr<Device> device = make_reference_device(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Types, SoftmaxMergeTest, testing::Values(kFloat64, kFloat32),
                         [](const auto& type) { return std::string(type.param.name()); });

TEST_P(SoftmaxMergeTest, MergesMassesTwoAndEightToEight) {
  const AttentionOutput merged = merge_softmax(part(0, std::log(2.0)), part(10, std::log(8.0)));
  // A handful of roundings of numbers up to 10: with logarithms of base 2 taken for natural ones it would be 7.233.
  EXPECT_NEAR(value(merged.out), 8.0, 8 * 10 * unit());
  EXPECT_NEAR(value(merged.lse), std::log(10.0), 8 * unit());
}

TEST_P(SoftmaxMergeTest, TreatsASetWithoutKeysAsTheIdentityOnEitherSide) {
  for (const AttentionOutput& merged :
       {merge_softmax(part(0, kNever), part(3, -7)), merge_softmax(part(3, -7), part(0, kNever))}) {
    EXPECT_EQ(value(merged.out), 3.0);
    EXPECT_EQ(value(merged.lse), -7.0);
  }
  const AttentionOutput empty = merge_softmax(part(0, kNever), part(0, kNever));
  EXPECT_EQ(value(empty.out), 0.0);
  EXPECT_EQ(value(empty.lse), kNever);
}

TEST_P(SoftmaxMergeTest, GivesTheWholeWeightToASetFarAbove) {
  for (const double shift : {100.0, 1000.0, 1e9}) {
    for (const double base : {0.0, -1e4, 1e4}) {
      const AttentionOutput merged = merge_softmax(part(5, base + shift), part(1e6, base));
      EXPECT_NEAR(value(merged.out), 5.0, 1e6 * std::exp(-100.0) + 8 * unit()) << shift << " above " << base;
      EXPECT_EQ(value(merged.lse), value(part(0, base + shift).lse));
      EXPECT_EQ(value(merge_softmax(part(1e6, base), part(5, base + shift)).out), value(merged.out));
    }
  }
}

// With weights made from the merged log-sum-exp they would not sum to one where its rounding swallows the logarithm.
TEST_P(SoftmaxMergeTest, KeepsWeightsThatSumToOneWhateverTheMagnitude) {
  for (const double lse : {0.0, -1e9, 1e9, -1e30}) {
    AttentionOutput merged = part(1, lse);
    for (int i = 0; i < 20; ++i) merged = merge_softmax(merged, part(1, lse));
    EXPECT_NEAR(value(merged.out), 1.0, 20 * 4 * unit()) << lse;
  }
}

TEST_P(SoftmaxMergeTest, IsElementwiseOverBatchTokensAndHeads) {
  const Shape shape{2, 3, 2};
  HostArray lse_a = random_array(shape, 1, "lse a", 3.0), lse_b = random_array(shape, 1, "lse b", 3.0);
  const HostArray out_a = random_array({2, 3, 2, 4}, 1, "out a"), out_b = random_array({2, 3, 2, 4}, 1, "out b");
  const AttentionOutput merged =
      merge_softmax({to_device(*device, out_a, GetParam()), to_device(*device, lse_a, GetParam())},
                    {to_device(*device, out_b, GetParam()), to_device(*device, lse_b, GetParam())});
  HostArray out({2, 3, 2, 4}), lse(shape);
  for (std::size_t i = 0; i < lse.values.size(); ++i) {
    const double a = std::exp(lse_a.values[i]), b = std::exp(lse_b.values[i]);
    lse.values[i] = std::log(a + b);
    for (std::size_t c = 4 * i; c < 4 * i + 4; ++c) {
      out.values[c] = (a * out_a.values[c] + b * out_b.values[c]) / (a + b);
    }
  }
  // Inputs are rounded to the type first: exp of a rounded 10 moves by 10 units.
  EXPECT_LE(max_difference(to_host(merged.out), out), 64 * unit());
  EXPECT_LE(max_difference(to_host(merged.lse), lse), 64 * unit());
}

// Lays the heads out before the tokens, as an exchange of heads leaves them.
Tensor heads_first(const Tensor& x) { return ops::contiguous(x.permute({0, 2, 1, 3})).permute({0, 2, 1, 3}); }

class FusedSoftmaxMergeTest : public testing::TestWithParam<DType> {
 protected:
  AttentionOutput drawn(std::string_view name, const Shape& shape) {
    HostArray lse = random_array(shape.erased(3), 5, std::string(name) + " lse", 30.0);
    for (std::size_t i = 0; i < lse.values.size(); i += 7) lse.values[i] = kNever;
    for (std::size_t i = 3; i < lse.values.size(); i += 31) lse.values[i] = std::numeric_limits<double>::quiet_NaN();
    return {to_device(*device, random_array(shape, 5, name, 2.0), GetParam()), to_device(*device, lse, GetParam())};
  }
  void expect_same_bits(const AttentionOutput& a, const AttentionOutput& b) {
    const std::optional<AttentionOutput> fused = ops::fused_softmax_merge(a, b);
    ASSERT_TRUE(fused.has_value());
    const AttentionOutput composed = composed_softmax_merge(a, b);
    EXPECT_EQ(bytes_of(fused->out), bytes_of(composed.out));
    EXPECT_EQ(bytes_of(fused->lse), bytes_of(composed.lse));
  }
  static std::vector<std::byte> bytes_of(const Tensor& x) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(x.numel()) * x.dtype().size());
    x.device().download(bytes, x);
    return bytes;
  }
  std::unique_ptr<Device> device = make_cpu_device();
};

INSTANTIATE_TEST_SUITE_P(Types, FusedSoftmaxMergeTest, testing::Values(kFloat64, kFloat32),
                         [](const auto& type) { return std::string(type.param.name()); });

TEST_P(FusedSoftmaxMergeTest, GivesTheBitsOfTheCompositionInEveryLayout) {
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 5, 3, 17}, Shape{1, 300, 8, 64}, Shape{2, 4, 3, 0}}) {
    const AttentionOutput a = drawn("a", shape), b = drawn("b", shape);
    expect_same_bits(a, b);
    expect_same_bits({heads_first(a.out), a.lse}, b);
    expect_same_bits(a, {heads_first(b.out), b.lse});
  }
}

TEST(FusedSoftmaxMerge, IsNotOfferedForSixteenBitOutputsNorByTheReference) {
  const std::unique_ptr<Device> cpu = make_cpu_device(), reference = make_reference_device(kFloat32);
  const auto part = [](Device& device, DType out) {
    return AttentionOutput{ops::zeros(device, {1, 1, 1, 1}, out), ops::zeros(device, {1, 1, 1}, kFloat32)};
  };
  EXPECT_FALSE(ops::fused_softmax_merge(part(*cpu, kBFloat16), part(*cpu, kBFloat16)).has_value());
  EXPECT_FALSE(ops::fused_softmax_merge(part(*reference, kFloat32), part(*reference, kFloat32)).has_value());
}

TEST(FusedSoftmaxMerge, RejectsPartsOfUnlikeShapes) {
  const std::unique_ptr<Device> cpu = make_cpu_device();
  const auto part = [&](std::int64_t tokens, std::int64_t log_tokens) {
    return AttentionOutput{ops::zeros(*cpu, {1, tokens, 2, 4}, kFloat32),
                           ops::zeros(*cpu, {1, log_tokens, 2}, kFloat32)};
  };
  EXPECT_EQ(thrown_by([&] { ops::fused_softmax_merge(part(3, 3), part(4, 4)); }),
            thrown(ErrorKind::shape_error,
                   "softmax_merge of float32 [1, 3, 2, 4] with float32 [1, 3, 2] and float32 [1, 4, 2, 4] with "
                   "float32 [1, 4, 2]: expected outputs [.., head_dim] and [..]"));
  EXPECT_EQ(thrown_by([&] { ops::fused_softmax_merge(part(3, 4), part(3, 4)); }),
            thrown(ErrorKind::shape_error,
                   "softmax_merge of float32 [1, 3, 2, 4] with float32 [1, 4, 2] and float32 [1, 3, 2, 4] with "
                   "float32 [1, 4, 2]: expected outputs [.., head_dim] and [..]"));
}

}  // namespace
}  // namespace shardproof::test
