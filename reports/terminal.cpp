#include "reports/terminal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/file.h"

namespace shardproof {
namespace {

using Align = TextTable::Align;

// Things that share something, in the order of their first appearance.
template <class Key, class Item>
class Groups {
 public:
  Item& operator[](const Key& key) {
    for (auto& [known, item] : groups_) {
      if (known == key) return item;
    }
    groups_.emplace_back(key, Item{});
    return groups_.back().second;
  }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }
  bool empty() const { return groups_.empty(); }

 private:
  std::vector<std::pair<Key, Item>> groups_;
};

// Configurations by case: mode and mesh with the rotate methods concerned.
using ConfigurationNames = Groups<std::string, Groups<std::string, std::vector<std::string>>>;

bool has_ring(const VerificationResult& result) {
  return result.mode.find("ring") != std::string::npos || result.mode.find("unified") != std::string::npos;
}

// The mesh without the dimensions of the two degrees that are 1: they say nothing.
std::string short_mesh(std::string_view mesh) {
  std::string text;
  while (!mesh.empty()) {
    const std::string_view item = mesh.substr(0, mesh.find(','));
    mesh.remove_prefix(std::min(mesh.size(), item.size() + 1));
    if (item == "ring=1" || item == "ulysses=1") continue;
    text += (text.empty() ? "" : ",") + std::string(item);
  }
  return text;
}

Tone tone_of(Verdict verdict) {
  if (is_verified(verdict)) return Tone::good;
  return verdict == Verdict::different ? Tone::bad : Tone::faint;
}

std::string figure_text(const VerificationResult& result) {
  if (!result.figure) return "";
  return result.dtype == "float64" ? fmt::format("{:.2e}", *result.figure) : fmt::format("{:.3g}", *result.figure);
}

std::string worst_text(const VerificationResult& result) {
  if (!result.worst) return "";
  return fmt::format("rank {} [{}]", result.worst->rank, fmt::join(result.worst->index, ","));
}

// The text without what acts on a terminal, whole.
std::string shown(std::string_view text) { return printable(text, std::string_view::npos); }

// Outputs have numbers where arguments have names.
bool is_output(const PlanRow& row) {
  return !row.argument.empty() && row.argument.find_first_not_of("0123456789") == std::string::npos;
}

std::string module_text(const std::string& path) { return path.empty() ? "(root)" : printable(path); }

void add_name(ConfigurationNames& names, const VerificationResult& result) {
  std::vector<std::string>& rotations =
      names[printable(result.case_name)][fmt::format("{} {}", result.mode, short_mesh(result.mesh))];
  // Both tiers may say the same of one configuration.
  const bool is_new = std::find(rotations.begin(), rotations.end(), result.rotate_method) == rotations.end();
  if (has_ring(result) && is_new) rotations.push_back(result.rotate_method);
}

// For finding the largest: what is no number is worse than any number.
double rank_of_figure(double figure) { return std::isnan(figure) ? std::numeric_limits<double>::infinity() : figure; }

// Prints one part of the report after the other.
class Printer {
 public:
  Printer(const Report& report, const TerminalOptions& options) : report_(report), options_(options) {}

  std::string text() {
    header();
    if (!report_.oracles.empty()) oracle_part();
    if (!report_.verifications.empty()) verify_part();
    if (!report_.plan.empty()) plan_part();
    if (report_.profile) text_ += "\n" + profile_text(*report_.profile, options_.colour);
    if (report_.comparison) text_ += "\n" + comparison_text(*report_.comparison, options_.width);
    list("notes", report_.notes);
    list("NOT CHECKED", report_.not_checked);
    if (report_.command != "trace") text_ += '\n';
    if (!report_.oracles.empty()) oracle_closing();
    if (!report_.verifications.empty()) verify_closing();
    if (!report_.plan.empty()) plan_closing();
    return std::move(text_);
  }

 private:
  void paragraph(std::string_view text, std::string_view first, std::size_t indent) {
    // Whatever comes from a file of a stranger reaches the terminal as characters that are only shown.
    text_ += wrapped(shown(text), shown(first), indent, options_.width);
  }
  // A message as one item of a list; reports of the simulator have several lines.
  void message(std::string_view lines) {
    std::string_view first = "  - ";
    while (!lines.empty()) {
      const std::string_view line = lines.substr(0, lines.find('\n'));
      lines.remove_prefix(std::min(lines.size(), line.size() + 1));
      paragraph(printable(line, 4000), first, 4);
      first = "    ";
    }
  }
  void table(const TextTable& rows) {
    if (!rows.empty()) text_ += "\n" + rows.text(options_.colour);
  }
  void list(std::string_view title, const std::vector<std::string>& items) {
    if (items.empty()) return;
    text_ += fmt::format("\n{}\n", title);
    for (const std::string& item : items) paragraph(item, "  - ", 4);
  }

  void header() {
    text_ += fmt::format("shardproof {} {}\n\n", shown(report_.version), shown(report_.command));
    if (!report_.model.empty()) text_ += fmt::format("model   {}\n", shown(report_.model));
    for (const std::string& source : report_.sources) {
      text_ += fmt::format("{:8}{}\n", &source == report_.sources.data() ? "source" : "", printable(source));
    }
    std::string_view label = "run";
    for (const VerificationResult* first : first_of_each_tier()) {
      text_ += shown(fmt::format("{:8}{} on device {}, {} tier, seed {}, schedule seed {}{}", label, first->dtype,
                                 first->device, first->tier, first->seed, first->schedule_seed,
                                 first->convert_to_fp32 ? "" : ", without convert_to_fp32")) +
               '\n';
      label = "";
    }
    if (!report_.plan_name.empty()) text_ += fmt::format("plan    {}\n", printable(report_.plan_name));
  }

  std::vector<const VerificationResult*> first_of_each_tier() const {
    std::vector<const VerificationResult*> found;
    for (const VerificationResult& result : report_.verifications) {
      const auto same = [&](const VerificationResult* known) { return known->tier == result.tier; };
      if (std::none_of(found.begin(), found.end(), same)) found.push_back(&result);
    }
    return found;
  }

  void verify_part() {
    const bool several_tiers = first_of_each_tier().size() > 1;
    // Empty columns are left out.
    TextTable rows({{"case"},
                    {"mode"},
                    {"mesh"},
                    {"rotate"},
                    {"tokens/rank"},
                    {"sent/rank", Align::right},
                    {"collectives", Align::right},
                    {"tier"},
                    {"verdict"},
                    {"figure", Align::right},
                    {"worst at"},
                    {"modules", Align::right},
                    {"seconds", Align::right}});
    for (const VerificationResult& result : report_.verifications) {
      if (result.verdict == Verdict::refused) continue;
      rows.add({{printable(result.case_name)},
                {result.mode},
                {short_mesh(result.mesh)},
                {has_ring(result) ? result.rotate_method : "-"},
                {result.tokens_per_rank.empty() ? "-" : sizes_text(result.tokens_per_rank)},
                {result.bytes_sent_per_rank < 0 ? "" : bytes_text(result.bytes_sent_per_rank)},
                {result.collectives < 0 ? "" : std::to_string(result.collectives)},
                {several_tiers ? result.tier : ""},
                {std::string(verdict_word(result.verdict)), tone_of(result.verdict)},
                {figure_text(result)},
                {worst_text(result)},
                {result.modules && result.modules->worst ? fmt::format("{:.3g}", result.modules->worst->ratio) : ""},
                {fmt::format("{:.3f}", result.seconds)}});
    }
    table(rows);
    if (!rows.empty()) legend();
    movements();
    modules();
    reasons(Verdict::different, "DIFFERENT");
    shrunk();
    reasons(Verdict::refused, "REFUSED");
    skipped_entries();
    reasons(Verdict::not_checked, "NOT CHECKED in these configurations");
  }

  void legend() {
    std::string words;
    for (const VerificationResult* first : first_of_each_tier()) {
      if (first->tier == "exact") {
        words += "EXACT: every element of every rank equals the dense run's, without rounding, for independent seeds. ";
        continue;
      }
      const bool is_float64 = first->dtype == "float64";
      words += fmt::format("figure: {}{}. ",
                           is_float64 ? "largest difference from the dense run, relative to the dense run's largest "
                                        "output"
                                      : "error against float64, as a multiple of the dense run's error",
                           report_.allowed ? fmt::format("; at most {:g} is allowed", *report_.allowed) : "");
    }
    text_ += '\n';
    paragraph(words +
                  "tokens/rank: of the first attention. sent/rank: bytes that others receive of the busiest rank. "
                  "collectives: its calls that move tensors.",
              "", 0);
  }

  // Each distinct reason once, with the configurations that it applies to.
  void reasons(Verdict verdict, std::string_view title) {
    Groups<std::string, ConfigurationNames> by_reason;
    std::map<std::string, const VerificationResult*> first_of;
    int count = 0;
    for (const VerificationResult& result : report_.verifications) {
      if (result.verdict != verdict) continue;
      ++count;
      add_name(by_reason[result.reason], result);
      first_of.emplace(result.reason, &result);
    }
    if (count == 0) return;
    text_ += fmt::format("\n{} ({} of {})\n", title, count, report_.verifications.size());
    if (verdict == Verdict::different && report_.hypothesis)
      paragraph(printable(hypothesis_text(*report_.hypothesis), 1000), "  hypothesis: ", 4);
    for (const auto& [reason, names] : by_reason) {
      message(reason);
      configurations(names);
      diagnosis(*first_of.at(reason));
    }
  }

  void diagnosis(const VerificationResult& result) {
    for (const std::string& line : result.diagnosis) paragraph(printable(line, 1000), "      ", 8);
    // On one line, so that it can be copied.
    if (!result.repeat.empty()) text_ += fmt::format("      repeat it: {}\n", result.repeat);
  }

  void shrunk() {
    if (!report_.shrunk) return;
    const ShrunkResult& shrunk = *report_.shrunk;
    const std::string effort = fmt::format("{} configurations tried in {:.1f} s{}", shrunk.tried, shrunk.seconds,
                                           shrunk.was_cut_off ? ", when its time was over" : "");
    if (shrunk.configuration.empty()) {
      text_ += '\n';
      paragraph(fmt::format("No smaller configuration fails alike ({}).", effort), "", 0);
      return;
    }
    text_ += fmt::format("\nSMALLEST CONFIGURATION THAT FAILS ({})\n", effort);
    paragraph(printable(shrunk.configuration, 1000), "  ", 4);
    message(shrunk.result.reason);
    diagnosis(shrunk.result);
    text_ += fmt::format("\nA test that fails on it:\n\n{}", shrunk.test);
  }

  // What stands behind EXACT besides equal elements.
  void movements() {
    std::int64_t followed = 0, to_the_bit = 0;
    for (const VerificationResult& result : report_.verifications) {
      followed += result.movements_checked;
      to_the_bit += result.bitwise_checked;
    }
    if (followed == 0) return;
    text_ += '\n';
    paragraph(fmt::format("Movement was followed by identities of elements in {} attention calls and plan entries, and "
                          "attention compared to the last bit in {} problems made for it.",
                          followed, to_the_bit),
              "", 0);
  }

  // Of few configurations each one's worst modules; of all the worst.
  void modules() {
    constexpr std::size_t kMostListed = 12;
    std::vector<const VerificationResult*> found;
    std::int64_t extremes = 0;
    for (const VerificationResult& result : report_.verifications) {
      extremes += result.extremes_checked;
      if (result.modules && result.modules->worst) found.push_back(&result);
    }
    if (found.empty()) return;
    if (found.size() <= kMostListed) modules_table(found);
    const auto ratio = [](const VerificationResult* result) { return rank_of_figure(result->modules->worst->ratio); };
    const VerificationResult& largest = **std::max_element(
        found.begin(), found.end(), [&](const auto* a, const auto* b) { return ratio(a) < ratio(b); });
    const ModuleRatios& ratios = *largest.modules;
    std::string words = fmt::format(
        "modules: the largest such multiple of any module, each given the arguments of the float64 run. The largest of "
        "all is that of {} (case {}, {} {}; one of {} values of {} modules)",
        module_ratio_text(*ratios.worst), largest.case_name, largest.mode, short_mesh(largest.mesh), ratios.compared,
        ratios.modules);
    if (ratios.runner_up) words += fmt::format("; next there is {}", module_ratio_text(*ratios.runner_up));
    words += also_passed();
    if (extremes > 0) words += fmt::format(". Attention took extreme inputs in {} problems made for it", extremes);
    text_ += '\n';
    paragraph(words + ".", "", 0);
  }

  void modules_table(const std::vector<const VerificationResult*>& found) {
    TextTable rows({{"case"},
                    {"mode"},
                    {"mesh"},
                    {"rotate"},
                    {"farthest module"},
                    {"ratio", Align::right},
                    {"next"},
                    {"ratio", Align::right}});
    const auto place = [](const std::optional<ModuleRatio>& ratio) {
      return !ratio ? "" : fmt::format("{}, {}", module_text(ratio->module), ratio->value);
    };
    const auto number = [](const std::optional<ModuleRatio>& ratio) {
      return !ratio ? "" : fmt::format("{:.3g}", ratio->ratio);
    };
    for (const VerificationResult* result : found) {
      const ModuleRatios& ratios = *result->modules;
      rows.add({{printable(result->case_name)},
                {result->mode},
                {short_mesh(result->mesh)},
                {has_ring(*result) ? result->rotate_method : "-"},
                {place(ratios.worst)},
                {number(ratios.worst)},
                {place(ratios.runner_up)},
                {number(ratios.runner_up)}});
    }
    table(rows);
  }

  // What verdicts on 16-bit types rest on besides.
  std::string also_passed() const {
    Groups<std::string, int> counts;
    for (const VerificationResult& result : report_.verifications) {
      if (!result.also_passed.empty()) ++counts[result.also_passed.substr(0, result.also_passed.find(" ("))];
    }
    std::string words;
    for (const auto& [what, count] : counts) {
      words +=
          fmt::format("{} {} ({})", words.empty() ? ". The same configurations passed in" : " and in", what, count);
    }
    return words;
  }

  void configurations(const ConfigurationNames& names) {
    for (const auto& [case_name, labels] : names) {
      std::string text;
      for (const auto& [label, rotations] : labels) {
        text += fmt::format("{}{}", text.empty() ? "" : "; ", label);
        if (!rotations.empty()) text += fmt::format(" ({})", fmt::join(rotations, ", "));
      }
      paragraph(text, fmt::format("      {}: ", case_name), 8);
    }
  }

  void skipped_entries() {
    Groups<std::string, Groups<std::string, int>> by_entry;
    for (const VerificationResult& result : report_.verifications) {
      for (const SkippedNote& note : result.skipped_entries) {
        by_entry[fmt::format("{} was left whole: {}", entry_text(note.argument, note.module), note.reason)]
                [printable(result.case_name)]++;
      }
    }
    if (by_entry.empty()) return;
    text_ += "\nskipped plan entries\n";
    for (const auto& [entry, cases] : by_entry) {
      std::string text = printable(entry, 1000) + " (";
      for (const auto& [name, count] : cases) {
        text += fmt::format("{}{}: {} run{}", text.ends_with('(') ? "" : ", ", name, count, count == 1 ? "" : "s");
      }
      paragraph(text + ")", "  - ", 4);
    }
  }

  void verify_closing() {
    const std::map<std::string, int> counts = summary_of(report_);
    bool is_verified_run = false;
    const VerificationResult* largest = nullptr;
    for (const VerificationResult& result : report_.verifications) {
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
    line += counts_text(
        {Verdict::exact, Verdict::rounding_equivalent, Verdict::different, Verdict::refused, Verdict::not_checked},
        counts);
    if (largest != nullptr) {
      line += fmt::format("; largest figure {}", figure_text(*largest));
      if (report_.allowed) line += fmt::format(", allowed {:g}", *report_.allowed);
    }
    close(line + ".", differs ? Tone::bad : is_verified_run ? Tone::good : Tone::plain);
  }

  static std::string counts_text(std::initializer_list<Verdict> verdicts, const std::map<std::string, int>& counts) {
    std::string text;
    for (const Verdict verdict : verdicts) {
      const auto found = counts.find(std::string(verdict_word(verdict)));
      if (found == counts.end()) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", found->second, found->first);
    }
    return text;
  }

  void close(const std::string& line, Tone tone) {
    text_ += (options_.colour == TextTable::Colour::on ? in_tone(shown(line), tone) : shown(line)) + "\n";
  }

  void oracle_part() {
    TextTable rows({{"source"},
                    {"case"},
                    {"comparison"},
                    {"verdict"},
                    {"error", Align::right},
                    {"tolerance", Align::right},
                    {"first module that differs"},
                    {"note"},
                    {"seconds", Align::right}});
    for (const OracleResult& result : report_.oracles) {
      const Tone tone = !result.checked ? Tone::faint : result.agrees ? Tone::good : Tone::bad;
      rows.add({{report_.sources.size() > 1 ? printable(result.source) : ""},
                {printable(result.case_name)},
                {result.run},
                {std::string(oracle_word(result)), tone},
                {result.checked ? fmt::format("{:.2e}", result.error) : "-"},
                {result.checked ? fmt::format("{:.1e}", result.tolerance) : "-"},
                {printable(result.first_module)},
                {printable(result.note)},
                {fmt::format("{:.3f}", result.seconds)}});
    }
    table(rows);
    Groups<std::string, std::vector<std::string>> missing;
    for (const OracleResult& result : report_.oracles) {
      for (const std::string& key : result.without_counterpart)
        missing[fmt::format("{}, {}", result.source, result.case_name)].push_back(printable(key));
    }
    if (missing.empty()) return;
    text_ += "\ntrace entries without a counterpart in our model (not compared)\n";
    for (const auto& [where, keys] : missing)
      paragraph(fmt::format("{}: {}", printable(where), fmt::join(keys, ", ")), "  - ", 4);
  }

  void oracle_closing() {
    const std::map<std::string, int> counts = summary_of(report_);
    const OracleResult* closest = nullptr;
    const auto share = [](const OracleResult& result) {
      return rank_of_figure(result.tolerance > 0.0 ? result.error / result.tolerance : result.error);
    };
    for (const OracleResult& result : report_.oracles) {
      if (result.checked && (closest == nullptr || share(result) > share(*closest))) closest = &result;
    }
    std::string line = counts.contains("DISAGREES") ? "Our dense model disagrees with the export: "
                       : counts.contains("AGREES")  ? "Our dense model agrees with the export: "
                                                    : "Nothing was compared: ";
    std::string numbers;
    for (const char* word : {"AGREES", "DISAGREES", "NOT CHECKED"}) {
      const auto found = counts.find(word);
      if (found != counts.end()) numbers += fmt::format("{}{} {}", numbers.empty() ? "" : ", ", found->second, word);
    }
    line += numbers;
    if (closest != nullptr) {
      line += fmt::format("; closest to its limit: {:.2e} of {:.1e} allowed ({}, {})", closest->error,
                          closest->tolerance, printable(closest->case_name), closest->run);
    }
    close(line + ".", counts.contains("DISAGREES") ? Tone::bad : counts.contains("AGREES") ? Tone::good : Tone::plain);
  }

  void plan_part() {
    text_ +=
        shown(fmt::format("run     {} on the mesh {}", report_.plan.front().mode, report_.plan.front().mesh)) + '\n';
    TextTable rows({{"case"},
                    {"module"},
                    {"argument"},
                    {"action"},
                    {"axis", Align::right},
                    {"total", Align::right},
                    {"per rank"},
                    {"note"}});
    for (const PlanRow& row : report_.plan) {
      if (ended(row)) continue;
      rows.add({{printable(row.case_name)},
                {module_text(row.module)},
                {(is_output(row) ? "output " : "") + printable(row.argument)},
                {row.action},
                {row.axis ? std::to_string(*row.axis) : "-"},
                {row.total ? std::to_string(*row.total) : "-"},
                {sizes_text(row.per_rank)},
                {printable(row.note)}});
    }
    table(rows);
    Groups<std::string, std::vector<std::string>> ends;
    for (const PlanRow& row : report_.plan) {
      if (ended(row)) ends[fmt::format("{}: {}", row.action, row.note)].push_back(printable(row.case_name));
    }
    if (ends.empty()) return;
    text_ += "\ncases that did not run to the end\n";
    for (const auto& [reason, cases] : ends) {
      message(reason);
      paragraph(fmt::format("{}", fmt::join(cases, ", ")), "      in: ", 10);
    }
  }

  static bool ended(const PlanRow& row) { return row.action == "refused" || row.action == "failed"; }

  void plan_closing() {
    std::string numbers;
    const std::map<std::string, int> counts = summary_of(report_);
    for (const std::string_view action : plan_actions()) {
      const auto found = counts.find(std::string(action));
      if (found != counts.end()) numbers += fmt::format("{}{} {}", numbers.empty() ? "" : ", ", found->second, action);
    }
    close(fmt::format("Entries of the plan: {}.", numbers), Tone::plain);
  }

  const Report& report_;
  const TerminalOptions& options_;
  std::string text_;
};

}  // namespace

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  constexpr std::size_t kMost = 8;
  constexpr std::size_t kShown = 4;
  if (sizes.size() <= kMost) return fmt::format("{}", fmt::join(sizes, ","));
  return fmt::format("{},.. ({})", fmt::join(sizes.begin(), sizes.begin() + kShown, ","), sizes.size());
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string terminal_text(const Report& report, const TerminalOptions& options) {
  return Printer(report, options).text();
}

}  // namespace shardproof
