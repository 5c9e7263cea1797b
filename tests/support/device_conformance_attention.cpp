// Laws about attention: sizes around tile edges and zero, memory layouts, masks of every kind, rows without keys, large
// logits, poison, refusals.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/ops.h"
#include "tests/support/device_conformance.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
  std::int64_t batch, queries, keys, heads, width;
  Shape query_shape() const { return {batch, queries, heads, width}; }
  Shape key_shape() const { return {batch, keys, heads, width}; }
  std::string text() const { return query_shape().text() + " with " + std::to_string(keys) + " keys"; }
};

struct Problem {
  Operand q, k, v, mask;
  double scale = 1.0;
};

Problem problem(Device& device, DType type, const Sizes& sizes, double deviation = 1.5) {
  Problem result;
  result.q = operand(device, random_array(sizes.query_shape(), 71, "q", deviation), type);
  result.k = operand(device, random_array(sizes.key_shape(), 72, "k", deviation), type);
  result.v = operand(device, random_array(sizes.key_shape(), 73, "v"), type);
  result.scale = 1.0 / std::sqrt(static_cast<double>(sizes.width));
  return result;
}

double largest_finite(const Tensor& tensor) {
  return tensor.defined() && tensor.dtype() != kBool ? max_magnitude(to_host(tensor)) : 0.0;
}

// The largest sum over channels of |scale q k| for any query and key: the size of what a logit is summed from.
double largest_logit_sum(const Problem& problem) {
  const HostArray q = to_host(problem.q.reference), k = to_host(problem.k.reference);
  const std::int64_t width = q.shape[3];
  const auto largest_rows = [&](const HostArray& x) {
    double largest = 0;
    for (std::size_t row = 0; width > 0 && row < x.values.size() / static_cast<std::size_t>(width); ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i) {
        const double value = x.values[row * static_cast<std::size_t>(width) + i];
        sum += value * value;
      }
      largest = std::max(largest, sum);
    }
    return std::sqrt(largest);
  };
  return std::abs(problem.scale) * largest_rows(q) * largest_rows(k);
}

// With u the roundoff of arithmetic and L the size of a logit, its mask included: a logit is off by at most
// e = (width + 3) u L. A weight exp(logit - maximum) is off by a factor of at most 1 + 2 e + 6 u, the sums over n keys
// and the rescaling of tiles by 1 + (n + 8) u each. So the result is off by at most (4 e + (2 n + 28) u) max|v|, and
// the log-sum-exp by e + (n + 14) u and a rounding of itself. Inputs and outputs are not rounded to the storage type,
// but by devices that say so: there each weight and the result are off by half a unit of it once more.
void expect_attention(Device& device, DType type, const Problem& problem, const std::string& what) {
  const AttentionOutput actual =
      device.attention(problem.q.tested, problem.k.tested, problem.v.tested, problem.mask.tested, problem.scale);
  const AttentionOutput expected = reference_device().attention(
      problem.q.reference, problem.k.reference, problem.v.reference, problem.mask.reference, problem.scale);
  EXPECT_EQ(actual.out.dtype(), wide_dtype(type)) << what;
  EXPECT_EQ(actual.lse.dtype(), log_dtype(type)) << what;
  const double u = arithmetic_roundoff(type), keys = static_cast<double>(problem.k.tested.size(1));
  const double logit = largest_logit_sum(problem) + largest_finite(problem.mask.reference);
  const double logit_error = (static_cast<double>(problem.q.tested.size(3)) + 3) * u * logit;
  const double kernel_error = attention_rounds_to_storage(device, type) ? 2 * storage_roundoff(type) : 0;
  const double out_error =
      (4 * logit_error + (2 * keys + 28) * u + kernel_error) * max_magnitude(to_host(problem.v.reference));
  const HostArray lse = to_host(expected.lse);
  expect_within(to_host(actual.out), to_host(expected.out), [&](std::size_t) { return out_error; }, what + ": out");
  expect_within(
      to_host(actual.lse), lse,
      [&](std::size_t i) { return logit_error + (keys + 14) * u + 2 * u * std::abs(lse.values[i]); }, what + ": lse");
}

constexpr std::array kSizes{
    Sizes{1, 1, 1, 1, 1},    Sizes{2, 5, 3, 3, 4},     Sizes{1, 16, 16, 4, 8},    Sizes{1, 13, 7, 5, 33},
    Sizes{2, 1, 130, 2, 64}, Sizes{1, 129, 128, 2, 9}, Sizes{1, 128, 257, 1, 16}, Sizes{1, 300, 1, 1, 7},
};

void attends_over_a_grid_of_sizes(Device& device, DType type) {
  for (const Sizes& sizes : kSizes) expect_attention(device, type, problem(device, type, sizes), sizes.text());
}

void attends_to_and_from_nothing(Device& device, DType type) {
  for (const Sizes& sizes :
       {Sizes{2, 3, 0, 2, 4}, Sizes{2, 0, 3, 2, 4}, Sizes{0, 3, 3, 2, 4}, Sizes{1, 3, 3, 0, 4}, Sizes{1, 0, 0, 1, 4}}) {
    const Problem nothing = problem(device, type, sizes);
    expect_attention(device, type, nothing, sizes.text());
    const AttentionOutput output =
        device.attention(nothing.q.tested, nothing.k.tested, nothing.v.tested, Tensor(), 1.0);
    EXPECT_EQ(output.out.shape(), sizes.query_shape());
    EXPECT_EQ(output.lse.shape(), (Shape{sizes.batch, sizes.queries, sizes.heads}));
    if (sizes.keys > 0) continue;
    for (const double value : to_host(output.out).values) EXPECT_EQ(value, 0);
    for (const double value : to_host(output.lse).values) EXPECT_EQ(value, -kInfinity);
  }
}

void attends_in_every_layout_with_the_same_bits(Device& device, DType type) {
  for (const Sizes& sizes : {Sizes{2, 5, 7, 3, 6}, Sizes{1, 40, 70, 2, 16}}) {
    Problem plain = problem(device, type, sizes);
    const AttentionOutput expected =
        device.attention(plain.q.tested, plain.k.tested, plain.v.tested, Tensor(), plain.scale);
    for (const Layout layout_q : kLayouts) {
      for (const Layout layout_kv : kLayouts) {
        const Tensor q = laid_out(device, plain.q.tested, layout_q);
        const AttentionOutput actual =
            device.attention(q, laid_out(device, plain.k.tested, layout_kv),
                             laid_out(device, plain.v.tested, layout_kv), Tensor(), plain.scale);
        EXPECT_TRUE(bitwise_equal(actual.out, expected.out)) << sizes.text();
        EXPECT_TRUE(bitwise_equal(actual.lse, expected.lse)) << sizes.text();
      }
    }
  }
}

void returns_the_memory_order_of_the_queries(Device& device, DType type) {
  const Problem plain = problem(device, type, {2, 5, 7, 3, 4});
  // Stored as [tokens, batch, heads, d], as it comes out of an exchange.
  const Tensor q = device.empty({5, 2, 3, 4}, type).permute({1, 0, 2, 3});
  device.copy(q, plain.q.tested);
  const AttentionOutput output = device.attention(q, plain.k.tested, plain.v.tested, Tensor(), plain.scale);
  EXPECT_EQ(output.out.strides(), q.strides());
  EXPECT_EQ(output.out.shape(), q.shape());
}

// Which of batch, heads and queries a mask has for itself.
constexpr std::array<std::array<bool, 3>, 6> kMaskAxes{{{false, false, false},
                                                        {true, false, false},
                                                        {true, true, false},
                                                        {true, false, true},
                                                        {false, false, true},
                                                        {true, true, true}}};

Shape mask_shape(const Sizes& sizes, const std::array<bool, 3>& axes) {
  return {axes[0] ? sizes.batch : 1, axes[1] ? sizes.heads : 1, axes[2] ? sizes.queries : 1, sizes.keys};
}

constexpr std::array kMaskedSizes{Sizes{2, 5, 7, 3, 4}, Sizes{2, 33, 140, 2, 16}, Sizes{2, 130, 9, 1, 8}};

void applies_boolean_masks(Device& device, DType type) {
  for (const Sizes& sizes : kMaskedSizes) {
    for (const auto& axes : kMaskAxes) {
      Problem masked = problem(device, type, sizes);
      HostArray mask = random_array(mask_shape(sizes, axes), 74, "mask");
      for (double& value : mask.values) value = value > 0.3 ? 1 : 0;
      // Without any key: the first row of the mask. With the first key only: its last row.
      std::fill_n(mask.values.begin(), sizes.keys, 0.0);
      std::fill_n(mask.values.end() - sizes.keys, sizes.keys, 0.0);
      if (mask.values.size() > static_cast<std::size_t>(sizes.keys)) mask.values[mask.values.size() - 1] = 1;
      const Tensor plain = to_device(device, mask, kBool);
      masked.mask.reference = to_device(reference_device(), mask, kBool);
      for (const Layout layout : kLayouts) {
        masked.mask.tested = laid_out(device, plain, layout);
        expect_attention(device, type, masked, sizes.text() + " mask " + mask.shape.text());
      }
    }
  }
}

void applies_additive_masks(Device& device, DType type) {
  for (const Sizes& sizes : kMaskedSizes) {
    for (const auto& axes : kMaskAxes) {
      for (const DType mask_type : {type, log_dtype(type)}) {
        Problem masked = problem(device, type, sizes);
        HostArray mask = random_array(mask_shape(sizes, axes), 75, "mask", 2.0);
        for (std::size_t i = 0; i < mask.values.size(); ++i) {
          if (i % 4 == 1) mask.values[i] = -kInfinity;
        }
        std::fill_n(mask.values.begin(), sizes.keys, -kInfinity);
        masked.mask = operand(device, mask, mask_type);
        for (const Layout layout : {Layout::contiguous, Layout::framed, Layout::spaced}) {
          const Tensor plain = masked.mask.tested;
          masked.mask.tested = laid_out(device, plain, layout);
          expect_attention(device, type, masked, sizes.text() + " additive mask " + mask.shape.text());
        }
      }
    }
  }
}

void treats_large_finite_biases_as_numbers(Device& device, DType type) {
  const Sizes sizes{2, 5, 140, 2, 8};
  const double lowest = type == kFloat64   ? -std::numeric_limits<double>::max()
                        : type == kFloat16 ? -65504.0
                                           : -static_cast<double>(std::numeric_limits<float>::max()) * 0.99;
  for (const double bias : {-1e4, -5e4, lowest}) {
    Problem biased = problem(device, type, sizes);
    HostArray mask({2, 1, 1, sizes.keys});
    // Item 0: all keys are biased, so the bias cancels. Item 1: the biased keys vanish beside the others.
    for (std::int64_t key = 0; key < sizes.keys; ++key) {
      mask.at({0, 0, 0, key}) = bias;
      mask.at({1, 0, 0, key}) = key % 3 == 0 ? 0 : bias;
    }
    biased.mask = operand(device, mask, type);
    const AttentionOutput output =
        device.attention(biased.q.tested, biased.k.tested, biased.v.tested, biased.mask.tested, biased.scale);
    for (const double value : to_host(output.out).values) EXPECT_TRUE(std::isfinite(value)) << bias;
    for (const double value : to_host(output.lse).values) EXPECT_TRUE(std::isfinite(value)) << bias;
    // Item 1 against the same attention over the other keys alone.
    Problem others = problem(device, type, sizes);
    HostArray keep({2, 1, 1, sizes.keys});
    for (std::size_t i = 0; i < keep.values.size(); ++i)
      keep.values[i] = i % static_cast<std::size_t>(sizes.keys) % 3 == 0;
    const AttentionOutput kept = device.attention(others.q.tested, others.k.tested, others.v.tested,
                                                  to_device(device, keep, kBool), others.scale);
    EXPECT_TRUE(bitwise_equal(output.out.narrow(0, 1, 1), kept.out.narrow(0, 1, 1))) << bias;
    EXPECT_TRUE(bitwise_equal(output.lse.narrow(0, 1, 1), kept.lse.narrow(0, 1, 1))) << bias;
  }
}

void stays_finite_for_large_logits(Device& device, DType type) {
  for (const double deviation : {6.0, 30.0}) {
    const Sizes sizes{1, 33, 150, 2, 16};
    const Problem extreme = problem(device, type, sizes, deviation);
    EXPECT_GT(largest_logit_sum(extreme), 150);
    expect_attention(device, type, extreme, "logits of deviation " + std::to_string(deviation));
  }
}

// One key leads by more than any type resolves, so attention is a look-up of its value, bit for bit.
void looks_up_values_by_hard_probes(Device& device, DType type) {
  const std::int64_t keys = 200, width = 16;
  HostArray q({1, keys, 1, width}), k({1, keys, 1, width});
  for (std::int64_t i = 0; i < keys; ++i) {
    // Keys are corners of a cube; the query repeats the corner of key 7 i mod 200, and every other corner differs in a
    // coordinate at least, by 2 * 64 in the logit.
    const std::int64_t target = i * 7 % keys;
    for (std::int64_t bit = 0; bit < width; ++bit) {
      k.at({0, i, 0, bit}) = (i >> bit & 1) != 0 ? 1 : -1;
      q.at({0, i, 0, bit}) = (target >> bit & 1) != 0 ? 64 : -64;
    }
  }
  const Tensor v = to_device(device, random_array({1, keys, 1, width}, 76, "v"), type);
  const AttentionOutput output =
      device.attention(to_device(device, q, type), to_device(device, k, type), v, Tensor(), 1);
  HostArray index(Shape{keys});
  for (std::int64_t i = 0; i < keys; ++i) index.at({i}) = static_cast<double>(i * 7 % keys);
  const Tensor rows = device.gather_rows(v.view({keys, width}), to_device(device, index, kInt64));
  EXPECT_TRUE(bitwise_equal(output.out.view({keys, width}), ops::cast(rows, wide_dtype(type))));
}

void propagates_poison_but_not_from_masked_keys(Device& device, DType type) {
  const Sizes sizes{1, 3, 5, 2, 4};
  const auto all_nan = [](const Tensor& tensor) {
    const HostArray array = to_host(tensor);
    return std::all_of(array.values.begin(), array.values.end(), [](double value) { return std::isnan(value); });
  };
  const Problem plain = problem(device, type, sizes);
  const Tensor poisoned_q = device.poisoned(sizes.query_shape(), type),
               poison = device.poisoned(sizes.key_shape(), type);
  const AttentionOutput of_q = device.attention(poisoned_q, plain.k.tested, plain.v.tested, Tensor(), 1);
  EXPECT_TRUE(all_nan(of_q.out));
  EXPECT_TRUE(all_nan(of_q.lse));
  EXPECT_TRUE(all_nan(device.attention(plain.q.tested, poison, plain.v.tested, Tensor(), 1).out));
  EXPECT_TRUE(all_nan(device.attention(plain.q.tested, plain.k.tested, poison, Tensor(), 1).out));
  for (const DType mask_type : {kBool, type}) {
    const Tensor mask = device.poisoned({1, 1, 1, 5}, mask_type);
    EXPECT_TRUE(all_nan(device.attention(plain.q.tested, plain.k.tested, plain.v.tested, mask, 1).out));
  }
  // One poisoned key, masked away: its weight is 0 whatever its logit.
  const Tensor k = ops::concat({plain.k.tested.narrow(1, 0, 4), poison.narrow(1, 0, 1)}, 1);
  HostArray keep({1, 1, 1, 5}, 1), bias({1, 1, 1, 5});
  keep.values[4] = 0;
  bias.values[4] = -kInfinity;
  const Tensor expected = device.attention(plain.q.tested, k, plain.v.tested, to_device(device, keep, kBool), 1).out;
  EXPECT_FALSE(std::isnan(to_host(expected).values[0]));
  EXPECT_TRUE(bitwise_equal(device.attention(plain.q.tested, k, plain.v.tested, to_device(device, bias, type), 1).out,
                            expected));
  // A poisoned value is an error even with weight 0.
  const Tensor v = ops::concat({plain.v.tested.narrow(1, 0, 4), poison.narrow(1, 0, 1)}, 1);
  EXPECT_TRUE(all_nan(device.attention(plain.q.tested, k, v, to_device(device, keep, kBool), 1).out));
}

void refuses_attention_that_does_not_fit(Device& device, DType type) {
  const std::string name(type.name());
  const auto make = [&](const Shape& shape, DType of) { return to_device(device, HostArray(shape), of); };
  const Tensor q = make({1, 2, 3, 4}, type), k = make({1, 5, 3, 4}, type);
  const auto error = [&](const Tensor& of_q, const Tensor& of_k, const Tensor& of_v, const Tensor& mask) {
    return thrown_by([&] { device.attention(of_q, of_k, of_v, mask, 1); });
  };
  EXPECT_EQ(
      error(q.view({2, 3, 4}), k, k, Tensor()),
      thrown(ErrorKind::shape_error, "attention expects [batch, tokens, heads, head_dim], got " + name + " [2, 3, 4]"));
  EXPECT_EQ(error(q, make({1, 5, 2, 4}, type), make({1, 5, 2, 4}, type), Tensor()),
            thrown(ErrorKind::shape_error, "attention of q " + name + " [1, 2, 3, 4], k " + name + " [1, 5, 2, 4], v " +
                                               name + " [1, 5, 2, 4]: batch, heads and head_dim must agree"));
  EXPECT_EQ(error(q, k, k.narrow(1, 0, 4), Tensor())->kind, ErrorKind::shape_error);
  EXPECT_EQ(error(q, make({1, 5, 3, 4}, kInt64), k, Tensor()),
            thrown(ErrorKind::type_error, "attention is not defined for int64 [1, 5, 3, 4]"));
  EXPECT_EQ(error(q, k, k, make({1, 1, 1, 5}, kInt64)),
            thrown(ErrorKind::type_error, "attention mask int64 [1, 1, 1, 5] must be bool or of q's type " + name));
  EXPECT_EQ(error(q, k, k, make({1, 5}, kBool)),
            thrown(ErrorKind::shape_error, "attention mask bool [1, 5] must be [batch|1, heads|1, queries|1, keys]"));
  EXPECT_EQ(error(q, k, k, make({1, 1, 1, 4}, kBool)),
            thrown(ErrorKind::shape_error, "attention mask bool [1, 1, 1, 4] does not cover 5 keys"));
  EXPECT_EQ(error(q, k, k, make({1, 1, 3, 5}, kBool)),
            thrown(ErrorKind::shape_error, "cannot expand bool [1, 1, 3, 5] to [1, 3, 2, 5]"));
  const DType other = type == kFloat64 ? kFloat32 : kFloat64;
  EXPECT_EQ(error(q, make({1, 5, 3, 4}, other), k, Tensor()),
            thrown(ErrorKind::type_error, "attention of different element types: " + name + " [1, 2, 3, 4] and " +
                                              std::string(other.name()) + " [1, 5, 3, 4]"));
}

void refuses_to_attend_with_memory_in_flight(Device& device, DType type) {
  const Tensor q = to_device(device, HostArray({1, 2, 1, 4}), type),
               k = to_device(device, HostArray({1, 2, 1, 4}), type);
  const Tensor mask = to_device(device, HostArray({1, 1, 1, 2}, 1), kBool);
  const auto attend = [&] { device.attention(q, k, q, mask, 1); };
  for (const Tensor* pending : {&q, &k, &mask}) {
    pending->storage()->receive_pending = 1;
    EXPECT_EQ(thrown_by(attend),
              thrown(ErrorKind::state_error, "attention: " + pending->text() +
                                                 " is used while it is still being received; wait for the operation "
                                                 "that fills it first"));
    pending->storage()->receive_pending = 0;
  }
  EXPECT_EQ(thrown_by(attend), std::nullopt);
}

}  // namespace

std::vector<DeviceLaw> device_attention_laws() {
  return {
      {"AttendsOverAGridOfSizes", attends_over_a_grid_of_sizes},
      {"AttendsToAndFromNothing", attends_to_and_from_nothing},
      {"AttendsInEveryLayoutWithTheSameBits", attends_in_every_layout_with_the_same_bits},
      {"ReturnsTheMemoryOrderOfTheQueries", returns_the_memory_order_of_the_queries},
      {"AppliesBooleanMasks", applies_boolean_masks},
      {"AppliesAdditiveMasks", applies_additive_masks},
      {"TreatsLargeFiniteBiasesAsNumbers", treats_large_finite_biases_as_numbers},
      {"StaysFiniteForLargeLogits", stays_finite_for_large_logits},
      {"LooksUpValuesByHardProbes", looks_up_values_by_hard_probes},
      {"PropagatesPoisonButNotFromMaskedKeys", propagates_poison_but_not_from_masked_keys},
      {"RefusesAttentionThatDoesNotFit", refuses_attention_that_does_not_fit},
      {"RefusesToAttendWithMemoryInFlight", refuses_to_attend_with_memory_in_flight},
  };
}

}  // namespace shardproof::test
