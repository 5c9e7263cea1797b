// Ranks that die, sleep, differ or do not come, with real processes: within the deadline every other rank ends with
// status 4 and words that name the cause, no process is left, and no file is half written.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/socket.h"
#include "tests/core/files/test_files.h"

namespace shardproof::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Words = std::vector<std::string>;

constexpr milliseconds kPatience{1000};
// Start and end of a process, and a machine that is busy, come on top of the deadline.
constexpr milliseconds kLongest{30'000};
constexpr int kKilled = -1;

struct Ended {
  int status = 0;  // kKilled for a signal
  std::string error;
};

std::vector<char*> pointers_to(Words& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The processes of one run, each started by hand as in a terminal of its own.
class Ranks {
 public:
  explicit Ranks(int world_size) : world_size_(world_size), port_(port_of_listening(listen().get())) {}
  ~Ranks() {
    for (const pid_t pid : pids_) {
      if (pid < 0) continue;
      (void)::kill(pid, SIGKILL);
      (void)::waitpid(pid, nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int port() const { return port_; }
  const std::filesystem::path& folder() const { return work_.path(); }
  // Neither a result nor what MPI shares between the processes.
  Words left_behind() const {
    Words left;
    for (const std::filesystem::path& folder : {work_.path(), shared_}) {
      std::error_code none;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, none))
        left.push_back(entry.path());
    }
    return left;
  }

  // In the order of the ranks.
  void start(Words words, const Words& variables = {}) {
    const auto rank = static_cast<int>(pids_.size());
    std::filesystem::create_directory(shared_);
    Words environment = variables;  // the first of a name counts
    environment.insert(environment.end(),
                       {fmt::format("SHARDPROOF_RANK={}", rank), fmt::format("SHARDPROOF_WORLD_SIZE={}", world_size_),
                        fmt::format("SHARDPROOF_ADDRESS=127.0.0.1:{}", port_), "SHARDPROOF_PMI_LIBRARY=" SHARDPROOF_PMI,
                        fmt::format("SHARDPROOF_RUN_FOLDER={}", shared_.string()), "OMP_NUM_THREADS=1"});
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    const std::vector<char*> argument_pointers = pointers_to(words), variable_pointers = pointers_to(environment);
    const std::string error_file = logs_ / std::to_string(rank), folder = work_.path();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int error = ::open(error_file.c_str(), O_WRONLY | O_CREAT, 0600);
      const int output = ::open("/dev/null", O_WRONLY);
      if (::dup2(error, STDERR_FILENO) >= 0 && ::dup2(output, STDOUT_FILENO) >= 0 && ::chdir(folder.c_str()) == 0)
        ::execve(argument_pointers.front(), argument_pointers.data(), variable_pointers.data());
      ::_exit(127);
    }
    pids_.push_back(pid);
  }

  // Waits for the end of one; a failure, and its end, if it takes too long.
  Ended wait(int rank) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end_) {
        ADD_FAILURE() << "rank " << rank << " has not ended in time";
        (void)::kill(pid, SIGKILL);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    pid = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : kKilled, contents_of(logs_ / std::to_string(rank))};
  }

  static Socket listen(int port = 0) { return std::move(listen_on("127.0.0.1", port).socket); }

 private:
  int world_size_;
  int port_;
  TemporaryFolder work_, logs_;
  std::filesystem::path shared_ = logs_ / "shared";
  std::vector<pid_t> pids_;
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + kLongest;
};

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

}  // namespace
}  // namespace shardproof::test
