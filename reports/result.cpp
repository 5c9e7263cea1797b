#include "reports/result.h"

namespace shardproof {

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

std::map<std::string, int> summary_of(const Report& report) {
  std::map<std::string, int> counts;
  for (const VerificationResult& result : report.verifications) ++counts[std::string(verdict_word(result.verdict))];
  for (const OracleResult& result : report.oracles) {
    ++counts[!result.checked ? "NOT CHECKED" : (result.agrees ? "AGREES" : "DISAGREES")];
  }
  return counts;
}

}  // namespace shardproof
