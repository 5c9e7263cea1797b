// `launch` with real processes: what the ranks are told, how their lines are shown, and that nothing is left running
// whoever fails, ends or kills whom. The programs are shell scripts.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

using test::contents_of;
using test::ProgramRun;
using test::run_program;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

// launch OPTIONS -- sh -c SCRIPT
Words script(const Words& options, const std::string& text) {
  Words words{"launch"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", text});
  return words;
}

// Waits until the condition holds; a test failure if it takes longer than any machine should need.
template <class Condition>
void wait_until(const char* what, const Condition& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << what << " did not happen within ten seconds";
}

// Numbers of processes that a script wrote into files of a folder, one a file.
std::vector<pid_t> pids_in(const fs::path& folder) {
  std::vector<pid_t> pids;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string text = contents_of(entry.path());
    if (text.ends_with('\n')) pids.push_back(std::stoi(text));
  }
  return pids;
}

std::vector<pid_t> words_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<pid_t>(words), {}};
}

// Ended, whether or not somebody has waited for it.
bool has_ended(pid_t pid) {
  const std::string status = contents_of(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = status.rfind(')');
  return name_end == std::string::npos || status.substr(name_end).starts_with(") Z");
}

void expect_all_ended(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    wait_until("the end of a process", [&] { return has_ended(pid); });
  }
}

TEST(Launch, TellsEveryRankWhereItStands) {
  const ProgramRun run = run_program(
      script({"-n", "3"},
             "echo $SHARDPROOF_RANK of $SHARDPROOF_WORLD_SIZE, $SHARDPROOF_LOCAL_RANK of $SHARDPROOF_LOCAL_SIZE"));
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_EQ(run.error, "");
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(run.output, HasSubstr(fmt::format("[{}] {} of 3, {} of 3\n", rank, rank, rank)));
}

TEST(Launch, HandsOnTheWordsOfTheProgramAsTheyAre) {
  const ProgramRun run =
      run_program({"launch", "-n", "1", "--", "printf", "%s|", "--help", "-n", "--", "a b", "", "x"});
  EXPECT_EQ(run.output, "[0] --help|-n|--|a b||x|\n");
}

TEST(Launch, OpensTheStoresSocketForRankZeroAlone) {
  const ProgramRun run = run_program(
      script({"-n", "2"}, "echo ${SHARDPROOF_ADDRESS%:*} ${SHARDPROOF_STORE_SOCKET:-none}; ls /proc/$$/fd | wc -l"));
  EXPECT_THAT(run.output, HasSubstr("[1] 127.0.0.1 none\n"));
  EXPECT_THAT(run.output, AllOf(HasSubstr("[0] 127.0.0.1 "), Not(HasSubstr("[0] 127.0.0.1 none"))));
}

TEST(Launch, HidesOtherLaunchersFromTheRanks) {
  const ProgramRun run =
      run_program(script({"-n", "1"}, "echo -$RANK$WORLD_SIZE$OMPI_COMM_WORLD_RANK$SLURM_PROCID$MASTER_PORT- $KEPT"),
                  {.environment = {"RANK=5", "WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=1", "SLURM_PROCID=1",
                                   "MASTER_PORT=29500", "KEPT=yes"}});
  EXPECT_EQ(run.output, "[0] -- yes\n");
}

TEST(Launch, ShowsLinesWholeAndOfBothStreams) {
  const ProgramRun run = run_program(script({"-n", "2"}, R"(
      for i in 1 2 3 4 5 6 7 8; do printf 'begin '; printf 'end\n'; done
      printf 'error\n' >&2; printf 'last without end')"));
  for (const char* rank : {"[0] ", "[1] "}) {
    std::string output;
    for (int i = 0; i < 8; ++i) output += rank + std::string("begin end\n");
    std::string own;
    for (std::size_t begin = 0; begin < run.output.size(); begin = run.output.find('\n', begin) + 1) {
      const std::string line = run.output.substr(begin, run.output.find('\n', begin) - begin + 1);
      if (line.starts_with(rank)) own += line;
    }
    EXPECT_EQ(own, output + rank + "last without end\n");
    EXPECT_THAT(run.error, HasSubstr(rank + std::string("error\n")));
  }
}

TEST(Launch, ForwardsMuchWithoutLosingAnything) {
  const ProgramRun run = run_program({"launch", "-n", "1", "--", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"});
  EXPECT_EQ(std::count(run.output.begin(), run.output.end(), 'x'), 300'000);
  EXPECT_EQ(run.status, 0);
}

TEST(Launch, EndsAllOnTheFirstFailureWithItsStatusAndMessage) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(script({"-n", "3"}, R"(
      sleep 600 & echo $! > child.$SHARDPROOF_RANK; echo $$ > $SHARDPROOF_RANK
      if [ $SHARDPROOF_RANK = 1 ]; then
        while [ ! -s 0 ] || [ ! -s 2 ]; do sleep 0.01; done; echo 'what went wrong' >&2; exit 7
      fi
      wait)"),
                                     {.folder = folder.path()});
  EXPECT_EQ(run.status, 7);
  EXPECT_THAT(run.error, HasSubstr("[1] what went wrong\n"));
  EXPECT_THAT(run.error, HasSubstr("shardproof: launch: rank 1 ended with status 7; the others were ended: what went "
                                   "wrong\n"));
  const std::vector<pid_t> pids = pids_in(folder.path());
  EXPECT_EQ(pids.size(), 6U);
  expect_all_ended(pids);
}

TEST(Launch, SaysWhichSignalKilledARank) {
  const ProgramRun run = run_program(script({"-n", "2"}, "[ $SHARDPROOF_RANK = 0 ] || kill -9 $$; sleep 600"));
  EXPECT_EQ(run.status, 4);
  EXPECT_EQ(run.error, "shardproof: launch: rank 1 was killed by signal 9 (Killed); the others were ended\n");
}

TEST(Launch, KillsRanksThatDoNotWantToEnd) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(script({"-n", "2", "--grace", "0"}, R"(
      trap '' TERM; echo $$ > $SHARDPROOF_RANK
      if [ $SHARDPROOF_RANK = 1 ]; then while [ ! -s 0 ]; do sleep 0.01; done; exit 3; fi
      while true; do sleep 0.05; done)"),
                                     {.folder = folder.path()});
  EXPECT_EQ(run.status, 3);
  expect_all_ended(pids_in(folder.path()));
}

TEST(Launch, LeavesNothingThatARankStartedAndForgot) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(script({"-n", "1"}, "sleep 600 & echo $! > forgotten"), {.folder = folder.path()});
  EXPECT_EQ(run.status, 0);
  expect_all_ended(pids_in(folder.path()));
}

TEST(Launch, NamesAProgramThatCannotBeStarted) {
  const ProgramRun run = run_program({"launch", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.error,
            "shardproof: 'no-such-program' cannot be started: No such file or directory; expected a program\n");
  EXPECT_THAT(run_program({"launch", "-n", "1", "--", "/"}).error,
              HasSubstr("'/' cannot be started: Permission denied"));
}

TEST(Launch, NeedsAProgramAndANumber) {
  EXPECT_THAT(run_program({"launch", "--", "true"}).error, HasSubstr("launch: --processes is missing; expected -n N"));
  EXPECT_THAT(run_program({"launch", "-n", "2"}).error, HasSubstr("launch: PROGRAM is missing"));
  EXPECT_THAT(run_program({"launch", "-n", "0", "--", "true"}).error, HasSubstr("--processes: '0' is not possible"));
  EXPECT_THAT(run_program({"launch", "-n", "1025", "--", "true"}).error, HasSubstr("an integer from 1 to 1024"));
  EXPECT_THAT(run_program({"launch", "-n", "1", "-m", "--", "true"}).error, HasSubstr("'-m' is no option of launch"));
}

// Open MPI frames what it says when it is aborted.
TEST(Launch, QuotesThisProgramRatherThanWhatMpiAdds) {
  const ProgramRun run =
      run_program(script({"-n", "1"}, "(echo early; echo 'shardproof: rank 0 is late'; echo; echo ----) >&2; exit 4"));
  EXPECT_EQ(run.status, 4);
  EXPECT_TRUE(run.error.ends_with("rank 0 ended with status 4; the others were ended: shardproof: rank 0 is late\n"))
      << run.error;
}

TEST(Launch, NamesAPortInUse) {
  // The script holds the port of the outer launch while the inner one asks for it.
  const ProgramRun run = run_program(script(
      {"-n", "1"}, fmt::format("exec {} launch -n 1 --address $SHARDPROOF_ADDRESS -- true", test::program_path())));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("(Address already in use); expected a free port"));
}

TEST(Launch, EndsAllWhenNobodyReadsItsOutput) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(script({"-n", "2"}, "echo $$ > $SHARDPROOF_RANK; echo text; sleep 600"),
                                     {.output = test::StandardOutput::broken_pipe, .folder = folder.path()});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("cannot write to standard output: Broken pipe"));
  expect_all_ended(pids_in(folder.path()));
}

// A rank that writes for ever, to somebody who reads everything or nothing.
TEST(Launch, HearsSignalsWhileARankNeverStopsWriting) {
  for (const bool is_read : {true, false}) {
    const TemporaryFolder folder;
    const std::string command =
        fmt::format("exec {} launch -n 1 --grace 1 -- sh -c 'echo $$ > pid; exec yes'", test::program_path());
    test::StartedProgram started(
        {"launch", "-n", "1", "--", "sh", "-c",
         fmt::format("{{ {} & echo $! > launcher; wait; }} | {}", command, is_read ? "cat > /dev/null" : "sleep 600")},
        {.folder = folder.path()});
    wait_until("the start of the rank", [&] { return pids_in(folder.path()).size() == 2; });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until no pipe takes more
    const std::vector<pid_t> pids = pids_in(folder.path());
    EXPECT_EQ(::kill(words_of(contents_of(folder / "launcher")).front(), SIGTERM), 0);
    expect_all_ended(pids);
    EXPECT_EQ(::kill(started.pid(), SIGTERM), 0);
    started.wait();
  }
}

// One that fails beside it is heard of, too.
TEST(Launch, HearsOfAFailureWhileARankNeverStopsWriting) {
  const ProgramRun run = run_program(script({"-n", "2"}, "[ $SHARDPROOF_RANK = 1 ] || exec yes; sleep 0.2; exit 7"));
  EXPECT_EQ(run.status, 7);
}

struct AfterSignal {
  int status = 0;
  std::string run_folder;
};

// Starts it, waits until both ranks and what they started run, and sends the launcher a signal.
AfterSignal after(int signal, const fs::path& folder) {
  const TemporaryFolder notes;
  test::StartedProgram started(
      script({"-n", "2"},
             "echo $SHARDPROOF_RUN_FOLDER > $NOTES/$SHARDPROOF_RANK; touch $SHARDPROOF_RUN_FOLDER/file; sleep 600 & "
             "echo $! > child.$SHARDPROOF_RANK; echo $$ > $SHARDPROOF_RANK; wait"),
      {.folder = folder, .environment = {"NOTES=" + notes.path().string()}});
  wait_until("the start of the ranks", [&] { return pids_in(folder).size() == 4; });
  std::string run_folder = contents_of(notes / "0");
  run_folder.pop_back();
  EXPECT_TRUE(fs::exists(run_folder + "/file"));
  EXPECT_EQ(::kill(started.pid(), signal), 0);
  return {.status = started.wait(), .run_folder = run_folder};
}

TEST(Launch, LeavesNothingBehindWhenItIsToldToEnd) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TemporaryFolder folder;
    const AfterSignal end = after(signal, folder.path());
    EXPECT_EQ(end.status, 128 + signal);
    EXPECT_FALSE(fs::exists(end.run_folder));
    expect_all_ended(pids_in(folder.path()));
  }
}

// Nor what the ranks started and the files that they shared.
TEST(Launch, LeavesNothingBehindWhenItIsKilled) {
  const TemporaryFolder folder;
  const AfterSignal end = after(SIGKILL, folder.path());
  EXPECT_EQ(end.status, -1);
  expect_all_ended(pids_in(folder.path()));
  wait_until("the removal of the run's folder", [&] { return !fs::exists(end.run_folder); });
}

// What a rank leaves in its folder goes, and so does who looks after it.
TEST(Launch, LeavesNothingBehindWhenAllIsWell) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(
      script({"-n", "1"},
             "touch $SHARDPROOF_RUN_FOLDER/file; echo $SHARDPROOF_RUN_FOLDER; cat /proc/$PPID/task/$PPID/children > "
             "children"),
      {.folder = folder.path()});
  EXPECT_EQ(run.status, 0) << run.error;
  ASSERT_GT(run.output.size(), 5U);
  EXPECT_FALSE(fs::exists(run.output.substr(4, run.output.size() - 5))) << run.output;
  const std::vector<pid_t> children = words_of(contents_of(folder / "children"));
  EXPECT_EQ(children.size(), 2U) << "the rank, and the keeper";
  for (const pid_t child : children) EXPECT_NE(::kill(child, 0), 0);
}

TEST(Launch, EndsAlthoughItsKeeperWasStopped) {
  const ProgramRun run = run_program(
      script({"-n", "1"},
             "for child in $(cat /proc/$PPID/task/$PPID/children); do [ $child = $$ ] || kill -STOP $child; done; echo "
             "$SHARDPROOF_RUN_FOLDER"));
  EXPECT_EQ(run.status, 0) << run.error;
  ASSERT_GT(run.output.size(), 5U);
  EXPECT_FALSE(fs::exists(run.output.substr(4, run.output.size() - 5))) << run.output;
}

}  // namespace
}  // namespace shardproof
