// The program in surroundings that are against it: folders, pipes and devices in the place of files, links that lead in
// a circle, paths that are too long, files that may not be read, a disk that is full, standard descriptors that are
// closed, an odd locale. The answer is a status and a message, and nothing half-written stays behind.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

using test::contents_of;
using test::golden;
using test::ProgramRun;
using test::put;
using test::run_program;
using test::StandardOutput;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Words = std::vector<std::string>;

const Words kSmallRun{"verify", "flux", "--case", "shortest", "--ulysses-degree", "2", "--ulysses-anything"};

Words small_run(const Words& more) {
  Words words = kSmallRun;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A file of an export, put in the place of another thing.
struct Spoiler {
  const char* name;
  std::function<void(const fs::path& place)> put;
  const char* reason;  // part of the message
};

std::vector<Spoiler> spoilers() {
  return {
      {"a folder", [](const fs::path& place) { fs::create_directory(place); }, "is a folder; expected a file"},
      {"a link in a circle", [](const fs::path& place) { fs::create_symlink(place.filename(), place); },
       "Too many levels of symbolic links"},
      {"a link to nothing", [](const fs::path& place) { fs::create_symlink("nowhere", place); },
       "No such file or directory"},
      {"a socket or device", [](const fs::path& place) { fs::create_symlink("/dev/null", place); }, ""},
      {"endless zeros", [](const fs::path& place) { fs::create_symlink("/dev/zero", place); }, ""},
      {"nothing in it", [](const fs::path& place) { put(place, ""); }, ""},
  };
}

TEST(FilesOfAnExport, AreNamedWhenSomethingElseStandsInTheirPlace) {
  for (const char* file : {"config.json", "weights.safetensors", "base.json", "base.inputs.safetensors"}) {
    for (const Spoiler& spoiler : spoilers()) {
      const TemporaryFolder folder;
      fs::copy(golden("uneven"), folder / "export");
      const fs::path place = folder / "export" / file;
      fs::remove(place);
      spoiler.put(place);
      const ProgramRun run = run_program({"verify", folder / "export", "--case", "base", "--ring-degree", "2"});
      EXPECT_EQ(run.status, 2) << file << ": " << spoiler.name;
      EXPECT_EQ(run.output, "") << file << ": " << spoiler.name;
      EXPECT_THAT(run.error, HasSubstr(file)) << spoiler.name;
      EXPECT_THAT(run.error, HasSubstr(spoiler.reason)) << file << ": " << spoiler.name;
    }
  }
}

TEST(FilesOfAnExport, MayBePipesIfTheyAreTextButNotTensors) {
  const TemporaryFolder folder;
  fs::copy(golden("uneven"), folder / "export");
  const fs::path weights = folder / "export" / "weights.safetensors";
  fs::remove(weights);
  ASSERT_EQ(::mkfifo(weights.c_str(), 0600), 0);
  const ProgramRun run = run_program({"oracle", folder / "export"});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.error, fmt::format("shardproof: '{}' is not a regular file\n", weights.string()));
}

TEST(FilesOfAnExport, AreNamedWhenTheyMayNotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TemporaryFolder folder;
  fs::copy(golden("uneven"), folder / "export");
  fs::permissions(folder / "export/config.json", fs::perms::none);
  const ProgramRun run = run_program({"oracle", folder / "export"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("config.json': Permission denied"));
}

TEST(Sources, AreNamedWhenTheyLieBelowAFileOrAreTooLong) {
  const TemporaryFolder folder;
  put(folder / "file", "x");
  for (const std::string& source :
       {(folder / "file/export").string(), std::string(300, 'x'), std::string(100000, 'y'), std::string("/dev/null"),
        std::string("/dev/zero"), std::string("a\nb"), std::string("\xff\xfe"), std::string("\x1b[31m")}) {
    for (const char* command : {"oracle", "verify", "plan"}) {
      const ProgramRun run = run_program({command, source});
      EXPECT_EQ(run.status, 2) << source.substr(0, 80);
      EXPECT_EQ(run.output, "");
      EXPECT_THAT(run.error, StartsWith("shardproof: "));
      EXPECT_EQ(std::count(run.error.begin(), run.error.end(), '\n'), 1) << run.error;
      EXPECT_THAT(run.error, Not(HasSubstr("\x1b")));
      EXPECT_LT(run.error.size(), 2000U);
    }
  }
}

TEST(Plans, AreNamedWhenSomethingElseStandsInTheirPlace) {
  for (const Spoiler& spoiler : spoilers()) {
    const TemporaryFolder folder;
    spoiler.put(folder / "plan.json");
    const ProgramRun run = run_program(small_run({"--plan", folder / "plan.json"}));
    EXPECT_EQ(run.status, 2) << spoiler.name;
    EXPECT_EQ(run.output, "") << spoiler.name;
    EXPECT_THAT(run.error, StartsWith("shardproof: --plan ")) << spoiler.name;
    EXPECT_THAT(run.error, HasSubstr("plan.json")) << spoiler.name;
    EXPECT_THAT(run.error, HasSubstr(spoiler.reason)) << spoiler.name;
  }
}

TEST(Plans, CannotForgeAMessageByTheNameOfAModule) {
  for (const std::string name : {R"(x\nshardproof: FORGED)", R"(\u0000)", R"(x\u001b[2Jy)"}) {
    const TemporaryFolder folder;
    put(folder / "plan.json",
        fmt::format(R"({{"model": "FluxTransformer2DModel", "cp": {{"{}": {{"gather_dim": 1}}}}}})", name));
    const ProgramRun run = run_program(small_run({"--plan", folder / "plan.json"}));
    EXPECT_EQ(run.status, 2) << run.error;
    EXPECT_THAT(run.error, HasSubstr("was not found in '' (FluxTransformer2DModel)"));
    EXPECT_THAT(run.error + run.output, Not(HasSubstr("\nshardproof: FORGED")));
    EXPECT_THAT(run.error + run.output, Not(HasSubstr("\x1b")));
  }
}

TEST(FullDisk, LeavesTheOldJsonAndNoTemporary) {
  const TemporaryFolder folder;
  put(folder / "out.json", "kept");
  const Words words{"verify", "flux", "--case", "shortest", "--json", folder / "out.json"};
  const std::size_t enough = run_program(words).output.size() + 1000;
  const std::size_t needed = contents_of(folder / "out.json").size();
  ASSERT_LT(enough, needed) << "the file has to be larger than the table for the limit to lie between them";
  put(folder / "out.json", "kept");
  const ProgramRun run = run_program(words, {.file_bytes = enough});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("Everything that was run is verified"));
  EXPECT_EQ(run.error, fmt::format("shardproof: --json (expected a file that can be written): cannot write '{}': File "
                                   "too large\n",
                                   (folder / "out.json").string()));
  EXPECT_EQ(contents_of(folder / "out.json"), "kept");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(FullDisk, IsReportedOfStandardOutput) {
  const ProgramRun run = run_program(kSmallRun, {.file_bytes = 200});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.output.size(), 200U);
  EXPECT_EQ(run.error, "shardproof: cannot write to standard output: File too large\n");
}

TEST(ClosedDescriptors, ChangeNothingButWhatIsWritten) {
  const TemporaryFolder folder;
  const ProgramRun without_input = run_program(kSmallRun, {.has_standard_input = false});
  EXPECT_EQ(without_input.status, 0) << without_input.error;
  const ProgramRun without_error =
      run_program(small_run({"--json", folder / "out.json"}), {.has_standard_error = false});
  EXPECT_EQ(without_error.status, 0);
  EXPECT_THAT(without_error.output, HasSubstr("Everything that was run is verified"));
  EXPECT_EQ(contents_of(folder / "out.json").front(), '{');
  EXPECT_EQ(run_program({"verify", "nonsense"}, {.has_standard_error = false}).status, 2);
  const ProgramRun without_any =
      run_program(small_run({"--json", folder / "none.json"}),
                  {.output = StandardOutput::closed, .has_standard_input = false, .has_standard_error = false});
  EXPECT_EQ(without_any.status, 2);
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(Environment, DoesNotChangeTheReport) {
  const auto without_seconds = [](std::string text) {
    // The last column of the table is the time.
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      std::string line = text.substr(at, end - at);
      const bool is_row = line.starts_with("shortest");
      result += (is_row ? line.substr(0, line.rfind(' ')) : line) + '\n';
      at = end + 1;
    }
    return result;
  };
  const std::string usual = without_seconds(run_program(kSmallRun).output);
  EXPECT_THAT(usual, HasSubstr("ROUNDING-EQUIVALENT"));
  for (const std::vector<std::string>& environment : std::vector<std::vector<std::string>>{
           {"LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8"},
           {"LC_ALL=no such locale"},
           {"LC_ALL=tr_TR.ISO-8859-9"},
           {"COLUMNS=1", "LINES=0"},
           {"COLUMNS=-99999999999999999999"},
           {"TERM=", "NO_COLOR=1"},
           {"TMPDIR=/no such folder", "HOME="},
           {"OMP_NUM_THREADS=3", "OMP_STACKSIZE=64k"},
           {"PATH="},
       }) {
    const ProgramRun run = run_program(kSmallRun, {.environment = environment});
    EXPECT_EQ(run.status, 0) << environment.front() << '\n' << run.error;
    EXPECT_EQ(without_seconds(run.output), usual) << environment.front();
    EXPECT_EQ(run.error, "") << environment.front();
  }
}

TEST(Environment, MayAskForAnyNumberOfThreads) {
  if (test::kHasSanitizer) GTEST_SKIP() << "a thread costs a sanitizer too much memory to start a thousand";
  for (const char* threads : {"OMP_NUM_THREADS=99999999", "OMP_NUM_THREADS=-1", "OMP_NUM_THREADS=many"}) {
    const ProgramRun run = run_program(small_run({"--dtype", "float32"}), {.environment = {threads}});
    EXPECT_EQ(run.status, 0) << threads << '\n' << run.error;
  }
}

}  // namespace
}  // namespace shardproof
