// verify names the mistake of a wrong plan, which a user gives as a file, although the program holds no such mistake;
// and says so where its table is missing.
#include "app/hypothesis.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/commands.h"
#include "core/json.h"
#include "parallel/plan_json.h"
#include "tests/app/program.h"
#include "tests/core/files/test_files.h"
#include "tests/zoo/plan_changes.h"
#include "tests/zoo/scenarios.h"

namespace shardproof {
namespace {

using test::ProgramRun;
using test::run_program;
using test::TemporaryFolder;
using testing::Contains;
using testing::HasSubstr;

class WrongPlan : public testing::TestWithParam<std::string> {};

// On the first model of the fault, as small as the configurations of the kind are.
TEST_P(WrongPlan, IsNamed) {
  const auto faults = zoo::plan_faults();
  const auto fault = std::ranges::find(faults, GetParam(), &zoo::Fault::name);
  ASSERT_NE(fault, faults.end());
  const std::string name = zoo::words_of(fault->models).front();
  const ModelType& model = find_model_type(name);
  ParallelPlans plans = plans_of_model(model, model.hostile_config(), "default");
  plans = zoo::changed_plans(*fault, plans);
  const TemporaryFolder folder;
  test::put(folder / "plan.json", plan_to_json({model.class_name, plans.cp, plans.tp}).dump(2));
  std::vector<std::string> words{"verify", name, "--plan", "plan.json", "--tier", "exact", "--json", "out.json"};
  const std::vector<std::string> configuration =
      fault->modes == "tp" ? std::vector<std::string>{"--tp-degree", "2"}
                           : std::vector<std::string>{"--ring-degree", "2", "--ring-anything"};
  words.insert(words.end(), configuration.begin(), configuration.end());
  const ProgramRun run = run_program(words, {.folder = folder.path()});
  EXPECT_EQ(run.status, 1) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("\n  hypothesis: "));
  std::vector<std::string> named;
  const Json report = read_json_file(folder / "out.json");
  const Json& hypothesis = report.at("hypothesis");
  ASSERT_FALSE(hypothesis.is_null());
  for (const Json& mistake : hypothesis.at("mistakes").items()) named.push_back(mistake.at("name").as_string());
  EXPECT_THAT(named, Contains(GetParam()));
  EXPECT_EQ(hypothesis.at("equal").as_int(), hypothesis.at("shown").as_int());
}

std::vector<std::string> plan_fault_names() {
  std::vector<std::string> names;
  for (const zoo::Fault& fault : zoo::plan_faults()) names.emplace_back(fault.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, WrongPlan, testing::ValuesIn(plan_fault_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST(Hypothesis, IsNotMadeWhereNothingDiffers) {
  const ProgramRun run =
      run_program({"verify", "flux", "--case", "shortest", "--ring-degree", "2", "--ring-anything", "--tier", "exact"});
  EXPECT_EQ(run.status, 0) << run.error;
  EXPECT_THAT(run.output, testing::Not(HasSubstr("hypothesis")));
  EXPECT_THAT(run.output, testing::Not(HasSubstr("known mistake")));
}

// Beside this test there is no table.
TEST(Hypothesis, IsLeftOutWithAWordWhereTheTableIsMissing) {
  const char* const words[] = {"shardproof",  "verify",        "ltx", "--plan", "shipped", "--case",
                               "even_masked", "--ring-degree", "3",   "--tier", "exact"};
  const CommandLine line = parse_command_line(static_cast<int>(std::size(words)), words);
  Progress progress;
  const CommandOutcome outcome = run_command(*line.options, progress);
  EXPECT_EQ(outcome.status, kDifferenceFound);
  EXPECT_FALSE(outcome.report.hypothesis);
  EXPECT_THAT(outcome.report.notes,
              Contains(AllOf(HasSubstr("no known mistake was looked for, as its fingerprints are missing: "),
                             HasSubstr(fingerprint_table_path().string()))));
}

}  // namespace
}  // namespace shardproof
