// Where results go: standard output that is closed, full or not read, and targets of --json that cannot be written. The
// status is 2, the message names the target, and nothing is left half-written.
#include "app/output.h"

#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::contents_of;
using test::ProgramRun;
using test::put;
using test::run_program;
using test::StandardOutput;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::StartsWith;

using Words = std::vector<std::string>;

// A run that takes a few milliseconds and is verified.
Words small_run(const Words& more = {}) {
  Words words{"verify", "flux", "--case", "shortest", "--ulysses-degree", "2", "--ulysses-anything"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(StandardOutputOfTheProgram, IsTheTableAndStandardErrorIsEmpty) {
  const ProgramRun run = run_program(small_run());
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("ROUNDING-EQUIVALENT"));
  EXPECT_EQ(run.output.find('\x1b'), std::string::npos);
  EXPECT_EQ(run.error, "");
}

TEST(StandardOutputOfTheProgram, IsReportedWhenClosed) {
  for (const Words& words : {small_run(), Words{"--help"}, Words{"verify", "nonsense"}}) {
    const ProgramRun run = run_program(words, StandardOutput::closed);
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.error, "shardproof: cannot write to standard output: Bad file descriptor\n");
  }
}

TEST(StandardOutputOfTheProgram, IsReportedWhenFull) {
  if (!test::has_full_device()) GTEST_SKIP() << "/dev/full is not there as a device";
  for (const Words& words : {small_run(), Words{"--help"}, Words{"--version"}}) {
    const ProgramRun run = run_program(words, StandardOutput::full_device);
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.error, "shardproof: cannot write to standard output: No space left on device\n");
  }
}

TEST(StandardOutputOfTheProgram, IsReportedWhenNobodyReads) {
  const ProgramRun run = run_program(small_run(), StandardOutput::broken_pipe);
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.error, "shardproof: cannot write to standard output: Broken pipe\n");
}

TEST(StandardOutputOfTheProgram, DoesNotCostTheJson) {
  const TemporaryFolder folder;
  const std::string target = folder / "out.json";
  const ProgramRun run = run_program(small_run({"--json", target}), StandardOutput::broken_pipe);
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(contents_of(target), HasSubstr("\"command\": \"verify\""));
}

TEST(StandardOutputOfTheProgram, IsNeverMixedIntoTheJsonWhenClosed) {
  const TemporaryFolder folder;
  const std::string target = folder / "out.json";
  EXPECT_EQ(run_program(small_run({"--json", target}), StandardOutput::closed).status, 2);
  EXPECT_EQ(folder.entry_count(), 0U);
}

struct BadTarget {
  std::string path;
  std::string message;
};

TEST(JsonOption, RefusesTargetsThatCannotBeWrittenBeforeTheWork) {
  const TemporaryFolder folder;
  put(folder / "file", "kept");
  const std::string in_file = folder / "file/x.json";
  const std::string in_nothing = folder / "missing/x.json";
  for (const BadTarget& bad :
       {BadTarget{folder.path(), "cannot write '{}': it is a folder"},
        BadTarget{in_file, "cannot create '{}': Not a directory"},
        BadTarget{in_nothing, "cannot create '{}': No such file or directory"},
        BadTarget{"/dev/full/x", "cannot create '{}': Not a directory"},
        BadTarget{"", "cannot write '{}': not a file name"}, BadTarget{std::string(5000, 'x'), ""}}) {
    // The source does not exist: that the target is reported shows that it is looked at first.
    const ProgramRun run = run_program({"verify", "no such model", "--json", bad.path});
    EXPECT_EQ(run.status, 2) << bad.path;
    EXPECT_EQ(run.output, "");
    if (bad.message.empty()) {
      EXPECT_THAT(run.error, HasSubstr("File name too long"));
    } else {
      EXPECT_EQ(run.error, "shardproof: --json (expected a file that can be written): " +
                               fmt::format(fmt::runtime(bad.message), bad.path) + "\n");
    }
  }
  EXPECT_EQ(contents_of(folder / "file"), "kept");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(JsonOption, ReportsAFullDevice) {
  if (!test::has_full_device()) GTEST_SKIP() << "/dev/full is not there as a device";
  const ProgramRun run = run_program(small_run({"--json", "/dev/full"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("Everything that was run is verified"));
  EXPECT_EQ(
      run.error,
      "shardproof: --json (expected a file that can be written): cannot write '/dev/full': No space left on device\n");
  EXPECT_TRUE(test::has_full_device());
}

TEST(JsonOption, RefusesAFileWithoutPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everything";
  const TemporaryFolder folder;
  put(folder / "locked", "kept");
  std::filesystem::permissions(folder / "locked", std::filesystem::perms::owner_read);
  const ProgramRun run = run_program(small_run({"--json", folder / "locked"}));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, HasSubstr("Permission denied"));
  EXPECT_EQ(contents_of(folder / "locked"), "kept");
}

TEST(JsonOption, LeavesTheTargetAloneWhenTheRequestIsWrong) {
  const TemporaryFolder folder;
  put(folder / "out.json", "kept");
  EXPECT_EQ(run_program({"verify", "no such model", "--json", folder / "out.json"}).status, 2);
  EXPECT_EQ(run_program(small_run({"--seed", "x", "--json", folder / "out.json"})).status, 2);
  EXPECT_EQ(run_program({"verify", "no such model", "--json", folder / "new.json"}).status, 2);
  EXPECT_EQ(contents_of(folder / "out.json"), "kept");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(JsonOption, ReplacesAFileAndFollowsALink) {
  const TemporaryFolder folder;
  put(folder / "out.json", std::string(100000, 'x'));
  std::filesystem::create_symlink("out.json", folder / "link");
  EXPECT_EQ(run_program(small_run({"--json", folder / "link"})).status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(contents_of(folder / "out.json").front(), '{');
  EXPECT_EQ(folder.entry_count(), 2U);
}

TEST(JsonOption, WritesThroughADanglingLink) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("new.json", folder / "link");
  EXPECT_EQ(run_program(small_run({"--json", folder / "link"})).status, 0);
  EXPECT_EQ(contents_of(folder / "new.json").front(), '{');
}

// The test has opened a file for standard output, as a shell does.
TEST(JsonOption, WritesIntoTheFileThatStandardOutputGoesTo) {
  const ProgramRun plain = run_program(small_run());
  for (const char* path : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}) {
    const ProgramRun run = run_program(small_run({"--json", path}));
    EXPECT_EQ(run.status, 0) << run.error;
    EXPECT_THAT(run.output, HasSubstr("ROUNDING-EQUIVALENT"));
    EXPECT_TRUE(run.output.ends_with("\n}\n")) << path;
    EXPECT_GT(run.output.find("\n{\n"), plain.output.find("ROUNDING-EQUIVALENT")) << path;
  }
  const ProgramRun error = run_program(small_run({"--json", "/dev/stderr"}));
  EXPECT_EQ(error.status, 0);
  EXPECT_EQ(error.error.front(), '{');
  EXPECT_EQ(error.output.find('{'), std::string::npos);
  const ProgramRun none = run_program(small_run({"--json", "/dev/fd/77"}));
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.error, HasSubstr("--json (expected a file that can be written): cannot write '/dev/fd/77': Bad file "
                                    "descriptor"));
}

TEST(JsonOption, DoesNotReplaceTheFileThatStandardOutputGoesTo) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& redirection) {
    std::string line;
    for (const std::string& word : small_run({"--json", "out"})) line += " '" + word + "'";
    return run_program({"launch", "-n", "1", "--", "sh", "-c", test::program_path() + line + redirection},
                       {.folder = folder.path()});
  };
  const ProgramRun output = run(" > out");
  EXPECT_EQ(output.status, 2);
  EXPECT_THAT(output.error, HasSubstr("--json: 'out' is the file that standard output goes to, and would replace it"));
  EXPECT_EQ(contents_of(folder / "out"), "");
  EXPECT_EQ(run(" 2> out").status, 2);
  EXPECT_THAT(contents_of(folder / "out"), HasSubstr("'out' is the file that standard error goes to"));
}

TEST(ReportOptions, WriteEachItsFormat) {
  const TemporaryFolder folder;
  const ProgramRun run =
      run_program(small_run({"--json", "a.json", "--junit", "a.xml", "--html", "a.html"}), {.folder = folder.path()});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_EQ(contents_of(folder / "a.json").front(), '{');
  const std::string junit = contents_of(folder / "a.xml");
  EXPECT_THAT(junit, StartsWith("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"shardproof verify\" "
                                "tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"0\""));
  EXPECT_TRUE(junit.ends_with("</testsuites>\n"));
  const std::string html = contents_of(folder / "a.html");
  EXPECT_THAT(html, StartsWith("<!DOCTYPE html>\n"));
  EXPECT_TRUE(html.ends_with("</html>\n"));
  const std::string last_line = run.output.substr(run.output.rfind('\n', run.output.size() - 2) + 1);
  EXPECT_THAT(html, HasSubstr(">" + last_line.substr(0, last_line.size() - 1) + "</p>"));
  EXPECT_EQ(folder.entry_count(), 3U);
}

TEST(ReportOptions, RefuseOneFileForTwo) {
  const TemporaryFolder folder;
  const auto error_of = [&](const Words& words) {
    const ProgramRun run = run_program(small_run(words), {.folder = folder.path()});
    EXPECT_EQ(run.status, 2);
    return run.error;
  };
  EXPECT_EQ(error_of({"--json", "out", "--junit", "./out"}),
            "shardproof: --junit: './out' is the file of --json, too; expected another file\n");
  EXPECT_EQ(error_of({"--html", "out", "--junit", "out"}),
            "shardproof: --html: 'out' is the file of --junit, too; expected another file\n");
  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(ReportOptions, DoNotCostEachOther) {
  if (!test::has_full_device()) GTEST_SKIP() << "/dev/full is not there as a device";
  const TemporaryFolder folder;
  const ProgramRun run =
      run_program(small_run({"--junit", "/dev/full", "--html", "a.html"}), {.folder = folder.path()});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.error, StartsWith("shardproof: --junit (expected a file that can be written): cannot write"));
  EXPECT_THAT(contents_of(folder / "a.html"), StartsWith("<!DOCTYPE html>\n"));
}

TEST(ReportOptions, SayWhatCouldNotBeWritten) {
  if (!test::has_full_device()) GTEST_SKIP() << "/dev/full is not there as a device";
  const TemporaryFolder folder;
  const auto expect_error = [&](const std::string& option, const std::string& file, StandardOutput output,
                                const std::string& message) {
    const ProgramRun run = run_program(small_run({"--tier", "exact", "--junit", "a.xml", option, file}),
                                       {.output = output, .folder = folder.path()});
    EXPECT_EQ(run.status, 2);
    const std::string junit = contents_of(folder / "a.xml");
    EXPECT_THAT(junit, HasSubstr("tests=\"2\" failures=\"0\" errors=\"1\" skipped=\"0\""));
    EXPECT_THAT(junit, HasSubstr("<error type=\"request\" message=\"" + message));
  };
  expect_error("--json", "/dev/full", StandardOutput::captured, "--json (expected a file");
  expect_error("--html", "/dev/full", StandardOutput::captured, "--html (expected a file");
  expect_error("--html", "a.html", StandardOutput::full_device, "cannot write to standard output");
  EXPECT_THAT(contents_of(folder / "a.html"), HasSubstr("<li class=\"lines\">cannot write to standard output"));
}

// Two may share a descriptor; none may replace the file of one.
TEST(ReportOptions, DoNotReplaceTheFileOfADescriptor) {
  const TemporaryFolder folder;
  const auto run_with_descriptor = [&](const Words& words) {
    std::string line = test::program_path();
    for (const std::string& word : small_run(words)) line += " '" + word + "'";
    return run_program({"launch", "-n", "1", "--", "sh", "-c", line + " 3> out"}, {.folder = folder.path()});
  };
  const std::string message = "'out' is the file of --json, too; expected another file";
  EXPECT_THAT(run_with_descriptor({"--json", "/dev/fd/3", "--junit", "out"}).error, HasSubstr("--junit: " + message));
  EXPECT_THAT(run_with_descriptor({"--json", "out", "--junit", "/proc/self/fd/3"}).error,
              HasSubstr("--junit: '/proc/self/fd/3' is the file of --json, too; expected another file"));
  EXPECT_EQ(contents_of(folder / "out"), "");
  const ProgramRun both = run_with_descriptor({"--json", "/dev/fd/3", "--junit", "/dev/fd/3"});
  EXPECT_EQ(both.status, 0) << both.error;
  EXPECT_EQ(contents_of(folder / "out").front(), '{');
  EXPECT_TRUE(contents_of(folder / "out").ends_with("</testsuites>\n"));
}

TEST(OutputTargetClass, LeavesNothingBehindWhenNothingIsWritten) {
  const TemporaryFolder folder;
  {
    const OutputTarget target("--json", folder / "out.json");
  }
  EXPECT_EQ(folder.entry_count(), 0U);
  OutputTarget target("--json", folder / "out.json");
  EXPECT_EQ(folder.entry_count(), 0U);
  target.write("text");
  EXPECT_EQ(contents_of(folder / "out.json"), "text");
}

}  // namespace
}  // namespace shardproof
