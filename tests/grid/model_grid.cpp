// The whole grid: every model and every export among the tests' data, each case, under every mode of context and tensor
// parallelism at 2 to 4 ranks, in float64 or in exact arithmetic. Prints how many configurations were verified and
// refused, and by which rule, and fails on any third outcome. With --markdown the table that the README shows.
// usage: model_grid [--markdown] [--exact] [MODEL]
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "verify/exact_verifier.h"
#include "verify/subject.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

// Rules by words of their messages, and what the table calls them.
struct Rule {
  std::string_view words;
  std::string_view name;
};
constexpr std::array kRules{
    Rule{"cannot divide equally", "length does not divide"},
    Rule{"head padding number", "padding leaves a rank without heads"},
    Rule{"are not divisible by tp_degree", "heads do not divide by tp"},
    Rule{"attention heads cannot be divided among", "heads do not divide by ulysses"},
    Rule{"needs at least", "fewer entries than ranks"},
    Rule{"does not support context parallelism", "attention without context parallelism"},
    Rule{"caches", "key-value cache"},
};

std::string rule_of(const std::string& reason) {
  for (const Rule& rule : kRules) {
    if (reason.find(rule.words) != std::string::npos) return std::string(rule.name);
  }
  return "other: " + reason.substr(0, 60);
}

struct Counts {
  int verified = 0, different = 0, other = 0;
  std::map<std::string, int> refused;         // by rule
  std::map<std::string, int> verified_modes;  // by mode
  std::vector<std::string> differences;       // what and where
  int refusals() const {
    int sum = 0;
    for (const auto& [rule, count] : refused) sum += count;
    return sum;
  }
};

void judge(const std::string& source, const VerificationResult& result, Counts& counts) {
  switch (result.verdict) {
    case Verdict::exact:
    case Verdict::rounding_equivalent:
      ++counts.verified;
      ++counts.verified_modes[result.mode];
      return;
    case Verdict::refused: ++counts.refused[rule_of(result.reason)]; return;
    case Verdict::different:
    case Verdict::not_checked: break;
  }
  ++counts.different;
  counts.differences.push_back(fmt::format("{} {} {} {}: {} {}", source, result.case_name, result.mode, result.mesh,
                                           verdict_word(result.verdict), result.reason));
}

struct GridRequest {
  bool markdown = false;
  bool exact = false;
  std::string model;  // short name; empty: all
};

void run(const std::string& source, const GridRequest& request, Counts& counts) {
  Subject subject = Subject::open(source, 0);
  Verifier rounding(subject, {});
  ExactVerifier exact(subject, {});
  ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  std::vector<ParallelConfig> configurations;
  for (const ContextParallelConfig& config : default_configurations()) {
    if (plans.cp) configurations.push_back({.context_parallel_config = config});
  }
  for (const ParallelConfig& config : default_tensor_parallel_configurations()) {
    if (plans.tp && (plans.cp || !config.context_parallel_config)) configurations.push_back(config);
  }
  for (const std::string& name : subject.case_names()) {
    for (const ParallelConfig& config : configurations) {
      judge(source, request.exact ? exact.verify(name, config, plans) : rounding.verify(name, config, plans), counts);
    }
  }
}

// Exports of the model among the tests' data, and the model itself with hostile inputs.
std::vector<std::string> sources_of(const ModelType& model) {
  std::vector<std::string> sources{model.short_name};
  const std::filesystem::path folder =
      std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "tests/data/goldens" / model.short_name;
  if (!std::filesystem::is_directory(folder)) return sources;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_directory()) sources.push_back(entry.path().string());
  }
  std::sort(sources.begin() + 1, sources.end());
  return sources;
}

std::string listed(const std::map<std::string, int>& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "ulysses, ring, tp, tp+ring": the modes in which something was verified.
std::string modes_of(const Counts& counts) {
  std::vector<std::string> modes;
  for (const auto& [mode, count] : counts.verified_modes) modes.push_back(mode);
  return fmt::format("{}", fmt::join(modes, ", "));
}

int run_all(const GridRequest& request) {
  Counts all;
  if (request.markdown) fmt::print("| model | modes verified | verified | refused, by rule |\n|---|---|---|---|\n");
  if (!request.model.empty()) find_model_type(request.model);  // says which names there are
  for (const ModelType& model : model_types()) {
    if (!request.model.empty() && model.short_name != request.model) continue;
    Counts counts;
    for (const std::string& source : sources_of(model)) run(source, request, counts);
    if (request.markdown) {
      fmt::print("| {} (`{}`) | {} | {} | {} |\n", model.class_name, model.short_name, modes_of(counts),
                 counts.verified, listed(counts.refused));
    } else {
      fmt::print("{:<32} {:>5} verified {:>5} refused {:>3} different\n", model.class_name, counts.verified,
                 counts.refusals(), counts.different);
    }
    std::fflush(stdout);
    all.verified += counts.verified;
    all.different += counts.different;
    for (const auto& [rule, count] : counts.refused) all.refused[rule] += count;
    for (const std::string& difference : counts.differences) fmt::print(stderr, "{}\n", difference);
  }
  if (!request.markdown) {
    fmt::print("{} configurations: {} verified, {} refused ({}), {} different\n",
               all.verified + all.refusals() + all.different, all.verified, all.refusals(), listed(all.refused),
               all.different);
  }
  return all.different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) {
  shardproof::GridRequest request;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--markdown") {
      request.markdown = true;
    } else if (word == "--exact") {
      request.exact = true;
    } else if (word.starts_with("-") || !request.model.empty()) {
      fmt::print(stderr, "usage: model_grid [--markdown] [--exact] [MODEL]\n");
      return 2;
    } else {
      request.model = word;
    }
  }
  try {
    return shardproof::run_all(request);
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_grid: {}\n", error.what());
    return 3;
  }
}
