#include "reports/terminal.h"

#include <utility>

#include <fmt/format.h>

#include "core/file.h"
#include "reports/result_tables.h"
#include "reports/result_words.h"

namespace shardproof {
namespace {

// The text without what acts on a terminal, whole.
std::string shown(std::string_view text) { return printable(text, std::string_view::npos); }

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
    const Closing closing = closing_of(report_);
    if (closing.line.empty()) return std::move(text_);
    return std::move(text_) +
           (options_.colour == TextTable::Colour::on ? in_tone(closing.line, closing.tone) : closing.line) + "\n";
  }

 private:
  void paragraph(std::string_view text, std::string_view first, std::size_t indent) {
    // Whatever comes from a file of a stranger reaches the terminal as characters that are only shown.
    text_ += wrapped(shown(text), shown(first), indent, options_.width);
  }
  // Nothing of nothing.
  void own_paragraph(std::string_view text) {
    if (text.empty()) return;
    text_ += '\n';
    paragraph(text, "", 0);
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
    if (report_.plan.empty()) run();
    if (!report_.plan_name.empty()) text_ += fmt::format("plan    {}\n", printable(report_.plan_name));
  }
  void run() {
    std::string_view label = "run";
    for (const std::string& line : run_lines(report_)) {
      text_ += fmt::format("{:8}{}\n", label, line);
      label = "";
    }
  }

  void verify_part() {
    const TextTable rows = verification_table(report_, RefusedRows::left_out);
    table(rows);
    if (!rows.empty()) own_paragraph(legend_words(report_));
    own_paragraph(movement_words(report_));
    table(module_table(report_));
    own_paragraph(module_words(report_));
    reasons(Verdict::different, "DIFFERENT");
    shrunk();
    reasons(Verdict::refused, "REFUSED");
    list("skipped plan entries", skipped_entry_words(report_));
    reasons(Verdict::not_checked, "NOT CHECKED in these configurations");
  }

  // Each distinct reason once, with the configurations that it applies to.
  void reasons(Verdict verdict, std::string_view title) {
    const std::vector<Reason> reasons = reasons_of(report_, verdict);
    if (reasons.empty()) return;
    text_ += fmt::format("\n{} ({} of {})\n", title, summary_of(report_).at(std::string(verdict_word(verdict))),
                         report_.verifications.size());
    if (verdict == Verdict::different && report_.hypothesis)
      paragraph(printable(hypothesis_text(*report_.hypothesis), 1000), "  hypothesis: ", 4);
    for (const Reason& reason : reasons) {
      message(reason.text);
      for (const auto& [case_name, configurations] : reason.configurations)
        paragraph(configurations, fmt::format("      {}: ", case_name), 8);
      diagnosis(*reason.results.front());
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
    if (shrunk.configuration.empty()) {
      own_paragraph(fmt::format("No smaller configuration fails alike ({}).", effort_words(shrunk)));
      return;
    }
    text_ += fmt::format("\nSMALLEST CONFIGURATION THAT FAILS ({})\n", effort_words(shrunk));
    paragraph(printable(shrunk.configuration, 1000), "  ", 4);
    message(shrunk.result.reason);
    diagnosis(shrunk.result);
    text_ += fmt::format("\nA test that fails on it:\n\n{}", shrunk.test);
  }

  void oracle_part() {
    table(oracle_table(report_));
    list("trace entries without a counterpart in our model (not compared)", missing_counterpart_words(report_));
  }

  void plan_part() {
    run();
    table(plan_table(report_));
    const auto ends = plan_end_words(report_);
    if (ends.empty()) return;
    text_ += "\ncases that did not run to the end\n";
    for (const auto& [reason, cases] : ends) {
      message(reason);
      paragraph(cases, "      in: ", 10);
    }
  }

  const Report& report_;
  const TerminalOptions& options_;
  std::string text_;
};

}  // namespace

std::string terminal_text(const Report& report, const TerminalOptions& options) {
  return Printer(report, options).text();
}

}  // namespace shardproof
