// What simulation costs: the time that all ranks of a ring or of Ulysses take together for one attention, over the time
// of the dense attention on the same device. Each parallel result is compared with the dense one before it is timed;
// then dense and parallel runs alternate, and the ratio is that of the medians. The bar is for one thread; with more
// the figure shows what moving data costs where several cores share one memory.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/figures.h"
#include "core/host_memory.h"
#include "core/ops.h"
#include "models/model_type.h"
#include "parallel/attention.h"
#include "sim/cpu_device.h"
#include "sim/simulation.h"

namespace shardproof {
namespace {

constexpr std::int64_t kTokens = 2048, kHeads = 8, kHeadDim = 64;
constexpr int kRounds = 15;
constexpr double kBar = 1.15;

struct Problem {
  std::unique_ptr<Device> device = make_cpu_device();
  Tensor q, k, v;
};

Problem draw() {
  Problem problem;
  HostDevice host;
  const auto tensor = [&](std::string_view name) {
    const Shape shape{1, kTokens, kHeads, kHeadDim};
    return ops::from_doubles(*problem.device, ops::to_doubles(random_input(host, 1, name, shape)), shape, kFloat32);
  };
  problem.q = tensor("q");
  problem.k = tensor("k");
  problem.v = tensor("v");
  return problem;
}

Tensor dense(const Problem& problem) { return attention(problem.q, problem.k, problem.v, {}, {}, nullptr).out; }

// What every rank has of the result, in rank order.
std::vector<Tensor> parallel(const Problem& problem, const ContextParallelConfig& config, int ranks) {
  std::vector<Tensor> parts(static_cast<std::size_t>(ranks));
  run_ranks({.world_size = ranks}, [&](Communicator& world) {
    const ContextParallelState state(world, config);
    const std::int64_t own = kTokens / ranks, first = state.flat().rank() * own;
    const auto part = [&](const Tensor& x) { return x.narrow(1, first, own); };
    parts[static_cast<std::size_t>(world.rank())] =
        attention(part(problem.q), part(problem.k), part(problem.v), {}, {}, &state).out;
  });
  return parts;
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double worst_difference(const Tensor& expected, const std::vector<Tensor>& parts) {
  const std::vector<double> whole = ops::to_doubles(expected);
  double worst = 0.0;
  std::size_t at = 0;
  for (const Tensor& part : parts) {
    for (const double value : ops::to_doubles(part)) worst = std::max(worst, std::abs(value - whole[at++]));
  }
  return at == whole.size() ? worst : std::numeric_limits<double>::infinity();
}

void measure(const Problem& problem, bench::Figures& figures, const std::string& mode,
             const ContextParallelConfig& config, int ranks, int threads) {
  omp_set_num_threads(threads);
  const std::string name =
      fmt::format("{}, {} ranks together, over dense, {} thread{}", mode, ranks, threads, threads == 1 ? "" : "s");
  const double difference = worst_difference(dense(problem), parallel(problem, config, ranks));
  if (!(difference < 1e-5)) {
    figures.at_most(name + ": the results differ by", difference, 1e-5, "");
    return;
  }
  std::vector<double> dense_seconds, parallel_seconds;
  for (int round = 0; round < kRounds; ++round) {
    dense_seconds.push_back(seconds_of([&] { dense(problem); }));
    parallel_seconds.push_back(seconds_of([&] { parallel(problem, config, ranks); }));
  }
  const double ratio = median(parallel_seconds) / median(dense_seconds);
  if (threads > 1) return figures.tell(name, ratio, "x");
  figures.at_most(name, ratio, kBar, "x");
}

int measure_all() {
  const Problem problem = draw();
  bench::Figures figures(
      fmt::format("Simulation overhead: float32, {} tokens, {} heads of {}, one worker, medians of {} alternating runs",
                  kTokens, kHeads, kHeadDim, kRounds));
  for (const int threads : {1, omp_get_num_procs()}) {
    for (const int ranks : {2, 4, 8}) {
      measure(problem, figures, "Ulysses", {.ulysses_degree = ranks}, ranks, threads);
      measure(problem, figures, "ring (allgather)", {.ring_degree = ranks}, ranks, threads);
      measure(problem, figures, "ring (alltoall)", {.ring_degree = ranks, .rotate_method = "alltoall"}, ranks, threads);
    }
  }
  return figures.finish();
}

}  // namespace
}  // namespace shardproof

int main() { return shardproof::measure_all(); }
