// verify --shrink and --size as a user calls them: the smallest failure is printed with a line that repeats it, and the
// line does.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Shrinking, EndsInALineThatRepeatsTheFailure) {
  const TemporaryFolder folder;
  const ProgramRun run = run_program({"verify", "ltx", "--plan", "shipped", "--case", "even_masked", "--ring-degree",
                                      "3", "--tier", "exact", "--shrink", "--json", "out.json"},
                                     {.folder = folder.path()});
  EXPECT_EQ(run.status, 1) << run.error;
  EXPECT_THAT(run.output, HasSubstr("SMALLEST CONFIGURATION THAT FAILS ("));
  EXPECT_THAT(run.output, HasSubstr("A test that fails on it:"));
  const Json report = read_json_file(folder.path() / "out.json");
  const Json& shrunk = report.at("shrunk");
  EXPECT_EQ(shrunk.at("configuration").as_string(),
            "text=2,image=2,heads=1,layers=1,batch=1,with=per_token; ring with ring=2,ulysses=1, allgather");
  EXPECT_FALSE(shrunk.at("was_cut_off").as_bool());
  const std::string& line = shrunk.at("result").at("repeat").as_string();
  EXPECT_THAT(run.output, HasSubstr("repeat it: " + line));
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  const ProgramRun again = run_program({words.begin() + 1, words.end()});
  EXPECT_EQ(again.status, 1) << line << "\n" << again.error;
  EXPECT_THAT(again.output, HasSubstr("1 DIFFERENT"));
}

TEST(Shrinking, SaysThatNothingDiffers) {
  const ProgramRun run = run_program(
      {"verify", "flux", "--case", "shortest", "--ring-degree", "2", "--ring-anything", "--tier", "exact", "--shrink"});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("--shrink: nothing differs"));
}

TEST(SizeOption, MakesASmallModelLikeAnExport) {
  const ProgramRun run = run_program({"verify", test::golden("tiny"), "--size", "text=2,image=3,heads=2,layers=1",
                                      "--ring-degree", "2", "--ring-anything", "--tier", "exact"});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("sized"));
  EXPECT_THAT(run.output, HasSubstr("1 EXACT"));
}

TEST(SizeOption, IsRefusedByName) {
  const auto error = [](const std::vector<std::string>& words) {
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.status, 2);
    return run.error;
  };
  EXPECT_THAT(error({"verify", "flux", "--size", "with=no such"}),
              HasSubstr("--size: 'text=3,image=4,heads=2,layers=1,batch=1,with=no such' is not possible: cases of "
                        "FluxTransformer2DModel have no feature 'no such'; expected of controlnet"));
  EXPECT_THAT(error({"verify", "qwenimage21", "--size", "image=3"}),
              HasSubstr("image=3 tokens; expected a multiple of 4"));
  EXPECT_THAT(error({"verify", "flux", "--size", "image=3", "--case", "even"}),
              HasSubstr("--case even with --size: a model of a given size has the case 'sized' alone"));
}

}  // namespace
}  // namespace shardproof
