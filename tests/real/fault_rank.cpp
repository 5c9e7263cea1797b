// A rank of a run in which rank 1 misbehaves, in the way that the first argument says, while the others wait for it:
// what they then say and how they end is what tests/real/fault_test.cpp looks at. The second argument is the deadline
// of that; to start takes as long as the machine needs.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "core/collectives.h"
#include "core/ops.h"
#include "real/launcher.h"
#include "real/meeting.h"
#include "real/mpi_communicator.h"
#include "real/peer_failure.h"
#include "real/store.h"
#include "reference/eigen_device.h"

namespace shardproof::test {
namespace {

constexpr int kPeerFailed = 4;

void sleep_for_long() { std::this_thread::sleep_for(std::chrono::minutes(10)); }

void misbehave(const std::string& fault) {
  if (fault == "dies") (void)std::raise(SIGKILL);
  if (fault == "is-terminated") (void)std::raise(SIGTERM);
  sleep_for_long();
}

// Gathers until rank 1 misbehaves in the middle: in world, or in the group of its pair. What it does is posted before.
void gather_often(Communicator& world, const std::string& fault) {
  const std::unique_ptr<Device> device = make_reference_device(kFloat32);
  const std::unique_ptr<Communicator> pair = world.split(world.rank() / 2, world.rank(), "pair");
  Communicator& group = fault == "sleeps-in-a-group" ? *pair : world;
  const Tensor rows = ops::full(*device, Shape{1000, 16}, kFloat32, world.rank());
  for (int round = 0; round < 100; ++round) {
    const bool is_the_moment = world.rank() == 1 && round == 5 && fault != "leaves-early";
    if (is_the_moment && fault != "is-terminated") misbehave(fault);
    Pending<Tensor> first = collectives::all_gather(group, rows, "fault: first");
    Pending<Tensor> second = collectives::all_gather(group, rows, "fault: second");
    if (is_the_moment) misbehave(fault);
    (void)first.wait();
    (void)second.wait();
  }
}

int run(const std::string& fault, std::chrono::milliseconds patience) {
  const Launch launch = launch_from_environment();
  const std::chrono::milliseconds start_patience =
      fault == "never-starts-mpi" ? 2 * patience : std::chrono::seconds(30);
  const auto say = [&](const std::string& what) {
    fmt::print(stderr, "rank {} of {}: {}\n", launch.rank, launch.world_size, what);
  };
  try {
    Meeting meeting(launch, 0, start_patience);
    if (fault == "store-vanishes") {
      if (launch.rank == 0) (void)std::raise(SIGKILL);
      meeting.end();
    }
    if (fault == "never-starts-mpi" && launch.rank == 1) sleep_for_long();
    const MpiSession session(
        {.patience = patience, .start_patience = start_patience, .when_it_hangs = [&](const std::string& what) {
           say(what);
           meeting.remove_files();
           std::_Exit(kPeerFailed);
         }});
    const std::unique_ptr<Communicator> world = session.world();
    try {
      gather_often(*world, fault);
      if (fault == "leaves-early" && launch.rank == 1) ::_exit(0);
      meeting.end();
    } catch (const PeerFailure& error) {
      say(error.what());
      session.abort(kPeerFailed);
    }
  } catch (const PeerFailure& error) {
    say(error.what());
    return kPeerFailed;
  }
  return 0;
}

}  // namespace
}  // namespace shardproof::test

int main(int count, char** words) {
  if (count != 3) return 2;
  return shardproof::test::run(words[1], std::chrono::milliseconds(std::atoi(words[2])));
}
