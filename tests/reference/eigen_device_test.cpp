// The reference device against the laws of a device, recorded attention, and numbers worked out by hand: nothing else
// vouches for it.
#include "reference/eigen_device.h"

#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "tests/support/attention_goldens.h"
#include "tests/support/device_conformance.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class ReferenceDeviceLaw : public testing::TestWithParam<DeviceCase> {};

TEST_P(ReferenceDeviceLaw, Holds) {
  const std::unique_ptr<Device> device = make_reference_device(GetParam().type);
  GetParam().law.body(*device, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(Laws, ReferenceDeviceLaw, testing::ValuesIn(device_cases(std::array{kFloat64, kFloat32})),
                         [](const auto& instance) { return instance.param.name; });

class ReferenceDeviceGolden : public testing::TestWithParam<std::string> {};

TEST_P(ReferenceDeviceGolden, IsReproducedTo1e12) {
  const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  EXPECT_LE(attention_golden_error(*device, SHARDPROOF_SOURCE_DIR "/tests/data/attention", GetParam()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Attention, ReferenceDeviceGolden, testing::ValuesIn(attention_golden_names()),
                         [](const auto& instance) { return instance.param; });

class ReferenceDevice : public testing::Test {
 protected:
  Tensor tensor(const Shape& shape, std::vector<double> values) {
    HostArray array(shape);
    array.values = std::move(values);
    return to_device(*device, array, kFloat64);
  }
  std::vector<double> values(const Tensor& x) { return ops::to_doubles(x); }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(ReferenceDevice, ComputesElementFunctionsAsTablesHaveThem) {
  const Tensor x = tensor({3}, {-1, 0.5, 2});
  EXPECT_THAT(values(device->unary(UnaryOp::sigmoid, x)),
              Pointwise(DoubleNear(1e-15), {0.2689414213699951, 0.6224593312018546, 0.8807970779778823}));
  EXPECT_THAT(values(device->unary(UnaryOp::silu, x)),
              Pointwise(DoubleNear(1e-15), {-0.2689414213699951, 0.3112296656009273, 1.7615941559557646}));
  EXPECT_THAT(values(device->unary(UnaryOp::tanh, x)),
              Pointwise(DoubleNear(1e-15), {-0.7615941559557649, 0.46211715726000973, 0.9640275800758169}));
  // x Phi(x) with Phi(-1) = 0.15865525393145707, Phi(0.5) = 0.6914624612740131, Phi(2) = 0.9772498680518208.
  EXPECT_THAT(values(device->unary(UnaryOp::gelu, x)),
              Pointwise(DoubleNear(1e-15), {-0.15865525393145707, 0.34573123063700656, 1.9544997361036416}));
  EXPECT_THAT(values(device->unary(UnaryOp::gelu_tanh, x)),
              Pointwise(DoubleNear(1e-15), {-0.15880800939172324, 0.34571400982514394, 1.9545976940877752}));
  EXPECT_THAT(values(device->unary(UnaryOp::rsqrt, tensor({2}, {4, 0.01}))), Pointwise(DoubleNear(1e-14), {0.5, 10.0}));
}

TEST_F(ReferenceDevice, ComputesSmallSumsAndProducts) {
  const Tensor x = tensor({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(values(device->reduce(ReduceOp::sum, x)), ElementsAre(6, 15));
  EXPECT_THAT(values(device->reduce(ReduceOp::mean, x)), ElementsAre(2, 5));
  EXPECT_THAT(values(device->matmul(x, tensor({2, 3}, {1, 0, -1, 2, 1, 0}), tensor({2}, {10, 20}))),
              ElementsAre(8, 24, 8, 33));
  EXPECT_THAT(values(device->binary(BinaryOp::sub, x, tensor({3}, {1, 1, 2}))), ElementsAre(0, 1, 1, 3, 4, 4));
  EXPECT_THAT(values(device->binary(BinaryOp::div, x, tensor({2, 1}, {2, 4}))), ElementsAre(0.5, 1, 1.5, 1, 1.25, 1.5));
}

TEST_F(ReferenceDevice, AddsMassesInLogarithms) {
  const Tensor x = tensor({3}, {std::log(3), -kInfinity, 1000}), y = tensor({3}, {std::log(5), 0.25, 1000});
  EXPECT_THAT(values(device->binary(BinaryOp::logaddexp, x, y)),
              Pointwise(DoubleNear(1e-12), {std::log(8), 0.25, 1000 + std::log(2)}));
  EXPECT_THAT(values(device->binary(BinaryOp::lse_weight, x, y)), Pointwise(DoubleNear(1e-15), {0.375, 0.0, 0.5}));
}

// Weights 1 : 3 : 4 of the values 8, 16, 24 by logits log 1, log 3, log 4.
TEST_F(ReferenceDevice, AveragesValuesByTheExponentialsOfLogits) {
  const Tensor q = tensor({1, 1, 1, 1}, {2});
  const Tensor k = tensor({1, 3, 1, 1}, {0, std::log(3), std::log(4)});
  const Tensor v = tensor({1, 3, 1, 1}, {8, 16, 24});
  const AttentionOutput output = device->attention(q, k, v, Tensor(), 0.5);
  EXPECT_THAT(values(output.out), Pointwise(DoubleNear(1e-13), {19.0}));
  EXPECT_THAT(values(output.lse), Pointwise(DoubleNear(1e-15), {std::log(8)}));
  const AttentionOutput masked = device->attention(
      q, k, v, to_device(*device, selected(identifiers({1, 1, 1, 3}), 3, std::vector<std::int64_t>{1, 0, 2}), kBool),
      0.5);
  EXPECT_THAT(values(masked.out), Pointwise(DoubleNear(1e-13), {(8.0 + 4 * 24.0) / 5}));
  EXPECT_THAT(values(masked.lse), Pointwise(DoubleNear(1e-15), {std::log(5)}));
}

TEST_F(ReferenceDevice, AgreesWithNestedLoops) {
  const HostArray q = random_array({2, 5, 3, 7}, 1, "q"), k = random_array({2, 9, 3, 7}, 1, "k");
  const HostArray v = random_array({2, 9, 3, 7}, 1, "v"), bias = random_array({2, 1, 5, 9}, 1, "bias");
  const DenseAttention expected = dense_attention(q, k, v, bias, 0.4);
  const AttentionOutput actual =
      device->attention(to_device(*device, q, kFloat64), to_device(*device, k, kFloat64),
                        to_device(*device, v, kFloat64), to_device(*device, bias, kFloat64), 0.4);
  EXPECT_LE(max_difference(to_host(actual.out), expected.out), 1e-14);
  EXPECT_LE(max_difference(to_host(actual.lse), expected.lse), 1e-14);
}

TEST(ReferenceDeviceTypes, ComputesInItsValueTypeOnly) {
  EXPECT_EQ(make_reference_device(kFloat64)->name(), "reference float64");
  EXPECT_EQ(make_reference_device(kFloat32)->name(), "reference float32");
  EXPECT_EQ(thrown_by([] { make_reference_device(kBFloat16); }),
            thrown(ErrorKind::type_error, "the reference device computes in float64 or float32, not in bfloat16"));
  const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  const Tensor held = to_device(*device, HostArray({1, 1, 1, 2}), kFloat32);
  const auto refusal = [](const std::string& operation) {
    return thrown(ErrorKind::type_error,
                  operation +
                      ": device 'reference float64' holds float32 [1, 1, 1, 2] for conversion only, it does not "
                      "compute with float32");
  };
  EXPECT_EQ(thrown_by([&] { device->unary(UnaryOp::silu, held); }), refusal("silu"));
  EXPECT_EQ(thrown_by([&] { device->binary(BinaryOp::add, held, held); }), refusal("add"));
  EXPECT_EQ(thrown_by([&] { device->reduce(ReduceOp::sum, held); }), refusal("sum"));
  EXPECT_EQ(thrown_by([&] { device->attention(held, held, held, Tensor(), 1); }), refusal("attention"));
  EXPECT_EQ(thrown_by([&] { device->matmul(held, to_device(*device, HostArray({3, 2}), kFloat32), Tensor()); })->kind,
            ErrorKind::type_error);
}

}  // namespace
}  // namespace shardproof::test
