// What is concluded from fingerprints: whole and partial matches, several that cannot be told apart, a table of other
// code; and how a damaged table is refused.
#include "verify/hypothesis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

using testing::HasSubstr;

std::string print_of(int number) { return fmt::format("{:016x}", number); }

Fingerprints correct_prints() {
  Fingerprints prints;
  for (std::size_t i = 0; i < fingerprint_configurations().size(); ++i) prints.push_back(print_of(static_cast<int>(i)));
  prints[2] = "refused " + print_of(2);
  prints[3] = "";
  return prints;
}

// Correct ones but for some.
Fingerprints prints_with(const std::map<std::size_t, std::string>& changes) {
  Fingerprints prints = correct_prints();
  for (const auto& [configuration, print] : changes) prints[configuration] = print;
  return prints;
}

FingerprintTable sample_table() {
  const std::map<std::size_t, std::string> lost{
      {0, print_of(100)}, {1, "stopped " + print_of(101)}, {4, print_of(104)}};
  FingerprintTable table;
  table.correct["Model"] = correct_prints();
  table.mistakes = {{"LOST", "a chunk is lost", {{"Model", lost}}},
                    {"ENDS", "a rank ends", {{"Model", {{1, "stopped " + print_of(101)}}}}},
                    {"LOST_TOO", "the same", {{"Model", lost}}},
                    {"ELSEWHERE", "in another model", {{"Other", lost}}}};
  return table;
}

Explanation explained(const std::map<std::size_t, std::string>& changes) {
  return explain(sample_table(), "Model", prints_with(changes), correct_prints());
}

std::vector<std::string> names(const Explanation& explanation) {
  std::vector<std::string> all;
  if (!explanation.hypothesis) return all;
  for (const Hypothesis::Mistake& mistake : explanation.hypothesis->mistakes) all.push_back(mistake.name);
  return all;
}

using Names = std::vector<std::string>;

TEST(Hypothesis, NamesAllThatFitAltogether) {
  const Explanation found = explained({{0, print_of(100)}, {1, "stopped " + print_of(101)}, {4, print_of(104)}});
  EXPECT_EQ(names(found), (Names{"LOST", "LOST_TOO"}));
  EXPECT_EQ(found.hypothesis->equal, 3);
  EXPECT_EQ(found.hypothesis->shown, 3);
  EXPECT_EQ(found.hypothesis->others, 0);
  EXPECT_EQ(found.hypothesis->mistakes[0].what, "a chunk is lost");
  EXPECT_EQ(found.obstacle, "");
}

TEST(Hypothesis, NamesOneByItsEndAlone) {
  EXPECT_EQ(names(explained({{1, "stopped " + print_of(101)}})), Names{"ENDS"});
}

TEST(Hypothesis, NamesWhatExplainsAPartByItsOutputs) {
  const Explanation found =
      explained({{0, print_of(100)}, {1, "stopped " + print_of(101)}, {4, print_of(104)}, {5, print_of(7)}});
  EXPECT_EQ(names(found), (Names{"LOST", "LOST_TOO"})) << "ENDS fits a part, but by no outputs";
  EXPECT_EQ(found.hypothesis->equal, 3);
  EXPECT_EQ(found.hypothesis->shown, 4);
  EXPECT_EQ(names(explained({{1, "stopped " + print_of(101)}, {5, print_of(7)}})), Names{});
}

TEST(Hypothesis, TakesAnyStopForOneThatDependsOnChance) {
  FingerprintTable table = sample_table();
  table.mistakes = {{"CHANCE", "", {{"Model", {{0, print_of(100)}, {1, "stopped"}}}}}};
  const auto found = [&](const std::string& second) {
    return names(explain(table, "Model", prints_with({{0, print_of(100)}, {1, second}}), correct_prints()));
  };
  EXPECT_EQ(found("stopped " + print_of(5)), Names{"CHANCE"});
  EXPECT_EQ(found("refused " + print_of(5)), Names{});
  EXPECT_EQ(found(print_of(5)), Names{});
}

TEST(Hypothesis, IsNoneWhereOneFingerprintIsMissing) {
  EXPECT_EQ(names(explained({{0, print_of(100)}, {4, print_of(104)}})), Names{});
  EXPECT_EQ(names(explained({{0, print_of(1)}})), Names{});
  EXPECT_EQ(names(explained({})), Names{});
}

TEST(Hypothesis, NamesThreeAndCountsTheOthers) {
  FingerprintTable table = sample_table();
  for (const char* name : {"A", "B", "C"}) table.mistakes.push_back({name, "", table.mistakes[0].prints});
  const Explanation found =
      explain(table, "Model", prints_with(table.mistakes[0].prints.at("Model")), correct_prints());
  EXPECT_EQ(names(found), (Names{"LOST", "LOST_TOO", "A"}));
  EXPECT_EQ(found.hypothesis->others, 2);
}

TEST(Hypothesis, SaysNothingByATableOfOtherCode) {
  Fingerprints dense = correct_prints();
  dense[2] = dense[3] = "anything";  // nothing was computed there
  EXPECT_EQ(explain(sample_table(), "Model", correct_prints(), dense).obstacle, "");
  dense[5] = print_of(99);
  EXPECT_EQ(explain(sample_table(), "Model", correct_prints(), dense).obstacle,
            "it was made from code whose Model computes something else on one rank");
  EXPECT_EQ(explain(sample_table(), "Third", correct_prints(), dense).obstacle, "it has no fingerprints of Third");
}

TEST(Hypothesis, TakesTheFingerprintsOfAModel) {
  const ModelType& model = find_model_type("flux");
  Fingerprinter fingerprinter(model);
  const auto plans = [&](const char* name) {
    return [&model, name](const Json& config) { return plans_of_model(model, config, name); };
  };
  FingerprintTable table;
  KnownMistake shipped{"SHIPPED", "residuals of a ControlNet are whole"};
  for (std::size_t i = 0; i < fingerprint_configurations().size(); ++i) {
    table.correct[model.class_name].push_back(fingerprinter.take(i, plans("default")).print);
    const std::string print = fingerprinter.take(i, plans("shipped")).print;
    if (print != table.correct[model.class_name].back()) shipped.prints[model.class_name].emplace(i, print);
  }
  table.mistakes = {shipped};
  EXPECT_FALSE(explain(table, model, plans("default")).hypothesis);
  EXPECT_EQ(names(explain(table, model, plans("shipped"))), Names{"SHIPPED"});
  EXPECT_EQ(explain(table, find_model_type("wan"), plans("default")).obstacle,
            "it has no fingerprints of WanTransformer3DModel");
}

TEST(FingerprintTable, IsReadAsItWasWritten) {
  const FingerprintTable table = sample_table();
  const FingerprintTable read = FingerprintTable::from_json(parse_json(table.to_json().dump(1), "table.json"));
  EXPECT_EQ(read.to_json(), table.to_json());
  EXPECT_EQ(read.correct, table.correct);
  EXPECT_EQ(read.mistakes.at(3).prints, table.mistakes.at(3).prints);
}

// `change` damages the table's text.
std::string problem_of(const std::string& from, const std::string& to) {
  std::string text = sample_table().to_json().dump(1);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto error = test::thrown_by([&] { FingerprintTable::from_json(parse_json(text, "table.json")); });
  if (!error || error->kind != ErrorKind::file_error) return "no file_error";
  return error->message;
}

TEST(FingerprintTable, IsRefusedWhereItIsDamaged) {
  EXPECT_THAT(problem_of("ring with", "spiral with"),
              HasSubstr("table.json: key 'configurations' must be the configurations of this version, got "));
  EXPECT_THAT(problem_of("\"correct\"", "\"right\""), HasSubstr("right"));
  EXPECT_THAT(problem_of("\"0000000000000001\"", "\"000000000000000g\""),
              HasSubstr("table.json: key 'correct.Model[1]' must be 16 hexadecimal digits, alone or behind 'stopped ' "
                        "or 'refused ', 'stopped' or empty, got \"000000000000000g\""));
  EXPECT_THAT(problem_of("\"0000000000000001\", ", ""),
              HasSubstr("key 'correct.Model' must be a list of 14 fingerprints"));
  for (const char* wrong : {"14 0000000000000064", "0 64", "x 0000000000000064", "0000000000000064"}) {
    EXPECT_THAT(problem_of("\"0 0000000000000064\"", fmt::format("\"{}\"", wrong)),
                HasSubstr("must be the number of a configuration, 0 to 13, and 16 hexadecimal digits"))
        << wrong;
  }
}

TEST(FingerprintTable, IsMissedByItsPath) {
  const test::TemporaryFolder folder;
  const auto error = test::thrown_by([&] { FingerprintTable::read(folder / "none.json"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::file_error);
  EXPECT_THAT(error->message, HasSubstr("none.json"));
}

}  // namespace
}  // namespace shardproof
