#include "app/plan_rows.h"

#include <algorithm>

namespace shardproof {
namespace {

PlanRow row_of(const AppliedEntry& entry) {
  PlanRow row;
  row.module = entry.module;
  row.argument = entry.argument;
  row.action = entry.action == AppliedEntry::Action::split ? "split" : "gather";
  row.axis = entry.axis;
  row.total = entry.total;
  return row;
}

bool is_same_entry(const AppliedEntry& a, const AppliedEntry& b) {
  return a.action == b.action && a.module == b.module && a.argument == b.argument && a.axis == b.axis;
}

// The parameters of planned layers: module and parameter, the style, and every rank's part.
void add_shards(const ParallelRun& run, std::vector<PlanRow>& rows) {
  const std::vector<AppliedShard>& first = run.ranks.front().shards;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::size_t dot = first[i].parameter.rfind('.');
    PlanRow row;
    row.module = first[i].parameter.substr(0, dot);
    row.argument = first[i].parameter.substr(dot + 1);
    row.action = first[i].dim ? std::string(style_name(first[i].style)) : "whole";
    row.axis = first[i].dim;
    row.total = first[i].total;
    for (const RankOutcome& rank : run.ranks) row.per_rank.push_back(rank.shards[i].local);
    rows.push_back(std::move(row));
  }
}

void add_skipped(const std::vector<SkippedEntry>& entries, std::vector<PlanRow>& rows) {
  for (const SkippedEntry& entry : entries) {
    const bool is_known = std::any_of(rows.begin(), rows.end(), [&](const PlanRow& row) {
      return row.action == "skipped" && row.module == entry.module && row.argument == entry.argument &&
             row.note == entry.reason;
    });
    if (is_known) continue;
    PlanRow row;
    row.module = entry.module;
    row.argument = entry.argument;
    row.action = "skipped";
    row.note = entry.reason;
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<PlanRow> plan_rows(const ParallelRun& run, const std::string& case_name, const std::string& mode,
                               const std::string& mesh) {
  std::vector<PlanRow> rows;
  if (run.end != RunEnd::completed) {
    rows.emplace_back();
    rows.back().action = run.end == RunEnd::refused ? "refused" : "failed";
    rows.back().note = run.reason;
  } else {
    add_shards(run, rows);
    // All ranks run the same program, so the records of a completed run correspond one to one.
    const std::vector<AppliedEntry>& first = run.ranks.front().applied;
    for (std::size_t i = 0; i < first.size(); ++i) {
      PlanRow row = row_of(first[i]);
      for (const RankOutcome& rank : run.ranks) {
        if (i < rank.applied.size() && is_same_entry(rank.applied[i], first[i]))
          row.per_rank.push_back(rank.applied[i].local);
      }
      rows.push_back(std::move(row));
    }
    for (const RankOutcome& rank : run.ranks) add_skipped(rank.skipped, rows);
    for (const RankOutcome& rank : run.ranks) add_skipped(rank.omitted, rows);
  }
  for (PlanRow& row : rows) {
    row.case_name = case_name;
    row.mode = mode;
    row.mesh = mesh;
  }
  return rows;
}

}  // namespace shardproof
