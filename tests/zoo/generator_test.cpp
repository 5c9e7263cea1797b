// The generator on sources that are made up, with rows that fit and rows that do not; and the tables of faults against
// the catalogue that they follow.
#include "tests/zoo/generator.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace shardproof::zoo {
namespace {

using testing::HasSubstr;

constexpr std::string_view kFile = "parallel/made_up.cpp";
constexpr std::string_view kSource =
    "int one() { return f(1); }\nint two() { return f(2) + g(); }\nvoid three() { g(); }\n";

Fault fault(std::string_view name, Edit edit) {
  edit.file = kFile;
  return {.name = name, .what = "made up", .edits = {edit}, .modes = "ring"};
}

std::string failure_of(const std::vector<Fault>& faults) {
  try {
    with_switches(kFile, kSource, faults);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config_error);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Generator, PutsAnExpressionBehindASwitch) {
  const std::vector<Fault> faults{fault("A", {.file = {}, .statement = "f(1)", .replacement = "f(3)"})};
  EXPECT_THAT(
      with_switches(kFile, kSource, faults),
      HasSubstr("int one() { return (zoo::active(zoo::id(\"A\")) ? (f(3)) : (f(1))); }\nint two() { return f(2)"));
}

TEST(Generator, PutsAStatementBehindASwitch) {
  const std::vector<Fault> faults{
      fault("A", {.file = {}, .after = "void three() { ", .statement = "g();", .replacement = "return;"})};
  EXPECT_THAT(with_switches(kFile, kSource, faults),
              HasSubstr("void three() { { if (zoo::active(zoo::id(\"A\"))) { return; } else { g(); } } }"));
}

TEST(Generator, ChainsFaultsOfOneStatement) {
  const std::vector<Fault> faults{fault("A", {.file = {}, .statement = "f(2)", .replacement = "a"}),
                                  fault("B", {.file = {}, .statement = "f(2)", .replacement = "b"})};
  EXPECT_THAT(with_switches(kFile, kSource, faults),
              HasSubstr("(zoo::active(zoo::id(\"A\")) ? (a) : zoo::active(zoo::id(\"B\")) ? (b) : (f(2)))"));
}

TEST(Generator, LeavesAFileWithoutFaultsAsItIs) {
  EXPECT_TRUE(with_switches("parallel/other.cpp", kSource,
                            std::vector{fault("A", {.file = {}, .statement = "f(1)", .replacement = "f(3)"})})
                  .ends_with(kSource));
}

TEST(Generator, NamesFaultFileAndStatementThatIsGone) {
  EXPECT_EQ(failure_of({fault("A", {.file = {}, .statement = "f(7)", .replacement = "f(3)"})}),
            "fault 'A': parallel/made_up.cpp does not contain the statement\n  f(7)\n"
            "the table of faults must follow the source");
}

TEST(Generator, NamesAContextThatIsGone) {
  EXPECT_THAT(failure_of({fault("A", {.file = {}, .after = "int six()", .statement = "f(1)", .replacement = "f(3)"})}),
              HasSubstr("does not contain the context\n  int six()"));
}

TEST(Generator, RefusesAStatementThatStandsTwice) {
  EXPECT_THAT(failure_of({fault("A", {.file = {}, .statement = "g()", .replacement = "f(3)"})}),
              HasSubstr("fault 'A': parallel/made_up.cpp contains more than once the statement\n  g()\n"));
}

TEST(Generator, RefusesAContextThatStandsTwice) {
  EXPECT_THAT(failure_of({fault("A", {.file = {}, .after = "return", .statement = "f(2)", .replacement = "f(3)"})}),
              HasSubstr("contains more than once the context\n  return\n"));
}

TEST(Generator, RefusesStatementsThatOverlap) {
  EXPECT_THAT(failure_of({fault("A", {.file = {}, .statement = "f(2) + g()", .replacement = "a"}),
                          fault("B", {.file = {}, .statement = "2) + ", .replacement = "b"})}),
              HasSubstr("faults 'A' and 'B' overlap in parallel/made_up.cpp"));
  EXPECT_THAT(failure_of({fault("A", {.file = {}, .statement = "f(2) + g()", .replacement = "a"}),
                          fault("B", {.file = {}, .statement = "f(2)", .replacement = "b"})}),
              HasSubstr("faults 'A' and 'B' replace different texts at one place of parallel/made_up.cpp"));
}

TEST(Generator, RefusesAFaultOfAFileThatIsNotCopied) {
  const std::vector<Fault> faults{fault("A", {.file = {}, .statement = "f(1)", .replacement = "f(3)"})};
  const std::vector<std::string_view> files{"parallel/other.cpp"};
  try {
    check_files_are_listed(faults, files);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("fault 'A': 'parallel/made_up.cpp' is not among the files that are copied"));
  }
}

TEST(Table, HasEveryFaultOfTheCatalogueOnce) {
  std::vector<int> numbers;
  for (const Fault& known : all_faults()) {
    if (known.catalogue > 0) numbers.push_back(known.catalogue);
  }
  for (const Absent& absent : inexpressible_faults()) numbers.push_back(absent.catalogue);
  for (const Absent& absent : equivalent_faults()) {
    if (absent.catalogue > 0) numbers.push_back(absent.catalogue);
  }
  std::ranges::sort(numbers);
  std::vector<int> expected;
  for (int number = 1; number <= 64; ++number) expected.push_back(number);
  EXPECT_EQ(numbers, expected);
}

TEST(Table, HasNoNameTwiceAndSaysWhatEachFaultModels) {
  std::vector<std::string_view> names;
  for (const Fault& known : all_faults()) {
    names.push_back(known.name);
    EXPECT_FALSE(known.what.empty()) << known.name;
    EXPECT_FALSE(known.modes.empty()) << known.name;
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

}  // namespace
}  // namespace shardproof::zoo
