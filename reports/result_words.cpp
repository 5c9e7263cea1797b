#include "reports/result_words.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/file.h"
#include "reports/groups.h"
#include "reports/result_tables.h"

namespace shardproof {
namespace {

// Configurations by case: mode and mesh with the rotate methods concerned.
using ConfigurationNames = Groups<std::string, Groups<std::string, std::vector<std::string>>>;

void add_name(ConfigurationNames& names, const VerificationResult& result) {
  std::vector<std::string>& rotations =
      names[printable(result.case_name)][fmt::format("{} {}", result.mode, short_mesh(result.mesh))];
  // Both tiers may say the same of one configuration.
  const bool is_new = std::find(rotations.begin(), rotations.end(), result.rotate_method) == rotations.end();
  if (has_ring(result) && is_new) rotations.push_back(result.rotate_method);
}

std::vector<std::pair<std::string, std::string>> texts_of(const ConfigurationNames& names) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [case_name, labels] : names) {
    std::string text;
    for (const auto& [label, rotations] : labels) {
      text += fmt::format("{}{}", text.empty() ? "" : "; ", label);
      if (!rotations.empty()) text += fmt::format(" ({})", fmt::join(rotations, ", "));
    }
    texts.emplace_back(case_name, text);
  }
  return texts;
}

// For finding the largest: what is no number is worse than any number.
double rank_of_figure(double figure) { return std::isnan(figure) ? std::numeric_limits<double>::infinity() : figure; }

std::vector<const VerificationResult*> first_of_each_tier(const Report& report) {
  std::vector<const VerificationResult*> found;
  for (const VerificationResult& result : report.verifications) {
    const auto same = [&](const VerificationResult* known) { return known->tier == result.tier; };
    if (std::none_of(found.begin(), found.end(), same)) found.push_back(&result);
  }
  return found;
}

// "104 EXACT, 20 REFUSED"
template <class Words>
std::string counts_text(const Words& words, const std::map<std::string, int>& counts) {
  std::string text;
  for (const std::string_view word : words) {
    const auto found = counts.find(std::string(word));
    if (found != counts.end()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", found->second, found->first);
  }
  return text;
}

// What verdicts on 16-bit types rest on besides.
std::string also_passed(const Report& report) {
  Groups<std::string, int> counts;
  for (const VerificationResult& result : report.verifications) {
    if (!result.also_passed.empty()) ++counts[result.also_passed.substr(0, result.also_passed.find(" ("))];
  }
  std::string words;
  for (const auto& [what, count] : counts)
    words += fmt::format("{} {} ({})", words.empty() ? ". The same configurations passed in" : " and in", what, count);
  return words;
}

Closing verify_closing(const Report& report) {
  const std::map<std::string, int> counts = summary_of(report);
  bool is_verified_run = false;
  const VerificationResult* largest = nullptr;
  for (const VerificationResult& result : report.verifications) {
    is_verified_run = is_verified_run || is_verified(result.verdict);
    const bool has_figure = result.figure && result.verdict != Verdict::refused;
    if (!has_figure) continue;
    if (largest == nullptr || rank_of_figure(*result.figure) > rank_of_figure(*largest->figure)) largest = &result;
  }
  const bool differs = counts.contains("DIFFERENT");
  std::string line = differs           ? "A difference was found: "
                     : is_verified_run ? "Everything that was run is verified: "
                                       : "Nothing was verified: ";
  if (!differs && is_verified_run && counts.contains("NOT CHECKED")) line = "What was checked is verified: ";
  const bool fits =
      std::ranges::none_of(report.verifications, [](const VerificationResult& one) { return one.plan_does_not_fit; });
  if (!differs && is_verified_run && !fits) line = "The plan does not fit every case; what it fits is verified: ";
  std::vector<std::string_view> words;
  for (const Verdict verdict :
       {Verdict::exact, Verdict::rounding_equivalent, Verdict::different, Verdict::refused, Verdict::not_checked})
    words.push_back(verdict_word(verdict));
  line += counts_text(words, counts);
  if (largest != nullptr) {
    line += fmt::format("; largest figure {}", figure_text(*largest));
    if (report.allowed) line += fmt::format(", allowed {:g}", *report.allowed);
  }
  return {line + ".", differs || !fits ? Tone::bad : is_verified_run ? Tone::good : Tone::plain};
}

Closing oracle_closing(const Report& report) {
  const std::map<std::string, int> counts = summary_of(report);
  const OracleResult* closest = nullptr;
  const auto share = [](const OracleResult& result) {
    return rank_of_figure(result.tolerance > 0.0 ? result.error / result.tolerance : result.error);
  };
  for (const OracleResult& result : report.oracles) {
    if (result.checked && (closest == nullptr || share(result) > share(*closest))) closest = &result;
  }
  std::string line = counts.contains("DISAGREES") ? "Our dense model disagrees with the export: "
                     : counts.contains("AGREES")  ? "Our dense model agrees with the export: "
                                                  : "Nothing was compared: ";
  line += counts_text(std::initializer_list<std::string_view>{"AGREES", "DISAGREES", "NOT CHECKED"}, counts);
  if (closest != nullptr) {
    line += fmt::format("; closest to its limit: {:.2e} of {:.1e} allowed ({}, {})", closest->error, closest->tolerance,
                        printable(closest->case_name), closest->run);
  }
  return {line + ".", counts.contains("DISAGREES") ? Tone::bad : counts.contains("AGREES") ? Tone::good : Tone::plain};
}

}  // namespace

Closing closing_of(const Report& report) {
  Closing closing;
  if (!report.verifications.empty()) {
    closing = verify_closing(report);
  } else if (!report.oracles.empty()) {
    closing = oracle_closing(report);
  } else if (!report.plan.empty()) {
    closing.line = fmt::format("Entries of the plan: {}.", counts_text(plan_actions(), summary_of(report)));
  }
  closing.line = printable(closing.line, std::string_view::npos);
  return closing;
}

std::vector<std::string> run_lines(const Report& report) {
  std::vector<std::string> lines;
  for (const VerificationResult* first : first_of_each_tier(report)) {
    lines.push_back(fmt::format("{} on device {}, {} tier, seed {}, schedule seed {}{}", first->dtype, first->device,
                                first->tier, first->seed, first->schedule_seed,
                                first->convert_to_fp32 ? "" : ", without convert_to_fp32"));
  }
  if (!report.plan.empty())
    lines.push_back(fmt::format("{} on the mesh {}", report.plan.front().mode, report.plan.front().mesh));
  for (std::string& line : lines) line = printable(line, std::string_view::npos);
  return lines;
}

std::string legend_words(const Report& report) {
  std::string words;
  for (const VerificationResult* first : first_of_each_tier(report)) {
    if (first->tier == "exact") {
      words += "EXACT: every element of every rank equals the dense run's, without rounding, for independent seeds. ";
      continue;
    }
    const bool is_float64 = first->dtype == "float64";
    words +=
        fmt::format("figure: {}{}. ",
                    is_float64 ? "largest difference from the dense run, relative to the dense run's largest output"
                               : "error against float64, as a multiple of the dense run's error",
                    report.allowed ? fmt::format("; at most {:g} is allowed", *report.allowed) : "");
  }
  return words +
         "tokens/rank: of the first attention. sent/rank: bytes that others receive of the busiest rank. collectives: "
         "its calls that move tensors.";
}

std::string movement_words(const Report& report) {
  std::int64_t followed = 0, to_the_bit = 0;
  for (const VerificationResult& result : report.verifications) {
    followed += result.movements_checked;
    to_the_bit += result.bitwise_checked;
  }
  if (followed == 0) return {};
  return fmt::format(
      "Movement was followed by identities of elements in {} attention calls and plan entries, and attention compared "
      "to the last bit in {} problems made for it.",
      followed, to_the_bit);
}

std::string module_words(const Report& report) {
  const VerificationResult* largest = nullptr;
  std::int64_t extremes = 0;
  const auto ratio = [](const VerificationResult& result) { return rank_of_figure(result.modules->worst->ratio); };
  for (const VerificationResult& result : report.verifications) {
    extremes += result.extremes_checked;
    if (!result.modules || !result.modules->worst) continue;
    if (largest == nullptr || ratio(result) > ratio(*largest)) largest = &result;
  }
  if (largest == nullptr) return {};
  const ModuleRatios& ratios = *largest->modules;
  std::string words = fmt::format(
      "modules: the largest such multiple of any module, each given the arguments of the float64 run. The largest of "
      "all is that of {} (case {}, {} {}; one of {} values of {} modules)",
      module_ratio_text(*ratios.worst), largest->case_name, largest->mode, short_mesh(largest->mesh), ratios.compared,
      ratios.modules);
  if (ratios.runner_up) words += fmt::format("; next there is {}", module_ratio_text(*ratios.runner_up));
  words += also_passed(report);
  if (extremes > 0) words += fmt::format(". Attention took extreme inputs in {} problems made for it", extremes);
  return words + ".";
}

std::vector<Reason> reasons_of(const Report& report, Verdict verdict) {
  struct Found {
    ConfigurationNames names;
    std::vector<const VerificationResult*> results;
  };
  Groups<std::string, Found> by_reason;
  for (const VerificationResult& result : report.verifications) {
    if (result.verdict != verdict) continue;
    Found& found = by_reason[result.reason];
    add_name(found.names, result);
    found.results.push_back(&result);
  }
  std::vector<Reason> reasons;
  for (const auto& [text, found] : by_reason) reasons.push_back({text, texts_of(found.names), found.results});
  return reasons;
}

std::vector<std::string> skipped_entry_words(const Report& report) {
  Groups<std::string, Groups<std::string, int>> by_entry;
  for (const VerificationResult& result : report.verifications) {
    for (const SkippedNote& note : result.skipped_entries) {
      by_entry[fmt::format("{} was left whole: {}", entry_text(note.argument, note.module), note.reason)]
              [printable(result.case_name)]++;
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [entry, cases] : by_entry) {
    std::string text = printable(entry, 1000) + " (";
    for (const auto& [name, count] : cases)
      text += fmt::format("{}{}: {} run{}", text.ends_with('(') ? "" : ", ", name, count, count == 1 ? "" : "s");
    sentences.push_back(text + ")");
  }
  return sentences;
}

std::vector<std::string> missing_counterpart_words(const Report& report) {
  Groups<std::string, std::vector<std::string>> missing;
  for (const OracleResult& result : report.oracles) {
    for (const std::string& key : result.without_counterpart)
      missing[fmt::format("{}, {}", result.source, result.case_name)].push_back(printable(key));
  }
  std::vector<std::string> sentences;
  for (const auto& [where, keys] : missing)
    sentences.push_back(fmt::format("{}: {}", printable(where), fmt::join(keys, ", ")));
  return sentences;
}

std::vector<std::pair<std::string, std::string>> plan_end_words(const Report& report) {
  Groups<std::string, std::vector<std::string>> ends;
  for (const PlanRow& row : report.plan) {
    if (is_end(row)) ends[fmt::format("{}: {}", row.action, row.note)].push_back(printable(row.case_name));
  }
  std::vector<std::pair<std::string, std::string>> words;
  for (const auto& [reason, cases] : ends) words.emplace_back(reason, fmt::format("{}", fmt::join(cases, ", ")));
  return words;
}

std::string effort_words(const ShrunkResult& shrunk) {
  return fmt::format("{} configurations tried in {:.1f} s{}", shrunk.tried, shrunk.seconds,
                     shrunk.was_cut_off ? ", when its time was over" : "");
}

}  // namespace shardproof
