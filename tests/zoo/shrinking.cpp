#include "tests/zoo/shrinking.h"

#include <algorithm>
#include <exception>
#include <optional>

#include <fmt/format.h>

#include "core/host_memory.h"
#include "tests/zoo/plan_changes.h"
#include "verify/shrink.h"
#include "verify/subject.h"

namespace shardproof::zoo {
namespace {

// Of the largest configurations, so many are tried as the start of a search.
constexpr int kMostStarts = 12;

ShrinkInput input_of(const Fault& fault, const Scenario& scenario, const std::string& tier, std::uint64_t seed) {
  ShrinkInput input;
  input.model = model_named(scenario.model);
  input.settings = input.model.hostile_config();
  input.plans = [&fault, type = input.model](const Json& config) {
    return changed_plans(fault, plans_of_model(type, config, "default"));
  };
  input.config = scenario.config;
  input.tier = tier == "exact" ? ShrinkTier::exact : tier == "bits" ? ShrinkTier::exact_bits : ShrinkTier::rounding;
  input.exact = {.bits = tier == "bits", .diagnose = false, .seed = seed, .schedule_seed = seed};
  input.rounding = {.dtype = tier == "float32" ? kFloat32 : kFloat64,
                    .device = tier == "float32" ? DeviceChoice::cpu : DeviceChoice::reference,
                    .seed = seed,
                    .schedule_seed = seed};
  return input;
}

// What the scenario's verdict is; nothing unless it is DIFFERENT.
std::optional<VerificationResult> difference(const ShrinkInput& input, const Scenario& scenario) {
  try {
    Subject subject = Subject::of_model(input.model, input.exact.seed);
    const ParallelPlans plans = input.plans(input.settings);
    VerificationResult result =
        input.tier == ShrinkTier::rounding
            ? Verifier(subject, input.rounding).verify(scenario.case_name, input.config, plans)
            : ExactVerifier(subject, input.exact).verify(scenario.case_name, input.config, plans);
    if (result.verdict != Verdict::different) return std::nullopt;
    return result;
  } catch (const std::exception&) {
    return std::nullopt;  // an end that no verdict describes, as of a fault that asks for endless memory
  }
}

std::string configuration_text(const SmallestFailure& failure) {
  const Scenario scenario{"", "", failure.config};
  std::string text = size_text(failure.size);
  return text + scenario.text().substr(1);
}

std::optional<ShrunkFault> shrink_under(const Fault& fault, const std::vector<Scenario>& scenarios,
                                        const std::string& tier, const std::set<std::string>& killers,
                                        std::uint64_t seed) {
  int starts = 0;
  for (auto scenario = scenarios.rbegin(); scenario != scenarios.rend(); ++scenario) {
    if (!fault.only_case.empty() && scenario->case_name != fault.only_case) continue;
    if (starts >= kMostStarts && !killers.contains(scenario->text())) continue;
    ++starts;
    ShrinkInput input = input_of(fault, *scenario, tier, seed);
    const std::optional<VerificationResult> failed = difference(input, *scenario);
    if (!failed) continue;
    input.stopped = failed->stopped;
    HostDevice host;
    for (const ModelCase& made : input.model.hostile_cases(seed, host)) {
      if (made.name == scenario->case_name) input.features = features_of(input.model, made.arguments);
    }
    const Shrunk shrunk = shrink(input);
    return ShrunkFault{.tier = tier,
                       .from = scenario->text(),
                       .smallest = shrunk.smallest ? configuration_text(*shrunk.smallest) : "",
                       .configurations = shrunk.tried,
                       .seconds = shrunk.seconds};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ShrunkFault> shrink_fault(const Fault& fault, const std::vector<Scenario>& scenarios,
                                        const std::vector<std::string>& tiers, const std::set<std::string>& killers,
                                        std::uint64_t seed) {
  for (const char* tier : {"exact", "float64", "float32", "bits"}) {
    if (std::ranges::find(tiers, tier) == tiers.end()) continue;
    if (auto shrunk = shrink_under(fault, scenarios, tier, killers, seed)) return shrunk;
  }
  return std::nullopt;
}

}  // namespace shardproof::zoo
