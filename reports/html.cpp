#include "reports/html.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/file.h"
#include "reports/html_page.h"
#include "reports/result_tables.h"
#include "reports/result_words.h"

namespace shardproof {
namespace {

// "different-2": what says why a configuration has its verdict.
std::string reason_id(Verdict verdict, std::size_t number) {
  const std::string_view word = verdict == Verdict::different ? "different"
                                : verdict == Verdict::refused ? "refused"
                                                              : "not-checked";
  return fmt::format("{}-{}", word, number + 1);
}

// Adds one section after the other.
class Writer {
 public:
  Writer(const Report& report, const std::vector<std::string>& problems, HtmlPage& page)
      : report_(report), problems_(problems), page_(page) {}

  void write() {
    about();
    list("Why the exit status is 2", "problems", problems_);
    differences();
    shrunk();
    results();
    reasons(Verdict::refused, "REFUSED", "refused");
    reasons(Verdict::not_checked, "NOT CHECKED in these configurations", "not-checked");
    list("NOT CHECKED", "left-open", report_.not_checked);
    profile();
    list("Plan entries that were left whole", "skipped-entries", skipped_entry_words(report_));
    list("Trace entries without a counterpart in our model (not compared)", "without-counterpart",
         missing_counterpart_words(report_));
    list("Notes", "notes", report_.notes);
  }

 private:
  void about() {
    std::vector<std::pair<std::string, std::string>> facts;
    if (!report_.model.empty()) facts.emplace_back("model", report_.model);
    const std::vector<std::string> runs = run_lines(report_);
    if (!report_.sources.empty()) facts.emplace_back("source", fmt::format("{}", fmt::join(report_.sources, "\n")));
    if (!runs.empty()) facts.emplace_back("run", fmt::format("{}", fmt::join(runs, "\n")));
    if (!report_.plan_name.empty()) facts.emplace_back("plan", report_.plan_name);
    facts.emplace_back("version", fmt::format("shardproof {}, {}", report_.version, report_.command));
    if (!report_.features.empty())
      facts.emplace_back("built with", fmt::format("{}", fmt::join(report_.features, ", ")));
    page_.facts(facts);
  }

  void list(std::string_view heading, std::string_view id, const std::vector<std::string>& items) {
    if (items.empty()) return;
    page_.section(heading, id);
    page_.list(items);
  }

  // Of each configuration what is known besides; of a single one at once.
  static HtmlItem item_of(const Reason& reason) {
    HtmlItem item{.text = reason.text, .places = reason.configurations};
    if (reason.results.size() == 1 && reason.results.front()->verdict == Verdict::different) {
      const VerificationResult& only = *reason.results.front();
      item.places = {{only.case_name, configuration_text(only)}};
      item.notes = only.diagnosis;
      item.command = only.repeat;
      return item;
    }
    for (const VerificationResult* result : reason.results) {
      if (result->diagnosis.empty() && result->repeat.empty()) continue;
      item.details.push_back({.name = fmt::format("{}: {}", result->case_name, configuration_text(*result)),
                              .notes = result->diagnosis,
                              .command = result->repeat});
    }
    if (item.details.size() == reason.results.size()) item.places.clear();  // they say the same
    return item;
  }

  void reasons(Verdict verdict, std::string_view title, std::string_view id) {
    const std::vector<Reason> reasons = reasons_of(report_, verdict);
    if (reasons.empty()) return;
    page_.section(fmt::format("{} ({} of {})", title, summary_of(report_).at(std::string(verdict_word(verdict))),
                              report_.verifications.size()),
                  id);
    if (verdict == Verdict::different && report_.hypothesis)
      page_.paragraph("Hypothesis: " + hypothesis_text(*report_.hypothesis));
    std::vector<HtmlItem> items;
    for (const Reason& reason : reasons) {
      items.push_back(item_of(reason));
      items.back().id = reason_id(verdict, items.size() - 1);
    }
    page_.items(items);
  }

  void differences() {
    reasons(Verdict::different, "DIFFERENT", "different");
    std::vector<HtmlItem> items;
    for (const OracleResult& result : report_.oracles) {
      if (!result.checked || result.agrees) continue;
      HtmlItem item{.text = fmt::format("{}, {}: error {:.2e}, allowed {:.1e}", result.case_name, result.run,
                                        result.error, result.tolerance)};
      if (!result.first_module.empty()) item.notes.push_back("first module that differs: " + result.first_module);
      if (!result.note.empty()) item.notes.push_back(result.note);
      items.push_back(std::move(item));
    }
    std::vector<HtmlItem> ends;
    for (const auto& [reason, cases] : plan_end_words(report_))
      ends.push_back({.text = reason, .places = {{"in", cases}}});
    if (!items.empty())
      page_.section(fmt::format("DISAGREES ({} of {})", items.size(), report_.oracles.size()), "different");
    page_.items(items);
    if (!ends.empty()) page_.section("Cases that did not run to the end", "ends");
    page_.items(ends);
  }

  void shrunk() {
    if (!report_.shrunk) return;
    const ShrunkResult& shrunk = *report_.shrunk;
    page_.section("The smallest configuration that fails", "smallest");
    if (shrunk.configuration.empty()) {
      page_.paragraph(fmt::format("No smaller configuration fails alike ({}).", effort_words(shrunk)));
      return;
    }
    page_.paragraph(effort_words(shrunk) + ":");
    page_.items({{.text = shrunk.configuration + "\n" + shrunk.result.reason,
                  .notes = shrunk.result.diagnosis,
                  .command = shrunk.result.repeat}});
    page_.paragraph("A test that fails on it:");
    page_.verbatim(shrunk.test);
  }

  // Of each row of the table what says why.
  std::vector<std::string> links() const {
    std::vector<std::string> links;
    for (const VerificationResult& result : report_.verifications) {
      links.emplace_back();
      if (is_verified(result.verdict)) continue;
      const std::vector<Reason>& reasons = reasons_of_.at(static_cast<std::size_t>(result.verdict));
      const auto found = std::ranges::find(reasons, result.reason, &Reason::text);
      links.back() = reason_id(result.verdict, static_cast<std::size_t>(found - reasons.begin()));
    }
    return links;
  }

  void results() {
    if (report_.verifications.empty() && report_.oracles.empty() && report_.plan.empty()) return;
    page_.section(report_.plan.empty() ? "Results" : "The plan", "results");
    if (!report_.verifications.empty()) {
      for (std::size_t verdict = 0; verdict <= static_cast<std::size_t>(Verdict::not_checked); ++verdict)
        reasons_of_.push_back(reasons_of(report_, static_cast<Verdict>(verdict)));
      page_.table(verification_table(report_, RefusedRows::shown),
                  {.caption = "Verdicts by configuration", .filter = "verdict", .links = links()});
      page_.paragraph(legend_words(report_));
      page_.paragraph(movement_words(report_));
      page_.table(module_table(report_), {.caption = "The farthest modules by configuration"});
      page_.paragraph(module_words(report_));
    }
    page_.table(oracle_table(report_), {.caption = "Comparisons with the export", .filter = "verdict"});
    page_.table(plan_table(report_), {.caption = "Entries of the plan", .filter = "action"});
  }

  void profile() {
    if (!report_.profile) return;
    const ProfileWords words = profile_words(*report_.profile);
    page_.section("Profile", "profile");
    page_.paragraph(words.steps);
    page_.table(operation_table(*report_.profile), {.caption = "Where the time of the steps went"});
    page_.paragraph(words.shares);
    page_.table(kernel_table(*report_.profile), {.caption = "What the devices did"});
    for (const std::string& line : words.left_out) page_.paragraph(line);
  }

  const Report& report_;
  const std::vector<std::string>& problems_;
  HtmlPage& page_;
  std::vector<std::vector<Reason>> reasons_of_;  // by verdict
};

}  // namespace

std::string html_report(const Report& report, const std::vector<std::string>& problems) {
  const Closing closing = closing_of(report);
  const std::string name = fmt::format("shardproof {}: {}", report.command, report.model);
  // What was verified is not all that was asked for.
  const Tone tone = closing.tone == Tone::good && !problems.empty() ? Tone::faint : closing.tone;
  HtmlPage page(name, name, closing.line, tone);
  Writer(report, problems, page).write();
  return page.text();
}

}  // namespace shardproof
