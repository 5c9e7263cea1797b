// The command `zoo` as a user calls it: the program that it starts, the score on standard output and as JSON, and what
// is said where that program is missing.
#include "app/zoo_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "tests/app/program.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::ProgramRun;
using test::run_program;
using test::TemporaryFolder;
using testing::HasSubstr;

TEST(ZooProgram, SaysWhereItWasExpected) {
  const char* const words[] = {"shardproof", "zoo", nullptr};
  try {
    become_zoo_program(words);  // beside this test there is none
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::file_error);
    EXPECT_THAT(error.what(), HasSubstr("shardproof-zoo' cannot be started (No such file or directory); expected the "
                                        "program beside shardproof"));
  }
}

TEST(ZooProgram, KillsOneFaultAndWritesTheScore) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program({"zoo", "--only", "RING_SKIP_LAST", "--seed", "3", "--json", "score.json",
                                      "--junit", "score.xml", "--html", "score.html"},
                                     {.folder = folder.path()});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.output, HasSubstr("RING_SKIP_LAST"));
  EXPECT_THAT(run.output, HasSubstr("ring attention"));
  const Json score = read_json_file(folder.path() / "score.json");
  EXPECT_EQ(score.at("command").as_string(), "zoo");
  EXPECT_THAT(read_text_file(folder.path() / "score.xml"),
              HasSubstr("tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"0\""));
  EXPECT_THAT(read_text_file(folder.path() / "score.html"), HasSubstr("Everything was found: 1 of 1 faults killed"));
  EXPECT_EQ(score.at("seed").as_int(), 3);
  const Json& result = score.at("results").at(0);
  EXPECT_EQ(result.at("fault").as_string(), "RING_SKIP_LAST");
  EXPECT_EQ(result.at("catalogue").as_int(), 12);
  EXPECT_TRUE(result.at("killed").as_bool());
  EXPECT_EQ(score.at("summary").at("killed_by_tier").at("float64").as_int(), 1);
}

TEST(ZooProgram, ListsTheFaultsAndThoseThatCannotBe) {
  const ProgramRun run = run_program({"zoo", "--list"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("RING_START_OWN"));
  EXPECT_THAT(run.output, HasSubstr("cannot be"));
  EXPECT_THAT(run.output, HasSubstr("no fault"));
}

TEST(ZooProgram, ExplainsItself) {
  const ProgramRun run = run_program({"zoo", "--help"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("--full"));
}

}  // namespace
}  // namespace shardproof
