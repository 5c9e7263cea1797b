// The zoo's score as JUnit XML and as a page of HTML, by the writers of the product's reports.
// Part of zoo.h.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reports/html_page.h"
#include "reports/junit.h"
#include "tests/zoo/zoo.h"

namespace shardproof::zoo {
namespace {

std::string tiers_text(const FaultScore& score) {
  std::string text = std::string(score.fault->what);
  for (const TierScore& tier : score.tiers) {
    text += fmt::format("\n{}: {} kills in {} configurations", tier.tier, tier.kills, tier.tried);
    if (!tier.reason.empty()) text += fmt::format("; {}: {}", tier.smallest, tier.reason);
  }
  return text;
}

JunitTest test_of(const FaultScore& score) {
  JunitTest test{.name = std::string(score.fault->name),
                 .class_name = "shardproof.zoo",
                 .type = "ALIVE",
                 .seconds = score.seconds};
  if (score.is_killed()) {
    test.output = tiers_text(score);
    return test;
  }
  test.outcome = JunitOutcome::failure;
  test.message = fmt::format("alive: {} of {} kills{}", score.kills, kKillsNeeded,
                             score.reached ? "" : "; no rank came to the faulty statement");
  test.details = tiers_text(score);
  return test;
}

JunitTest test_of_healthy_code(const ZooReport& report) {
  JunitTest test{.name = "healthy code passes", .class_name = "shardproof.zoo", .type = "NOT HEALTHY"};
  if (report.healthy_problems.empty()) return test;
  test.outcome = JunitOutcome::failure;
  test.message = fmt::format("{} of {} runs do not pass", report.healthy_problems.size(), report.healthy_runs);
  test.details = fmt::format("{}", fmt::join(report.healthy_problems, "\n"));
  return test;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    lines.emplace_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), lines.back().size() + 1));
  }
  return lines;
}

std::string closing_of(const ZooReport& report) {
  return fmt::format("{}: {} of {} faults killed, healthy code passes {} of {} runs.",
                     report.is_good() ? "Everything was found" : "Something was not found",
                     std::ranges::count_if(report.faults, &FaultScore::is_killed), report.faults.size(),
                     report.healthy_runs - static_cast<int>(report.healthy_problems.size()), report.healthy_runs);
}

}  // namespace

std::string report_junit(const ZooReport& report, const std::string& version) {
  JunitSuite suite{.name = "shardproof.zoo",
                   .properties = {{"version", version}, {"seed", std::to_string(report.options.seed)}},
                   .tests = {test_of_healthy_code(report)}};
  for (const FaultScore& score : report.faults) suite.tests.push_back(test_of(score));
  return junit_text("shardproof zoo", {suite});
}

std::string report_html(const ZooReport& report, const std::string& version) {
  HtmlPage page("shardproof zoo", "shardproof zoo: what verification catches", closing_of(report),
                report.is_good() ? Tone::good : Tone::bad);
  page.facts({{"version", fmt::format("shardproof {}, zoo", version)},
              {"seed", std::to_string(report.options.seed)},
              {"faults", report.options.only   ? "one, by its name"
                         : report.options.full ? "all"
                                               : "a sample"}});
  std::vector<HtmlItem> alive;
  for (const FaultScore& score : report.faults) {
    if (!score.is_killed()) alive.push_back({.text = fmt::format("{}: {}", score.fault->name, tiers_text(score))});
  }
  if (!alive.empty()) page.section(fmt::format("ALIVE ({} of {})", alive.size(), report.faults.size()), "alive");
  page.items(alive);
  if (!report.healthy_problems.empty()) page.section("Healthy code that does not pass", "unhealthy");
  page.list(report.healthy_problems);
  page.section("Faults killed, by tier", "score");
  page.table(score_table(report), {.caption = "Faults killed, by tier"});
  page.list(lines_of(score_words(report) + sample_words(report)));
  page.section("Every fault", "faults");
  page.table(fault_table(report), {.caption = "What each tier made of every fault"});
  if (report.options.shrink) page.section("The smallest failures", "smallest");
  if (report.options.shrink) page.table(shrunk_table(report), {.caption = "The smallest failure of every fault"});
  page.list(lines_of(shrinking_words(report)));
  return page.text();
}

}  // namespace shardproof::zoo
