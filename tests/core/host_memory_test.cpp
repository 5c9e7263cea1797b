// The host device: the laws of movement, element types that core does not know, the life of memory, and the refusal of
// arithmetic.
#include "core/host_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/device_conformance.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

class HostDeviceLaw : public testing::TestWithParam<DeviceCase> {};

TEST_P(HostDeviceLaw, Holds) {
  HostDevice device;
  GetParam().law.body(device, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(Laws, HostDeviceLaw, testing::ValuesIn(device_cases({})),
                         [](const auto& instance) { return instance.param.name; });

std::vector<std::uint8_t> numbered_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 256);
  return bytes;
}

std::vector<std::uint8_t> bytes_of(Device& device, const Tensor& tensor) {
  std::vector<std::uint8_t> bytes(tensor.bytes());
  device.download(std::as_writable_bytes(std::span(bytes)), tensor);
  return bytes;
}

class HostDeviceOfOpaqueType : public testing::TestWithParam<std::size_t> {
 protected:
  HostDeviceOfOpaqueType()
      : type_(register_dtype({.name = "opaque" + std::to_string(GetParam()), .size = GetParam()})) {}
  DType type_;
  HostDevice device_;
};

TEST_P(HostDeviceOfOpaqueType, MovesElementsWholeInEveryPermutation) {
  const std::size_t size = GetParam();
  const std::vector<std::uint8_t> bytes = numbered_bytes(3 * 4 * 5 * size);
  const Tensor source = device_.upload(std::as_bytes(std::span(bytes)), {3, 4, 5}, type_);
  std::array<int, 3> axes{0, 1, 2};
  do {
    const Tensor permuted = source.permute(axes);
    const std::vector<std::uint8_t> moved = bytes_of(device_, permuted);
    const Shape& shape = permuted.shape();
    for (std::int64_t i = 0; i < 60; ++i) {
      const std::array<std::int64_t, 3> index{i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]};
      std::array<std::int64_t, 3> from{};
      for (std::size_t axis = 0; axis < 3; ++axis) from[static_cast<std::size_t>(axes[axis])] = index[axis];
      const auto element = static_cast<std::size_t>((from[0] * 4 + from[1]) * 5 + from[2]);
      ASSERT_EQ(std::memcmp(&moved[static_cast<std::size_t>(i) * size], &bytes[element * size], size), 0);
    }
  } while (std::next_permutation(axes.begin(), axes.end()));
}

TEST_P(HostDeviceOfOpaqueType, PoisonsAndGathersRows) {
  const std::size_t size = GetParam();
  const std::vector<std::uint8_t> bytes = numbered_bytes(4 * 2 * size);
  const Tensor table = device_.upload(std::as_bytes(std::span(bytes)), {4, 2}, type_);
  device_.poison(table.narrow(1, 1, 1).narrow(0, 2, 1));
  HostArray index(Shape{2});
  index.values = {2, 0};
  std::vector<std::uint8_t> expected(4 * size, 0xFF);
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(4 * size), size, expected.begin());
  std::copy_n(bytes.begin(), 2 * size, expected.begin() + static_cast<std::ptrdiff_t>(2 * size));
  EXPECT_EQ(bytes_of(device_, device_.gather_rows(table, to_device(device_, index, kInt64))), expected);
}

TEST_P(HostDeviceOfOpaqueType, RefusesToConvertAndToFill) {
  const Tensor source = device_.poisoned({2}, type_);
  const std::string name(type_.name());
  EXPECT_EQ(thrown_by([&] { device_.copy(device_.empty({2}, kFloat32), source); }),
            thrown(ErrorKind::type_error, "conversion is not defined for element type " + name));
  EXPECT_EQ(thrown_by([&] { device_.copy(source, device_.empty({2}, kFloat32)); }),
            thrown(ErrorKind::type_error, "conversion is not defined for element type " + name));
  EXPECT_EQ(thrown_by([&] { device_.fill(source, 0); }),
            thrown(ErrorKind::type_error, "fill is not defined for element type " + name));
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostDeviceOfOpaqueType, testing::Values(1, 2, 3, 4, 8, 12, 16, 24),
                         [](const auto& instance) { return std::to_string(instance.param) + "Bytes"; });

TEST(HostDevice, RefusesArithmetic) {
  HostDevice device;
  const Tensor x = to_device(device, HostArray({1, 1, 2, 2}), kFloat32);
  const Tensor matrix = x.view({2, 2});
  const auto refusal = [](const std::string& operation) {
    return thrown(ErrorKind::unsupported_error, operation + ": arithmetic is not available on the host device");
  };
  EXPECT_EQ(thrown_by([&] { device.unary(UnaryOp::gelu, x); }), refusal("gelu"));
  EXPECT_EQ(thrown_by([&] { device.binary(BinaryOp::logaddexp, x, x); }), refusal("logaddexp"));
  EXPECT_EQ(thrown_by([&] { device.matmul(matrix, matrix, Tensor()); }), refusal("matmul"));
  EXPECT_EQ(thrown_by([&] { device.reduce(ReduceOp::mean, x); }), refusal("mean"));
  EXPECT_EQ(thrown_by([&] { device.attention(x, x, x, Tensor(), 1); }), refusal("attention"));
}

TEST(HostDevice, KeepsTheMemoryOfTensorsThatOutliveIt) {
  Tensor survivor;
  {
    HostDevice device;
    survivor = device.poisoned({3}, kInt64);
  }
  EXPECT_EQ(survivor.data_as<std::int64_t>()[2], -1);
}

TEST(HostDevice, SharesBytesUntilOneOfTheTensorsIsWrittenTo) {
  HostDevice device;
  const Tensor source = device.empty({4, 2}, kInt64);
  device.fill(source, 3);
  const Tensor first = device.empty({2, 2}, kInt64), second = device.empty({2, 2}, kInt64);
  ASSERT_TRUE(first.storage()->share(*source.storage(), source.narrow(0, 2, 2).data()));
  ASSERT_TRUE(second.storage()->share(*first.storage(), first.data()));
  EXPECT_EQ(first.data(), source.narrow(0, 2, 2).data());
  EXPECT_EQ(second.data(), first.data());

  device.fill(source, 4);
  EXPECT_NE(first.data(), source.narrow(0, 2, 2).data());
  EXPECT_EQ(to_host(first).values, std::vector<double>(4, 3));
  device.fill(first.narrow(0, 0, 1), 5);
  EXPECT_EQ(to_host(first).values, (std::vector<double>{5, 5, 3, 3}));
  EXPECT_EQ(to_host(second).values, std::vector<double>(4, 3));
  EXPECT_EQ(to_host(source).values, std::vector<double>(8, 4));
}

TEST(HostDevice, KeepsSharedBytesWhenTheTensorTheyCameFromIsGone) {
  Tensor survivor;
  {
    HostDevice device, other;
    const Tensor source = device.empty({2}, kInt64);
    device.fill(source, 6);
    survivor = other.empty({2}, kInt64);
    ASSERT_TRUE(survivor.storage()->share(*source.storage(), source.data()));
  }
  EXPECT_EQ(survivor.data_as<std::int64_t>()[1], 6);
}

TEST(HostDevice, DoesNotShareBytesThatItDidNotAllocate) {
  class Foreign final : public Storage {
   public:
    explicit Foreign(Device& device) : Storage(device, bytes_.data(), bytes_.size()) {}

   private:
    std::array<std::byte, 16> bytes_{};
  };
  HostDevice device;
  Foreign foreign(device);
  const Tensor x = device.empty({2}, kInt64);
  const std::byte* before = x.data();
  EXPECT_FALSE(x.storage()->share(foreign, foreign.data()));
  EXPECT_FALSE(x.storage()->share(*x.storage(), x.data()));
  EXPECT_FALSE(foreign.share(*x.storage(), x.data()));
  EXPECT_EQ(x.data(), before);
}

TEST(HostDevice, TakesNothingFromTheSystemOnceTheSameWorkWasDone) {
  HostDevice device;
  const auto work = [&] {
    const Tensor x = device.poisoned({2, 3, 4, 5}, kFloat32);
    const Tensor y = device.empty({5, 3, 4, 2}, kFloat64);
    device.copy(y, x.transpose(0, 3));
    std::vector<double> values(120);
    device.download(std::as_writable_bytes(std::span(values)), y.transpose(1, 2));
  };
  work();
  const std::int64_t before = device.pool().system_allocations();
  EXPECT_GT(before, 0);
  for (int i = 0; i < 10; ++i) work();
  EXPECT_EQ(device.pool().system_allocations(), before);
}

TEST(HostDevice, TurnsAPoisonedFlagIntoPoisonWhenItConverts) {
  HostDevice device;
  const Tensor flags = device.poisoned({1}, kBool);
  EXPECT_TRUE(std::isnan(to_host(flags).values[0]));
  const Tensor integers = device.empty({1}, kInt64);
  device.copy(integers, flags);
  EXPECT_EQ(integers.data_as<std::int64_t>()[0], -1);
}

}  // namespace
}  // namespace shardproof::test
