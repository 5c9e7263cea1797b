#include "reports/json_report.h"

namespace shardproof {
namespace {

template <class T>
Json list_of(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.append(item);
  return list;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json count_or_null(std::int64_t count) { return count < 0 ? Json() : Json(count); }

Json or_null(const std::optional<WorstElement>& worst) {
  if (!worst) return {};
  Json json = Json::object();
  json.set("rank", worst->rank);
  json.set("index", list_of(worst->index));
  return json;
}

Json or_null(const std::optional<ModuleRatio>& ratio) {
  if (!ratio) return {};
  Json json = Json::object();
  json.set("module", ratio->module);
  json.set("class", ratio->class_name);
  json.set("call", ratio->call + 1);
  json.set("value", ratio->value);
  json.set("rank", ratio->rank);
  json.set("index", list_of(ratio->index));
  json.set("ratio", ratio->ratio);
  return json;
}

Json or_null(const std::optional<ModuleRatios>& ratios) {
  if (!ratios) return {};
  Json json = Json::object();
  json.set("worst", or_null(ratios->worst));
  json.set("runner_up", or_null(ratios->runner_up));
  json.set("count", ratios->modules);
  json.set("compared", ratios->compared);
  json.set("not_comparable", ratios->not_comparable);
  return json;
}

Json skipped_to_json(const std::vector<SkippedNote>& notes) {
  Json list = Json::array();
  for (const SkippedNote& note : notes) {
    Json json = Json::object();
    json.set("module", note.module);
    json.set("argument", note.argument);
    json.set("reason", note.reason);
    list.append(std::move(json));
  }
  return list;
}

Json or_null(const std::optional<Locus>& locus) {
  if (!locus) return {};
  Json json = Json::object();
  json.set("module", locus->module);
  json.set("class", locus->class_name);
  json.set("call", locus->call);
  json.set("point", locus->point);
  json.set("value", locus->value);
  json.set("origin", locus->origin);
  json.set("compared", locus->compared);
  Json ranks = Json::array();
  for (const WrongRank& wrong : locus->ranks) {
    Json rank = Json::object();
    rank.set("rank", wrong.rank);
    rank.set("layout", wrong.layout);
    rank.set("extent", wrong.extent);
    rank.set("index", list_of(wrong.index));
    rank.set("actual", wrong.actual);
    rank.set("expected", wrong.expected);
    rank.set("looks_like", wrong.looks_like.empty() ? Json() : Json(wrong.looks_like));
    ranks.append(std::move(rank));
  }
  json.set("ranks", std::move(ranks));
  return json;
}

Json to_json(const VerificationResult& result) {
  Json json = Json::object();
  json.set("case", result.case_name);
  json.set("mode", result.mode);
  json.set("mesh", result.mesh);
  json.set("dtype", result.dtype);
  json.set("device", result.device);
  json.set("tier", result.tier);
  json.set("rotate_method", result.rotate_method);
  json.set("convert_to_fp32", result.convert_to_fp32);
  json.set("seed", result.seed);
  json.set("schedule_seed", result.schedule_seed);
  json.set("tokens_per_rank", list_of(result.tokens_per_rank));
  json.set("verdict", verdict_word(result.verdict));
  json.set("reason", result.reason);
  json.set("figure", or_null(result.figure));
  json.set("max_abs", or_null(result.max_abs));
  json.set("worst", or_null(result.worst));
  json.set("bytes_sent_per_rank", count_or_null(result.bytes_sent_per_rank));
  json.set("collectives", count_or_null(result.collectives));
  json.set("skipped_entries", skipped_to_json(result.skipped_entries));
  json.set("diagnosis", list_of(result.diagnosis));
  json.set("locus", or_null(result.locus));
  json.set("movements_checked", result.movements_checked);
  json.set("bitwise_checked", result.bitwise_checked);
  json.set("modules", or_null(result.modules));
  json.set("extremes_checked", result.extremes_checked);
  json.set("also_passed", result.also_passed);
  json.set("not_checked", list_of(result.not_checked));
  json.set("repeat", result.repeat.empty() ? Json() : Json(result.repeat));
  json.set("seconds", result.seconds);
  return json;
}

Json to_json(const ShrunkResult& shrunk) {
  Json json = Json::object();
  const bool was_found = !shrunk.configuration.empty();
  json.set("configuration", was_found ? Json(shrunk.configuration) : Json());
  json.set("result", was_found ? to_json(shrunk.result) : Json());
  json.set("test", was_found ? Json(shrunk.test) : Json());
  json.set("tried", shrunk.tried);
  json.set("was_cut_off", shrunk.was_cut_off);
  json.set("seconds", shrunk.seconds);
  return json;
}

Json or_null(const std::optional<Hypothesis>& hypothesis) {
  if (!hypothesis) return {};
  Json mistakes = Json::array();
  for (const Hypothesis::Mistake& mistake : hypothesis->mistakes) {
    Json one = Json::object();
    one.set("name", mistake.name);
    one.set("what", mistake.what);
    mistakes.append(std::move(one));
  }
  Json json = Json::object();
  json.set("mistakes", std::move(mistakes));
  json.set("others", hypothesis->others);
  json.set("model", hypothesis->model);
  json.set("equal", hypothesis->equal);
  json.set("shown", hypothesis->shown);
  json.set("configurations", hypothesis->configurations);
  return json;
}

Json to_json(const OracleResult& result) {
  Json json = Json::object();
  json.set("source", result.source);
  json.set("model", result.model);
  json.set("case", result.case_name);
  json.set("comparison", result.run);
  json.set("verdict", oracle_word(result));
  json.set("error", result.checked ? Json(result.error) : Json());
  json.set("tolerance", result.checked ? Json(result.tolerance) : Json());
  json.set("first_module", result.first_module.empty() ? Json() : Json(result.first_module));
  json.set("reason", result.note);
  json.set("without_counterpart", list_of(result.without_counterpart));
  json.set("seconds", result.seconds);
  return json;
}

Json to_json(const PlanRow& row) {
  Json json = Json::object();
  json.set("case", row.case_name);
  json.set("mode", row.mode);
  json.set("mesh", row.mesh);
  json.set("module", row.module);
  json.set("argument", row.argument);
  json.set("action", row.action);
  json.set("axis", or_null(row.axis));
  json.set("total", or_null(row.total));
  json.set("per_rank", list_of(row.per_rank));
  json.set("reason", row.note);
  return json;
}

// Every word that may be counted, so that a reader finds a zero instead of nothing.
std::vector<std::string_view> summary_words(const Report& report) {
  if (report.command == "oracle") return {"AGREES", "DISAGREES", "NOT CHECKED"};
  if (report.command == "plan") return plan_actions();
  if (report.command == "trace") return {};
  return {verdict_word(Verdict::exact), verdict_word(Verdict::rounding_equivalent), verdict_word(Verdict::different),
          verdict_word(Verdict::refused), verdict_word(Verdict::not_checked)};
}

}  // namespace

Json json_report(const Report& report) {
  Json results = Json::array();
  for (const VerificationResult& result : report.verifications) results.append(to_json(result));
  for (const OracleResult& result : report.oracles) results.append(to_json(result));
  for (const PlanRow& row : report.plan) results.append(to_json(row));
  Json summary = Json::object();
  for (const std::string_view word : summary_words(report)) summary.set(word, 0);
  for (const auto& [word, count] : summary_of(report)) summary.set(word, count);

  Json json = Json::object();
  json.set("command", report.command);
  json.set("version", report.version);
  json.set("features", list_of(report.features));
  json.set("model", report.model);
  json.set("results", std::move(results));
  json.set("summary", std::move(summary));
  if (report.command == "verify") json.set("hypothesis", or_null(report.hypothesis));
  if (report.shrunk) json.set("shrunk", to_json(*report.shrunk));
  if (report.profile) json.set("profile", profile_json(*report.profile));
  if (report.comparison) json.set("comparison", comparison_json(*report.comparison));
  return json;
}

}  // namespace shardproof
