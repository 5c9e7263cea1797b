// Laws about element-wise operations, sums and matrix products: each against the float64 reference within a derived
// error, exact where exactness can be had, and the refusals.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/ops.h"
#include "tests/support/device_conformance.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::array kUnaryOps{UnaryOp::silu,    UnaryOp::gelu, UnaryOp::gelu_tanh,
                               UnaryOp::sigmoid, UnaryOp::tanh, UnaryOp::rsqrt};
constexpr std::array kBasicOps{BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div};

HostArray numbers(std::vector<double> values) {
  HostArray array(Shape{static_cast<std::int64_t>(values.size())});
  array.values = std::move(values);
  return array;
}

HostArray absolute(HostArray array) {
  for (double& value : array.values) value = std::abs(value);
  return array;
}

// Every element function is a few operations, each within 4 roundoffs of the exact one, whose error reaches the result
// by a factor of at most 1; where 1 + erf or 1 + tanh cancels, the error stays one of x (0.4 is the largest value of
// t exp(-t), by which an error of the argument of an exponential reaches the result). rsqrt, sigmoid and tanh are
// accurate relative to their result. Below 2^-100 the result may be flushed to 0, and float16 is spaced by 2^-24 there.
double allowed_of_function(UnaryOp op, double x, double result, DType type) {
  const bool scales_with_x = op == UnaryOp::silu || op == UnaryOp::gelu || op == UnaryOp::gelu_tanh;
  const double size = scales_with_x ? std::abs(x) : std::abs(result);
  return storage_roundoff(type) * std::abs(result) + 8 * arithmetic_roundoff(type) * size +
         (type == kFloat16 ? 0x1p-25 : 0x1p-100);
}

void expect_function(Device& device, UnaryOp op, const Operand& x, DType type) {
  const HostArray expected = to_host(reference_device().unary(op, x.reference));
  const HostArray arguments = to_host(x.reference);
  expect_within(
      to_host(device.unary(op, x.tested)), expected,
      [&](std::size_t i) { return allowed_of_function(op, arguments.values[i], expected.values[i], type); },
      std::string(op_name(op)) + " of " + x.tested.text());
}

void computes_element_functions(Device& device, DType type) {
  HostArray sweep(Shape{2001});
  for (std::size_t i = 0; i < sweep.values.size(); ++i) sweep.values[i] = (static_cast<double>(i) - 1000) / 50;
  for (const UnaryOp op : kUnaryOps) {
    HostArray values = sweep;
    if (op == UnaryOp::rsqrt) {
      for (double& value : values.values) value = std::exp(value / 4);
    }
    expect_function(device, op, operand(device, values, type), type);
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{0}, Shape{7, 3}, Shape{2, 0, 5}, Shape{3, 5, 2, 9}}) {
      HostArray random = random_array(shape, 11, op_name(op), 2.0);
      if (op == UnaryOp::rsqrt) {
        for (double& value : random.values) value = value * value + 0.125;
      }
      Operand x = operand(device, random, type);
      const Tensor contiguous = x.tested;
      for (const Layout layout : kLayouts) {
        x.tested = laid_out(device, contiguous, layout);
        expect_function(device, op, x, type);
      }
    }
  }
}

void computes_large_arrays_as_small_ones(Device& device, DType type) {
  // Larger than any threshold beyond which a device cuts work into pieces.
  const Tensor x = operand(device, random_array({700, 1031}, 5, "large"), type).tested;
  const Tensor y = operand(device, random_array({1, 1031}, 6, "row"), type).tested;
  for (const UnaryOp op : {UnaryOp::silu, UnaryOp::gelu_tanh}) {
    const Tensor whole = device.unary(op, x);
    EXPECT_TRUE(bitwise_equal(whole.narrow(0, 333, 1), device.unary(op, x.narrow(0, 333, 1))));
  }
  const Tensor line = x.view({700 * 1031}), spaced = laid_out(device, line, Layout::spaced);
  EXPECT_TRUE(bitwise_equal(device.unary(UnaryOp::silu, spaced), device.unary(UnaryOp::silu, line)));
  const Tensor squares = device.binary(BinaryOp::mul, line, line);
  EXPECT_TRUE(bitwise_equal(device.binary(BinaryOp::mul, spaced, line), squares));
  EXPECT_TRUE(bitwise_equal(device.binary(BinaryOp::mul, line, spaced), squares));
  EXPECT_TRUE(bitwise_equal(device.binary(BinaryOp::mul, spaced, y.narrow(1, 0, 1).squeeze(0)),
                            device.binary(BinaryOp::mul, line, y.narrow(1, 0, 1).squeeze(0))));
  EXPECT_TRUE(bitwise_equal(device.binary(BinaryOp::mul, x, y).narrow(0, 699, 1),
                            device.binary(BinaryOp::mul, x.narrow(0, 699, 1), y)));
  EXPECT_TRUE(bitwise_equal(device.reduce(ReduceOp::mean, x).narrow(0, 600, 100),
                            device.reduce(ReduceOp::mean, x.narrow(0, 600, 100))));
}

void clamps_infinities_and_nothing_else(Device& device, DType type) {
  const double largest = type == kFloat64    ? std::numeric_limits<double>::max()
                         : type == kFloat32  ? static_cast<double>(std::numeric_limits<float>::max())
                         : type == kBFloat16 ? 0x1.FEp127
                                             : 65504.0;
  HostArray values(Shape{7});
  values.values = {0, -1.5, 0x1p-14, largest, -largest, kInfinity, -kInfinity};
  const Tensor clamped = device.unary(UnaryOp::clamp_finite, to_device(device, values, type));
  values.values[5] = largest;
  values.values[6] = -largest;
  EXPECT_EQ(to_host(clamped).values, values.values);
}

void keeps_limits_of_element_functions(Device& device, DType type) {
  const auto values_of = [&](UnaryOp op, std::vector<double> values) {
    return to_host(device.unary(op, to_device(device, numbers(std::move(values)), type))).values;
  };
  EXPECT_EQ(values_of(UnaryOp::silu, {0, 1000, -1000}), (std::vector<double>{0, 1000, 0}));
  EXPECT_EQ(values_of(UnaryOp::gelu, {0, 1000, -1000}), (std::vector<double>{0, 1000, 0}));
  EXPECT_EQ(values_of(UnaryOp::gelu_tanh, {0, 1000, -1000}), (std::vector<double>{0, 1000, 0}));
  EXPECT_EQ(values_of(UnaryOp::sigmoid, {0, 1000, -1000, kInfinity, -kInfinity}),
            (std::vector<double>{0.5, 1, 0, 1, 0}));
  EXPECT_EQ(values_of(UnaryOp::tanh, {0, 1000, -1000, kInfinity, -kInfinity}), (std::vector<double>{0, 1, -1, 1, -1}));
  EXPECT_EQ(values_of(UnaryOp::rsqrt, {4, 0.25, 0, kInfinity}), (std::vector<double>{0.5, 2, kInfinity, 0}));
  EXPECT_TRUE(std::isnan(values_of(UnaryOp::rsqrt, {-1})[0]));
}

// One rounding of the exact result. The device may compute in a wider type (float64 in the reference, float32 for the
// 16-bit types): with 2p + 2 bits the second rounding changes nothing, so the bits must agree.
void computes_basic_operations_with_one_rounding(Device& device, DType type) {
  const std::vector<std::pair<Shape, Shape>> shapes = {{{}, {}},
                                                       {{5}, {}},
                                                       {{7}, {7}},
                                                       {{0}, {1}},
                                                       {{3, 1, 9}, {2, 1}},
                                                       {{2, 3, 4}, {1, 3, 1}},
                                                       {{1, 1, 6}, {4, 5, 6}},
                                                       {{2, 5, 3, 8}, {8}},
                                                       {{2, 5, 3, 8}, {2, 1, 1, 8}},
                                                       {{2, 7, 1}, {2, 7, 5}},
                                                       {{3, 0}, {3, 1}}};
  for (const BinaryOp op : kBasicOps) {
    for (const auto& [shape_x, shape_y] : shapes) {
      HostArray right = random_array(shape_y, 22, "y");
      for (double& value : right.values) value += value < 0 ? -0.25 : 0.25;
      const Operand x = operand(device, random_array(shape_x, 21, "x"), type);
      const Operand y = operand(device, right, type);
      const Tensor exact = reference_device().binary(op, x.reference, y.reference);
      const HostArray expected = to_host(ops::cast(exact, type));
      for (const Layout layout_x : kLayouts) {
        for (const Layout layout_y : kLayouts) {
          const Tensor result =
              device.binary(op, laid_out(device, x.tested, layout_x), laid_out(device, y.tested, layout_y));
          EXPECT_EQ(result.dtype(), type);
          EXPECT_EQ(result.shape(), broadcast_shapes(shape_x, shape_y));
          EXPECT_EQ(to_host(result).values, expected.values)
              << op_name(op) << " of " << shape_x.text() << ", " << shape_y.text();
        }
      }
    }
  }
}

void computes_with_log_sum_exps(Device& device, DType type) {
  const DType log_type = log_dtype(type);
  const double u = arithmetic_roundoff(type);
  std::vector<double> levels{-kInfinity, -1e9, -1e4, -88.5, -20, -1, -0x1p-20, 0, 0.5, 3, 15, 87, 100, 1e4, 1e9};
  const Operand x = operand(device, numbers(levels), log_type);
  const Operand column{x.tested.unsqueeze(1), x.reference.unsqueeze(1)};
  const HostArray sums = to_host(reference_device().binary(BinaryOp::logaddexp, x.reference, column.reference));
  const HostArray weights = to_host(reference_device().binary(BinaryOp::lse_weight, x.reference, column.reference));
  expect_within(
      to_host(device.binary(BinaryOp::logaddexp, x.tested, column.tested)), sums,
      // max + log1p(exp(-d)): d is off by at most u d, which reaches the result by exp(-d) d <= 0.4; the functions are
      // accurate to 4 u and at most 0.7; the last addition rounds once more.
      [&](std::size_t i) { return u * (std::abs(sums.values[i]) + 4); }, "logaddexp");
  const Tensor tested = device.binary(BinaryOp::lse_weight, x.tested, column.tested);
  EXPECT_EQ(tested.dtype(), wide_dtype(log_type));
  // 1 / (1 + exp(d)): an error u |d| of the argument reaches the weight w by w (1 - w) |d| <= 0.3.
  expect_within(to_host(tested), weights, [&](std::size_t) { return 8 * u; }, "lse_weight");
}

void treats_empty_shards_as_nothing(Device& device, DType type) {
  const DType log_type = log_dtype(type);
  const Tensor x = to_device(device, numbers({-kInfinity, -kInfinity, 2, 2}), log_type);
  const Tensor y = to_device(device, numbers({-kInfinity, 2, -kInfinity, 2}), log_type);
  const std::vector<double> sums = to_host(device.binary(BinaryOp::logaddexp, x, y)).values;
  EXPECT_EQ(std::vector<double>(sums.begin(), sums.begin() + 3), (std::vector<double>{-kInfinity, 2, 2}));
  EXPECT_NEAR(sums[3], 2 + std::log(2.0), 4 * arithmetic_roundoff(type));
  EXPECT_EQ(to_host(device.binary(BinaryOp::lse_weight, x, y)).values, (std::vector<double>{0, 0, 1, 0.5}));
}

void propagates_poison(Device& device, DType type) {
  const Tensor poison = device.poisoned({5}, type);
  const Tensor ones = to_device(device, HostArray(Shape{5}, 1), type);
  const auto expect_nan = [](const Tensor& tensor, std::string_view what) {
    for (const double value : to_host(tensor).values) EXPECT_TRUE(std::isnan(value)) << what;
  };
  for (const UnaryOp op : kUnaryOps) expect_nan(device.unary(op, poison), op_name(op));
  expect_nan(device.unary(UnaryOp::clamp_finite, poison), "clamp_finite");
  for (const BinaryOp op : kBasicOps) {
    expect_nan(device.binary(op, poison, ones), op_name(op));
    expect_nan(device.binary(op, ones, poison), op_name(op));
  }
  const DType log_type = log_dtype(type);
  const Tensor log_poison = device.poisoned({2}, log_type);
  const Tensor logs = to_device(device, numbers({0, -kInfinity}), log_type);
  for (const BinaryOp op : {BinaryOp::logaddexp, BinaryOp::lse_weight}) {
    expect_nan(device.binary(op, log_poison, logs), op_name(op));
    expect_nan(device.binary(op, logs, log_poison), op_name(op));
  }
  const Tensor row = to_device(device, numbers({1, 2, kNan, 4}), type);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) expect_nan(device.reduce(op, row), op_name(op));
  const Tensor zeros = to_device(device, HostArray({3, 4}), type);
  expect_nan(device.matmul(row, zeros, Tensor()), "matmul");
  expect_nan(device.matmul(zeros, zeros, device.poisoned({3}, type)), "matmul with bias");
}

// A sum of n numbers in any order is within (n - 1) u times the sum of magnitudes; the mean divides once more.
void reduces_the_last_axis(Device& device, DType type) {
  for (const Shape& shape : {Shape{1}, Shape{17}, Shape{3, 5}, Shape{2, 3, 64}, Shape{5, 257}, Shape{2, 1031},
                             Shape{0, 3}, Shape{4, 2, 3, 7}}) {
    Operand x = operand(device, random_array(shape, 31, "sum"), type);
    const HostArray magnitudes = to_host(reference_device().reduce(
        ReduceOp::sum, to_device(reference_device(), absolute(to_host(x.reference)), kFloat64)));
    const Tensor contiguous = x.tested;
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
      const HostArray expected = to_host(reference_device().reduce(op, x.reference));
      const double count = static_cast<double>(shape.back()), parts = op == ReduceOp::mean ? count : 1;
      Tensor first;
      for (const Layout layout : kLayouts) {
        const Tensor result = device.reduce(op, laid_out(device, contiguous, layout));
        expect_within(
            to_host(result), expected,
            [&](std::size_t i) {
              return (count + 1) * arithmetic_roundoff(type) * magnitudes.values[i] / parts +
                     storage_roundoff(type) * std::abs(expected.values[i]);
            },
            std::string(op_name(op)) + " of " + contiguous.text());
        if (!first.defined()) first = result;
        EXPECT_TRUE(bitwise_equal(result, first)) << "the bits of a sum do not depend on the layout";
      }
    }
  }
  EXPECT_EQ(to_host(device.reduce(ReduceOp::sum, device.empty({2, 0}, type))).values, (std::vector<double>{0, 0}));
}

// |error| <= (k + 2) u (|x| |weight|^T + |bias|), then one rounding to the stored type.
void expect_product(Device& device, const Operand& x, const Operand& weight, const Operand& bias, DType type) {
  Device& reference = reference_device();
  const HostArray expected = to_host(reference.matmul(x.reference, weight.reference, bias.reference));
  const auto magnitude = [&](const Tensor& tensor) {
    return tensor.defined() ? to_device(reference, absolute(to_host(tensor)), kFloat64) : tensor;
  };
  const HostArray sizes =
      to_host(reference.matmul(magnitude(x.reference), magnitude(weight.reference), magnitude(bias.reference)));
  const double steps = static_cast<double>(x.tested.size(-1)) + 2;
  const Tensor result = device.matmul(x.tested, weight.tested, bias.tested);
  EXPECT_EQ(result.dtype(), type);
  expect_within(
      to_host(result), expected,
      [&](std::size_t i) {
        return steps * arithmetic_roundoff(type) * sizes.values[i] +
               storage_roundoff(type) * std::abs(expected.values[i]);
      },
      "matmul of " + x.tested.text() + " and " + weight.tested.text());
}

void multiplies_matrices(Device& device, DType type) {
  struct Sizes {
    Shape x;
    std::int64_t columns;
  };
  for (const Sizes& sizes :
       {Sizes{{1, 1}, 1}, Sizes{{7}, 5}, Sizes{{1, 33}, 65}, Sizes{{2, 3, 5}, 7}, Sizes{{5, 1}, 9}, Sizes{{3, 0}, 4},
        Sizes{{0, 4}, 3}, Sizes{{4, 3}, 0}, Sizes{{2, 0, 4}, 3}, Sizes{{17, 31}, 13}, Sizes{{70, 64}, 48},
        Sizes{{513, 19}, 257}, Sizes{{3, 600}, 300}, Sizes{{2, 2, 3, 8}, 8}}) {
    const std::int64_t depth = sizes.x.back();
    Operand x = operand(device, random_array(sizes.x, 41, "x"), type);
    Operand weight = operand(device, random_array({sizes.columns, depth}, 42, "weight"), type);
    const Operand bias = operand(device, random_array({sizes.columns}, 43, "bias"), type);
    const Tensor plain_x = x.tested, plain_weight = weight.tested;
    for (const Layout layout : kLayouts) {
      x.tested = laid_out(device, plain_x, layout);
      weight.tested = laid_out(device, plain_weight, layout);
      expect_product(device, x, weight, {}, type);
      expect_product(device, x, weight, bias, type);
    }
  }
}

// Sums of up to 100 products of -1, 0 and 1 are exact in every type and every order.
void multiplies_small_integers_exactly(Device& device, DType type) {
  for (const std::int64_t depth : {1, 8, 100}) {
    HostArray x({9, depth}), weight({11, depth}), bias(Shape{11});
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = static_cast<double>(i * 5 % 3) - 1;
    for (std::size_t i = 0; i < weight.values.size(); ++i) weight.values[i] = static_cast<double>(i * 7 % 5 % 3) - 1;
    for (std::size_t i = 0; i < bias.values.size(); ++i) bias.values[i] = static_cast<double>(i);
    HostArray expected({9, 11});
    for (std::int64_t i = 0; i < 9; ++i) {
      for (std::int64_t j = 0; j < 11; ++j) {
        expected.at({i, j}) = bias.at({j});
        for (std::int64_t p = 0; p < depth; ++p) expected.at({i, j}) += x.at({i, p}) * weight.at({j, p});
      }
    }
    const Tensor result =
        device.matmul(to_device(device, x, type), to_device(device, weight, type), to_device(device, bias, type));
    EXPECT_EQ(to_host(result).values, expected.values);
  }
}

// A rowwise shard of a weight is a view of it: columns [3, 8) of 12.
void multiplies_by_a_slice_of_a_weight(Device& device, DType type) {
  const Operand whole = operand(device, random_array({6, 12}, 51, "whole"), type);
  const Operand weight{whole.tested.narrow(1, 3, 5), whole.reference.narrow(1, 3, 5)};
  expect_product(device, operand(device, random_array({4, 5}, 52, "x"), type), weight, {}, type);
}

void gives_the_same_product_wherever_operands_lie(Device& device, DType type) {
  for (const std::int64_t size : {5, 40}) {
    const Tensor x = operand(device, random_array({size, size}, 61, "x"), type).tested;
    const Tensor weight = operand(device, random_array({size + 1, size}, 62, "weight"), type).tested;
    const Tensor expected = device.matmul(x, weight, Tensor());
    const Tensor actual =
        device.matmul(laid_out(device, x, Layout::framed), laid_out(device, weight, Layout::framed), Tensor());
    EXPECT_TRUE(bitwise_equal(actual, expected)) << size;
  }
}

void refuses_operands_that_do_not_fit(Device& device, DType type) {
  const std::string name(type.name());
  const Tensor x = to_device(device, HostArray({2, 3}), type);
  const Tensor integers = to_device(device, HostArray({2, 3}), kInt64);
  const Tensor flags = to_device(device, HostArray({2, 3}), kBool);
  EXPECT_EQ(thrown_by([&] { device.unary(UnaryOp::silu, integers); }),
            thrown(ErrorKind::type_error, "silu is not defined for int64 [2, 3]"));
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::add, flags, flags); }),
            thrown(ErrorKind::type_error, "add is not defined for bool [2, 3]"));
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::mul, x, integers); }),
            thrown(ErrorKind::type_error, "mul of different element types: " + name + " [2, 3] and int64 [2, 3]"));
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::sub, x, x.transpose(0, 1)); }),
            thrown(ErrorKind::shape_error, "shapes [2, 3] and [3, 2] do not broadcast"));
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::logaddexp, integers, integers); })->kind, ErrorKind::type_error);
  EXPECT_EQ(thrown_by([&] { device.reduce(ReduceOp::sum, integers); }),
            thrown(ErrorKind::type_error, "sum is not defined for int64 [2, 3]"));
  EXPECT_EQ(thrown_by([&] { device.reduce(ReduceOp::sum, to_device(device, HostArray(Shape{}), type)); }),
            thrown(ErrorKind::shape_error, "sum over the last axis of a scalar"));
  EXPECT_EQ(thrown_by([&] { device.reduce(ReduceOp::mean, x.narrow(1, 0, 0)); }),
            thrown(ErrorKind::shape_error, "mean over the empty last axis of " + name + " [2, 0]"));
  EXPECT_EQ(thrown_by([&] { device.matmul(x, x.transpose(0, 1), Tensor()); }),
            thrown(ErrorKind::shape_error, "matmul of " + name + " [2, 3] with weight " + name +
                                               " [3, 2]: the last axis must equal the weight's columns"));
  EXPECT_EQ(thrown_by([&] { device.matmul(x, integers, Tensor()); }),
            thrown(ErrorKind::type_error, "matmul of different element types: " + name + " [2, 3] and int64 [2, 3]"));
  EXPECT_EQ(thrown_by([&] { device.matmul(x, x, to_device(device, HostArray(Shape{3}), type)); }),
            thrown(ErrorKind::shape_error, "matmul with weight " + name + " [2, 3] and bias " + name + " [3]"));
  EXPECT_EQ(thrown_by([&] { device.matmul(x, x, to_device(device, HostArray(Shape{2}), kInt64)); }),
            thrown(ErrorKind::type_error, "matmul of different element types: " + name + " [2, 3] and int64 [2]"));
}

void refuses_16_bit_log_sum_exps(Device& device, DType type) {
  if (log_dtype(type) == type) return;
  const Tensor x = to_device(device, HostArray(Shape{2}), type);
  EXPECT_EQ(
      thrown_by([&] { device.binary(BinaryOp::lse_weight, x, x); }),
      thrown(ErrorKind::type_error, "lse_weight acts on log-sum-exps, not on " + std::string(type.name()) + " [2]"));
}

void refuses_to_compute_with_memory_in_flight(Device& device, DType type) {
  const Tensor x = to_device(device, HostArray({2, 2}), type);
  const Tensor y = to_device(device, HostArray({2, 2}), type);
  y.storage()->receive_pending = 1;
  const std::string message = ": " + std::string(type.name()) +
                              " [2, 2] is used while it is still being received; wait for the operation that fills it "
                              "first";
  EXPECT_EQ(thrown_by([&] { device.unary(UnaryOp::tanh, y); }), thrown(ErrorKind::state_error, "tanh" + message));
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::add, x, y); }), thrown(ErrorKind::state_error, "add" + message));
  EXPECT_EQ(thrown_by([&] { device.matmul(x, y, Tensor()); }), thrown(ErrorKind::state_error, "matmul" + message));
  EXPECT_EQ(thrown_by([&] { device.reduce(ReduceOp::mean, y); }), thrown(ErrorKind::state_error, "mean" + message));
  y.storage()->receive_pending = 0;
  y.storage()->send_in_flight = 1;
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::add, x, y); }), std::nullopt) << "reading what is sent is allowed";
  y.storage()->send_in_flight = 0;
}

}  // namespace

std::vector<DeviceLaw> device_arithmetic_laws() {
  return {
      {"ComputesElementFunctions", computes_element_functions},
      {"ComputesLargeArraysAsSmallOnes", computes_large_arrays_as_small_ones},
      {"ClampsInfinitiesAndNothingElse", clamps_infinities_and_nothing_else},
      {"KeepsLimitsOfElementFunctions", keeps_limits_of_element_functions},
      {"ComputesBasicOperationsWithOneRounding", computes_basic_operations_with_one_rounding},
      {"ComputesWithLogSumExps", computes_with_log_sum_exps},
      {"TreatsEmptyShardsAsNothing", treats_empty_shards_as_nothing},
      {"PropagatesPoison", propagates_poison},
      {"ReducesTheLastAxis", reduces_the_last_axis},
      {"MultipliesMatrices", multiplies_matrices},
      {"MultipliesSmallIntegersExactly", multiplies_small_integers_exactly},
      {"MultipliesByASliceOfAWeight", multiplies_by_a_slice_of_a_weight},
      {"GivesTheSameProductWhereverOperandsLie", gives_the_same_product_wherever_operands_lie},
      {"RefusesOperandsThatDoNotFit", refuses_operands_that_do_not_fit},
      {"Refuses16BitLogSumExps", refuses_16_bit_log_sum_exps},
      {"RefusesToComputeWithMemoryInFlight", refuses_to_compute_with_memory_in_flight},
  };
}

}  // namespace shardproof::test
