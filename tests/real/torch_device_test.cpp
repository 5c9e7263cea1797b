// The device of LibTorch against the laws of a device and recorded attention, on the CPU or, if the environment says
// so, on a GPU; and what is peculiar to it: its module, threads and fibers. One process runs all of it, since LibTorch
// takes half a second to start.
#include "real/torch_device.h"

#include <omp.h>

#include <array>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "sim/fiber.h"
#include "tests/real/torch_place.h"
#include "tests/support/attention_goldens.h"
#include "tests/support/device_conformance.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

constexpr std::array kValueTypes{kFloat64, kFloat32, kBFloat16, kFloat16};

class TorchDeviceLaw : public testing::TestWithParam<DeviceCase> {};

TEST_P(TorchDeviceLaw, Holds) {
  const std::unique_ptr<Device> device = torch_device_to_test();
  GetParam().law.body(*device, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(Laws, TorchDeviceLaw, testing::ValuesIn(device_cases(kValueTypes)),
                         [](const auto& instance) { return instance.param.name; });

class TorchDeviceGolden : public testing::TestWithParam<std::string> {};

TEST_P(TorchDeviceGolden, IsReproducedTo1e12) {
  const std::unique_ptr<Device> device = torch_device_to_test();
  EXPECT_LE(attention_golden_error(*device, SHARDPROOF_SOURCE_DIR "/tests/data/attention", GetParam()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Attention, TorchDeviceGolden, testing::ValuesIn(attention_golden_names()),
                         [](const auto& instance) { return instance.param; });

// One of each operation, large enough that torch cuts it into pieces for threads.
std::vector<Tensor> one_of_each(Device& device, DType type) {
  const auto random = [&](const Shape& shape, std::string_view name) {
    return to_device(device, random_array(shape, 91, name), type);
  };
  const Tensor x = random({530, 331}, "x"), weight = random({517, 331}, "weight"), bias = random({517}, "bias");
  const Tensor q = random({1, 300, 3, 40}, "q"), k = random({1, 270, 3, 40}, "k"), v = random({1, 270, 3, 40}, "v");
  const Tensor mask = random({1, 3, 300, 270}, "mask");
  std::vector<Tensor> results{device.matmul(x, weight, bias), device.reduce(ReduceOp::mean, x),
                              device.reduce(ReduceOp::sum, x.view({530 * 331})), device.unary(UnaryOp::gelu_tanh, x),
                              device.binary(BinaryOp::mul, x, x)};
  for (const Tensor& of_scores : {Tensor(), mask}) {
    const AttentionOutput output = device.attention(q, k, v, of_scores, 0.2);
    results.push_back(output.out);
    results.push_back(output.lse);
  }
  return results;
}

void expect_same_bits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(actual[i], expected[i])) << "result " << i;
  }
}

TEST(TorchDeviceBits, DoNotDependOnTheNumberOfThreadsNorOnOtherCallers) {
  const std::unique_ptr<Device> device = torch_device_to_test();
  const int before = omp_get_max_threads();
  for (const DType type : kValueTypes) {
    omp_set_num_threads(1);
    const std::vector<Tensor> expected = one_of_each(*device, type);
    omp_set_num_threads(3);
    expect_same_bits(one_of_each(*device, type), expected);
    EXPECT_EQ(omp_get_max_threads(), 3) << "our own devices keep their threads";
    std::array<std::vector<Tensor>, 2> results;
    std::array<int, 2> threads_left{};
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < results.size(); ++i) {
      callers.emplace_back([&, i] {
        omp_set_num_threads(2);
        results[i] = one_of_each(*device, type);
        threads_left[i] = omp_get_max_threads();
      });
    }
    for (std::thread& caller : callers) caller.join();
    for (const std::vector<Tensor>& result : results) expect_same_bits(result, expected);
    EXPECT_EQ(threads_left, (std::array{2, 2}));
  }
  omp_set_num_threads(before);
}

TEST(TorchDevice, NeedsNoStackBeyondThatOfASimulatedRank) {
  const std::unique_ptr<Device> device = torch_device_to_test();
  for (const DType type : {kFloat32, kFloat16}) {
    std::vector<Tensor> results;
    sim::Fiber fiber([&] { results = one_of_each(*device, type); });
    fiber.resume();
    ASSERT_TRUE(fiber.ended());
    expect_same_bits(results, one_of_each(*device, type));
  }
}

TEST(TorchDevice, HasStreamsOnGpusOnly) {
  EXPECT_EQ(thrown_by([] { compute_on_torch_stream({.place = TorchPlace::cpu}, nullptr); }),
            thrown(ErrorKind::usage_error,
                   "a stream to compute on is given for a processor, which has none; expected the place of a GPU"));
}

// Two would have threads and settings of their own.
TEST(TorchDevice, BringsNoSecondOpenMp) {
  torch_device_to_test();
  std::set<std::string> libraries;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t name = line.find('/');
    if (name != std::string::npos && line.find("libgomp", name) != std::string::npos)
      libraries.insert(line.substr(name));
  }
  EXPECT_EQ(libraries.size(), 1U) << testing::PrintToString(libraries);
}

// Error is defined in the module once more: it must be the same type to whoever catches it, and a tensor must outlive
// its device, whose destructor lies in the module.
TEST(TorchDevice, ThrowsTheErrorsOfTheProgramThatLoadsItsModule) {
  std::unique_ptr<Device> device = torch_device_to_test();
  const Tensor table = to_device(*device, HostArray({3, 2}), kFloat32);
  const Tensor index = to_device(*device, HostArray(Shape{1}, 3), kInt64);
  bool is_caught = false;
  try {
    device->gather_rows(table, index);
  } catch (const Error& error) {
    is_caught = true;
    EXPECT_EQ(error.kind(), ErrorKind::shape_error);
    EXPECT_NE(dynamic_cast<const std::runtime_error*>(&error), nullptr);
    EXPECT_EQ(dynamic_cast<const Refusal*>(&error), nullptr);
  }
  EXPECT_TRUE(is_caught);
  device.reset();
}

TEST(TorchDevice, NamesWhatTorchHasNoMemoryFor) {
  const std::unique_ptr<Device> device = torch_device_to_test();
  const auto error = thrown_by([&] { device->empty({std::int64_t{1} << 46}, kFloat32); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, ErrorKind::shape_error);
  EXPECT_NE(error->message.find("281474976710656 bytes"), std::string::npos) << error->message;
}

}  // namespace
}  // namespace shardproof::test
