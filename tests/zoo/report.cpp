// How the zoo's score is written: a table for the terminal, a list of the faults, and JSON.
// Part of zoo.h.
#include <algorithm>

#include <fmt/format.h>

#include "reports/text_table.h"
#include "tests/zoo/zoo.h"

namespace shardproof::zoo {
namespace {

const TierScore* first_kill(const FaultScore& score) {
  const auto found = std::ranges::find_if(score.tiers, [](const TierScore& tier) { return tier.kills > 0; });
  return found == score.tiers.end() ? nullptr : &*found;
}

int kills_of_tier(const ZooReport& report, std::size_t tier) {
  return static_cast<int>(std::ranges::count_if(
      report.faults, [&](const FaultScore& score) { return score.tiers[tier].kills >= kKillsNeeded; }));
}

int kills_of_usual(const ZooReport& report) {
  return static_cast<int>(std::ranges::count_if(report.faults, &FaultScore::usual));
}

std::vector<TextTable::Cell> row_of(const FaultScore& score) {
  std::vector<TextTable::Cell> row{{std::string(score.fault->name)}};
  for (const TierScore& tier : score.tiers)
    row.push_back({tier.kills >= kKillsNeeded ? "killed" : tier.kills == 1 ? "once" : "missed"});
  row.push_back({score.usual ? "killed" : "missed"});
  const TierScore* kill = first_kill(score);
  row.push_back({kill == nullptr ? "" : kill->smallest});
  row.push_back({kill == nullptr ? (score.reached ? "" : "never reached") : kill->end});
  row.push_back({fmt::format("{:.2f}", score.seconds)});
  return row;
}

std::vector<TextTable::Column> columns_of(const ZooReport& report) {
  std::vector<TextTable::Column> columns{{"fault"}};
  for (const std::string& tier : report.tiers) columns.push_back({tier});
  for (const char* title : {"usual test", "smallest configuration", "how"}) columns.push_back({title});
  columns.push_back({"seconds", TextTable::Align::right});
  return columns;
}

Json to_json(const TierScore& score) {
  Json json = Json::object();
  json.set("tier", score.tier);
  json.set("configurations", score.tried);
  json.set("kills", score.kills);
  json.set("smallest", score.smallest);
  json.set("how", score.end);
  json.set("reason", score.reason);
  json.set("seconds", score.seconds);
  return json;
}

Json to_json(const FaultScore& score) {
  Json json = Json::object();
  json.set("fault", score.fault->name);
  json.set("catalogue", score.fault->catalogue == 0 ? Json() : Json(score.fault->catalogue));
  json.set("what", score.fault->what);
  json.set("killed", score.is_killed());
  json.set("kills", score.kills);
  json.set("reached", score.reached);
  json.set("usual_test", score.usual);
  Json tiers = Json::array();
  for (const TierScore& tier : score.tiers) tiers.append(to_json(tier));
  json.set("tiers", std::move(tiers));
  json.set("seconds", score.seconds);
  return json;
}

}  // namespace

std::string report_text(const ZooReport& report) {
  TextTable table(columns_of(report));
  for (const FaultScore& score : report.faults) table.add(row_of(score));
  std::string text = table.text(TextTable::Colour::off) + "\n";
  const std::size_t all = report.faults.size();
  for (std::size_t tier = 0; tier < report.tiers.size(); ++tier)
    text += fmt::format("{}: {} of {} killed\n", report.tiers[tier], kills_of_tier(report, tier), all);
  text += fmt::format("usual test (two ranks, equal lengths, no mask, rank 0, 1e-4 / 1e-3): {} of {} killed\n",
                      kills_of_usual(report), all);
  const auto killed = std::ranges::count_if(report.faults, &FaultScore::is_killed);
  text += fmt::format("all tiers: {} of {} killed by at least {} configurations; healthy code passes {} of {} runs\n",
                      killed, all, kKillsNeeded, report.healthy_runs - static_cast<int>(report.healthy_problems.size()),
                      report.healthy_runs);
  for (const FaultScore& score : report.faults) {
    if (!score.is_killed()) text += fmt::format("ALIVE: {} ({})\n", score.fault->name, score.fault->what);
  }
  for (const std::string& problem : report.healthy_problems) text += fmt::format("NOT HEALTHY: {}\n", problem);
  if (!report.options.full && !report.options.only)
    text += fmt::format("a sample of {} faults drawn from seed {}; --full takes all\n", all, report.options.seed);
  return text + fmt::format("{:.1f} seconds\n", report.seconds);
}

std::string list_text() {
  TextTable table({{"fault"}, {"number", TextTable::Align::right}, {"where"}, {"what it models"}});
  const auto number = [](int catalogue) { return catalogue == 0 ? std::string() : std::to_string(catalogue); };
  for (const Fault& fault : all_faults()) {
    table.add({{std::string(fault.name)},
               {number(fault.catalogue)},
               {fault.edits.empty() ? "plan" : std::string(fault.edits.back().file)},
               {std::string(fault.what)}});
  }
  for (const Absent& absent : inexpressible_faults())
    table.add({{std::string(absent.name)}, {number(absent.catalogue)}, {"cannot be"}, {std::string(absent.reason)}});
  for (const Absent& absent : equivalent_faults())
    table.add({{std::string(absent.name)}, {number(absent.catalogue)}, {"no fault"}, {std::string(absent.reason)}});
  return table.text(TextTable::Colour::off);
}

Json report_json(const ZooReport& report) {
  Json json = Json::object();
  json.set("command", "zoo");
  json.set("seed", report.options.seed);
  json.set("full", report.options.full);
  Json faults = Json::array();
  for (const FaultScore& score : report.faults) faults.append(to_json(score));
  json.set("results", std::move(faults));
  Json tiers = Json::object();
  for (std::size_t tier = 0; tier < report.tiers.size(); ++tier)
    tiers.set(report.tiers[tier], kills_of_tier(report, tier));
  Json summary = Json::object();
  summary.set("faults", report.faults.size());
  summary.set("killed", std::ranges::count_if(report.faults, &FaultScore::is_killed));
  summary.set("killed_by_tier", std::move(tiers));
  summary.set("killed_by_usual_test", kills_of_usual(report));
  summary.set("healthy_runs", report.healthy_runs);
  Json problems = Json::array();
  for (const std::string& problem : report.healthy_problems) problems.append(problem);
  summary.set("healthy_problems", std::move(problems));
  json.set("summary", std::move(summary));
  json.set("seconds", report.seconds);
  return json;
}

}  // namespace shardproof::zoo
