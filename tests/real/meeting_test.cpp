// The meeting of the ranks without MPI, which a launcher that MPI knows has already arranged: threads in the place of
// processes meet in the store, and those that cannot are told why.
#include "real/meeting.h"

#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/peer_failure.h"
#include "real/socket.h"
#include "real/store.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using std::chrono::milliseconds;
using test::thrown;
using test::thrown_by;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{20'000};

Launch launch_of(int rank, const StoreAddress& address) {
  return {.rank = rank,
          .world_size = 2,
          .address = address,
          .run = 3,
          .source = "options",
          .claim = fmt::format("--rank={}, --world-size=2", rank),
          .has_mpi_launcher = true};
}

// A port that nothing listens on now.
StoreAddress free_address() { return {"127.0.0.1", {port_of_listening(listen_on("127.0.0.1", 0).socket.get())}}; }

TEST(Meeting, BringsTheRanksTogetherInAStore) {
  const StoreAddress address = free_address();
  std::thread second([&] {
    Meeting meeting(launch_of(1, address), 5, kPatience);
    EXPECT_EQ(meeting.store()->get("key", kPatience), "value");
    meeting.end();
  });
  Meeting meeting(launch_of(0, address), 5, kPatience);
  meeting.store()->set("key", "value", kPatience);
  meeting.end();
  second.join();
}

TEST(Meeting, UsesASocketThatListensAlready) {
  Socket listening = std::move(listen_on("127.0.0.1", 0).socket);
  const StoreAddress address{"127.0.0.1", {port_of_listening(listening.get())}};
  std::thread second([&] { Meeting(launch_of(1, address), 5, kPatience).end(); });
  Launch first = launch_of(0, address);
  first.store_socket = listening.release();
  Meeting(first, 5, kPatience).end();
  second.join();
}

TEST(Meeting, RefusesADescriptorThatIsNoSuchSocket) {
  Launch first = launch_of(0, free_address());
  first.store_socket = STDIN_FILENO;
  EXPECT_EQ(thrown_by([&] { Meeting(first, 5, kPatience); }),
            thrown(ErrorKind::usage_error, "descriptor 0 is no listening socket"));
  EXPECT_NE(::fcntl(STDIN_FILENO, F_GETFD), -1) << "it was closed";
}

TEST(Meeting, IsNotNeededByOneRankNorUnderMpirun) {
  Launch alone = launch_of(0, free_address());
  alone.world_size = 1;
  EXPECT_EQ(Meeting(alone, 5, kPatience).store(), nullptr);
  EXPECT_EQ(Meeting(launch_of(0, {}), 5, kPatience).store(), nullptr);
  // Ports that follow from a launcher's variables are no place that anybody has named.
  EXPECT_EQ(Meeting(launch_of(0, {"127.0.0.1", {20000, 20001}}), 5, kPatience).store(), nullptr);
}

TEST(Meeting, NeedsAPlaceWithoutMpirun) {
  Launch launch = launch_of(1, {});
  launch.has_mpi_launcher = false;
  EXPECT_EQ(thrown_by([&] { Meeting(launch, 5, kPatience); }),
            thrown(ErrorKind::usage_error,
                   "options (--rank=1, --world-size=2) does not say where rank 0 can be met; expected --address "
                   "HOST:PORT or the environment variable SHARDPROOF_ADDRESS"));
}

TEST(Meeting, TurnsAwayAnotherConfigurationOnBothSides) {
  const StoreAddress address = free_address();
  const auto failure_of = [&](int rank, std::uint64_t configuration) -> std::string {
    try {
      Meeting(launch_of(rank, address), configuration, kPatience);
    } catch (const PeerFailure& error) {
      return error.what();
    }
    return "met";
  };
  std::string second;
  std::thread other([&] { second = failure_of(1, 6); });
  const std::string first = failure_of(0, 5);
  other.join();
  EXPECT_THAT(first, HasSubstr("barrier 'start': rank 1 was refused: rank 1 was started with another configuration"));
  EXPECT_THAT(second, HasSubstr("refuses this process: rank 1 was started with another configuration than rank 0"));
}

}  // namespace
}  // namespace shardproof
