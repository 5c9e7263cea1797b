// Golden texts of small reports as the terminal shows them.
// Expected lines are written as they are printed; long ones are broken in the source only.
#include "reports/terminal.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reports/sample_reports.h"

namespace shardproof {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(TerminalText, ShowsAVerification) {
  EXPECT_EQ(terminal_text(test::verify_report()),
            "shardproof 1.2.3 verify\n"
            "\n"
            "model   FluxTransformer2DModel\n"
            "source  exports/tiny\n"
            "run     float64 on device reference, rounding tier, seed 7, schedule seed 8\n"
            "plan    default\n"
            "\n"
            "case  mode  mesh    rotate     tokens/rank  sent/rank  collectives  "
            "verdict                figure  worst at         seconds\n"
            "base  ring  ring=2  allgather  9,8           48.2 KiB            5  "
            "ROUNDING-EQUIVALENT  6.81e-16  rank 1 [0,12,3]    0.012\n"
            "\n"
            "figure: largest difference from the dense run, relative to the dense run's largest output; at most 1e-11 "
            "is allowed.\n"
            "tokens/rank: of the first attention. sent/rank: bytes that others receive of the busiest rank. "
            "collectives: its calls\n"
            "that move tensors.\n"
            "\n"
            "REFUSED (4 of 5)\n"
            "  - axis 1 has 16 entries, which 3 ranks cannot divide equally\n"
            "      base: ulysses ulysses=3; ring ring=3 (allgather, alltoall)\n"
            "      big: ring ring=3 (alltoall)\n"
            "\n"
            "skipped plan entries\n"
            "  - argument 'timestep' of module '' was left whole: 1 dimension, plan expects 2 (base: 1 run)\n"
            "\n"
            "notes\n"
            "  - weights and inputs are drawn, from seed 7\n"
            "\n"
            "NOT CHECKED\n"
            "  - EXACT: exact arithmetic (--tier exact or all)\n"
            "\n"
            "Everything that was run is verified: 1 ROUNDING-EQUIVALENT, 4 REFUSED; largest figure 6.81e-16, allowed "
            "1e-11.\n");
}

TEST(TerminalText, SaysWhichMistakeADifferenceLooksLike) {
  Report report = test::verify_report();
  report.hypothesis = test::hypothesis();
  EXPECT_THAT(terminal_text(report), Not(HasSubstr("hypothesis"))) << "nothing differs";
  report.verifications[0].verdict = Verdict::different;
  report.verifications[0].reason = "wrong";
  EXPECT_THAT(
      terminal_text(report),
      HasSubstr("DIFFERENT (1 of 5)\n"
                "  hypothesis: CHUNK_LOST (a chunk is lost) or CHUNK_TWICE (one is twice): the same outputs, or "
                "the same end, in 3 of the\n"
                "    4 small configurations of FluxTransformer2DModel that show a mistake (14 tried)\n"
                "  - wrong\n"));
  report.hypothesis->equal = 4;
  report.hypothesis->others = 2;
  EXPECT_THAT(hypothesis_text(*report.hypothesis),
              HasSubstr("(one is twice) or 2 more: the same outputs, or the same end, in all 4 small configurations"));
}

TEST(TerminalText, NamesADifferenceWithEveryLineOfItsReport) {
  Report report = test::verify_report();
  report.verifications.resize(1);
  report.verifications[0].verdict = Verdict::different;
  report.verifications[0].reason = "deadlock: no rank can run\nrank 0 waits for rank 1";
  report.verifications[0].figure = std::nullopt;
  report.verifications[0].worst = std::nullopt;
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("\nDIFFERENT (1 of 1)\n"
                              "  - deadlock: no rank can run\n"
                              "    rank 0 waits for rank 1\n"
                              "      base: ring ring=2 (allgather)\n"));
  EXPECT_THAT(text, EndsWith("\nA difference was found: 1 DIFFERENT.\n"));
}

TEST(TerminalReport, SaysWhereADifferenceBegins) {
  Report report = test::verify_report();
  report.verifications.resize(1);
  VerificationResult& result = report.verifications.front();
  result.verdict = Verdict::different;
  result.reason = "output 'sample' on rank 1: 3 elements differ";
  result.diagnosis = {"first wrong: output of module 'a.b' (Linear)", "movement: query token 7 misses key token 2"};
  result.movements_checked = 5;
  result.bitwise_checked = 8;
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("      first wrong: output of module 'a.b' (Linear)\n"
                              "      movement: query token 7 misses key token 2\n"));
  EXPECT_THAT(text,
              HasSubstr("\nMovement was followed by identities of elements in 5 attention calls and plan entries, "
                        "and attention compared to the\nlast bit in 8 problems made for it.\n"));
}

TEST(TerminalText, TakesTheFigureThatIsNoNumberForTheLargest) {
  Report report = test::verify_report();
  report.verifications = {test::verified_result(), test::verified_result(), test::verified_result()};
  report.verifications[1].figure = std::numeric_limits<double>::quiet_NaN();
  report.verifications[1].verdict = Verdict::different;
  EXPECT_THAT(terminal_text(report), EndsWith("A difference was found: 2 ROUNDING-EQUIVALENT, 1 DIFFERENT; "
                                              "largest figure nan, allowed 1e-11.\n"));
}

TEST(TerminalText, ShowsRatiosOfNarrowTypesAndWhatTheyLeaveOpen) {
  Report report = test::verify_report();
  report.allowed = 16.0;
  report.verifications = {test::verified_result(), test::refused_result("a", "ulysses", "ulysses=3", "allgather")};
  report.verifications[0].dtype = "bfloat16";
  report.verifications[0].figure = 1.2345;
  report.verifications[0].verdict = Verdict::not_checked;
  report.verifications[0].reason = "16-bit end to end";
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("  NOT CHECKED    1.23  rank 1 [0,12,3]    0.012\n"));
  EXPECT_THAT(text, HasSubstr("figure: error against float64, as a multiple of the dense run's error; at most 16 is "
                              "allowed."));
  EXPECT_THAT(text, HasSubstr("\nNOT CHECKED in these configurations (1 of 2)\n  - 16-bit end to end\n"));
  EXPECT_THAT(text, EndsWith("\nNothing was verified: 1 REFUSED, 1 NOT CHECKED; largest figure 1.23, allowed 16.\n"));
}

TEST(TerminalText, NamesTheWorstModuleOfAllConfigurations) {
  Report report = test::verify_report();
  report.allowed = 16.0;
  report.verifications = {test::verified_result(), test::verified_result(), test::verified_result()};
  for (VerificationResult& result : report.verifications) {
    result.dtype = "bfloat16";
    result.figure = 1.2345;
    result.modules = test::module_ratios();
    result.extremes_checked = 7;
    result.also_passed = "exact arithmetic";
  }
  report.verifications[1].case_name = "uneven";
  report.verifications[1].modules->worst->ratio = 2.5;
  report.verifications[1].also_passed = "float64 (1.00e-16)";
  report.verifications[1].modules->runner_up.reset();
  report.verifications[2].modules->worst.reset();
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("worst at         modules  seconds\n"));
  EXPECT_THAT(text, HasSubstr("rank 1 [0,12,3]     1.75    0.012\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\n"
          "case    mode  mesh    rotate     farthest module          ratio  next                     ratio\n"
          "base    ring  ring=2  allgather  blocks.0.attn, output 0   1.75  (root), argument 'temb'    1.5\n"
          "uneven  ring  ring=2  allgather  blocks.0.attn, output 0    2.5\n"
          "\n"
          "modules: the largest such multiple of any module, each given the arguments of the float64 run. The largest "
          "of all is\n"
          "that of output 0 of module 'blocks.0.attn' (Attention), call 2, on rank 1 at [0,4,3]: 2.5 (case uneven, "
          "ring "
          "ring=2; one\n"
          "of 30 values of 12 modules). The same configurations passed in exact arithmetic (2) and in float64 (1). "
          "Attention took\n"
          "extreme inputs in 21 problems made for it.\n"));
}

TEST(TerminalText, ListsTheWorstModulesOfFewConfigurationsOnly) {
  Report report = test::verify_report();
  report.verifications.assign(13, test::verified_result());
  for (VerificationResult& result : report.verifications) result.modules = test::module_ratios();
  EXPECT_THAT(terminal_text(report), Not(HasSubstr("farthest module")));
  EXPECT_THAT(terminal_text(report), HasSubstr("; next there is argument 'temb' of the whole model (Model), call 1,"));
  report.verifications.pop_back();
  EXPECT_THAT(terminal_text(report), HasSubstr("farthest module"));
}

TEST(TerminalText, HasNoTableWhenEverythingIsRefused) {
  Report report = test::verify_report();
  report.verifications = {test::refused_result("a", "tp+ring", "ring=2,ulysses=1,tp=2", "alltoall")};
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, Not(HasSubstr("sent/rank")));
  EXPECT_THAT(text, HasSubstr("      a: tp+ring ring=2,tp=2 (alltoall)\n"));
  EXPECT_THAT(text, EndsWith("\nNothing was verified: 1 REFUSED.\n"));
}

TEST(TerminalText, EscapesWhatAFileNameMayHold) {
  Report report = test::verify_report();
  report.sources = {"a\x1b[31m"};
  report.verifications[0].case_name = "b\nc";
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("source  a\\x1b[31m\n"));
  EXPECT_THAT(text, HasSubstr("b\\x0ac  ring"));
}

// Every name in a report may come from a stranger's file.
Report hostile_report() {
  const std::string name = "n\x1b]0;title\x07\nFORGED \u009b31m\u202e\r\xff";
  Report report = test::verify_report();
  report.model = report.plan_name = name;
  report.sources = {name};
  report.notes = {name};
  report.not_checked = {name};
  for (VerificationResult& result : report.verifications) {
    result.case_name = result.mode = result.mesh = result.rotate_method = result.device = result.tier = name;
    result.reason = name;
    result.skipped_entries = {{name, name, name}};
  }
  VerificationResult different = report.verifications.front();
  different.verdict = Verdict::different;
  report.verifications.push_back(different);
  OracleResult oracle;
  oracle.source = oracle.case_name = oracle.run = oracle.first_module = oracle.note = name;
  oracle.checked = true;
  oracle.without_counterpart = {name};
  report.oracles = {oracle};
  for (const char* action : {"split", "gather", "skipped", "refused", "failed"}) {
    report.plan.push_back({.case_name = name,
                           .mode = name,
                           .mesh = name,
                           .module = name,
                           .argument = name,
                           .action = action,
                           .axis = {},
                           .total = {},
                           .per_rank = {},
                           .note = name});
  }
  return report;
}

TEST(TerminalText, ShowsNoControlCharacterOfANameWithOrWithoutColour) {
  for (const TextTable::Colour colour : {TextTable::Colour::off, TextTable::Colour::on}) {
    std::string text = terminal_text(hostile_report(), {.colour = colour});
    for (const std::string_view own : {"\x1b[32m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"}) {
      for (std::size_t at = text.find(own); at != std::string::npos; at = text.find(own)) text.erase(at, own.size());
    }
    for (const char c : text) ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << text;
    EXPECT_THAT(text, Not(HasSubstr("\u009b")));
    EXPECT_THAT(text, Not(HasSubstr("\u202e")));
    EXPECT_THAT(text, Not(HasSubstr("\xff")));
    EXPECT_THAT(text, Not(HasSubstr("\nFORGED")));
    EXPECT_THAT(text, HasSubstr("FORGED"));
  }
}

TEST(TerminalText, ColoursOnlyWhenAsked) {
  EXPECT_THAT(terminal_text(test::verify_report()), Not(HasSubstr("\x1b")));
  const std::string text = terminal_text(test::verify_report(), {.colour = TextTable::Colour::on});
  EXPECT_THAT(text, HasSubstr("\x1b[32mROUNDING-EQUIVALENT\x1b[0m"));
  EXPECT_THAT(text, EndsWith("\x1b[0m\n"));
}

TEST(TerminalText, ShowsAnOracle) {
  EXPECT_EQ(terminal_text(test::oracle_report()),
            "shardproof 1.2.3 oracle\n"
            "\n"
            "model   FluxTransformer2DModel\n"
            "source  exports/tiny\n"
            "\n"
            "case  comparison               verdict         error  tolerance  first module that differs  "
            "note                            seconds\n"
            "base  float32 against fp32     AGREES       2.50e-06    2.0e-05                             "
            "                                  0.250\n"
            "base  float64 along the trace  DISAGREES    5.00e-01    2.0e-05  0012:proj_out#0            "
            "8 of 9 entries compared           0.250\n"
            "base  float64 against exact    NOT CHECKED         -          -                             "
            "the export has no exact.sample    0.250\n"
            "\n"
            "trace entries without a counterpart in our model (not compared)\n"
            "  - exports/tiny, base: 0003:pos_embed#1\n"
            "\n"
            "Our dense model disagrees with the export: 1 AGREES, 1 DISAGREES, 1 NOT CHECKED; closest to its "
            "limit: 5.00e-01 "
            "of 2.0e-05 allowed (base, float64 along the trace).\n");
}

TEST(TerminalText, TellsSeveralExportsApart) {
  Report report = test::oracle_report();
  report.oracles.resize(1);
  report.sources = {"exports/tiny", "exports/uneven"};
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("source  exports/tiny\n        exports/uneven\n"));
  EXPECT_THAT(text, HasSubstr("\nexports/tiny  base  float32 against fp32"));
  EXPECT_THAT(text, EndsWith("\nOur dense model agrees with the export: 1 AGREES; closest to its "
                             "limit: 2.50e-06 of 2.0e-05 "
                             "allowed (base, float32 against fp32).\n"));
}

TEST(TerminalText, SaysWhenNothingWasCompared) {
  Report report = test::oracle_report();
  report.oracles = {report.oracles[2]};
  EXPECT_THAT(terminal_text(report), EndsWith("\nNothing was compared: 1 NOT CHECKED.\n"));
}

TEST(TerminalText, ShowsAPlan) {
  EXPECT_EQ(terminal_text(test::plan_report()),
            "shardproof 1.2.3 plan\n"
            "\n"
            "model   FluxTransformer2DModel\n"
            "source  exports/tiny\n"
            "plan    default\n"
            "run     ring_anything on the mesh ring=2,ulysses=1\n"
            "\n"
            "case  module    argument       action   axis  total  per rank  note\n"
            "base  (root)    hidden_states  split       1     17  9,8\n"
            "base  proj_out  output 0       gather      1     17  9,8\n"
            "base  (root)    timestep       skipped     -      -            1 dimension, plan expects 2\n"
            "\n"
            "Entries of the plan: 1 split, 1 gather, 1 skipped.\n");
}

TEST(TerminalText, ListsCasesOfAPlanThatDidNotRunByReason) {
  Report report = test::plan_report();
  PlanRow refused = test::split_row();
  refused.action = "refused";
  refused.note = "4 heads cannot be divided";
  PlanRow other = refused;
  other.case_name = "other";
  report.plan = {refused, other};
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("\ncases that did not run to the end\n"
                              "  - refused: 4 heads cannot be divided\n"
                              "      in: base, other\n"));
  EXPECT_THAT(text, Not(HasSubstr("per rank")));
  EXPECT_THAT(text, EndsWith("\nEntries of the plan: 2 refused.\n"));
}

}  // namespace
}  // namespace shardproof
