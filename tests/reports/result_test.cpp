// The words of a verdict and the counts of a report.
// Both printers and the exit status of the program rest on them.
#include "reports/result.h"

#include <gtest/gtest.h>

#include "tests/reports/sample_reports.h"

namespace shardproof {
namespace {

TEST(Verdict, HasExactlyTheWordsOfTheContract) {
  EXPECT_EQ(verdict_word(Verdict::exact), "EXACT");
  EXPECT_EQ(verdict_word(Verdict::rounding_equivalent), "ROUNDING-EQUIVALENT");
  EXPECT_EQ(verdict_word(Verdict::different), "DIFFERENT");
  EXPECT_EQ(verdict_word(Verdict::refused), "REFUSED");
  EXPECT_EQ(verdict_word(Verdict::not_checked), "NOT CHECKED");
}

TEST(Verdict, IsVerifiedWhenExactOrEqualUpToRounding) {
  EXPECT_TRUE(is_verified(Verdict::exact));
  EXPECT_TRUE(is_verified(Verdict::rounding_equivalent));
  EXPECT_FALSE(is_verified(Verdict::different));
  EXPECT_FALSE(is_verified(Verdict::refused));
  EXPECT_FALSE(is_verified(Verdict::not_checked));
}

TEST(OracleWord, IsNotCheckedWhateverAgreesSays) {
  OracleResult result;
  result.agrees = true;
  EXPECT_EQ(oracle_word(result), "NOT CHECKED");
  result.checked = true;
  EXPECT_EQ(oracle_word(result), "AGREES");
  result.agrees = false;
  EXPECT_EQ(oracle_word(result), "DISAGREES");
}

TEST(EntryText, CallsANumberAnOutput) {
  EXPECT_EQ(entry_text("0", "rope"), "output 0 of module 'rope'");
  EXPECT_EQ(entry_text("12", ""), "output 12 of module ''");
  EXPECT_EQ(entry_text("timestep", ""), "argument 'timestep' of module ''");
  EXPECT_EQ(entry_text("samples.0", "a.b"), "argument 'samples.0' of module 'a.b'");
  EXPECT_EQ(entry_text("", "a"), "argument '' of module 'a'");
}

TEST(Summary, CountsVerdictsComparisonsAndActions) {
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(summary_of(test::verify_report()), (Counts{{"ROUNDING-EQUIVALENT", 1}, {"REFUSED", 4}}));
  EXPECT_EQ(summary_of(test::oracle_report()), (Counts{{"AGREES", 1}, {"DISAGREES", 1}, {"NOT CHECKED", 1}}));
  EXPECT_EQ(summary_of(test::plan_report()), (Counts{{"split", 1}, {"gather", 1}, {"skipped", 1}}));
}

TEST(Verdict, IsShownInWordsByATest) {
  EXPECT_EQ(testing::PrintToString(Verdict::refused), "REFUSED");
  EXPECT_EQ(testing::PrintToString(Verdict::rounding_equivalent), "ROUNDING-EQUIVALENT");
}

}  // namespace
}  // namespace shardproof
