// The laws of a Communicator on ranks over the fake NCCL: forks so many processes, each of which keeps every law, with
// tensors in host memory and again with tensors in device memory. The fake must have seen nothing against its rules,
// and everything given back.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <fmt/format.h>

#include "core/error.h"
#include "real/nccl_communicator.h"
#include "reference/eigen_device.h"
#include "tests/fake_nccl/fabric.h"
#include "tests/fake_nccl/forked_ranks.h"
#include "tests/fake_nccl/shared_store.h"
#include "tests/real/cuda_memory.h"
#include "tests/support/communicator_conformance.h"

namespace shardproof::test {
namespace {

enum class Gather { padded_where_small, always_broadcast };

void keep_laws(int rank, int ranks, const ConformanceTools& tools, std::string_view memory, Gather gather) {
  const NcclSession session({.rank = rank,
                             .world_size = ranks,
                             .timeout = std::chrono::seconds(20),
                             .padded_gather_bytes = gather == Gather::always_broadcast ? 0 : 1 << 18},
                            std::make_shared<fake_nccl::SharedStore>());
  const std::unique_ptr<Communicator> world = session.world();
  const RankRunner runner = [&](int, const std::function<void(Communicator & world)>& body) { body(*world); };
  for (const CommunicatorLaw& law : communicator_laws()) {
    try {
      check_communicator_law(law, ranks, runner, tools);
    } catch (const std::exception& error) {
      fail(ErrorKind::internal_error, "law {} is broken on rank {} of {} with tensors in {}: {}", law.name, rank, ranks,
           memory, error.what());
    }
  }
  session.check();
}

void keep_laws_on_host(int rank, int ranks) {
  const std::unique_ptr<Device> float64 = make_reference_device(kFloat64);
  const std::unique_ptr<Device> float32 = make_reference_device(kFloat32);
  ConformanceTools tools;
  tools.device = float64.get();
  tools.summing = {{float64.get(), kFloat64}, {float32.get(), kFloat32}};
  keep_laws(rank, ranks, tools, "host memory", Gather::padded_where_small);
}

void keep_laws_on_device(int rank, int ranks) {
  const std::unique_ptr<Device> memory = make_cuda_memory();
  ConformanceTools tools;
  tools.device = memory.get();
  tools.summing = {{memory.get(), kFloat64}, {memory.get(), kFloat32}};
  keep_laws(rank, ranks, tools, "device memory", Gather::always_broadcast);
}

// Runs the ranks on a fresh fabric; returns whether all of them and the fake are content.
bool run(int ranks, const char* memory, void (*body)(int rank, int ranks)) {
  fake_nccl::make_fabric(ranks);
  const auto ends = fake_nccl::run_ranks(ranks, [&](int rank) {
    body(rank, ranks);
    fake_nccl::check_everything_released();
  });
  bool is_kept = true;
  for (const fake_nccl::RankEnd& end : ends) {
    if (end.status == 0) continue;
    is_kept = false;
    fmt::print(stderr, "a rank ended with status {}: {}\n", end.status, end.message);
  }
  for (const std::string& violation : fake_nccl::violations()) {
    is_kept = false;
    fmt::print(stderr, "the fake: {}\n", violation);
  }
  if (is_kept) fmt::print("{} laws hold on {} processes, {}\n", communicator_laws().size(), ranks, memory);
  return is_kept;
}

}  // namespace
}  // namespace shardproof::test

int main(int argument_count, char** arguments) {
  using namespace shardproof::test;
  if (argument_count != 2) {
    fmt::print(stderr, "usage: nccl_laws RANKS\n");
    return 2;
  }
  const int ranks = std::atoi(arguments[1]);
  const bool on_host = run(ranks, "host memory", keep_laws_on_host);
  const bool on_device = run(ranks, "device memory", keep_laws_on_device);
  return on_host && on_device ? 0 : 1;
}
