// `run` with all ranks in one process, and `trace`: names of operations that depend neither on workers nor on seeds,
// tables, checks, and what is refused.
#include "app/run_trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/host_memory.h"
#include "reports/trace_diff.h"
#include "sim/simulation.h"
#include "tests/app/program.h"
#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"
#include "tests/support/trace_checks.h"

namespace shardproof::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

Words simulated(const Words& more) {
  Words words{"run", golden("tiny"), "--backend", "simulator", "--ring-degree", "2", "--ulysses-degree", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(SimulatedRun, NamesOperationsAlikeForAnyWorkersAndSeeds) {
  const TemporaryFolder folder;
  const Words usual{"--case", "base", "--rotate-method", "alltoall", "--check", "off"};
  std::vector<std::filesystem::path> files;
  for (const Words& more : {Words{"--workers", "1"}, {"--workers", "3"}, {"--schedule-seed", "5", "--workers", "2"}}) {
    files.push_back(folder / ("trace" + std::to_string(files.size()) + ".json"));
    Words words = simulated(usual);
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--trace", files.back()});
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.status, 0) << run.error;
    EXPECT_GT(expect_exchanges_are_hidden(trace_in(files.back())), 0);
  }
  for (std::size_t i = 1; i < files.size(); ++i) {
    const std::vector two{files.front(), files[i]};
    EXPECT_THAT(compare_trace_files(two).divergences, IsEmpty()) << i;
  }
}

TEST(SimulatedRun, VerifiesAndPrintsTheTableThatTheFileGivesAgain) {
  const TemporaryFolder folder;
  const std::string file = folder / "trace.json";
  const ProgramRun run = run_program(simulated({"--case", "base", "--steps", "2", "--trace", file}));
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("ROUNDING-EQUIVALENT"));
  const std::size_t at = run.output.find("profile 2 steps on 4 ranks");
  ASSERT_NE(at, std::string::npos) << run.output;
  const std::string table = run.output.substr(at, run.output.find("\nnotes") - at);
  const ProgramRun again = run_program({"trace", "summary", file});
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.output, HasSubstr(table));
  EXPECT_THAT(again.output, HasSubstr("model   FluxTransformer2DModel"));
}

TEST(SimulatedRun, ComparesWithTheDenseRunOrNothing) {
  const ProgramRun rounding = run_program(simulated({"--case", "base", "--check", "rounding"}));
  EXPECT_EQ(rounding.status, 0) << rounding.error;
  EXPECT_THAT(rounding.output, HasSubstr("1 ROUNDING-EQUIVALENT"));
  const ProgramRun off = run_program(simulated({"--case", "base", "--check", "off"}));
  EXPECT_EQ(off.status, 0) << off.error;
  EXPECT_THAT(off.output, HasSubstr("Nothing was verified: 1 NOT CHECKED."));
  EXPECT_THAT(off.output, HasSubstr("every output: --check off runs, and compares nothing"));
}

// A plan that forgets the text: what is wrong is found whatever the outputs are compared with.
TEST(SimulatedRun, FindsADifferenceInEveryKindOfCheck) {
  const TemporaryFolder folder;
  const std::string plan = folder / "plan.json";
  ASSERT_EQ(run_program({"plan", "flux", "--write-plan", plan}).status, 0);
  std::string text = contents_of(plan);
  const std::size_t at = text.find("\"encoder_hidden_states\"");
  ASSERT_NE(at, std::string::npos);
  const std::size_t end = text.find("},", at);
  text.erase(at, end + 2 - at);
  put(folder / "changed.json", text);
  for (const char* check : {"exact-order", "rounding"}) {
    const ProgramRun run = run_program({"run", "flux", "--backend", "simulator", "--case", "even", "--ring-degree", "2",
                                        "--plan", folder / "changed.json", "--check", check});
    EXPECT_EQ(run.status, 1) << check << run.output << run.error;
  }
}

// A table or a file of half a step would look like that of a whole one.
TEST(SimulatedRun, SaysThatThereIsNoTraceOfARunThatStopped) {
  const TemporaryFolder folder;
  const std::string plan = folder / "plan.json", trace = folder / "trace.json";
  ASSERT_EQ(run_program({"plan", "flux", "--write-plan", plan}).status, 0);
  std::string text = contents_of(plan);
  const std::size_t at = text.find("\"img_ids\"");
  ASSERT_NE(at, std::string::npos);
  text.erase(at, text.find("},", at) + 2 - at);
  put(plan, text);
  for (const char* check : {"exact-order", "off"}) {
    const ProgramRun run = run_program({"run", "flux", "--backend", "simulator", "--case", "even", "--ring-degree", "2",
                                        "--plan", plan, "--check", check, "--steps", "2", "--trace", trace});
    EXPECT_EQ(run.status, 1) << check << run.output << run.error;
    EXPECT_THAT(run.error, HasSubstr("--trace: '" + trace + "' was not written: no step of the run came to its end"));
    EXPECT_THAT(run.output, testing::Not(HasSubstr("profile ")));
    EXPECT_FALSE(std::filesystem::exists(trace));
  }
}

TEST(WriteTraceFile, RefusesWhatNobodyCouldReadAgain) {
  const TemporaryFolder folder;
  Options options;
  options.trace = folder / "trace.json";
  options.steps = 7;
  OutputTarget target("--trace", *options.trace);
  const auto error = thrown_by([&] { write_trace_file({}, options, target, 10); });
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->message,
              HasSubstr("more than the 10 of which `trace` reads a file; expected fewer --steps than 7"));
  options.steps.reset();
  const auto of_one = thrown_by([&] { write_trace_file({}, options, target, 10); });
  ASSERT_TRUE(of_one.has_value());
  EXPECT_THAT(of_one->message, HasSubstr("expected a smaller model, or fewer ranks"));
  EXPECT_EQ(folder.entry_count(), 0U);
}

// A trace of a million steps is refused after one.
TEST(SimulatedRun, RefusesMoreStepsThanCanBeRecorded) {
  const TemporaryFolder folder;
  const Words million{"--case", "base", "--check", "off", "--steps", "1000000"};
  Words words = simulated(million);
  words.insert(words.end(), {"--trace", folder / "trace.json"});
  const ProgramRun run = run_program(words);
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.output, "");
  EXPECT_THAT(run.error, testing::MatchesRegex("shardproof: --steps 1000000: they would take about [0-9]+ bytes in "
                                               "'.*trace.json' of --trace, more than 536870912 of which `trace` reads "
                                               "a file; expected at most [0-9]+ steps\n"));
  EXPECT_EQ(folder.entry_count(), 0U);
  const ProgramRun table = run_program(simulated(million));
  EXPECT_EQ(table.status, 2);
  EXPECT_THAT(table.error, testing::MatchesRegex("shardproof: --steps 1000000: they would take about [0-9]+ bytes in "
                                                 "what is recorded, more than 2147483648 that are kept; expected at "
                                                 "most [0-9]+ steps\n"));
}

TEST(RecordingProblem, IsFoundFromOneStep) {
  const auto problem = [](Options options, const RecordLimits& limits) {
    std::vector<std::optional<std::string>> found(2);
    run_ranks({.world_size = 2}, [&](Communicator& world) {
      OperationRecorder recorder;
      {
        const RecordedStep step(&recorder);
        if (options.cupti) collectives::barrier(world, "test");
      }
      found[static_cast<std::size_t>(world.rank())] = recording_problem(world, recorder, options, limits);
    });
    EXPECT_EQ(found[0], found[1]);
    return found[0].value_or("none");
  };
  constexpr std::int64_t kBytes = 2 * sizeof(TraceEvent);  // of a step of both ranks
  Options options;
  options.steps = 9;
  EXPECT_EQ(problem(options, {}), "none");
  EXPECT_EQ(problem(options, {.text = 0, .numbers = 9 * kBytes}), "none");
  EXPECT_EQ(problem(options, {.numbers = 9 * kBytes - 1}),
            fmt::format("--steps 9: they would take about {} bytes in what is recorded, more than {} that are kept; "
                        "expected at most 8 steps",
                        9 * kBytes, 9 * kBytes - 1));
  EXPECT_THAT(
      problem(options, {.numbers = kBytes - 1}),
      HasSubstr("--steps: one step alone would take about 432 bytes in what is recorded, more than 431 that are "
                "kept; expected a smaller model, or fewer ranks"));
  options.trace = "trace.json";
  EXPECT_EQ(problem(options, {}), "none");
  EXPECT_THAT(problem(options, {.text = 1000}), HasSubstr("bytes in 'trace.json' of --trace, more than 1000 of which"));
  options.steps.reset();
  EXPECT_THAT(problem(options, {.text = 10}), StartsWith("--trace: one step alone would take about "));
  // Devices do at least one piece of work for an operation.
  options.trace.reset();
  options.cupti = true;
  constexpr std::int64_t kWithWork = 2 * kBytes + 2 * sizeof(TraceDeviceWork);
  EXPECT_EQ(problem(options, {.numbers = kWithWork}), "none");
  EXPECT_THAT(problem(options, {.numbers = kWithWork - 1}), StartsWith("--steps: one step alone would take about "));
}

// In pieces that need not be of one length, and of ranks that have nothing.
TEST(GatheredOnRankZero, HasTheNumbersOfAllRanksInTheirOrder) {
  const std::vector<std::vector<std::int64_t>> all{{1, 2, 3, 4, 5, 6, 7}, {}, {8, 9, 10}, {11, 12, 13, 14}};
  for (const std::int64_t most : {1, 3, 4, 100}) {
    std::vector<std::vector<std::vector<std::int64_t>>> gathered(all.size());
    run_ranks({.world_size = 4}, [&](Communicator& world) {
      HostDevice host;
      const auto rank = static_cast<std::size_t>(world.rank());
      gathered[rank] = gathered_on_rank_0(world, host, all[rank], most);
    });
    EXPECT_EQ(gathered[0], all) << most;
    for (std::size_t rank = 1; rank < all.size(); ++rank) EXPECT_THAT(gathered[rank], IsEmpty());
  }
}

// The steps that fit are as many as are promised, and not many more would.
TEST(RecordingProblem, KnowsTheSizeOfTheFile) {
  const TemporaryFolder folder;
  const std::string file = folder / "trace.json";
  constexpr int kSteps = 5;
  ASSERT_EQ(
      run_program(simulated({"--case", "base", "--check", "off", "--steps", std::to_string(kSteps), "--trace", file}))
          .status,
      0);
  std::int64_t expected = 0;
  for (RankTrace rank : trace_in(file).ranks) {
    std::erase_if(rank.events, [](const TraceEvent& event) { return event.step > 0; });
    expected += kSteps * chrome_step_bytes(rank, kSteps);
  }
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file));
  EXPECT_GE(expected, size);
  EXPECT_LE(expected, size + size / 10);
}

TEST(SimulatedRun, RefusesOutputsThatDestroyAnotherOrWhatIsRead) {
  const TemporaryFolder folder;
  const std::string model = folder / "model", trace = folder / "trace.json", plan = folder / "plan.json";
  std::filesystem::copy(golden("tiny"), model);
  std::filesystem::create_symlink("trace.json", folder / "link.json");
  put(plan, "{}");
  const auto refusal = [&](const Words& more) {
    Words words{"run", model, "--backend", "simulator", "--case", "base", "--ring-degree", "2", "--trace"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.status, 2);
    return run.error;
  };
  EXPECT_THAT(refusal({trace, "--json", folder / "link.json"}), HasSubstr("is the file of --json, too"));
  EXPECT_THAT(refusal({(folder / "model/../trace.json").string(), "--json", trace}),
              HasSubstr("is the file of --json, too"));
  EXPECT_THAT(refusal({model + "/config.json"}), HasSubstr("would replace what is read from '" + model + "'"));
  EXPECT_THAT(refusal({plan, "--plan", plan}), HasSubstr("would replace the plan"));
  put(trace, "{}");
  const ProgramRun summary = run_program({"trace", "summary", trace, "--json", trace});
  EXPECT_THAT(summary.error, HasSubstr("--json: '" + trace + "' would replace what is read"));
  EXPECT_EQ(contents_of(trace), "{}");
}

// Both descriptors may be one file, or streams that somebody reads.
TEST(SimulatedRun, WritesTraceAndReportToStandardOutput) {
  const ProgramRun run =
      run_program(simulated({"--case", "base", "--check", "off", "--trace", "/dev/stdout", "--json", "/dev/stdout"}));
  EXPECT_EQ(run.status, 0) << run.error;
  const std::size_t trace = run.output.find("{\"displayTimeUnit\""), table = run.output.find("\nprofile "),
                    json = run.output.find("\n{\n");
  EXPECT_EQ(trace, 0U);
  EXPECT_LT(trace, table);
  EXPECT_LT(table, json);
  EXPECT_NE(json, std::string::npos);
}

TEST(SimulatedRun, RefusesToRecordSeveralCases) {
  const ProgramRun run = run_program(simulated({"--steps", "2"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, StartsWith("shardproof: --steps: what is recorded is one case, and there are 4; expected "
                                    "--case with one of base, batch2, controlnet, realistic_t"));
}

TEST(SimulatedRun, SaysWhatIsMissingForThreadsOnAGpu) {
  const ProgramRun run = run_program({"run", "flux", "--backend", "cuda-threads", "--ring-degree", "2"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, testing::AnyOf(HasSubstr("'cuda-threads' moves tensors in the memory of a GPU, and device "
                                                  "reference computes in that of the processor"),
                                        HasSubstr("'cuda-threads' is not part of this build")));
}

TEST(SimulatedRun, IsOneProcess) {
  const ProgramRun run = run_program(simulated({"--world-size", "2", "--rank", "1", "--address", "here:1"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("--backend simulator has all ranks in one process"));
}

TEST(SimulatedRun, LeavesNoHalfTraceOnAFullDisk) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program(simulated({"--case", "base", "--check", "off", "--trace", "trace.json"}),
                                     {.file_bytes = 4096, .folder = folder.path()});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("--trace (expected a file that can be written): "));
  EXPECT_THAT(run.error, HasSubstr("trace.json"));
  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(TraceCommand, HasTheStatusOfItsAnswer) {
  const TemporaryFolder folder;
  const std::string ring = folder / "ring.json", ulysses = folder / "ulysses.json";
  const Words common{"run", golden("tiny"), "--backend", "simulator", "--case", "base", "--check", "off", "--trace"};
  const auto record = [&](const std::string& file, const Words& more) {
    Words words = common;
    words.push_back(file);
    words.insert(words.end(), more.begin(), more.end());
    ASSERT_EQ(run_program(words).status, 0);
  };
  record(ring, {"--ring-degree", "2"});
  record(ulysses, {"--ulysses-degree", "2"});
  EXPECT_EQ(run_program({"trace", "diff", ring, ring}).status, 0);
  const ProgramRun different = run_program({"trace", "diff", ring, ulysses});
  EXPECT_EQ(different.status, 1);
  EXPECT_THAT(different.output, HasSubstr("DIFFERENT (2 ranks)"));
  EXPECT_THAT(different.output, HasSubstr("mode is 'ring' in the first file and 'ulysses' in the second"));
  const auto refusal = [](const Words& words) {
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.output, "");
    return run.error;
  };
  EXPECT_THAT(refusal({"trace", "diff", ring, folder / "nowhere"}), HasSubstr("nowhere"));
  EXPECT_THAT(refusal({"trace", "summary", ring, ulysses}), HasSubstr("2 files were given; expected one trace"));
  EXPECT_THAT(refusal({"trace", "summary", golden("tiny") + "/config.json"}), HasSubstr("is no trace of shardproof"));
  EXPECT_THAT(refusal({"trace", "view", ring}), HasSubstr("'view' is no action; expected diff or summary"));
  EXPECT_THAT(refusal({"trace"}), HasSubstr("trace: ACTION is missing"));
}

}  // namespace
}  // namespace shardproof::test
