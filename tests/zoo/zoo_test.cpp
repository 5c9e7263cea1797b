// The switch, the tiers on healthy code, faults that are known to be killed in a known way, and the product, which must
// not know of any of it.
#include "tests/zoo/zoo.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "sim/simulation.h"
#include "tests/zoo/localisation.h"
#include "tests/zoo/plan_changes.h"
#include "tests/zoo/scenarios.h"
#include "tests/zoo/switch.h"
#include "tests/zoo/tiers.h"
#include "tests/zoo/usual_test.h"
#include "verify/verifier.h"

namespace shardproof::zoo {
namespace {

using testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

FaultScore score_of(const char* name) {
  return run_zoo({.only = name}, [](int, int, std::string_view) {}).faults.front();
}

TEST(FaultSwitch, ActsInRanksOnly) {
  const FaultSwitch on("RING_START_OWN");
  EXPECT_FALSE(active(id("RING_START_OWN")));
  EXPECT_FALSE(on.was_reached());
  run_ranks({.world_size = 2}, [](Communicator&) {
    EXPECT_TRUE(active(id("RING_START_OWN")));
    EXPECT_FALSE(active(id("RING_SKIP_LAST")));
  });
  EXPECT_TRUE(on.was_reached());
}

TEST(FaultSwitch, IsOffAtTheEndOfItsScope) {
  {
    const FaultSwitch on("RING_START_OWN");
  }
  run_ranks({.world_size = 1}, [](Communicator&) { EXPECT_FALSE(active(id("RING_START_OWN"))); });
}

TEST(FaultSwitch, RefusesASecondFault) {
  const FaultSwitch on("RING_START_OWN");
  EXPECT_EQ(message_of([] { const FaultSwitch second("RING_SKIP_LAST"); }),
            "fault 'RING_SKIP_LAST': another fault is on; one at a time");
}

TEST(Zoo, FindsHealthyCodeHealthyInEveryTier) {
  for (const auto& tier : make_tiers(0)) {
    int passed = 0;
    for (const Scenario& scenario : scenarios("layer", "ring ring_anything ulysses_anything", 0)) {
      const Judgement judgement = tier->judge(scenario, healthy_plans(scenario.model));
      EXPECT_TRUE(judgement.end == Judgement::End::passed || judgement.end == Judgement::End::refused)
          << tier->name() << ", " << scenario.text() << ": " << judgement.reason;
      passed += judgement.end == Judgement::End::passed ? 1 : 0;
    }
    EXPECT_GT(passed, 20) << tier->name();
  }
}

TEST(Zoo, KillsAFaultThatLosesAChunk) {
  const FaultScore score = score_of("RING_SKIP_LAST");
  EXPECT_TRUE(score.reached);
  EXPECT_TRUE(score.is_killed());
  for (const TierScore& tier : score.tiers) {
    EXPECT_EQ(tier.kills, kKillsNeeded) << tier.tier;
    EXPECT_EQ(tier.end, "differs");
    EXPECT_THAT(tier.smallest, HasSubstr("ring=2"));
  }
}

TEST(Zoo, KillsAFaultThatShowsOnThreeRanksOnly) {
  const FaultScore score = score_of("LSE_NOT_UPDATED");
  EXPECT_TRUE(score.is_killed());
  for (const TierScore& tier : score.tiers) {
    // By identities a wrong log-sum-exp is seen for itself, by numbers only once it is merged again.
    if (!tier.tier.starts_with("float")) continue;
    EXPECT_THAT(tier.smallest, HasSubstr("ring=3")) << tier.tier;
  }
  EXPECT_FALSE(score.usual) << "the usual test has two ranks";
}

// Log-sum-exps that stay behind are off end to end by 3 to 16 times what the dense run is here, in the module behind
// the attention by 40 to 176.
TEST(Modules, ShowInBfloat16WhatTheWholeModelDrowns) {
  const ParallelConfig config{.context_parallel_config =
                                  ContextParallelConfig{.ring_degree = 3, .ring_anything = true}};
  for (const char* model : {"flux", "wan"}) {
    Subject subject = Subject::of_model(model_named(model), 0);
    Verifier verifier(subject, {.dtype = kBFloat16, .device = DeviceChoice::cpu, .extremes = false});
    for (const char* fault : {"LSE_NOT_UPDATED", "LSE_MAX"}) {
      const FaultSwitch on(fault);
      const VerificationResult result = verifier.verify("shortest", config, healthy_plans(model), Passed::exact);
      ASSERT_TRUE(result.figure && result.modules && result.modules->worst) << fault << ": " << result.reason;
      EXPECT_LT(*result.figure, kRatioLimit) << model << ' ' << fault;
      EXPECT_GT(result.modules->worst->ratio, kRatioLimit) << model << ' ' << fault;
      EXPECT_EQ(result.verdict, Verdict::different) << model << ' ' << fault;
      EXPECT_THAT(result.reason, HasSubstr("modules are off by more than 16 times")) << model << ' ' << fault;
      EXPECT_THAT(result.modules->worst->module, HasSubstr("attn")) << model << ' ' << fault;
    }
  }
}

// In the type of the fault itself they are rounding like any other.
TEST(Modules, ShowInFloat32WhatIsRoundedToSixteenBits) {
  const auto tiers = make_tiers(0);
  const auto modules = std::ranges::find(tiers, "modules", [](const auto& tier) { return tier->name(); });
  ASSERT_NE(modules, tiers.end());
  const Scenario ring{
      "flux", "shortest", {.context_parallel_config = ContextParallelConfig{.ring_degree = 3, .ring_anything = true}}};
  const Scenario tensor{"flux", "shortest", {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}}};
  for (const auto& [fault, scenario] : std::vector<std::pair<const char*, const Scenario&>>{
           {"BF16_MERGE", ring}, {"FP16_MERGE", ring}, {"BF16_ACC", ring}, {"TP_BF16_AR", tensor}}) {
    const FaultSwitch on(fault);
    const Judgement judgement = (*modules)->judge(scenario, healthy_plans("flux"));
    EXPECT_EQ(judgement.end, Judgement::End::differs) << fault << ": " << judgement.reason;
    EXPECT_THAT(judgement.reason, HasSubstr(" of module '")) << fault;
  }
}

TEST(ExtremeInputs, ShowWhatOrdinaryOnesLeaveAlone) {
  const ParallelConfig config{.context_parallel_config =
                                  ContextParallelConfig{.ring_degree = 3, .ring_anything = true}};
  Subject subject = Subject::of_model(model_named("layer"), 0);
  Verifier verifier(subject, {.dtype = kFloat32, .device = DeviceChoice::cpu});
  const std::vector<std::pair<const char*, const char*>> faults{
      {"NO_MAX_SUB", "logits of 150 either way: attention of q [2, 3, 5, 4] and k [2, 3, 5, 4] on a rank: rank "},
      {"MASKED_NAN", "the keys of each rank in turn masked by -inf: attention of q "}};
  for (const auto& [fault, words] : faults) {
    const FaultSwitch on(fault);
    const VerificationResult result = verifier.verify("other_length", config, healthy_plans("layer"));
    EXPECT_EQ(result.verdict, Verdict::different) << fault;
    EXPECT_LE(*result.figure, kRatioLimit) << fault;
    EXPECT_THAT(result.reason, HasSubstr(std::string("with extreme inputs: ") + words)) << fault;
    EXPECT_THAT(result.reason, HasSubstr("off by inf times the error of the dense run, of which 16 are allowed"));
    EXPECT_THAT(result.diagnosis.front(), HasSubstr(std::string("extreme inputs: ") + words)) << fault;
  }
  // That merge takes a difference of outputs besides, which leaves the digits of the large one behind.
  const FaultSwitch on("MASKED_NAN");
  EXPECT_THAT(verifier.verify("other_length", config, healthy_plans("layer")).diagnosis,
              testing::Contains(HasSubstr("values of 1e+06 with weight e^-40 on each rank in turn: ")));
}

TEST(Zoo, CountsARunThatStopsAsKilled) {
  const FaultScore score = score_of("RING_DIR_LENS");
  EXPECT_TRUE(score.is_killed());
  EXPECT_EQ(score.tiers.front().end, "stopped");
}

// Or what it catches would be no measure of it.
TEST(UsualTest, PassesOnHealthyCodeWhereverAFaultIsLookedFor) {
  UsualTest usual(0);
  std::set<std::pair<std::string_view, std::string_view>> places;
  for (const Fault& fault : all_faults()) {
    // A changed plan is a fault without a switch.
    if (fault.edits.empty() || !places.emplace(fault.models, fault.modes).second) continue;
    EXPECT_FALSE(usual.fails_for(fault)) << fault.models << ", " << fault.modes;
  }
  EXPECT_GT(places.size(), 10U);
}

TEST(UsualTest, FailsWhereAChunkIsLost) {
  UsualTest usual(0);
  const FaultSwitch on("RING_SKIP_LAST");
  const auto fault = std::ranges::find(all_faults(), "RING_SKIP_LAST", &Fault::name);
  EXPECT_TRUE(usual.fails_for(*fault));
}

TEST(PlanChanges, RefuseAFaultWithoutAnyChange) {
  const Fault empty{.name = "EMPTY", .what = "nothing", .edits = {}, .modes = "ring"};
  EXPECT_EQ(message_of([&] { changed_plans(empty, ParallelPlans{}); }),
            "fault 'EMPTY' has no edits, and no change of plans; expected one of them");
}

TEST(Localisation, ExpectsEveryFaultSomewhere) {
  for (const Fault& fault : all_faults()) {
    EXPECT_NE(expected_place(fault), "") << fault.name;
    EXPECT_FALSE(names_place({}, expected_place(fault))) << fault.name << ": nothing is told where it is";
  }
}

TEST(Localisation, KnowsPlacesByWhatTheDiagnosisSays) {
  Finding finding;
  finding.diagnosis.found = true;
  finding.diagnosis.point = Point::argument;
  finding.diagnosis.value = "rotary.1";
  finding.diagnosis.origin = {"blocks.0.attn", "SomeAttention", true, true};
  for (const char* place : {"attention", "sharded:attn", "module:blocks.0", "class:SomeAttention", "argument:rotary"})
    EXPECT_TRUE(names_place(finding, place)) << place;
  for (const char* place : {"entries", "sharded:mlp", "module:norm", "class:Attention", "argument:mask", "output"})
    EXPECT_FALSE(names_place(finding, place)) << place;
  EXPECT_TRUE(names_place(finding, "entries attention"));
  finding.diagnosis.point = Point::gather;
  EXPECT_TRUE(names_place(finding, "entries"));
  finding.diagnosis.suspects = {{"output 1", "stays divided"}};
  EXPECT_TRUE(names_place(finding, "output"));
  EXPECT_EQ(message_of([&] { names_place(finding, "somewhere"); }),
            "'somewhere' is no place of a fault; expected attention, entries, output, or sharded:, module:, class:, "
            "argument: with a text");
}

TEST(Localisation, FindsFaultsOfSeveralKinds) {
  for (const char* name : {"RING_SKIP_LAST", "TP_AR_SKIP_ATTN", "PLAN_IDS_WHOLE", "SINGLE_STREAM_IMAGE_FIRST"}) {
    const FaultScore score = score_of(name);
    EXPECT_TRUE(score.is_localised) << name << ", " << score.smallest << ": " << score.found;
  }
}

TEST(Zoo, KnowsNoOtherFaults) {
  EXPECT_EQ(message_of([] { chosen_faults({.only = "NO_SUCH_FAULT"}); }),
            "--only: 'NO_SUCH_FAULT' is no fault of the zoo; expected one that --list names");
}

TEST(Zoo, DrawsItsSampleFromTheSeed) {
  const auto first = chosen_faults({.seed = 1}), again = chosen_faults({.seed = 1}), other = chosen_faults({.seed = 2});
  EXPECT_EQ(first.size(), static_cast<std::size_t>(kSampledFaults));
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  EXPECT_EQ(chosen_faults({.full = true}).size(), all_faults().size());
}

TEST(Zoo, RefusesAnUnknownMode) {
  EXPECT_EQ(message_of([] { configurations_of_mode("spiral"); }), "the zoo has no mode 'spiral'");
}

TEST(Zoo, CountsNoStandInForExactArithmetic) {
  static const Fault kOrdered{
      .name = "ORDERED", .what = "nothing", .edits = {}, .modes = "ring", .killer = Killer::order};
  ZooReport report;
  report.tiers = {"exact"};
  report.faults = {{.fault = &kOrdered,
                    .tiers = {{.tier = "exact", .tried = 2, .kills = 2}},
                    .kills = 2,
                    .expected = "attention",
                    .found = "elsewhere"}};
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("all     0 of 0     1 of 1      0 of 1"));
  EXPECT_THAT(text, HasSubstr("not counted for it, as it runs a stand-in: ORDERED"));
  EXPECT_THAT(text, HasSubstr("localised: 0 of 1 killed faults (0 %)"));
  EXPECT_THAT(text, HasSubstr("not localised: ORDERED, expected attention; "));
  EXPECT_EQ(report_json(report).at("summary").at("killed_by_tier").at("exact").as_int(), 0);
}

TEST(Zoo, ReportsWhichFaultsAreIdentified) {
  static const Fault kOne{.name = "ONE", .what = "nothing", .edits = {}, .modes = "ring"};
  static const Fault kTwo{.name = "TWO", .what = "nothing", .edits = {}, .modes = "ring"};
  static const Fault kThree{.name = "THREE", .what = "nothing", .edits = {}, .modes = "ring"};
  ZooReport report;
  report.faults = {
      {.fault = &kOne, .kills = 2, .identification = Identification{"Model", true, true, "it is ONE"}},
      {.fault = &kTwo, .kills = 2, .identification = Identification{"Model", false, false, "it is ONE"}},
      {.fault = &kThree, .kills = 2, .identification = Identification{}},
  };
  EXPECT_THAT(report_text(report), testing::Not(HasSubstr("identified"))) << "nothing was looked for";
  report.options.fingerprints = FingerprintTable{};
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("identified: 1 of 3 killed faults, 1 of them as the only one that fits\n"
                              "not identified: TWO, Model: it is ONE\n"
                              "without fingerprints: THREE\n"));
  const Json json = report_json(report);
  EXPECT_EQ(json.at("summary").at("identified").as_int(), 1);
  EXPECT_EQ(json.at("results").at(1).at("identification").at("said").as_string(), "it is ONE");
  EXPECT_TRUE(json.at("results").at(2).at("identification").at("model").is_null());
}

TEST(Zoo, ReportsAFaultThatLives) {
  static const Fault kAlive{.name = "ALIVE", .what = "nothing", .edits = {}, .modes = "ring"};
  ZooReport report;
  report.tiers = {"float64"};
  TierScore tier;
  tier.tier = "float64";
  tier.kills = 1;
  tier.tried = 3;
  FaultScore score;
  score.fault = &kAlive;
  score.tiers = {tier};
  score.kills = 1;
  report.faults = {score};
  report.healthy_runs = 1;
  report.healthy_problems = {"float64, somewhere: differs: by much"};
  EXPECT_FALSE(report.is_good());
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("once"));
  EXPECT_THAT(text, HasSubstr("all      0 of 1     0 of 1      0 of 1"));
  EXPECT_THAT(text, HasSubstr("ALIVE: ALIVE (nothing)"));
  EXPECT_THAT(text, HasSubstr("NOT HEALTHY: float64, somewhere: differs: by much"));
  EXPECT_EQ(report_json(report).at("summary").at("killed").as_int(), 0);
  const std::string junit = report_junit(report, "1.2.3");
  EXPECT_THAT(junit, HasSubstr("tests=\"2\" failures=\"2\" errors=\"0\" skipped=\"0\""));
  EXPECT_THAT(junit,
              HasSubstr("<failure type=\"NOT HEALTHY\" message=\"1 of 1 runs do not pass\">float64, somewhere: "));
  EXPECT_THAT(junit, HasSubstr("<failure type=\"ALIVE\" message=\"alive: 1 of 2 kills; no rank came to the faulty "
                               "statement\">nothing\nfloat64: 1 kills in 3 configurations</failure>"));
  const std::string html = report_html(report, "1.2.3");
  EXPECT_THAT(html, HasSubstr("<p class=\"verdict bad\">Something was not found: 0 of 1 faults killed, healthy code "
                              "passes 0 of 1 runs.</p>"));
  EXPECT_THAT(html, HasSubstr(">ALIVE (1 of 1)</h2>"));
  EXPECT_THAT(html, HasSubstr("<li class=\"lines\">float64, somewhere: differs: by much</li>"));
}

// The product's own sources know nothing of faults.
TEST(Zoo, HasNoFaultInTheProduct) {
  int files = 0;
  for (const char* folder : {"core", "parallel", "models", "reference", "sim", "real", "reports", "verify", "app"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(SHARDPROOF_SOURCE_DIR) / folder)) {
      if (!entry.is_regular_file()) continue;  // data, which may name them
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
      ++files;
      EXPECT_EQ(text.find("zoo::"), std::string::npos) << entry.path();
      EXPECT_EQ(text.find("tests/zoo"), std::string::npos) << entry.path();
      for (const Fault& fault : all_faults()) EXPECT_EQ(text.find(fault.name), std::string::npos) << entry.path();
    }
  }
  EXPECT_GT(files, 100);
}

}  // namespace
}  // namespace shardproof::zoo
