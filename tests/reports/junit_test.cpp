// Whole documents as a server of continuous integration reads them, and texts that would break one. What is skipped
// must be counted as skipped, since such a server shows counts and little else.
#include "reports/junit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reports/sample_reports.h"

namespace shardproof {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kProperties =
    "    <properties>\n"
    "      <property name=\"version\" value=\"1.2.3\"/>\n"
    "      <property name=\"command\" value=\"verify\"/>\n"
    "      <property name=\"model\" value=\"FluxTransformer2DModel\"/>\n"
    "      <property name=\"source\" value=\"exports/tiny\"/>\n"
    "      <property name=\"plan\" value=\"default\"/>\n"
    "      <property name=\"seed\" value=\"7\"/>\n"
    "      <property name=\"schedule_seed\" value=\"8\"/>\n"
    "      <property name=\"device\" value=\"reference\"/>\n"
    "      <property name=\"seed\" value=\"0\"/>\n"
    "      <property name=\"schedule_seed\" value=\"0\"/>\n"
    "      <property name=\"allowed_figure\" value=\"1e-11\"/>\n"
    "      <property name=\"note\" value=\"weights and inputs are drawn, from seed 7\"/>\n"
    "      <property name=\"not_checked\" value=\"EXACT: exact arithmetic (--tier exact or all)\"/>\n"
    "    </properties>\n";

TEST(Junit, WritesASuiteForEachCaseAndSkipsWhatIsRefused) {
  const std::string refused =
      "      <skipped message=\"REFUSED: axis 1 has 16 entries, which 3 ranks cannot divide equally\"/>\n"
      "    </testcase>\n";
  EXPECT_EQ(
      junit_report(test::verify_report(), {}),
      std::string("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<testsuites name=\"shardproof verify\" tests=\"5\" failures=\"0\" errors=\"0\" skipped=\"4\" "
                  "time=\"0.012\">\n"
                  "  <testsuite name=\"FluxTransformer2DModel.base\" tests=\"4\" failures=\"0\" errors=\"0\" "
                  "skipped=\"3\" time=\"0.012\">\n") +
          kProperties +
          "    <testcase name=\"ring ring=2 allgather rounding float64\" classname=\"FluxTransformer2DModel.base\" "
          "time=\"0.012\">\n"
          "      <system-out>ROUNDING-EQUIVALENT; figure 6.81e-16; worst at rank 1 [0,12,3]\n"
          "argument 'timestep' of module '' was left whole: 1 dimension, plan expects 2</system-out>\n"
          "    </testcase>\n"
          "    <testcase name=\"ulysses ulysses=3 rounding float64\" classname=\"FluxTransformer2DModel.base\" "
          "time=\"0.000\">\n" +
          refused +
          "    <testcase name=\"ring ring=3 allgather rounding float64\" classname=\"FluxTransformer2DModel.base\" "
          "time=\"0.000\">\n" +
          refused +
          "    <testcase name=\"ring ring=3 alltoall rounding float64\" classname=\"FluxTransformer2DModel.base\" "
          "time=\"0.000\">\n" +
          refused +
          "  </testsuite>\n"
          "  <testsuite name=\"FluxTransformer2DModel.big\" tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\" "
          "time=\"0.000\">\n" +
          kProperties +
          "    <testcase name=\"ring ring=3 alltoall rounding float64\" classname=\"FluxTransformer2DModel.big\" "
          "time=\"0.000\">\n" +
          refused +
          "  </testsuite>\n"
          "</testsuites>\n");
}

Report one_result(Verdict verdict, const char* reason) {
  Report report = test::report_of("verify");
  report.verifications = {test::verified_result()};
  report.verifications[0].verdict = verdict;
  report.verifications[0].reason = reason;
  return report;
}

TEST(Junit, WritesADifferenceWithItsDiagnosis) {
  Report report = one_result(Verdict::different, "output 'sample' differs\non rank 1");
  report.verifications[0].diagnosis = {"first wrong: a", "layout: b"};
  report.verifications[0].repeat = "shardproof verify x";
  report.hypothesis = test::hypothesis();
  report.shrunk = ShrunkResult{.configuration = "text=1; ring", .test = "TEST(A, B) {}\n", .tried = 3, .seconds = 0.5};
  report.shrunk->result.repeat = "shardproof verify y";
  const std::string text = junit_report(report, {});
  EXPECT_THAT(text, HasSubstr("tests=\"1\" failures=\"1\" errors=\"0\" skipped=\"0\""));
  EXPECT_THAT(text, HasSubstr("      <failure type=\"DIFFERENT\" message=\"output 'sample' differs\">"
                              "output 'sample' differs\non rank 1\nfirst wrong: a\nlayout: b\nhypothesis: CHUNK_LOST"));
  EXPECT_THAT(text, HasSubstr("\nrepeat it: shardproof verify x\n"
                              "smallest configuration that fails (3 configurations tried in 0.5 s): text=1; ring\n"
                              "repeat it: shardproof verify y\n"
                              "a test that fails on it:\nTEST(A, B) {}\n</failure>\n"
                              "      <system-out>DIFFERENT; figure 6.81e-16; worst at rank 1 [0,12,3]</system-out>\n"));
  report.shrunk = ShrunkResult{.tried = 3, .seconds = 0.5};
  EXPECT_THAT(junit_report(report, {}), HasSubstr("no smaller configuration fails alike (3 configurations"));
}

TEST(Junit, CallsARunThatStoppedAnError) {
  Report report = one_result(Verdict::different, "deadlock");
  report.verifications[0].stopped = true;
  const std::string text = junit_report(report, {});
  EXPECT_THAT(text, HasSubstr("failures=\"0\" errors=\"1\""));
  EXPECT_THAT(text, HasSubstr("<error type=\"DIFFERENT\" message=\"deadlock\">deadlock</error>"));
}

TEST(Junit, SkipsWhatIsNotChecked) {
  Report report = one_result(Verdict::not_checked, "no numbers");
  const std::string text = junit_report(report, {});
  EXPECT_THAT(text, HasSubstr("tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\""));
  EXPECT_THAT(text, HasSubstr("      <skipped message=\"NOT CHECKED: no numbers\"/>\n"));
  report = one_result(Verdict::exact, "");
  report.verifications[0].not_checked = {"movement: too large"};
  EXPECT_THAT(junit_report(report, {}), HasSubstr("\nNOT CHECKED: movement: too large</system-out>"));
}

TEST(Junit, CallsARefusalOfWhatWasNamedAnError) {
  Report report = one_result(Verdict::refused, "3 does not divide 16");
  report.is_named = true;
  const std::string text = junit_report(report, {"ring with ring=3 is refused"});
  EXPECT_THAT(text, HasSubstr("tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\""));
  EXPECT_THAT(text, HasSubstr("<error type=\"REFUSED\" message=\"3 does not divide 16\">3 does not divide 16</error>"));
  EXPECT_THAT(text, Not(HasSubstr("request"))) << "said already";
}

TEST(Junit, FailsWhereTheProgramDoesThoughNoVerdictDoes) {
  const Report report = one_result(Verdict::refused, "no");
  EXPECT_THAT(
      junit_report(report, {"nothing was verified: every configuration is refused", "so it is"}),
      HasSubstr("  <testsuite name=\"request\" tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\" "
                "time=\"0.000\">\n"
                "    <testcase name=\"request\" classname=\"FluxTransformer2DModel\" time=\"0.000\">\n"
                "      <error type=\"request\" message=\"nothing was verified: every configuration is refused\">"
                "nothing was verified: every configuration is refused\nso it is</error>\n"
                "    </testcase>\n"
                "  </testsuite>\n"));
}

TEST(Junit, WritesComparisonsOfTheOracle) {
  Report report = test::oracle_report();
  std::string text = junit_report(report, {});
  EXPECT_THAT(text, HasSubstr("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\" time=\"0.750\""));
  EXPECT_THAT(
      text, HasSubstr("    <testcase name=\"float32 against fp32\" classname=\"FluxTransformer2DModel.base\" "
                      "time=\"0.250\">\n"
                      "      <system-out>AGREES; error 2.50e-06, allowed 2.0e-05</system-out>\n"
                      "    </testcase>\n"
                      "    <testcase name=\"float64 along the trace\" classname=\"FluxTransformer2DModel.base\" "
                      "time=\"0.250\">\n"
                      "      <failure type=\"DISAGREES\" message=\"error 5.00e-01, allowed 2.0e-05; first module that "
                      "differs: 0012:proj_out#0\">error 5.00e-01, allowed 2.0e-05; first module that differs: "
                      "0012:proj_out#0; 8 of 9 entries compared</failure>\n"
                      "      <system-out>DISAGREES; error 5.00e-01, allowed 2.0e-05; 8 of 9 entries compared\n"
                      "NOT CHECKED, since our model does not have them: 0003:pos_embed#1</system-out>\n"
                      "    </testcase>\n"
                      "    <testcase name=\"float64 against exact\" classname=\"FluxTransformer2DModel.base\" "
                      "time=\"0.250\">\n"
                      "      <skipped message=\"NOT CHECKED: the export has no exact.sample\"/>\n"));
  // Two exports may have cases of one name.
  report.sources.emplace_back("exports/other");
  report.oracles[2].source = "exports/other";
  text = junit_report(report, {});
  EXPECT_THAT(text, HasSubstr("<testsuite name=\"FluxTransformer2DModel.base of exports/tiny\" tests=\"2\""));
  EXPECT_THAT(text, HasSubstr("<testcase name=\"float64 against exact of exports/other\""));
}

TEST(Junit, StaysWellFormedWhateverTextsHold) {
  const std::string hostile = "]]></failure><!--\"'&\x01\x1b\xff\xEF\xBF\xBF\r\n\t<testcase/>";
  const std::string attribute =
      "]]&gt;&lt;/failure&gt;&lt;!--&quot;'&amp;\\x01\\x1b\\xff\\xef\\xbf\\xbf\\x0d&#10;\\x09&lt;testcase/&gt;";
  const std::string shown =
      "]]&gt;&lt;/failure&gt;&lt;!--&quot;'&amp;\\x01\\x1b\\xff\\xef\\xbf\\xbf\\x0d\n\\x09&lt;testcase/&gt;";
  const std::vector<JunitSuite> suites{{.name = hostile,
                                        .properties = {{hostile, hostile}},
                                        .tests = {{.name = hostile,
                                                   .class_name = hostile,
                                                   .outcome = JunitOutcome::failure,
                                                   .type = hostile,
                                                   .message = hostile,
                                                   .details = hostile,
                                                   .output = hostile}}}};
  const std::string counts = R"(tests="1" failures="1" errors="0" skipped="0" time="0.000")";
  EXPECT_EQ(junit_text(hostile, suites),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"" + attribute + "\" " + counts +
                ">\n  <testsuite name=\"" + attribute + "\" " + counts +
                ">\n    <properties>\n      <property name=\"" + attribute + "\" value=\"" + attribute +
                "\"/>\n    </properties>\n    <testcase name=\"" + attribute + "\" classname=\"" + attribute +
                "\" time=\"0.000\">\n      <failure type=\"" + attribute + "\" message=\"" + attribute + "\">" + shown +
                "</failure>\n      <system-out>" + shown +
                "</system-out>\n    </testcase>\n  </testsuite>\n</testsuites>\n");
}

}  // namespace
}  // namespace shardproof
