// The laws of a communicator over real processes: every process of an mpirun runs this program, which checks law after
// law and ends all processes at the first that is broken, naming law, rank and reason.
#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include "core/error.h"
#include "real/launcher.h"
#include "real/mpi_communicator.h"
#include "reference/eigen_device.h"
#include "tests/support/communicator_conformance.h"

namespace shardproof::test {
namespace {

int check_all_laws() {
  const MpiSession session;
  const std::unique_ptr<Communicator> world = session.world();
  const Launch launch = launch_from_environment();
  const std::unique_ptr<Device> float64 = make_reference_device(kFloat64);
  const std::unique_ptr<Device> float32 = make_reference_device(kFloat32);
  ConformanceTools tools;
  tools.device = float64.get();
  tools.summing = {{float64.get(), kFloat64}, {float32.get(), kFloat32}};
  const RankRunner runner = [&](int, const std::function<void(Communicator & world)>& body) { body(*world); };
  int passed = 0;
  for (const CommunicatorLaw& law : communicator_laws()) {
    try {
      SHARDPROOF_CHECK(launch.world_size == world->size() && launch.rank == world->rank(), internal_error,
                       "{} says rank {} of {}, MPI says {} of {}", launch.source, launch.rank, launch.world_size,
                       world->rank(), world->size());
      check_communicator_law(law, world->size(), runner, tools);
      ++passed;
    } catch (const std::exception& error) {
      fmt::print(stderr, "law {} is broken on rank {} of {}: {}\n", law.name, world->rank(), world->size(),
                 error.what());
      session.abort(1);
    }
  }
  if (world->rank() == 0) fmt::print("{} laws hold on {} processes\n", passed, world->size());
  return 0;
}

}  // namespace
}  // namespace shardproof::test

int main() { return shardproof::test::check_all_laws(); }
