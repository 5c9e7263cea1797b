#include "tests/zoo/zoo.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/random.h"
#include "tests/zoo/localisation.h"
#include "tests/zoo/plan_changes.h"
#include "tests/zoo/scenarios.h"
#include "tests/zoo/switch.h"
#include "tests/zoo/tiers.h"
#include "tests/zoo/usual_test.h"

namespace shardproof::zoo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Healthy verdicts are needed again and again.
class Keeper {
 public:
  explicit Keeper(const ZooOptions& options)
      : options_(options), tiers_(make_tiers(options.seed)), usual_(options.seed), localiser_(options.seed) {}

  FaultScore score(const Fault& fault);
  void describe(ZooReport& report) const {
    for (const auto& tier : tiers_) report.tiers.emplace_back(tier->name());
    report.healthy_runs = static_cast<int>(healthy_.size());
    report.healthy_problems = problems_;
  }

 private:
  const std::vector<Scenario>& scenarios_of(const Fault& fault);
  // Whether healthy code passes there; a difference is a problem of ours, a refusal is not.
  bool is_healthy(Tier& tier, const Scenario& scenario);
  // What the diagnosis makes of the smallest of the configurations that kill it.
  void localise(const std::set<std::string>& killers, FaultScore& score);
  TierScore look(Tier& tier, const Fault& fault, std::set<std::string>& killers, bool& reached);

  ZooOptions options_;
  std::vector<std::unique_ptr<Tier>> tiers_;
  UsualTest usual_;
  Localiser localiser_;
  FaultPrinter printer_;
  std::map<std::pair<std::string, std::string>, std::vector<Scenario>> scenarios_;
  std::map<std::pair<std::string, std::string>, bool> healthy_;
  std::map<std::string, ParallelPlans> plans_;
  std::vector<std::string> problems_;
};

const std::vector<Scenario>& Keeper::scenarios_of(const Fault& fault) {
  std::vector<Scenario>& found = scenarios_[{std::string(fault.models), std::string(fault.modes)}];
  if (found.empty()) found = scenarios(fault.models, fault.modes, options_.seed);
  for (const std::string& model : words_of(fault.models)) {
    if (!plans_.contains(model)) plans_.emplace(model, healthy_plans(model));
  }
  return found;
}

bool Keeper::is_healthy(Tier& tier, const Scenario& scenario) {
  const auto [entry, is_new] = healthy_.try_emplace({std::string(tier.name()), scenario.text()}, false);
  if (!is_new) return entry->second;
  const Judgement judgement = tier.judge(scenario, plans_.at(scenario.model));
  entry->second = judgement.end == Judgement::End::passed;
  if (judgement.end == Judgement::End::differs || judgement.end == Judgement::End::stopped) {
    problems_.push_back(
        fmt::format("{}, {}: {}: {}", tier.name(), scenario.text(), end_word(judgement.end), judgement.reason));
  }
  return entry->second;
}

TierScore Keeper::look(Tier& tier, const Fault& fault, std::set<std::string>& killers, bool& reached) {
  const Clock::time_point start = Clock::now();
  TierScore score{.tier = std::string(tier.name())};
  std::map<int, int> tried_on;
  const int most = tier.name() == "bits" ? kMostTriedForBits : kMostTried;
  for (const Scenario& scenario : scenarios_of(fault)) {
    if (score.kills == kKillsNeeded) break;
    if (!fault.only_case.empty() && scenario.case_name != fault.only_case) continue;
    int& tried = tried_on[scenario.ranks];
    if (tried == most) continue;
    if (!is_healthy(tier, scenario)) continue;
    const FaultSwitch on(fault.name);
    const Judgement judgement = tier.judge(scenario, changed_plans(fault, plans_.at(scenario.model)));
    reached = reached || on.was_reached();
    if (judgement.end == Judgement::End::not_checked) continue;
    ++score.tried;
    ++tried;
    if (judgement.end == Judgement::End::passed) continue;
    killers.insert(scenario.text());
    if (score.kills++ > 0) continue;
    score.smallest = scenario.text();
    score.end = end_word(judgement.end);
    score.reason = judgement.reason;
  }
  score.seconds = seconds_since(start);
  return score;
}

void Keeper::localise(const std::set<std::string>& killers, FaultScore& score) {
  const Fault& fault = *score.fault;
  const std::vector<Scenario>& all = scenarios_of(fault);
  const auto smallest =
      std::ranges::find_if(all, [&](const Scenario& scenario) { return killers.contains(scenario.text()); });
  if (smallest == all.end()) return;
  const FaultSwitch on(fault.name);
  const Finding finding = localiser_.find(*smallest, changed_plans(fault, plans_.at(smallest->model)));
  score.smallest = smallest->text();
  score.expected = expected_place(fault);
  score.found = place_text(finding);
  score.is_localised = names_place(finding, score.expected);
}

FaultScore Keeper::score(const Fault& fault) {
  const Clock::time_point start = Clock::now();
  FaultScore score{.fault = &fault};
  std::set<std::string> killers;
  for (const auto& tier : tiers_) score.tiers.push_back(look(*tier, fault, killers, score.reached));
  score.kills = static_cast<int>(killers.size());
  localise(killers, score);
  if (options_.fingerprints) score.identification = printer_.identify(fault, *options_.fingerprints);
  const FaultSwitch on(fault.name);
  score.usual = usual_.fails_for(fault);
  if (options_.shrink) {
    std::vector<std::string> killing;
    for (const TierScore& tier : score.tiers) {
      if (tier.kills > 0) killing.push_back(tier.tier);
    }
    score.shrunk = shrink_fault(fault, scenarios_of(fault), killing, killers, options_.seed);
  }
  score.seconds = seconds_since(start);
  return score;
}

}  // namespace

bool ZooReport::is_good() const {
  return healthy_problems.empty() && std::ranges::all_of(faults, &FaultScore::is_killed);
}

std::vector<const Fault*> chosen_faults(const ZooOptions& options) {
  std::vector<const Fault*> all;
  for (const Fault& fault : all_faults()) {
    if (!options.only || fault.name == *options.only) all.push_back(&fault);
  }
  SHARDPROOF_CHECK(!all.empty(), usage_error, "--only: '{}' is no fault of the zoo; expected one that --list names",
                   printable(options.only.value_or("")));
  if (options.full || options.only) return all;
  // The faults whose draws are the smallest, in the order of the tables.
  const auto draw = [&](const Fault* fault) { return RandomStream(options.seed, fault->name).bits(0); };
  std::ranges::nth_element(all, all.begin() + std::min<std::ptrdiff_t>(kSampledFaults, std::ssize(all)), {}, draw);
  all.resize(std::min<std::size_t>(kSampledFaults, all.size()));
  std::ranges::sort(all);
  return all;
}

ZooReport run_zoo(const ZooOptions& options, const std::function<void(int, int, std::string_view)>& progress) {
  const Clock::time_point start = Clock::now();
  ZooReport report{.options = options};
  const std::vector<const Fault*> faults = chosen_faults(options);
  Keeper keeper(options);
  for (const Fault* fault : faults) {
    progress(static_cast<int>(report.faults.size()), static_cast<int>(faults.size()), fault->name);
    report.faults.push_back(keeper.score(*fault));
  }
  keeper.describe(report);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace shardproof::zoo
