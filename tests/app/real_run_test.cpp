// `run` without a launcher: what is wrong with the request is said before anything is started. That real processes
// return the bits of simulated ranks is tested under mpirun, see tests/real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/options.h"
#include "real/nccl_communicator.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::vector<const char*> words) {
  words.insert(words.begin(), "shardproof");
  const auto error = thrown_by([&] { parse_command_line(static_cast<int>(words.size()), words.data()); });
  return error ? error->message : "accepted";
}

TEST(RunOptions, NeedABackendThatIsBuilt) {
  EXPECT_EQ(refusal({"run", "flux", "--ring-degree", "2"}),
            "run: --backend is missing; expected --backend mpi, nccl, cuda-threads or simulator");
  EXPECT_EQ(refusal({"run", "flux", "--backend", "simulator", "--ring-degree", "2"}), "accepted");
  EXPECT_EQ(refusal({"run", "flux", "--backend", "nccl", "--ring-degree", "2"}),
            nccl_is_built() ? "accepted"
                            : "--backend: 'nccl' is not part of this build; run tools/setup_nccl.sh and configure "
                              "again, or take mpi");
  EXPECT_THAT(refusal({"run", "flux", "--backend", "gloo"}), HasSubstr("--backend: 'gloo'"));
  EXPECT_EQ(refusal({"run", "flux", "--backend", "mpi", "--ring-degree", "2"}), "accepted");
}

TEST(RunOptions, NeedAPlaceForAFlightRecord) {
  EXPECT_EQ(refusal({"run", "flux", "--backend", "mpi", "--ring-degree", "2", "--flight-record", "record"}),
            "--flight-record: only a run over NCCL writes one; expected --backend nccl");
  EXPECT_EQ(refusal({"run", "flux", "--backend", "mpi", "--flight-record", "no such folder/record"}),
            "--flight-record: 'no such folder/record' cannot be written; expected a file in a folder that exists");
  EXPECT_THAT(refusal({"run", "flux", "--backend", "mpi", "--flight-record", "./"}),
              HasSubstr("'./' cannot be written"));
}

TEST(RunOptions, NeedAGpuAndARecordingForCupti) {
  EXPECT_EQ(refusal({"run", "flux", "--backend", "mpi", "--steps", "2", "--cupti"}),
            "--cupti: it records what GPUs do; expected --backend nccl or cuda-threads");
  if (!nccl_is_built()) return;
  EXPECT_EQ(refusal({"run", "flux", "--backend", "nccl", "--cupti"}),
            "--cupti: nothing is recorded; expected --trace FILE or --steps N beside it");
  EXPECT_EQ(refusal({"run", "flux", "--backend", "nccl", "--cupti", "--trace", "file"}), "accepted");
}

TEST(RunOptions, SayWhereTheProcessStands) {
  const std::vector<const char*> words{"shardproof", "run",       "flux",         "--backend", "mpi",
                                       "--rank",     "1",         "--world-size", "2",         "--local-rank",
                                       "0",          "--address", "here:4711",    "--timeout", "7"};
  const std::optional<Options> options = parse_command_line(static_cast<int>(words.size()), words.data()).options;
  ASSERT_TRUE(options);
  EXPECT_EQ(options->launch.rank, 1);
  EXPECT_EQ(options->launch.world_size, 2);
  EXPECT_EQ(options->launch.local_rank, 0);
  EXPECT_EQ(options->launch.address, "here:4711");
  EXPECT_EQ(options->timeout_seconds, 7);
}

TEST(RunOptions, AreOfRunAlone) {
  EXPECT_THAT(refusal({"verify", "flux", "--backend", "mpi"}), HasSubstr("'--backend' is no option of verify"));
  EXPECT_THAT(refusal({"oracle", "here", "--seed=3"}), HasSubstr("'--seed' is no option of oracle"));
}

}  // namespace
}  // namespace shardproof::test
