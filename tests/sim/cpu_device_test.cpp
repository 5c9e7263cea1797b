// The fast CPU device against the laws of a device and recorded attention; its bits for any number of threads, any
// number of callers at once and any position of an element; and its use of memory.
#include "sim/cpu_device.h"

#include <omp.h>

#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/ops.h"
#include "sim/fiber.h"
#include "tests/support/attention_goldens.h"
#include "tests/support/device_conformance.h"
#include "tests/support/host_array.h"

namespace shardproof::test {
namespace {

constexpr std::array kValueTypes{kFloat64, kFloat32, kBFloat16, kFloat16};

class CpuDeviceLaw : public testing::TestWithParam<DeviceCase> {};

TEST_P(CpuDeviceLaw, Holds) {
  const std::unique_ptr<Device> device = make_cpu_device();
  GetParam().law.body(*device, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(Laws, CpuDeviceLaw, testing::ValuesIn(device_cases(kValueTypes)),
                         [](const auto& instance) { return instance.param.name; });

class CpuDeviceGolden : public testing::TestWithParam<std::string> {};

TEST_P(CpuDeviceGolden, IsReproducedTo1e12) {
  const std::unique_ptr<Device> device = make_cpu_device();
  EXPECT_LE(attention_golden_error(*device, SHARDPROOF_SOURCE_DIR "/tests/data/attention", GetParam()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Attention, CpuDeviceGolden, testing::ValuesIn(attention_golden_names()),
                         [](const auto& instance) { return instance.param; });

// Sets the number of OpenMP threads for a scope.
class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

Tensor random_tensor(Device& device, const Shape& shape, std::string_view name, DType type) {
  return to_device(device, random_array(shape, 91, name), type);
}

// One of each operation, large enough to be cut into pieces for threads, with odd sizes.
class Workload {
 public:
  Workload(Device& device, DType type)
      : device_(device),
        x_(random_tensor(device, {530, 331}, "x", type)),
        weight_(random_tensor(device, {517, 331}, "weight", type)),
        bias_(random_tensor(device, {517}, "bias", type)),
        q_(random_tensor(device, {1, 300, 3, 40}, "q", type)),
        k_(random_tensor(device, {1, 270, 3, 40}, "k", type)),
        v_(random_tensor(device, {1, 270, 3, 40}, "v", type)),
        mask_(random_tensor(device, {1, 3, 300, 270}, "mask", type)),
        tall_(random_tensor(device, {900, 301}, "tall", type)) {}

  std::vector<Tensor> run() const {
    std::vector<Tensor> results{device_.matmul(x_, weight_, bias_)};
    for (const Tensor& mask : {Tensor(), mask_}) {
      const AttentionOutput output = device_.attention(q_, k_, v_, mask, 0.2);
      results.push_back(output.out);
      results.push_back(output.lse);
    }
    for (const UnaryOp op : {UnaryOp::silu, UnaryOp::gelu, UnaryOp::gelu_tanh, UnaryOp::tanh}) {
      results.push_back(device_.unary(op, tall_));
    }
    results.push_back(device_.binary(BinaryOp::mul, tall_, tall_.narrow(0, 3, 1)));
    results.push_back(device_.binary(BinaryOp::add, tall_.transpose(0, 1), tall_.transpose(0, 1)));
    results.push_back(device_.reduce(ReduceOp::mean, tall_));
    results.push_back(device_.reduce(ReduceOp::sum, tall_.transpose(0, 1)));
    return results;
  }

 private:
  Device& device_;
  Tensor x_, weight_, bias_, q_, k_, v_, mask_, tall_;
};

void expect_same_bits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(actual[i], expected[i])) << "operation " << i;
  }
}

class CpuDeviceBits : public testing::TestWithParam<DType> {};

TEST_P(CpuDeviceBits, DoNotDependOnTheNumberOfThreads) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const Workload workload(*device, GetParam());
  std::vector<Tensor> expected;
  for (const int count : {1, 2, 3, 7}) {
    SCOPED_TRACE(count);
    const ThreadCount threads(count);
    const std::vector<Tensor> results = workload.run();
    if (expected.empty()) expected = results;
    expect_same_bits(results, expected);
  }
}

TEST_P(CpuDeviceBits, DoNotDependOnOtherCallersAtTheSameTime) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const Workload workload(*device, GetParam());
  const std::vector<Tensor> expected = workload.run();
  std::array<std::vector<Tensor>, 3> results;
  std::vector<std::thread> callers;
  for (std::vector<Tensor>& result : results) callers.emplace_back([&] { result = workload.run(); });
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<Tensor>& result : results) expect_same_bits(result, expected);
}

TEST_P(CpuDeviceBits, OfAnElementDoNotDependOnItsPosition) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const Tensor row = random_tensor(*device, {37}, "row", GetParam());
  for (const UnaryOp op : {UnaryOp::silu, UnaryOp::gelu_tanh, UnaryOp::sigmoid, UnaryOp::rsqrt}) {
    const Tensor whole = device->unary(op, row);
    for (std::int64_t i = 0; i < 37; ++i) {
      EXPECT_TRUE(bitwise_equal(whole.narrow(0, i, 1), device->unary(op, row.narrow(0, i, 1)))) << op_name(op);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CpuDeviceBits, testing::ValuesIn(kValueTypes),
                         [](const auto& instance) { return std::string(instance.param.name()); });

TEST(CpuDeviceMemory, TakesNothingFromTheSystemOnceTheSameWorkWasDone) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const ThreadCount threads(2);
  BlockPool& pool = dynamic_cast<HostDevice&>(*device).pool();
  for (const DType type : kValueTypes) {
    const Workload workload(*device, type);
    workload.run();
    const std::int64_t before = pool.system_allocations();
    EXPECT_GT(before, 0);
    for (int i = 0; i < 3; ++i) workload.run();
    EXPECT_EQ(pool.system_allocations(), before) << type.name();
  }
}

TEST(CpuDeviceMemory, NeedsNoStackBeyondThatOfASimulatedRank) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const Workload workload(*device, kFloat16);
  std::vector<Tensor> results;
  sim::Fiber fiber([&] { results = workload.run(); });
  fiber.resume();
  ASSERT_TRUE(fiber.ended());
  expect_same_bits(results, workload.run());
}

}  // namespace
}  // namespace shardproof::test
