#include "tests/zoo/localisation.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "verify/verifier.h"

namespace shardproof::zoo {
namespace {

// Where the faults of a file are that do not say it themselves.
std::string_view place_of_file(std::string_view file) {
  if (file == "parallel/context_parallel.cpp") return "entries";
  if (file.starts_with("parallel/tensor_parallel")) return "sharded";
  return file.starts_with("parallel/") ? "attention" : "";
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The code that is blamed: of what is wrong first, or where a rank ended that had nothing wrong before.
std::vector<Origin> origins_of(const Diagnosis& diagnosis) {
  if (diagnosis.found) return {diagnosis.origin};
  std::vector<Origin> origins;
  for (const EndedRank& each : diagnosis.ended) origins.push_back(each.origin);
  return origins;
}

bool is_about_entries(const Diagnosis& diagnosis) {
  const auto concerns = [](Point point) { return point == Point::division || point == Point::gather; };
  if (diagnosis.found) return concerns(diagnosis.point);
  return std::ranges::any_of(diagnosis.ended, concerns, &EndedRank::point);
}

bool names_value(const Finding& finding, std::string_view part) {
  const Diagnosis& found = finding.diagnosis;
  const bool is_argument = found.point == Point::argument || found.point == Point::division;
  if (found.found && is_argument && has(found.value, part)) return true;
  // Who accuses everybody names nobody.
  constexpr std::size_t kMostSuspects = 4;
  const auto is_it = [&](const Suspect& suspect) { return has(suspect.value, part); };
  if (found.suspects.size() <= kMostSuspects && std::ranges::any_of(found.suspects, is_it)) return true;
  return !found.found && has(finding.report, fmt::format("argument '{}", part));
}

bool names_one(const Finding& finding, std::string_view place) {
  const std::size_t colon = std::min(place.find(':'), place.size());
  const std::string_view kind = place.substr(0, colon);
  const std::string_view part = place.substr(std::min(colon + 1, place.size()));
  const std::vector<Origin> origins = origins_of(finding.diagnosis);
  const auto is_origin = [&](const auto& holds) { return std::ranges::any_of(origins, holds); };
  if (kind == "attention") return finding.structure.wrong_attention_calls > 0 || is_origin(&Origin::attends);
  if (kind == "entries") return finding.structure.wrong_plan_entries > 0 || is_about_entries(finding.diagnosis);
  if (kind == "sharded")
    return is_origin([&](const Origin& origin) { return origin.is_sharded && has(origin.module, part); });
  if (kind == "module") return is_origin([&](const Origin& origin) { return has(origin.module, part); });
  if (kind == "class") return is_origin([&](const Origin& origin) { return origin.class_name == part; });
  if (kind == "argument" || kind == "output") return names_value(finding, kind == "output" ? "output" : part);
  fail(ErrorKind::usage_error,
       "'{}' is no place of a fault; expected attention, entries, output, or sharded:, module:, class:, argument: with "
       "a "
       "text",
       place);
}

}  // namespace

std::string expected_place(const Fault& fault) {
  if (!fault.where.empty() || fault.edits.empty()) return std::string(fault.where);
  return std::string(place_of_file(fault.edits.back().file));
}

bool names_place(const Finding& finding, std::string_view expected) {
  const std::vector<std::string> places = words_of(expected);
  return std::ranges::any_of(places, [&](const std::string& place) { return names_one(finding, place); });
}

std::string place_text(const Finding& finding) {
  std::string text;
  if (!finding.diagnosis.found && !finding.structure.differences.empty())
    text = "movement: " + finding.structure.differences.front() + "; ";
  return text + fmt::format("{}", fmt::join(finding.diagnosis.lines(), "; "));
}

struct Localiser::Bench {
  Subject subject;
  ModelContext context;
  std::unique_ptr<Verifier> verifier;
};

Localiser::Localiser(std::uint64_t seed) : seed_(seed) {}
Localiser::~Localiser() = default;

Finding Localiser::find(const Scenario& scenario, const ParallelPlans& plans) {
  std::unique_ptr<Bench>& bench = benches_[scenario.model];
  const VerifierOptions options{.seed = seed_, .schedule_seed = seed_};
  if (!bench) {
    bench = std::make_unique<Bench>(Bench{Subject::of_model(model_named(scenario.model), seed_), {}, nullptr});
    bench->context = {&bench->subject.reference_device(), kFloat64, TablePrecision::float64};
    bench->verifier = std::make_unique<Verifier>(bench->subject, options);
  }
  Finding finding;
  const ParallelRunOptions run_options{.config = scenario.config, .schedule_seed = seed_};
  finding.report = bench->verifier->verify(scenario.case_name, scenario.config, plans).reason;
  finding.diagnosis =
      diagnose({.dense_tree = [&] { return bench->subject.make_tree(bench->context); },
                .rank_tree = [&] { return bench->subject.make_tree(bench->context); },
                .arguments = {bench->subject.prepare(bench->subject.load_case(scenario.case_name), bench->context)},
                .plans = plans,
                .options = run_options});
  const ParallelRun run = bench->verifier->run(scenario.case_name, scenario.config, plans, GatherForm::ragged);
  if (run.end == RunEnd::completed) finding.structure = check_structure(run, run_options);
  return finding;
}

}  // namespace shardproof::zoo
