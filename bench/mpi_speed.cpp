// Speed of the MPI communicator between processes of one machine. `mpi_speed exchanges` times all-to-all and all-gather
// of several sizes and prints them as JSON for compare_gloo.py, which runs PyTorch's gloo beside it. `mpi_speed
// ulysses` holds Ulysses attention on all ranks to what its parts take: its share of the dense computation and the
// exchanges.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "bench/figures.h"
#include "core/collectives.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "core/json.h"
#include "core/ops.h"
#include "models/model_type.h"
#include "parallel/attention.h"
#include "real/launcher.h"
#include "real/meeting.h"
#include "real/mpi_communicator.h"
#include "sim/cpu_device.h"

namespace shardproof {
namespace {

constexpr double kSecondsEach = 0.5;
constexpr std::int64_t kMegabyte = 1 << 20;

// The best time of this rank for `body`, all ranks starting together; all make equally many calls.
double best_seconds(Communicator& world, double budget, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity(), spent = 0.0;
  body();
  for (int round = 0;; ++round) {
    collectives::barrier(world, "bench: a round");
    const auto start = Clock::now();
    body();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    spent += seconds;
    const std::int64_t is_done = round >= 4 && spent > budget ? 1 : 0;
    if (collectives::all_gather_numbers(world, std::span(&is_done, 1), "bench: enough").front() == 1) return best;
  }
}

// Rows of 1,024 float32 whose first column tells sender and receiver.
Tensor rows_of(Device& device, int rank, int size, std::int64_t bytes) {
  const std::int64_t rows = bytes / 4096;
  std::vector<double> firsts;
  for (std::int64_t row = 0; row < rows; ++row) firsts.push_back(rank * size + static_cast<int>(row * size / rows));
  const Tensor first = ops::from_doubles(device, firsts, {rows, 1}, kFloat32);
  const Tensor tensor = device.empty({rows, 1024}, kFloat32);
  device.copy(tensor, first);
  return tensor;
}

void check_first_column(const Tensor& received, const std::function<double(std::int64_t row)>& expected) {
  const std::vector<double> firsts = ops::to_doubles(received.narrow(1, 0, 1));
  for (std::size_t row = 0; row < firsts.size(); ++row) {
    SHARDPROOF_CHECK(firsts[row] == expected(static_cast<std::int64_t>(row)), internal_error,
                     "row {} that arrived is {}, expected {}", row, firsts[row],
                     expected(static_cast<std::int64_t>(row)));
  }
}

int time_exchanges(Communicator& world, Device& device, const std::vector<std::int64_t>& sizes) {
  Json seconds = Json::object();
  const int size = world.size(), rank = world.rank();
  for (const std::int64_t megabytes : sizes) {
    const Tensor rows = rows_of(device, rank, size, megabytes * kMegabyte);
    const std::int64_t part = rows.size(0) / size;
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), part);
    const auto all_to_all = [&] { return collectives::all_to_all(world, rows, counts, counts, "bench").wait(); };
    const auto all_gather = [&] { return collectives::all_gather(world, rows, "bench").wait(); };
    check_first_column(all_to_all(), [&](std::int64_t row) { return row / part * size + rank; });
    check_first_column(all_gather(), [&](std::int64_t row) {
      const std::int64_t own_row = row % rows.size(0);
      return row / rows.size(0) * size + own_row * size / rows.size(0);
    });
    seconds.set(fmt::format("all_to_all/{}", megabytes), best_seconds(world, kSecondsEach, all_to_all));
    seconds.set(fmt::format("all_gather/{}", megabytes), best_seconds(world, kSecondsEach, all_gather));
  }
  if (rank == 0) fmt::print("{}\n", seconds.dump(0));
  return 0;
}

int time_ulysses(Communicator& world, Device& device) {
  constexpr std::int64_t kTokens = 4096, kHeads = 8, kHeadDim = 64;
  constexpr double kBar = 1.1;
  HostDevice host;
  const Shape shape{1, kTokens, kHeads, kHeadDim};
  const auto tensor = [&](std::string_view name) {
    return ops::from_doubles(device, ops::to_doubles(random_input(host, 1, name, shape)), shape, kFloat32);
  };
  const Tensor q = tensor("q"), k = tensor("k"), v = tensor("v");
  const std::int64_t own = kTokens / world.size();
  const auto part = [&](const Tensor& x) { return x.narrow(1, world.rank() * own, own); };
  const ContextParallelState state(world, {.ulysses_degree = world.size()});

  const auto dense = [&] { return attention(q, k, v, {}, {}, nullptr).out; };
  const auto parallel = [&] { return attention(part(q), part(k), part(v), {}, {}, &state).out; };
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()), own / world.size());
  const Tensor moved = ops::reshape(ops::contiguous(part(q)), {own, kHeads * kHeadDim});
  const auto exchange = [&] {
    const auto move = [&] { return collectives::all_to_all(world, moved, counts, counts, "bench: exchange"); };
    Pending<Tensor> of_q = move(), of_k = move(), of_v = move();
    of_q.wait(), of_k.wait(), of_v.wait();
    move().wait();
  };
  const std::vector<double> expected = ops::to_doubles(part(dense())), actual = ops::to_doubles(parallel());
  double difference = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) difference = std::max(difference, std::abs(actual[i] - expected[i]));
  SHARDPROOF_CHECK(actual.size() == expected.size() && difference < 1e-5, internal_error, "the results differ by {}",
                   difference);

  const double of_parallel = best_seconds(world, 4 * kSecondsEach, parallel);
  const double of_dense = best_seconds(world, 4 * kSecondsEach, dense);
  const double of_exchange = best_seconds(world, kSecondsEach, exchange);
  if (world.rank() != 0) return 0;
  bench::Figures figures(fmt::format(
      "Ulysses attention over MPI: float32, {} tokens, {} heads of {}, {} processes of one thread, best times", kTokens,
      kHeads, kHeadDim, world.size()));
  figures.tell("dense on one process", of_dense * 1e3, "ms");
  figures.tell("the four exchanges alone", of_exchange * 1e3, "ms");
  figures.tell("Ulysses, end to end", of_parallel * 1e3, "ms");
  figures.at_most("Ulysses / (dense / processes + exchanges)", of_parallel / (of_dense / world.size() + of_exchange),
                  kBar, "x");
  return figures.finish();
}

// `sizes` in megabytes that each process gives; none: Ulysses instead.
int measure(const std::vector<std::int64_t>& sizes) {
  omp_set_num_threads(1);
  const Launch launch = launch_from_environment();
  Meeting meeting(launch, 0, std::chrono::minutes(1));
  const MpiSession session({.patience = std::chrono::minutes(1)});
  const std::unique_ptr<Communicator> world = session.world();
  const std::unique_ptr<Device> device = make_cpu_device();
  int status = 2;
  try {
    status = sizes.empty() ? time_ulysses(*world, *device) : time_exchanges(*world, *device, sizes);
  } catch (const Error& error) {
    fmt::print(stderr, "mpi_speed: rank {}: {}\n", world->rank(), error.what());
    session.abort(2);
  }
  meeting.end();
  collectives::barrier(*world, "bench: the end");
  return status;
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) {
  const std::string_view what = count >= 2 ? words[1] : "";
  const int megabytes = count == 3 ? std::atoi(words[2]) : 0;
  if (what == "ulysses" && count == 2) return shardproof::measure({});
  if (what == "exchanges" && count == 2) return shardproof::measure({1, 16, 64});
  if (what == "exchanges" && megabytes > 0) return shardproof::measure({megabytes});
  fmt::print(stderr, "usage: mpirun -n 2 mpi_speed exchanges [MEGABYTES] | ulysses\n");
  return 2;
}
