// The laws of a communicator over real processes: every process of a run executes this program, which checks law after
// law and ends all processes at the first that is broken, naming law, rank and reason. With a number as its argument,
// messages of more bytes than that are split, so that the laws cover what otherwise takes gigabytes.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <fmt/format.h>

#include "core/error.h"
#include "real/launcher.h"
#include "real/meeting.h"
#include "real/mpi_communicator.h"
#include "reference/eigen_device.h"
#include "tests/support/communicator_conformance.h"

namespace shardproof::test {
namespace {

int check_all_laws(const MpiOptions& options) {
  const Launch launch = launch_from_environment();
  Meeting meeting(launch, 0, options.patience);
  const MpiSession session(options);
  const std::unique_ptr<Communicator> world = session.world();
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
  meeting.end();
  if (world->rank() == 0) fmt::print("{} laws hold on {} processes\n", passed, world->size());
  return 0;
}

}  // namespace
}  // namespace shardproof::test

int main(int count, char** words) {
  shardproof::MpiOptions options{.patience = std::chrono::seconds(60)};
  if (count > 1) options.most_message_bytes = std::strtoull(words[1], nullptr, 10);
  return shardproof::test::check_all_laws(options);
}
