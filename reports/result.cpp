#include "reports/result.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardproof {

std::string entry_text(std::string_view argument, std::string_view module) {
  const bool is_output =
      !argument.empty() && std::all_of(argument.begin(), argument.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_output ? fmt::format("output {} of module '{}'", argument, module)
                   : fmt::format("argument '{}' of module '{}'", argument, module);
}

std::string_view verdict_word(Verdict verdict) {
  switch (verdict) {
    case Verdict::exact: return "EXACT";
    case Verdict::rounding_equivalent: return "ROUNDING-EQUIVALENT";
    case Verdict::different: return "DIFFERENT";
    case Verdict::refused: return "REFUSED";
    case Verdict::not_checked: return "NOT CHECKED";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& stream, Verdict verdict) { return stream << verdict_word(verdict); }

bool is_verified(Verdict verdict) { return verdict == Verdict::exact || verdict == Verdict::rounding_equivalent; }

std::string module_phrase(std::string_view path, std::string_view class_name) {
  return fmt::format("{} ({})", path.empty() ? "the whole model" : fmt::format("module '{}'", path), class_name);
}

std::string module_ratio_text(const ModuleRatio& ratio) {
  return fmt::format("{} of {}, call {}, on rank {} at [{}]: {:.3g}", ratio.value,
                     module_phrase(ratio.module, ratio.class_name), ratio.call + 1, ratio.rank,
                     fmt::join(ratio.index, ","), ratio.ratio);
}

std::string hypothesis_text(const Hypothesis& hypothesis) {
  std::vector<std::string> names;
  for (const Hypothesis::Mistake& mistake : hypothesis.mistakes)
    names.push_back(fmt::format("{} ({})", mistake.name, mistake.what));
  if (hypothesis.others > 0) names.push_back(fmt::format("{} more", hypothesis.others));
  const std::string equal = hypothesis.equal == hypothesis.shown ? "all" : fmt::format("{} of the", hypothesis.equal);
  return fmt::format(
      "{}: the same outputs, or the same end, in {} {} small configurations of {} that show a mistake ({} tried)",
      fmt::join(names, " or "), equal, hypothesis.shown, hypothesis.model, hypothesis.configurations);
}

std::string_view oracle_word(const OracleResult& result) {
  if (!result.checked) return verdict_word(Verdict::not_checked);
  return result.agrees ? "AGREES" : "DISAGREES";
}

const std::vector<std::string_view>& plan_actions() {
  static const std::vector<std::string_view> kActions{
      "split", "gather",  "colwise", "rowwise", "packed_colwise", "packed_rowwise", "replicated_input_rowwise",
      "whole", "skipped", "refused", "failed"};
  return kActions;
}

std::map<std::string, int> summary_of(const Report& report) {
  std::map<std::string, int> counts;
  for (const VerificationResult& result : report.verifications) ++counts[std::string(verdict_word(result.verdict))];
  for (const OracleResult& result : report.oracles) ++counts[std::string(oracle_word(result))];
  for (const PlanRow& row : report.plan) ++counts[row.action];
  return counts;
}

}  // namespace shardproof
