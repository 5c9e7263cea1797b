// Ranks that die, sleep, differ or do not come, with real processes: within the deadline every other rank ends with
// status 4 and words that name the cause, no process is left, and no file is half written.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"
#include "tests/real/started_ranks.h"

namespace shardproof::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kPatience{1000};

Words fault(const std::string& name) { return {SHARDPROOF_FAULT_RANK, name, std::to_string(kPatience.count())}; }

Words run(const Words& more = {}, const std::string& seconds = "1") {
  Words words{SHARDPROOF_PROGRAM,
              "run",
              SHARDPROOF_SOURCE_DIR "/tests/data/goldens/flux/tiny",
              "--backend",
              "mpi",
              "--ulysses-degree",
              "2",
              "--case",
              "base",
              "--json",
              "out.json",
              "--timeout",
              seconds};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Three ranks of which rank 1 misbehaves; what the others say.
void expect_others_name(const std::string& name, const testing::Matcher<std::string>& words, int status_of_faulty) {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) ranks.start(fault(name));
  for (const int rank : {0, 2}) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 4) << name << ": " << ended.error;
    EXPECT_THAT(ended.error, words) << name;
    EXPECT_THAT(ended.error, HasSubstr(fmt::format("rank {}", rank))) << name;
  }
  EXPECT_THAT(ranks.left_behind(), IsEmpty()) << name;
  if (status_of_faulty == 0) return;
  EXPECT_EQ(ranks.wait(1).status, status_of_faulty) << name;
}

TEST(Faults, NameTheOperationAndTheRankThatSleeps) {
  expect_others_name("sleeps",
                     AllOf(HasSubstr("in world: all_gather 'fault: first'"), HasSubstr("(operation 12 of the group)"),
                           HasSubstr("was not complete after 1 s; late: rank 1")),
                     0);
}

TEST(Faults, NameTheRankThatDies) {
  expect_others_name("dies", AllOf(HasSubstr("all_gather 'fault: "), HasSubstr("late: rank 1")), kKilled);
}

TEST(Faults, NameTheOperationInWhichARankIsTerminated) {
  // It has posted what it was terminated in, so the others may find out one operation later.
  expect_others_name("is-terminated", AllOf(HasSubstr("all_gather 'fault: "), HasSubstr("was not complete after 1 s")),
                     kKilled);
}

TEST(Faults, NameTheRankThatDoesNotStartMpi) {
  expect_others_name(
      "never-starts-mpi",
      AllOf(HasSubstr("while MPI started or ended: "), HasSubstr("barrier 'pmi': rank 1 of 3 did not come")), 0);
}

TEST(Faults, NameTheRankThatLeavesEarly) {
  expect_others_name("leaves-early", HasSubstr("barrier 'end': rank 1 has left"), 0);
}

TEST(Faults, NameTheGroupInWhichTheyWait) {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) ranks.start(fault("sleeps-in-a-group"));
  const Ended ended = ranks.wait(0);
  EXPECT_EQ(ended.status, 4);
  EXPECT_THAT(ended.error, AllOf(HasSubstr("in world/pair: all_gather"), HasSubstr("late: rank 1")));
}

TEST(Faults, NameTheStoreThatVanishes) {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) ranks.start(fault("store-vanishes"));
  EXPECT_EQ(ranks.wait(0).status, kKilled);
  for (const int rank : {1, 2}) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 4);
    EXPECT_THAT(ended.error, HasSubstr("the store has vanished: rank 0 closed the connection"));
  }
}

TEST(Faults, EndAllProcessesOfMpirunWithStatusFour) {
  Ranks ranks(1);
  ranks.start({"/bin/sh", "-c",
               fmt::format("env -u SHARDPROOF_RANK -u SHARDPROOF_WORLD_SIZE -u SHARDPROOF_ADDRESS "
                           "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} --oversubscribe -n 3 {} "
                           "sleeps 1000",
                           SHARDPROOF_MPIRUN, SHARDPROOF_FAULT_RANK)});
  const Ended ended = ranks.wait(0);
  EXPECT_EQ(ended.status, 4) << ended.error;
  EXPECT_THAT(ended.error, HasSubstr("late: rank 1"));
}

// ---- the program itself

TEST(FaultsOfARun, AreNoneIfAllIsWell) {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) ranks.start(run({}, "60"));
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 0) << ended.error;
    EXPECT_EQ(ended.error, "");
  }
  EXPECT_THAT(contents_of(ranks.folder() / "out.json"), HasSubstr("\"ROUNDING-EQUIVALENT\""));
}

struct Refused {
  Words options, variables;  // of rank 1
  const char* message;       // on both
};

TEST(FaultsOfARun, NameWhatRankOneHasDifferent) {
  const std::vector<Refused> all{
      {{"--dtype", "float32"}, {}, "rank 1 was started with another configuration than rank 0"},
      {{"--seed", "7"}, {}, "rank 1 was started with another configuration than rank 0"},
      {{}, {"SHARDPROOF_WORLD_SIZE=3"}, "rank 1 was started as one of 3 ranks, rank 0 as one of 2"},
  };
  for (const Refused& wrong : all) {
    Ranks ranks(2);
    ranks.start(run({}, "60"));
    ranks.start(run(wrong.options, "60"), wrong.variables);
    const Ended first = ranks.wait(0), second = ranks.wait(1);
    EXPECT_EQ(first.status, 4);
    EXPECT_EQ(second.status, 4);
    EXPECT_THAT(first.error, AllOf(HasSubstr("rank 1 was refused"), HasSubstr(wrong.message)));
    EXPECT_THAT(second.error, AllOf(HasSubstr("refuses this process"), HasSubstr(wrong.message)));
    EXPECT_THAT(ranks.left_behind(), IsEmpty());
  }
}

TEST(FaultsOfARun, NameThePortInUse) {
  Ranks ranks(2);
  const Socket taken = Ranks::listen(ranks.port());
  for (int rank = 0; rank < 2; ++rank) ranks.start(run());
  const Ended first = ranks.wait(0), second = ranks.wait(1);
  EXPECT_EQ(first.status, 2);
  EXPECT_THAT(first.error,
              HasSubstr(fmt::format("cannot listen at 127.0.0.1 on port {} (Address already in use)", ranks.port())));
  EXPECT_EQ(second.status, 4);
  EXPECT_THAT(second.error, AllOf(HasSubstr("found no store of rank 0"), HasSubstr("the other side was silent")));
  EXPECT_THAT(ranks.left_behind(), IsEmpty());
}

TEST(FaultsOfARun, NameTheRankThatDoesNotCome) {
  Ranks ranks(2);
  ranks.start(run());
  const Ended first = ranks.wait(0);
  EXPECT_EQ(first.status, 4);
  EXPECT_THAT(first.error, HasSubstr("barrier 'start': rank 1 of 2 did not come within 1 s"));
  EXPECT_THAT(ranks.left_behind(), IsEmpty());
}

TEST(FaultsOfARun, NameWhatNobodySaid) {
  Ranks ranks(2);
  ranks.start(run({"--rank", "0", "--world-size", "3"}));
  EXPECT_THAT(ranks.wait(0).error, HasSubstr("options and SHARDPROOF_* contradict each other about the number of "
                                             "ranks: --world-size=3, but SHARDPROOF_WORLD_SIZE=2"));
  Ranks others(2);
  others.start(
      {"/bin/sh", "-c",
       fmt::format("exec env -u SHARDPROOF_ADDRESS {} run flux --backend mpi --ring-degree 2", SHARDPROOF_PROGRAM)});
  const Ended ended = others.wait(0);
  EXPECT_EQ(ended.status, 2);
  EXPECT_THAT(ended.error,
              HasSubstr("SHARDPROOF_* (SHARDPROOF_RANK=0, SHARDPROOF_WORLD_SIZE=2) does not say where rank "
                        "0 can be met; expected --address HOST:PORT"));
}

// What rank 0 alone looks at is wrong in the first of two cases: nobody waits for it in the second.
TEST(FaultsOfARun, EndOnAllRanksWhenRankZeroCannotGoOn) {
  Ranks ranks(2);
  const TemporaryFolder exports;
  std::filesystem::copy(SHARDPROOF_SOURCE_DIR "/tests/data/goldens/flux/tiny", exports / "export");
  std::filesystem::remove(exports / "export/base.inputs.safetensors");
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start({SHARDPROOF_PROGRAM, "run", exports / "export", "--backend", "mpi", "--ulysses-degree", "2"});
  }
  const Ended first = ranks.wait(0), second = ranks.wait(1);
  EXPECT_EQ(first.status, 2);
  EXPECT_THAT(first.error, HasSubstr("base.inputs.safetensors"));
  EXPECT_EQ(second.status, 0);
  EXPECT_EQ(second.error, "");
}

TEST(FaultsOfARun, NameTheLibraryThatIsMissing) {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) ranks.start(run({}, "60"), {"SHARDPROOF_PMI_LIBRARY=/no such file"});
  const Ended first = ranks.wait(0);
  EXPECT_EQ(first.status, 2);
  EXPECT_THAT(first.error, HasSubstr("'/no such file' is missing; expected it beside the program"));
}

// Rank 1 is killed before the run begins; `launch` ends the other, which waits for it.
TEST(FaultsOfARun, EndUnderLaunchWhenARankIsKilled) {
  Ranks ranks(1);
  std::string line;
  for (const std::string& word : run({}, "60")) line += " '" + word + "'";
  ranks.start({SHARDPROOF_PROGRAM, "launch", "-n", "2", "--", "sh", "-c",
               "if [ $SHARDPROOF_RANK = 1 ]; then sleep 0.2; kill -9 $$; fi; exec" + line});
  const Ended ended = ranks.wait(0);
  EXPECT_EQ(ended.status, 4);
  EXPECT_THAT(ended.error, HasSubstr("launch: rank 1 was killed by signal 9 (Killed); the others were ended"));
  EXPECT_THAT(ranks.left_behind(), IsEmpty());
}

// The place of meeting may be named under mpirun, too.
TEST(FaultsOfARun, AreNoneUnderMpirunWithAStore) {
  Ranks ranks(1);
  ranks.start({"/bin/sh", "-c",
               fmt::format("env -u SHARDPROOF_RANK -u SHARDPROOF_WORLD_SIZE OMPI_ALLOW_RUN_AS_ROOT=1 "
                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} --oversubscribe -n 2 {} run flux --backend mpi "
                           "--ring-degree 2 --case even --timeout 60",
                           SHARDPROOF_MPIRUN, SHARDPROOF_PROGRAM)});
  const Ended ended = ranks.wait(0);
  EXPECT_EQ(ended.status, 0) << ended.error;
}

// The variables of torchrun, as it sets them; torchrun itself is run where it can be installed.
TEST(FaultsOfARun, AreNoneUnderTheVariablesOfTorchrun) {
  Ranks ranks(2);
  const Socket agent = Ranks::listen(ranks.port());  // which holds the port
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start(
        {"/bin/sh", "-c",
         fmt::format("exec env -u SHARDPROOF_RANK -u SHARDPROOF_WORLD_SIZE -u SHARDPROOF_ADDRESS RANK={} "
                     "WORLD_SIZE=2 LOCAL_RANK={} LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT={} {} run "
                     "flux --backend mpi --ring-degree 2 --case even --timeout 60",
                     rank, rank, ranks.port(), SHARDPROOF_PROGRAM)});
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 0) << ended.error;
  }
}

// What MPI shares between the ranks is nowhere but in the folder of the run, and goes when the launcher is killed.
TEST(FaultsOfALaunch, LeaveNoFilesOfMpi) {
  Ranks ranks(1);
  std::string program;
  for (const std::string& word : run({"--check", "off", "--steps", "5000"}, "60")) program += " '" + word + "'";
  ranks.start({"/bin/sh", "-c",
               fmt::format("echo $$ > launch && exec {} launch -n 2 -- sh -c \"echo \\$SHARDPROOF_RUN_FOLDER > "
                           "folder.\\$SHARDPROOF_RANK; echo \\$\\$ > rank.\\$SHARDPROOF_RANK; exec{}\"",
                           SHARDPROOF_PROGRAM, program)});
  const auto line_of = [&](const std::string& name) {
    const std::string text = contents_of(ranks.folder() / name);
    return text.substr(0, text.find('\n'));
  };
  // The file of a window comes last, and has no name any more.
  const auto shared_files = [&] {
    std::vector<std::string> files;
    std::istringstream maps(contents_of("/proc/" + line_of("rank.1") + "/maps"));
    for (std::string line; std::getline(maps, line);) {
      const std::size_t path = line.find('/');
      const bool is_shared = line.find("rw-s") != std::string::npos && path != std::string::npos;
      if (is_shared && line.find("/dev/zero") == std::string::npos) files.push_back(line.substr(path));
    }
    return files;
  };
  const auto has_window = [&] {
    const std::vector<std::string> files = shared_files();
    return std::ranges::any_of(files, [](const std::string& file) { return file.find("osc_sm") != std::string::npos; });
  };
  for (int i = 0; i < 2000 && (line_of("rank.1").empty() || !has_window()); ++i) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  const std::string folder = line_of("folder.1");
  EXPECT_THAT(shared_files(), testing::Each(testing::StartsWith(folder + "/")));
  EXPECT_TRUE(has_window());
  ASSERT_EQ(::kill(std::stoi(line_of("launch")), SIGKILL), 0);
  EXPECT_EQ(ranks.wait(0).status, kKilled);
  for (int i = 0; i < 2000 && std::filesystem::exists(folder); ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace shardproof::test
