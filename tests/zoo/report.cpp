// How the zoo's score is written: a table for the terminal, a list of the faults, and JSON.
// Part of zoo.h.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/zoo/zoo.h"

namespace shardproof::zoo {
namespace {

const TierScore* first_kill(const FaultScore& score) {
  const auto found = std::ranges::find_if(score.tiers, [](const TierScore& tier) { return tier.kills > 0; });
  return found == score.tiers.end() ? nullptr : &*found;
}

// Whether the tier's numbers can be the fault itself, so that what it finds is to its credit.
bool is_counted(const FaultScore& score, const TierScore& tier) {
  return tier.tried > 0 && (tier.tier != "exact" || score.fault->killer == Killer::arithmetic);
}

bool is_kill(const FaultScore& score, const TierScore& tier) {
  return is_counted(score, tier) && tier.kills >= kKillsNeeded;
}

std::string tier_word(const FaultScore& score, const TierScore& tier) {
  if (tier.tried == 0) return "-";
  if (!is_counted(score, tier)) return "stand-in";
  return tier.kills >= kKillsNeeded ? "killed" : tier.kills == 1 ? "once" : "missed";
}

bool is_in(const FaultTable& table, const FaultScore& score) {
  return std::ranges::any_of(table.faults, [&](const Fault& fault) { return fault.name == score.fault->name; });
}

// "32 of 33": the faults among `scores` that `kills`, of those that the tier can express.
template <class Kills, class Concerns>
std::string share(const std::vector<FaultScore>& scores, const Kills& kills, const Concerns& concerns) {
  return fmt::format("{} of {}", std::ranges::count_if(scores, kills), std::ranges::count_if(scores, concerns));
}

std::vector<TextTable::Cell> score_row(std::string title, const std::vector<FaultScore>& scores, std::size_t tiers) {
  std::vector<TextTable::Cell> row{{std::move(title)}};
  for (std::size_t i = 0; i < tiers; ++i) {
    row.push_back({share(
        scores, [&](const FaultScore& score) { return is_kill(score, score.tiers[i]); },
        [&](const FaultScore& score) { return is_counted(score, score.tiers[i]); })});
  }
  row.push_back({share(scores, &FaultScore::is_killed, [](const FaultScore&) { return true; })});
  row.push_back({share(scores, &FaultScore::usual, [](const FaultScore&) { return true; })});
  return row;
}

int kills_of_tier(const ZooReport& report, std::size_t tier) {
  return static_cast<int>(
      std::ranges::count_if(report.faults, [&](const FaultScore& score) { return is_kill(score, score.tiers[tier]); }));
}

int kills_of_usual(const ZooReport& report) {
  return static_cast<int>(std::ranges::count_if(report.faults, &FaultScore::usual));
}

std::ptrdiff_t localised_faults(const ZooReport& report) {
  return std::ranges::count_if(report.faults,
                               [](const FaultScore& score) { return score.is_killed() && score.is_localised; });
}

std::vector<TextTable::Cell> row_of(const FaultScore& score) {
  std::vector<TextTable::Cell> row{{std::string(score.fault->name)}};
  for (const TierScore& tier : score.tiers) row.push_back({tier_word(score, tier)});
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

// How many of the killed faults the diagnosis finds the place of, and which it does not.
std::string localisation_text(const ZooReport& report) {
  const auto killed = std::ranges::count_if(report.faults, &FaultScore::is_killed);
  const auto localised = localised_faults(report);
  std::string text =
      fmt::format("localised: {} of {} killed faults ({:.0f} %)\n", localised, killed,
                  killed == 0 ? 0.0 : 100.0 * static_cast<double>(localised) / static_cast<double>(killed));
  for (const FaultScore& score : report.faults) {
    if (!score.is_killed() || score.is_localised) continue;
    text += fmt::format("not localised: {}, expected {}; {}: {}\n", score.fault->name, score.expected, score.smallest,
                        score.found);
  }
  return text;
}

std::ptrdiff_t identified_faults(const ZooReport& report, bool Identification::* how) {
  return std::ranges::count_if(report.faults, [&](const FaultScore& score) {
    return score.is_killed() && score.identification && *score.identification.*how;
  });
}

// How many of the killed faults verify names, and which it does not.
std::string identification_text(const ZooReport& report) {
  if (!report.options.fingerprints) return {};
  std::string text;
  std::vector<std::string_view> without;
  for (const FaultScore& score : report.faults) {
    if (!score.is_killed() || score.identification->is_named) continue;
    const Identification& found = *score.identification;
    if (found.model.empty()) without.push_back(score.fault->name);
    if (!found.model.empty())
      text += fmt::format("not identified: {}, {}: {}\n", score.fault->name, found.model,
                          found.said.empty() ? "no fault of the table leaves its fingerprints" : found.said);
  }
  if (!without.empty()) text += fmt::format("without fingerprints: {}\n", fmt::join(without, ", "));
  return fmt::format("identified: {} of {} killed faults, {} of them as the only one that fits\n",
                     identified_faults(report, &Identification::is_named),
                     std::ranges::count_if(report.faults, &FaultScore::is_killed),
                     identified_faults(report, &Identification::is_alone)) +
         text;
}

// Faults that exact arithmetic cannot be, and those of them for which it runs something else.
std::string exact_text(const ZooReport& report) {
  std::vector<std::string_view> cannot, stand_ins;
  for (const FaultScore& score : report.faults) {
    for (const TierScore& tier : score.tiers) {
      if (tier.tier != "exact" || is_counted(score, tier)) continue;
      (tier.tried == 0 ? cannot : stand_ins).push_back(score.fault->name);
    }
  }
  const auto list = [](const auto& names) {
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  };
  return fmt::format("not for exact arithmetic: {}; not counted for it, as it runs a stand-in: {}\n", list(cannot),
                     list(stand_ins));
}

Json to_json(const ShrunkFault& shrunk) {
  Json json = Json::object();
  json.set("tier", shrunk.tier);
  json.set("from", shrunk.from);
  json.set("smallest", shrunk.smallest.empty() ? Json() : Json(shrunk.smallest));
  json.set("configurations", shrunk.configurations);
  json.set("seconds", shrunk.seconds);
  return json;
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

Json to_json(const Identification& found) {
  Json json = Json::object();
  json.set("model", found.model.empty() ? Json() : Json(found.model));
  json.set("named", found.is_named);
  json.set("alone", found.is_alone);
  json.set("said", found.said);
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
  json.set("exact_runs_a_stand_in", score.fault->killer == Killer::order);
  json.set("usual_test", score.usual);
  Json tiers = Json::array();
  for (const TierScore& tier : score.tiers) tiers.append(to_json(tier));
  json.set("tiers", std::move(tiers));
  Json place = Json::object();
  place.set("configuration", score.smallest);
  place.set("expected", score.expected);
  place.set("found", score.found);
  place.set("localised", score.is_localised);
  json.set("diagnosis", std::move(place));
  if (score.identification) json.set("identification", to_json(*score.identification));
  if (score.shrunk) json.set("shrunk", to_json(*score.shrunk));
  json.set("seconds", score.seconds);
  return json;
}

}  // namespace

TextTable fault_table(const ZooReport& report) {
  TextTable table(columns_of(report));
  for (const FaultScore& score : report.faults) table.add(row_of(score));
  return table;
}

TextTable score_table(const ZooReport& report) {
  std::vector<TextTable::Column> columns{{"killed"}};
  for (const std::string& tier : report.tiers) columns.push_back({tier, TextTable::Align::right});
  columns.push_back({"all tiers", TextTable::Align::right});
  columns.push_back({"usual test", TextTable::Align::right});
  TextTable table(std::move(columns));
  for (const FaultTable& faults : fault_tables()) {
    std::vector<FaultScore> scores;
    std::ranges::copy_if(report.faults, std::back_inserter(scores),
                         [&](const FaultScore& score) { return is_in(faults, score); });
    if (!scores.empty()) table.add(score_row(std::string(faults.title), scores, report.tiers.size()));
  }
  table.add(score_row("all", report.faults, report.tiers.size()));
  return table;
}

TextTable shrunk_table(const ZooReport& report) {
  TextTable table({{"fault"},
                   {"tier"},
                   {"shrunk from"},
                   {"to"},
                   {"configurations", TextTable::Align::right},
                   {"seconds", TextTable::Align::right}});
  for (const FaultScore& score : report.faults) {
    if (!score.shrunk) continue;
    const ShrunkFault& shrunk = *score.shrunk;
    table.add({{std::string(score.fault->name)},
               {shrunk.tier},
               {shrunk.from},
               {shrunk.smallest.empty() ? "nothing smaller" : shrunk.smallest},
               {std::to_string(shrunk.configurations)},
               {fmt::format("{:.1f}", shrunk.seconds)}});
  }
  return table;
}

std::string score_words(const ZooReport& report) {
  return fmt::format("healthy code passes {} of {} runs; a fault is killed if {} configurations notice it\n",
                     report.healthy_runs - static_cast<int>(report.healthy_problems.size()), report.healthy_runs,
                     kKillsNeeded) +
         "usual test: two ranks, equal lengths, no mask, initial weights, rank 0 in float32 within 1e-4 (tensor "
         "parallelism: 1e-3)\n" +
         exact_text(report) + localisation_text(report) + identification_text(report);
}

std::string shrinking_words(const ZooReport& report) {
  if (!report.options.shrink) return {};
  std::vector<double> seconds;
  for (const FaultScore& score : report.faults) {
    if (score.shrunk) seconds.push_back(score.shrunk->seconds);
  }
  if (seconds.empty()) return "shrunk: no fault\n";
  std::ranges::sort(seconds);
  return fmt::format("shrunk: {} of {} faults, median {:.1f} s, at most {:.1f} s\n", seconds.size(),
                     report.faults.size(), seconds[seconds.size() / 2], seconds.back());
}

std::string report_text(const ZooReport& report) {
  std::string text = fault_table(report).text(TextTable::Colour::off) + "\n";
  text += score_table(report).text(TextTable::Colour::off) + "\n" + score_words(report);
  const TextTable shrunk = shrunk_table(report);
  if (report.options.shrink && !shrunk.empty()) text += shrunk.text(TextTable::Colour::off);
  text += shrinking_words(report);
  for (const FaultScore& score : report.faults) {
    if (!score.is_killed()) text += fmt::format("ALIVE: {} ({})\n", score.fault->name, score.fault->what);
  }
  for (const std::string& problem : report.healthy_problems) text += fmt::format("NOT HEALTHY: {}\n", problem);
  return text + sample_words(report) + fmt::format("{:.1f} seconds\n", report.seconds);
}

std::string sample_words(const ZooReport& report) {
  if (report.options.full || report.options.only) return {};
  return fmt::format("a sample of {} faults drawn from seed {}; --full takes all\n", report.faults.size(),
                     report.options.seed);
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
  summary.set("localised", localised_faults(report));
  if (report.options.fingerprints) {
    summary.set("identified", identified_faults(report, &Identification::is_named));
    summary.set("identified_alone", identified_faults(report, &Identification::is_alone));
  }
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
