// What exact arithmetic costs over floating point: the matrix product on residues of both primes beside the float64
// product of the CPU device, in turns, so that both see the same machine. The exact result is checked against sums of
// 128 bits before it is timed. The bar is for one thread; sizes of small models and of large ones are printed.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "bench/figures.h"
#include "core/ops.h"
#include "models/model_type.h"
#include "reference/field_device.h"
#include "sim/cpu_device.h"

namespace shardproof::bench {
namespace {

constexpr int kRounds = 9;

template <class Code>
double seconds_of(const Code& code) {
  const auto start = std::chrono::steady_clock::now();
  code();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Some elements of x weight^T, added up in the plainest way.
bool is_right(const Tensor& product, const Tensor& x, const Tensor& weight) {
  __extension__ using Sum = unsigned __int128;
  const std::vector<field::Value> left = field_elements(x), right = field_elements(weight);
  const std::vector<field::Value> actual = field_elements(product);
  const auto depth = static_cast<std::size_t>(x.size(1)), columns = static_cast<std::size_t>(weight.size(0));
  for (std::size_t element = 0; element < actual.size(); element += 97) {
    const std::size_t row = element / columns, column = element % columns;
    Sum a = 0, b = 0;
    for (std::size_t t = 0; t < depth; ++t) {
      a += Sum{left[row * depth + t].a} * right[column * depth + t].a;
      b += Sum{left[row * depth + t].b} * right[column * depth + t].b;
    }
    if (actual[element].a != static_cast<std::uint32_t>(a % field::kP)) return false;
    if (actual[element].b != static_cast<std::uint32_t>(b % field::kQ)) return false;
  }
  return true;
}

struct Times {
  double float64 = 0.0;
  double field = 0.0;
};

// The medians of rounds in which both take turns.
Times times_of(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  HostDevice host;
  const std::unique_ptr<Device> cpu = make_cpu_device();
  const std::unique_ptr<FieldDevice> exact = make_field_device(1);
  const auto drawn = [&](std::string_view name, const Shape& shape) {
    return ops::from_doubles(*cpu, ops::to_doubles(random_input(host, 1, name, shape)), shape, kFloat64);
  };
  const Tensor x = drawn("x", {rows, depth}), weight = drawn("weight", {columns, depth});
  const Tensor exact_x = random_field_tensor(*exact, 1, "x", {rows, depth});
  const Tensor exact_weight = random_field_tensor(*exact, 1, "weight", {columns, depth});
  if (!is_right(ops::linear(exact_x, exact_weight, Tensor()), exact_x, exact_weight)) {
    fmt::print(stderr, "field_product: the exact product of {} x {} x {} is wrong\n", rows, columns, depth);
    return {1.0, 1e9};
  }
  // Enough repetitions that a clock tells them apart.
  const auto repetitions = static_cast<int>(std::max<std::int64_t>(1, (1 << 26) / (rows * columns * depth)));
  std::vector<double> of_float64, of_field;
  for (int round = 0; round < kRounds; ++round) {
    of_float64.push_back(seconds_of([&] {
      for (int i = 0; i < repetitions; ++i) ops::linear(x, weight, Tensor());
    }));
    of_field.push_back(seconds_of([&] {
      for (int i = 0; i < repetitions; ++i) ops::linear(exact_x, exact_weight, Tensor());
    }));
  }
  std::sort(of_float64.begin(), of_float64.end());
  std::sort(of_field.begin(), of_field.end());
  const double products = static_cast<double>(repetitions) * static_cast<double>(rows * columns * depth);
  return {of_float64[kRounds / 2] / products, of_field[kRounds / 2] / products};
}

int run() {
  omp_set_num_threads(1);
  Figures figures("exact arithmetic: the product modulo both primes beside the float64 product, one thread");
  for (const std::int64_t size : {24, 64, 512, 1024}) {
    const Times times = times_of(size, size, size);
    const std::string name = fmt::format("{} x {} x {}", size, size, size);
    figures.tell(name + ", float64, a multiply-add", times.float64 * 1e9, "ns");
    figures.tell(name + ", exact", times.field * 1e9, "ns");
    if (size >= 512) {
      figures.at_most(name + ", exact over float64", times.field / times.float64, 4.0, "times");
    } else {
      figures.tell(name + ", exact over float64", times.field / times.float64, "times");
    }
  }
  return figures.finish();
}

}  // namespace
}  // namespace shardproof::bench

int main() { return shardproof::bench::run(); }
