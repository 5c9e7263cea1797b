// Dyadic attention: one answer to the last bit in any order of merges and any division of the keys, where the natural
// exponent has several.
#include "reference/dyadic_device.h"

#include <array>
#include <bit>
#include <memory>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/random.h"
#include "parallel/softmax_merge.h"
#include "sim/cpu_device.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

constexpr std::int64_t kKeys = 24, kWidth = 4;

// Whole numbers -2..2 for q and k, of which two channels count, and -7..7 for v: [1, tokens, 2, width].
std::vector<double> drawn(std::string_view name, std::int64_t tokens, std::int64_t largest, std::int64_t channels) {
  const RandomStream random(3, name);
  std::vector<double> values(static_cast<std::size_t>(tokens * 2 * kWidth));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool counts = static_cast<std::int64_t>(i) % kWidth < channels;
    values[i] = counts ? static_cast<double>(random.below(i, 2 * largest + 1) - largest) : 0.0;
  }
  return values;
}

struct Operands {
  Tensor q, k, v;
};

Operands operands(Device& device, DType dtype) {
  const auto load = [&](const std::vector<double>& values, std::int64_t tokens) {
    return device.upload(std::as_bytes(std::span(values)), {1, tokens, 2, kWidth}, dtype);
  };
  return {load(drawn("q", 5, 2, 2), 5), load(drawn("k", kKeys, 2, kWidth), kKeys),
          load(drawn("v", kKeys, 7, kWidth), kKeys)};
}

// Attention in chunks of keys that end at the given places, merged one after the other.
std::vector<double> in_chunks(const Operands& x, std::initializer_list<std::int64_t> ends) {
  AttentionOutput sum;
  std::int64_t start = 0;
  for (const std::int64_t end : ends) {
    const AttentionOutput part =
        ops::attention(x.q, x.k.narrow(1, start, end - start), x.v.narrow(1, start, end - start), {}, 1.0);
    sum = start == 0 ? part : merge_softmax(part, sum);
    start = end;
  }
  const Tensor out = ops::contiguous(ops::cast(sum.out, x.q.dtype()));
  std::vector<double> values(static_cast<std::size_t>(out.numel()));
  out.device().download(std::as_writable_bytes(std::span(values)), out);
  return values;
}

TEST(DyadicDevice, GivesTheSameBitsInEveryDivisionOfTheKeys) {
  const std::unique_ptr<Device> device = make_dyadic_device();
  const Operands x = operands(*device, dyadic_dtype(kFloat64));
  const std::vector<double> whole = in_chunks(x, {kKeys});
  EXPECT_EQ(in_chunks(x, {1, 2, 7, 8, kKeys}), whole);
  EXPECT_EQ(in_chunks(x, {12, 13, kKeys}), whole);
}

// The control: what the test above shows is not so by itself.
TEST(DyadicDevice, DoesWhatTheNaturalExponentDoesNot) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const Operands x = operands(*device, kFloat64);
  EXPECT_NE(in_chunks(x, {1, 2, 7, 8, kKeys}), in_chunks(x, {kKeys}));
}

TEST(DyadicDevice, DividesTheWeightedSumByTheWeights) {
  const std::unique_ptr<Device> device = make_dyadic_device();
  const DType type = dyadic_dtype(kFloat64);
  const auto load = [&](const std::vector<double>& values, const Shape& shape) {
    return device->upload(std::as_bytes(std::span(values)), shape, type);
  };
  // Logits 3 and 1: weights 1 and 1/4; 10 and 2.
  const AttentionOutput output =
      ops::attention(load({1}, {1, 1, 1, 1}), load({3, 1}, {1, 2, 1, 1}), load({10, 2}, {1, 2, 1, 1}), {}, 1.0);
  double out = 0.0;
  device->download(std::as_writable_bytes(std::span(&out, 1)), ops::cast(output.out, type));
  EXPECT_EQ(out, 10.5 / 1.25);
}

TEST(DyadicDevice, GivesZeroWhereAllKeysAreMasked) {
  const std::unique_ptr<Device> device = make_dyadic_device();
  const Operands x = operands(*device, dyadic_dtype(kFloat64));
  const std::vector<std::byte> none(static_cast<std::size_t>(kKeys));
  const Tensor mask = device->upload(none, {1, 1, 1, kKeys}, kBool);
  const AttentionOutput masked = ops::attention(x.q, x.k, x.v, mask, 1.0);
  const AttentionOutput merged = merge_softmax(masked, ops::attention(x.q, x.k, x.v, {}, 1.0));
  std::vector<double> of_masked(40), of_merged(40);
  device->download(std::as_writable_bytes(std::span(of_masked)), ops::cast(masked.out, x.q.dtype()));
  device->download(std::as_writable_bytes(std::span(of_merged)), ops::contiguous(ops::cast(merged.out, x.q.dtype())));
  EXPECT_EQ(of_masked, std::vector<double>(40, 0.0));
  EXPECT_EQ(of_merged, in_chunks(x, {kKeys}));
}

TEST(DyadicDevice, RefusesOtherTypesAndScales) {
  EXPECT_EQ(dyadic_precision(kFloat64), 53);
  EXPECT_EQ(dyadic_precision(kFloat32), 24);
  EXPECT_EQ(thrown_by([] { dyadic_dtype(kBFloat16); }),
            thrown(ErrorKind::type_error, "no dyadic values of bfloat16; expected float64 or float32"));
  const std::unique_ptr<Device> device = make_dyadic_device();
  const Operands x = operands(*device, dyadic_dtype(kFloat64));
  EXPECT_EQ(thrown_by([&] { ops::attention(x.q, x.k, x.v, {}, 0.5); }),
            thrown(ErrorKind::unsupported_error, "dyadic attention takes integer logits and scale 1, not 0.5"));
  EXPECT_EQ(thrown_by([&] { ops::add(x.q, x.q); }).value().kind, ErrorKind::unsupported_error);
}

}  // namespace
}  // namespace shardproof::test
