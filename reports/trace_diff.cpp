#include "reports/trace_diff.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "reports/chrome_trace.h"
#include "reports/flight_record.h"
#include "reports/flight_record_diff.h"
#include "reports/text_table.h"
#include "reports/trace.h"

namespace shardproof {
namespace {

bool is_operation(const TraceEvent& event) {
  return event.is(EventKind::computation) || event.is(EventKind::communication);
}

DivergentCall call_of(const RankTrace& trace, const TraceEvent& event) {
  return {.id = identifier(trace, event), .signature = signature(trace, event)};
}

std::string call_text(const DivergentCall& call) { return fmt::format("'{}': {}", call.id, call.signature); }

// A rank's operations of the steps that both sides have.
std::vector<const TraceEvent*> operations_of(const RankTrace& rank, std::int64_t steps) {
  std::vector<const TraceEvent*> operations;
  for (const TraceEvent& event : rank.events) {
    if (is_operation(event) && event.step < steps) operations.push_back(&event);
  }
  return operations;
}

std::unordered_set<std::string> names_of(const RankTrace& rank, std::span<const TraceEvent* const> operations) {
  std::unordered_set<std::string> names;
  for (const TraceEvent* const event : operations) {
    names.insert(fmt::format("{} {}", event->step, identifier(rank, *event)));
  }
  return names;
}

class TwoTraces {
 public:
  TwoTraces(const RunTrace& first, const RunTrace& second)
      : first_(first), second_(second), steps_(std::min(first.steps(), second.steps())) {}

  TraceComparison comparison() {
    std::set<int> ranks;
    for (const RankTrace& rank : first_.ranks) ranks.insert(rank.rank);
    for (const RankTrace& rank : second_.ranks) ranks.insert(rank.rank);
    for (const int rank : ranks) compare_rank(rank);
    if (first_.steps() != second_.steps()) {
      result_.notes.push_back(fmt::format("the first file has {} steps, the second {}; compared are the first {}",
                                          first_.steps(), second_.steps(), steps_));
    }
    note_differing_settings();
    return std::move(result_);
  }

 private:
  static const RankTrace* find(const RunTrace& trace, int rank) {
    const auto found = std::ranges::lower_bound(trace.ranks, rank, {}, &RankTrace::rank);
    return found == trace.ranks.end() || found->rank != rank ? nullptr : &*found;
  }

  void compare_rank(int number) {
    const RankTrace* const first = find(first_, number);
    const RankTrace* const second = find(second_, number);
    if (first == nullptr || second == nullptr) {
      result_.divergences.push_back(
          {.rank = number,
           .kind = "absent",
           .text = fmt::format("rank {} is not in the {} file", number, first == nullptr ? "first" : "second")});
      return;
    }
    ++result_.ranks;
    const auto in_first = operations_of(*first, steps_), in_second = operations_of(*second, steps_);
    const std::size_t common = std::min(in_first.size(), in_second.size());
    for (std::size_t i = 0; i < common; ++i, ++result_.compared) {
      if (in_first[i]->step != in_second[i]->step) return diverge(*first, in_first, *second, in_second, i);
      if (identifier(*first, *in_first[i]) != identifier(*second, *in_second[i]) ||
          signature(*first, *in_first[i]) != signature(*second, *in_second[i])) {
        return diverge(*first, in_first, *second, in_second, i);
      }
    }
    if (in_first.size() != in_second.size()) diverge(*first, in_first, *second, in_second, common);
  }

  void diverge(const RankTrace& first, std::span<const TraceEvent* const> in_first, const RankTrace& second,
               std::span<const TraceEvent* const> in_second, std::size_t at) {
    Divergence divergence{.rank = first.rank, .position = static_cast<std::int64_t>(at)};
    if (at < in_first.size()) divergence.first = call_of(first, *in_first[at]);
    if (at < in_second.size()) divergence.second = call_of(second, *in_second[at]);
    divergence.step = at < in_first.size() ? in_first[at]->step : in_second[at]->step;
    divergence.kind = kind_of(divergence, first, in_first, second, in_second);
    const std::string where = fmt::format("rank {}, step {}, operation {}", first.rank, divergence.step, at + 1);
    if (divergence.kind == "missing") {
      divergence.text = fmt::format("{}: the second does not make {}{}", where, call_text(*divergence.first),
                                    next_text(divergence.second));
    } else if (divergence.kind == "extra") {
      divergence.text = fmt::format("{}: only the second makes {}{}", where, call_text(*divergence.second),
                                    next_text(divergence.first));
    } else {
      divergence.text = fmt::format("{}: the first makes {}, the second {}", where, call_text(*divergence.first),
                                    call_text(*divergence.second));
    }
    result_.divergences.push_back(std::move(divergence));
  }

  static std::string next_text(const std::optional<DivergentCall>& next) {
    return next ? fmt::format("; it goes on with {}", call_text(*next)) : std::string("; it has ended");
  }

  // Whether the operation of one side comes nowhere in the other.
  static std::string kind_of(const Divergence& divergence, const RankTrace& first,
                             std::span<const TraceEvent* const> in_first, const RankTrace& second,
                             std::span<const TraceEvent* const> in_second) {
    if (!divergence.second) return "missing";
    if (!divergence.first) return "extra";
    const auto name = [&](const DivergentCall& call) { return fmt::format("{} {}", divergence.step, call.id); };
    const bool second_has_it = names_of(second, in_second).contains(name(*divergence.first));
    const bool first_has_it = names_of(first, in_first).contains(name(*divergence.second));
    if (second_has_it == first_has_it) return "different";
    return second_has_it ? "extra" : "missing";
  }

  // What a reader would look for when the operations differ, and must know when they do not: the two runs were not
  // asked for the same.
  void note_differing_settings() {
    for (const auto& [name, value] : first_.about) note_setting(name, value, second_.about_of(name));
    for (const auto& [name, value] : second_.about) {
      const bool is_known = std::ranges::any_of(first_.about, [&](const auto& entry) { return entry.first == name; });
      if (!is_known) note_setting(name, {}, value);
    }
  }

  void note_setting(std::string_view name, std::string_view first, std::string_view second) {
    if (name == "times" || name == "backend" || name == "program_version" || first == second) return;
    result_.notes.push_back(fmt::format("{} is '{}' in the first file and '{}' in the second", name, first, second));
  }

  const RunTrace& first_;
  const RunTrace& second_;
  std::int64_t steps_;
  TraceComparison result_;
};

void check_records(const std::vector<FlightRecord>& records, std::span<const std::string> names) {
  std::map<int, std::string> by_rank;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto [known, is_new] = by_rank.try_emplace(records[i].rank, names[i]);
    SHARDPROOF_CHECK(is_new, usage_error, "trace diff: '{}' and '{}' are both of rank {}; expected one record a rank",
                     printable(known->second), printable(names[i]), records[i].rank);
  }
}

}  // namespace

TraceComparison compare_traces(const RunTrace& first, const RunTrace& second) {
  return TwoTraces(first, second).comparison();
}

TraceComparison compare_trace_files(std::span<const std::filesystem::path> files) {
  std::vector<RunTrace> traces;
  std::vector<FlightRecord> records;
  std::vector<std::string> names, record_names;
  for (const std::filesystem::path& file : files) {
    const Json json = read_trace_json(file);
    names.push_back(file.string());
    if (is_trace_json(json)) {
      traces.push_back(trace_from_json(json));
      SHARDPROOF_CHECK(traces.back().has_operations(), file_error,
                       "{}: key 'traceEvents' holds no operations to compare; expected those of at least one step",
                       printable(file.string()));
    } else if (is_flight_record(json)) {
      records.push_back(flight_record_from_json(json));
      record_names.push_back(file.string());
    } else {
      fail(ErrorKind::file_error,
           "{} is neither a trace nor a flight record of shardproof; expected a file that run --trace or run "
           "--flight-record wrote",
           printable(file.string()));
    }
  }
  const bool are_traces = records.empty() && traces.size() == 2;
  const bool are_records = !records.empty() && traces.size() <= 1 && files.size() >= 2;
  SHARDPROOF_CHECK(
      are_traces || are_records, usage_error,
      "trace diff: {} trace{} and {} flight record{} were given; expected two traces, or flight records of "
      "one run with or without one trace",
      traces.size(), traces.size() == 1 ? "" : "s", records.size(), records.size() == 1 ? "" : "s");
  check_records(records, record_names);
  TraceComparison comparison = are_traces       ? compare_traces(traces[0], traces[1])
                               : traces.empty() ? compare_flight_records(records)
                                                : compare_flight_records_with(traces[0], records);
  SHARDPROOF_CHECK(comparison.compared > 0 || !comparison.divergences.empty(), file_error,
                   "trace diff: '{}' hold no operations to compare with each other; expected files of one run, or of "
                   "runs of the same ranks",
                   printable(fmt::format("{}", fmt::join(names, "', '"))));
  comparison.files = std::move(names);
  return comparison;
}

std::string comparison_text(const TraceComparison& comparison, std::size_t width) {
  const auto listed = [&](std::string_view line) {
    return wrapped(printable(line, std::string_view::npos), "  - ", 4, width);
  };
  std::string text;
  if (!comparison.divergences.empty()) {
    text += fmt::format("DIFFERENT ({} rank{})\n", comparison.divergences.size(),
                        comparison.divergences.size() == 1 ? "" : "s");
    for (const Divergence& divergence : comparison.divergences) text += listed(divergence.text);
  }
  if (!comparison.notes.empty()) text += fmt::format("{}notes\n", text.empty() ? "" : "\n");
  for (const std::string& note : comparison.notes) text += listed(note);
  text += fmt::format("{}{}: {} operations of {} ranks compared.\n", text.empty() ? "" : "\n",
                      comparison.divergences.empty() ? "Equal" : "Different", comparison.compared, comparison.ranks);
  return text;
}

Json comparison_json(const TraceComparison& comparison) {
  const auto call_json = [](const std::optional<DivergentCall>& call) {
    return call ? Json::object().set("id", call->id).set("signature", call->signature) : Json();
  };
  const auto list_json = [](const std::vector<std::string>& texts) {
    Json list = Json::array();
    for (const std::string& text : texts) list.append(text);
    return list;
  };
  Json divergences = Json::array();
  for (const Divergence& divergence : comparison.divergences) {
    Json json = Json::object();
    json.set("rank", divergence.rank).set("kind", divergence.kind).set("step", divergence.step);
    json.set("position", divergence.position).set("first", call_json(divergence.first));
    json.set("second", call_json(divergence.second)).set("text", divergence.text);
    divergences.append(std::move(json));
  }
  Json json = Json::object();
  json.set("files", list_json(comparison.files)).set("equal", comparison.divergences.empty());
  json.set("ranks", comparison.ranks).set("compared", comparison.compared);
  json.set("divergences", std::move(divergences)).set("notes", list_json(comparison.notes));
  return json;
}

}  // namespace shardproof
