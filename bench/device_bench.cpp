// Speed of the CPU device's float32 operations in the sizes of diffusion transformers: dense attention, the linear
// layer and whole blocks of FLUX.1, on one thread and on all cores. Each result is checked against the float64
// reference device before its time is taken. `items_per_second` are floating-point operations (a multiply-add counts as
// two, exponentials as none).
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/peak_memory.h"
#include "core/host_memory.h"
#include "core/json.h"
#include "core/ops.h"
#include "models/model_type.h"
#include "models/state.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"

namespace shardproof {
namespace {

struct Devices {
  HostDevice host;
  std::unique_ptr<Device> cpu = make_cpu_device();
  std::unique_ptr<Device> reference = make_reference_device(kFloat64);
};

// The same values on the CPU device in float32 and, for a check, on the reference device in float64.
struct Operand {
  Tensor fast;
  Tensor exact;
};

Operand draw(Devices& devices, std::string_view name, const Shape& shape, double deviation = 1.0) {
  const Tensor values = random_input(devices.host, 1, name, shape, deviation);
  const std::vector<double> numbers = ops::to_doubles(values);
  return {ops::from_doubles(*devices.cpu, numbers, shape, kFloat32),
          ops::from_doubles(*devices.reference, numbers, shape, kFloat64)};
}

// The largest difference over the largest value; both in the same order.
double relative_difference(const Tensor& fast, const Tensor& exact) {
  const std::vector<double> computed = ops::to_doubles(fast), expected = ops::to_doubles(exact);
  double difference = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(computed[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return computed.size() == expected.size() ? difference / largest : 1.0;
}

// float32 keeps 24 bits; sums of thousands of terms lose a few of them.
bool passes(benchmark::State& state, double difference) {
  constexpr double kAllowed = 4e-6;
  if (difference <= kAllowed) return true;
  state.SkipWithError("the result differs from the float64 reference");
  return false;
}

void attention(benchmark::State& state) {
  const std::int64_t batch = state.range(0), heads = state.range(1), tokens = state.range(2), width = state.range(3);
  omp_set_num_threads(static_cast<int>(state.range(4)));
  Devices devices;
  const Shape shape{batch, tokens, heads, width};
  const Operand q = draw(devices, "q", shape), k = draw(devices, "k", shape), v = draw(devices, "v", shape);
  const double scale = 1.0 / std::sqrt(static_cast<double>(width));
  // The last rows of every head stand for all: they meet every key.
  constexpr std::int64_t kChecked = 32;
  const Tensor some = q.exact.narrow(1, tokens - kChecked, kChecked);
  const AttentionOutput exact = ops::attention(ops::contiguous(some), k.exact, v.exact, Tensor(), scale);
  const AttentionOutput fast = ops::attention(q.fast, k.fast, v.fast, Tensor(), scale);
  if (!passes(state, relative_difference(fast.out.narrow(1, tokens - kChecked, kChecked), exact.out))) return;
  for (auto _ : state) {
    const AttentionOutput result = ops::attention(q.fast, k.fast, v.fast, Tensor(), scale);
    benchmark::DoNotOptimize(result.out.data_as<float>());
  }
  state.SetItemsProcessed(state.iterations() * 4 * batch * heads * tokens * tokens * width);
}

void product(benchmark::State& state) {
  const std::int64_t rows = state.range(0), columns = state.range(1), depth = state.range(2);
  omp_set_num_threads(static_cast<int>(state.range(3)));
  Devices devices;
  const Operand x = draw(devices, "x", {rows, depth}), bias = draw(devices, "bias", {columns});
  const Operand weight = draw(devices, "weight", {columns, depth}, 1.0 / std::sqrt(static_cast<double>(depth)));
  constexpr std::int64_t kChecked = 64;
  const Tensor exact = ops::linear(x.exact.narrow(0, rows - kChecked, kChecked), weight.exact, bias.exact);
  const Tensor fast = ops::linear(x.fast, weight.fast, bias.fast);
  if (!passes(state, relative_difference(fast.narrow(0, rows - kChecked, kChecked), exact))) return;
  for (auto _ : state) {
    const Tensor result = ops::linear(x.fast, weight.fast, bias.fast);
    benchmark::DoNotOptimize(result.data_as<float>());
  }
  state.SetItemsProcessed(state.iterations() * 2 * rows * columns * depth);
}

// ---- blocks of FLUX.1 in their real size

constexpr std::int64_t kFluxHeads = 24, kFluxHeadDim = 128;

Json flux_config(int double_blocks, int single_blocks) {
  Json config = Json::object();
  config.set("_class_name", "FluxTransformer2DModel");
  config.set("in_channels", 64);
  config.set("num_layers", double_blocks);
  config.set("num_single_layers", single_blocks);
  config.set("attention_head_dim", kFluxHeadDim);
  config.set("num_attention_heads", kFluxHeads);
  config.set("joint_attention_dim", 64);
  config.set("pooled_projection_dim", 64);
  config.set("guidance_embeds", false);
  config.set("axes_dims_rope", Json::array({16, 56, 56}));
  return config;
}

// A tree with the given weights, of which one block is used.
struct Block {
  std::unique_ptr<Module> tree;
  Module* block = nullptr;
};

Block flux_block(const Json& config, bool is_double, const ModelState& weights, const ModelContext& context) {
  Block made;
  made.tree = find_model_type("flux").create(config, context);
  assign_state(*made.tree, weights);
  made.block = made.tree->find_module(is_double ? "transformer_blocks.0" : "single_transformer_blocks.0");
  return made;
}

Arguments block_arguments(const ModelContext& context, std::int64_t text, std::int64_t image) {
  HostDevice host;
  const auto input = [&](std::string_view name, const Shape& shape) {
    return ops::from_doubles(*context.device, ops::to_doubles(random_input(host, 1, name, shape)), shape,
                             context.dtype);
  };
  const std::int64_t width = kFluxHeads * kFluxHeadDim;
  const Shape table{text + image, kFluxHeadDim};
  return {{Name("hidden_states"), input("x", {1, image, width})},
          {Name("encoder_hidden_states"), input("y", {1, text, width})},
          {Name("temb"), input("temb", {1, width})},
          {Name("image_rotary_emb"), std::vector<Tensor>{input("cosine", table), input("sine", table)}}};
}

// The same numbers in another type on another device.
ModelState converted(const ModelState& weights, const ModelContext& context) {
  ModelState result{.names = weights.names, .tensors = {}, .dtype = context.dtype};
  for (const auto& tensor : weights.tensors) {
    std::vector<std::byte> bytes(tensor->bytes());
    tensor->device().download(bytes, *tensor);
    const Tensor moved = context.device->upload(bytes, tensor->shape(), tensor->dtype());
    result.tensors.push_back(std::make_shared<const Tensor>(ops::cast(moved, context.dtype)));
  }
  return result;
}

// A block with random weights, compared once with the reference; the weights take longer than what is measured.
class CheckedBlock {
 public:
  explicit CheckedBlock(bool is_double) {
    const Json config = flux_config(is_double ? 1 : 0, is_double ? 0 : 1);
    const std::unique_ptr<Module> declared = find_model_type("flux").create(config, context_);
    const ModelState weights = random_state(*declared, 1, context_);
    block_ = flux_block(config, is_double, weights, context_);
    // Few tokens stand for many: every layer and every head is used.
    const std::unique_ptr<Device> reference = make_reference_device(kFloat64);
    const ModelContext exactly{reference.get(), kFloat64, TablePrecision::float64};
    const Block exact = flux_block(config, is_double, converted(weights, exactly), exactly);
    const Tensor computed = call(block_arguments(context_, 8, 16));
    const Tensor expected = exact.block->call(block_arguments(exactly, 8, 16)).tensors.back();
    difference_ = relative_difference(computed, expected);
  }

  Tensor call(const Arguments& arguments) const { return block_.block->call(arguments).tensors.back(); }
  const ModelContext& context() const { return context_; }
  double difference() const { return difference_; }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  ModelContext context_{device_.get(), kFloat32, TablePrecision::float64};
  Block block_;
  double difference_ = 0.0;
};

void flux_block_benchmark(benchmark::State& state, const CheckedBlock& block) {
  omp_set_num_threads(static_cast<int>(state.range(2)));
  if (!passes(state, block.difference())) return;
  const Arguments arguments = block_arguments(block.context(), state.range(0), state.range(1));
  bench::forget_own_peak();
  block.call(arguments);
  for (auto _ : state) benchmark::DoNotOptimize(block.call(arguments).data_as<float>());
  state.counters["peak_bytes"] = static_cast<double>(bench::own_peak_bytes());
}

void flux_double_block(benchmark::State& state) {
  static const CheckedBlock block(true);
  flux_block_benchmark(state, block);
}

void flux_single_block(benchmark::State& state) {
  static const CheckedBlock block(false);
  flux_block_benchmark(state, block);
}

void one_and_all_threads(benchmark::internal::Benchmark* registered, const std::vector<std::int64_t>& sizes) {
  const std::int64_t cores = omp_get_num_procs();
  for (const std::int64_t threads : cores > 1 ? std::vector<std::int64_t>{1, cores} : std::vector<std::int64_t>{1}) {
    std::vector<std::int64_t> arguments = sizes;
    arguments.push_back(threads);
    registered->Args(arguments);
  }
}

void attention_sizes(benchmark::internal::Benchmark* registered) {
  registered->ArgNames({"batch", "heads", "tokens", "head_dim", "threads"});
  one_and_all_threads(registered, {1, 8, 2048, 64});
  one_and_all_threads(registered, {1, 24, 1024, 128});
}

void product_sizes(benchmark::internal::Benchmark* registered) {
  registered->ArgNames({"rows", "columns", "depth", "threads"});
  one_and_all_threads(registered, {4096, 3072, 3072});
}

void block_sizes(benchmark::internal::Benchmark* registered) {
  registered->ArgNames({"text", "image", "threads"});
  one_and_all_threads(registered, {512, 1024});
}

BENCHMARK(attention)->Apply(attention_sizes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(product)->Apply(product_sizes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(flux_double_block)->Apply(block_sizes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(flux_single_block)->Apply(block_sizes)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardproof

BENCHMARK_MAIN();
