// What the ranks of a run record, with real processes: the operations of simulated ranks under the same names, in one
// clock, communication hidden behind computation; what the checks of a run say; and a disk that is full.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "reports/trace_diff.h"
#include "tests/real/started_ranks.h"
#include "tests/support/trace_checks.h"

namespace shardproof::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Words kRing{"--ring-degree", "2", "--rotate-method", "alltoall"};

Words run(const std::string& backend, const Words& more) {
  Words words{SHARDPROOF_PROGRAM,
              "run",
              SHARDPROOF_SOURCE_DIR "/tests/data/goldens/flux/tiny",
              "--backend",
              backend,
              "--case",
              "base",
              "--timeout",
              "60"};
  words.insert(words.end(), kRing.begin(), kRing.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Both ranks of a run over MPI, or the simulator's one process.
void run_to_the_end(Ranks& ranks, int processes, const Words& words) {
  for (int rank = 0; rank < processes; ++rank) ranks.start(words);
  for (int rank = 0; rank < processes; ++rank) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 0) << ended.error;
    EXPECT_EQ(ended.error, "");
  }
}

struct Slice {
  double begin = 0.0, end = 0.0;
};

// Rank 1 stands where there is no such folder, as on another machine.
TEST(TraceOfARun, IsWrittenWhereRankZeroIs) {
  Ranks ranks(2);
  std::filesystem::create_directory(ranks.folder() / "here");
  std::filesystem::create_directory(ranks.folder() / "there");
  std::filesystem::create_directory(ranks.folder() / "here/results");
  const auto from = [&](const char* folder) {
    std::string line = fmt::format("cd {} && exec", folder);
    for (const std::string& word :
         run("mpi", {"--check", "off", "--trace", "results/trace.json", "--json", "results/out.json", "--junit",
                     "results/out.xml", "--html", "results/out.html"})) {
      line += " '" + word + "'";
    }
    return Words{"/bin/sh", "-c", line};
  };
  ranks.start(from("here"));
  ranks.start(from("there"));
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 0) << ended.error;
    EXPECT_EQ(ended.error, "");
  }
  EXPECT_EQ(trace_in(ranks.folder() / "here/results/trace.json").ranks.size(), 2U);
  EXPECT_EQ(read_json_file(ranks.folder() / "here/results/out.json").at("profile").at("ranks").as_int(), 2);
  // Nothing was compared, so nothing passes.
  EXPECT_THAT(read_text_file(ranks.folder() / "here/results/out.xml"),
              HasSubstr("tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\""));
  EXPECT_THAT(read_text_file(ranks.folder() / "here/results/out.html"), HasSubstr(">Profile</h2>"));
  EXPECT_TRUE(std::filesystem::is_empty(ranks.folder() / "there"));
}

// What a viewer needs: on every track slices lie in each other or apart, and both ends of an arrow lie in a slice.
void expect_a_viewer_can_show(const std::filesystem::path& file) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Slice>> tracks;
  const Json json = read_trace_json(file);
  const auto track_of = [](const Json& event) { return std::pair(event.at("pid").as_int(), event.at("tid").as_int()); };
  for (const Json& event : json.at("traceEvents").items()) {
    if (event.at("ph").as_string() != "X") continue;
    const double begin = event.at("ts").as_double();
    tracks[track_of(event)].push_back({begin, begin + event.at("dur").as_double()});
  }
  constexpr double kLastDigit = 0.0005;  // of microseconds with three
  for (auto& [track, slices] : tracks) {
    std::ranges::sort(
        slices, [](const Slice& a, const Slice& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
    std::vector<Slice> open;
    for (const Slice& slice : slices) {
      while (!open.empty() && open.back().end <= slice.begin + kLastDigit) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(slice.end, open.back().end + kLastDigit) << track.first << ' ' << track.second;
      }
      open.push_back(slice);
    }
  }
  int ends = 0;
  for (const Json& event : json.at("traceEvents").items()) {
    const std::string& phase = event.at("ph").as_string();
    if (phase != "s" && phase != "f") continue;
    ++ends;
    const double time = event.at("ts").as_double();
    EXPECT_TRUE(std::ranges::any_of(tracks[track_of(event)], [&](const Slice& slice) {
      return slice.begin <= time && time <= slice.end;
    })) << time;
  }
  EXPECT_GT(ends, 0);
}

TEST(TraceOfARun, IsThatOfTheSimulatorOverMpi) {
  Ranks simulated(1), real(2);
  run_to_the_end(simulated, 1, run("simulator", {"--steps", "2", "--trace", "trace.json"}));
  run_to_the_end(real, 2, run("mpi", {"--steps", "2", "--warmup", "1", "--trace", "trace.json", "--json", "out.json"}));
  const std::vector files{simulated.folder() / "trace.json", real.folder() / "trace.json"};
  const TraceComparison comparison = compare_trace_files(files);
  EXPECT_THAT(comparison.divergences, IsEmpty()) << comparison_text(comparison, 120);
  EXPECT_GT(comparison.compared, 1000);
  for (const std::filesystem::path& file : files) {
    const RunTrace trace = trace_in(file);
    EXPECT_EQ(trace.steps(), 2);
    EXPECT_GT(expect_exchanges_are_hidden(trace), 0) << file;
    expect_a_viewer_can_show(file);
  }
  // All processes of this machine have one clock, which the measurement does not know.
  const RunTrace trace = trace_in(files[1]);
  ASSERT_EQ(trace.ranks.size(), 2U);
  EXPECT_GT(trace.ranks[1].clock.residual_ns, 0);
  EXPECT_LE(std::abs(trace.ranks[1].clock.offset_ns), trace.ranks[1].clock.residual_ns);
  const Json profile = read_json_file(real.folder() / "out.json").at("profile");
  EXPECT_EQ(profile.at("ranks").as_int(), 2);
  EXPECT_EQ(profile.at("about").at("backend").as_string(), "mpi");
  EXPECT_GT(profile.at("operations").size(), 5U);
}

// The same steps, of which one rank is without its third exchange: as when a rank takes another branch.
TEST(TraceOfARun, ShowsTheCallThatOneRankDidNotMake) {
  Ranks ranks(1);
  run_to_the_end(ranks, 1, run("simulator", {"--trace", "trace.json"}));
  RunTrace trace = trace_in(ranks.folder() / "trace.json");
  std::vector<TraceEvent>& events = trace.ranks[1].events;
  int left = 3;
  std::erase_if(events, [&](const TraceEvent& event) {
    return event.is(EventKind::communication) && trace.ranks[1].text(event.operation) == "exchange" && --left == 0;
  });
  put(ranks.folder() / "other.json", chrome_text(trace));
  ranks.start({SHARDPROOF_PROGRAM, "trace", "diff", "trace.json", "other.json", "--json", "out.json"});
  EXPECT_EQ(ranks.wait(1).status, 1);
  const Json comparison = read_json_file(ranks.folder() / "out.json").at("comparison");
  ASSERT_EQ(comparison.at("divergences").size(), 1U);
  const Json& divergence = comparison.at("divergences").at(std::size_t{0});
  EXPECT_EQ(divergence.at("rank").as_int(), 1);
  EXPECT_EQ(divergence.at("kind").as_string(), "missing");
  EXPECT_THAT(divergence.at("first").at("id").as_string(), HasSubstr("call 3 exchange"));
  EXPECT_THAT(divergence.at("first").at("signature").as_string(),
              HasSubstr("exchange 'ring: keys and values' float64"));
}

// As Nsight Systems would: a tool that NVTX loads is told of every range, whether the run is recorded or not.
TEST(NvtxOfARun, TellsAToolOfEveryOperation) {
  if (std::string_view(SHARDPROOF_NVTX_TOOL).empty())
    GTEST_SKIP() << "this build has no NVTX, tools/setup_nccl.sh fetches it";
  for (const Words& more : {Words{}, {"--steps", "1"}}) {
    Ranks ranks(2);
    Words words = run("mpi", {"--check", "off"});
    words.insert(words.end(), more.begin(), more.end());
    for (int rank = 0; rank < 2; ++rank) {
      ranks.start(words, {"NVTX_INJECTION64_PATH=" SHARDPROOF_NVTX_TOOL, "NVTX_TOOL_OUTPUT=ranges"});
    }
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank).status, 0);
    const std::string ranges = contents_of(ranks.folder() / "ranges.1");
    EXPECT_THAT(ranges, AllOf(testing::StartsWith("domain shardproof\nstep\n  FluxTransformer2DModel\n"),
                              HasSubstr("      FluxAttention\n"), HasSubstr("        exchange\n        attention\n"),
                              HasSubstr("        wait\n"), HasSubstr("          matmul\n")));
    EXPECT_EQ(ranges.find("\nstep\n"), ranges.rfind("\nstep\n"));
  }
}

std::string verdict_in(const std::filesystem::path& file) {
  return read_json_file(file).at("results").at(std::size_t{0}).at("verdict").as_string();
}

TEST(CheckOfARun, IsWithinRoundingOnEveryRankOrNotMade) {
  for (const auto& [check, dtype, verdict] :
       {std::tuple("rounding", "float64", "ROUNDING-EQUIVALENT"),
        std::tuple("rounding", "bfloat16", "ROUNDING-EQUIVALENT"), std::tuple("off", "float64", "NOT CHECKED")}) {
    Ranks ranks(2);
    run_to_the_end(ranks, 2, run("mpi", {"--check", check, "--dtype", dtype, "--json", "out.json"}));
    EXPECT_EQ(verdict_in(ranks.folder() / "out.json"), verdict) << check << ' ' << dtype;
  }
}

// Rank 0 alone takes longer for what it simulates than ranks wait for each other.
TEST(CheckOfARun, MayTakeRankZeroLongerThanOthersWait) {
  Ranks ranks(2);
  const Words words{SHARDPROOF_PROGRAM,
                    "run",
                    "flux",
                    "--size",
                    "text=64,image=640,heads=8,layers=6",
                    "--backend",
                    "mpi",
                    "--timeout",
                    "2",
                    "--ring-degree",
                    "2",
                    "--json",
                    "out.json"};
  const auto start = std::chrono::steady_clock::now();
  run_to_the_end(ranks, 2, words);
  if (std::chrono::steady_clock::now() - start < std::chrono::seconds(2)) GTEST_SKIP() << "this machine is too fast";
  EXPECT_EQ(verdict_in(ranks.folder() / "out.json"), "ROUNDING-EQUIVALENT");
}

// Seven tokens more than two ranks can share: a rule, which every rank finds broken.
TEST(CheckOfARun, RefusesWithoutTheSimulatorWhatBreaksARule) {
  for (const char* check : {"exact-order", "rounding", "off"}) {
    Ranks ranks(3);
    Words words = run("mpi", {"--check", check});
    words[10] = "3";
    for (int rank = 0; rank < 3; ++rank) ranks.start(words);
    const Ended first = ranks.wait(0);
    EXPECT_EQ(first.status, 2) << check;
    EXPECT_THAT(first.error, HasSubstr("axis 1 has 16 entries, which 3 ranks cannot divide equally")) << check;
    for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank).status, 0) << check;
  }
}

TEST(TraceOfARun, OfTooManyStepsIsRefusedByAllRanksAfterOne) {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start(run("mpi", {"--check", "off", "--steps", "1000000", "--trace", "trace.json"}));
  }
  const Ended first = ranks.wait(0), second = ranks.wait(1);
  EXPECT_EQ(first.status, 2);
  EXPECT_THAT(first.error, HasSubstr("--steps 1000000: they would take about "));
  EXPECT_EQ(second.status, 0) << "a wrong request is told by rank 0";
  EXPECT_EQ(second.error, "");
  EXPECT_THAT(ranks.left_behind(), IsEmpty());
}

// Who reads the trace takes its time, longer than ranks wait for each other: nobody is missing.
TEST(TraceOfARun, MayTakeRankZeroLongerThanOthersWait) {
  Ranks ranks(2);
  const std::string pipe = ranks.folder() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Words words = run("mpi", {"--check", "off", "--trace", pipe, "--json", "out.json"});
  *(std::ranges::find(words, "--timeout") + 1) = "3";
  for (int rank = 0; rank < 2; ++rank) ranks.start(words);
  const Words reader{"/bin/sh", "-c", "exec < pipe && sleep 5 && wc -c > bytes"};
  ranks.start(reader);
  for (int rank = 0; rank < 3; ++rank) {
    const Ended ended = ranks.wait(rank);
    EXPECT_EQ(ended.status, 0) << rank << ended.error;
    EXPECT_EQ(ended.error, "");
  }
  constexpr int kPipeHolds = 1 << 16;  // what rank 0 can write although nobody reads
  EXPECT_GT(std::stoi(contents_of(ranks.folder() / "bytes")), 2 * kPipeHolds);
}

// That nothing half is left of a regular file is tested in one process, as MPI needs files of its own.
TEST(FullDisk, EndsRankZeroWithItsNameAndTheOthersWithTheCause) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) ranks.start(run("mpi", {"--trace", "/dev/full"}));
  const Ended first = ranks.wait(0), second = ranks.wait(1);
  EXPECT_EQ(first.status, 2) << first.error;
  EXPECT_THAT(first.error, AllOf(HasSubstr("--trace"), HasSubstr("/dev/full"), HasSubstr("No space left on device")));
  EXPECT_EQ(second.status, 4) << second.error;
  EXPECT_THAT(second.error,
              AllOf(HasSubstr("rank 1 of 2: rank 0 could not write the trace: "), HasSubstr("/dev/full")));
  EXPECT_THAT(ranks.left_behind(), IsEmpty());
}

// Launchers end all ranks when one fails; rank 0 has said by then what it has to say.
TEST(FullDisk, IsSaidByRankZeroUnderLaunch) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  Ranks ranks(1);
  Words words{SHARDPROOF_PROGRAM, "launch", "-n", "2", "--"};
  const Words program = run("mpi", {"--trace", "/dev/full"});
  words.insert(words.end(), program.begin(), program.end());
  ranks.start(words);
  const Ended ended = ranks.wait(0);
  EXPECT_EQ(ended.status, 2) << ended.error;
  EXPECT_THAT(ended.error, HasSubstr("[0] shardproof: --trace"));
}

TEST(FullDisk, OrAFolderThatDoesNotExistIsFoundBeforeAnythingStarts) {
  Ranks ranks(2);
  ranks.start(run("mpi", {"--trace", "nowhere/trace.json"}));  // alone: nobody is waited for
  const Ended first = ranks.wait(0);
  EXPECT_EQ(first.status, 2);
  EXPECT_THAT(first.error, HasSubstr("--trace (expected a file that can be written): "));
  EXPECT_THAT(first.error, HasSubstr("nowhere/trace.json"));
  EXPECT_THAT(ranks.left_behind(), IsEmpty());
}

}  // namespace
}  // namespace shardproof::test
