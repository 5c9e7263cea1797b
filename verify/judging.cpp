#include "verify/judging.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/device.h"

namespace shardproof {
namespace {

std::vector<SkippedNote> notes_of(const ParallelRun& run) {
  std::vector<SkippedNote> notes;
  for (const RankOutcome& rank : run.ranks) {
    for (const SkippedEntry& entry : rank.skipped) {
      const SkippedNote note{entry.module, entry.argument, entry.reason};
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return notes;
}

}  // namespace

VerificationResult result_of_configuration(const std::string& case_name, const ParallelConfig& config) {
  const ContextParallelConfig context = config.context_parallel_config.value_or(ContextParallelConfig{});
  VerificationResult result;
  result.case_name = case_name;
  result.mode = mode_name(config);
  result.mesh = effective_mesh(config).text();
  result.rotate_method = effective_ring_degree(context) > 1 ? context.rotate_method : "";
  result.convert_to_fp32 = context.convert_to_fp32;
  return result;
}

std::vector<std::string> layout_lines(const ParallelRun& run) {
  struct Row {
    const AppliedEntry* first = nullptr;
    std::vector<std::int64_t> local;
  };
  std::vector<Row> rows;
  for (const RankOutcome& rank : run.ranks) {
    for (const AppliedEntry& entry : rank.applied) {
      const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
        return row.first->action == entry.action && row.first->module == entry.module &&
               row.first->argument == entry.argument && row.first->axis == entry.axis &&
               row.first->total == entry.total;
      });
      Row& row = same == rows.end() ? rows.emplace_back(Row{&entry, {}}) : *same;
      if (row.local.size() < run.ranks.size()) row.local.push_back(entry.local);
    }
  }
  constexpr std::size_t kShown = 8;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::min(kShown, rows.size()); ++i) {
    const AppliedEntry& entry = *rows[i].first;
    const bool is_split = entry.action == AppliedEntry::Action::split;
    lines.push_back(fmt::format("layout: {} along axis {}, {} {} {}", entry_text(entry.argument, entry.module),
                                entry.axis, entry.total, is_split ? "divided into" : "gathered from",
                                fmt::join(rows[i].local, " + ")));
  }
  if (rows.size() > kShown) lines.push_back(fmt::format("layout: {} more entries of the plan", rows.size() - kShown));
  std::string groups;
  for (const std::string_view dimension : {"ring", "ulysses", "tp"}) {
    if (!run.mesh.has(dimension) || run.mesh.size_of(dimension) < 2) continue;
    std::set<std::vector<int>> all;
    for (int rank = 0; rank < run.mesh.size(); ++rank) all.insert(run.mesh.group(rank, std::span(&dimension, 1)));
    groups += fmt::format("{}{} ", groups.empty() ? "" : "; ", dimension);
    for (const std::vector<int>& group : all) groups += fmt::format("[{}]", fmt::join(group, " "));
  }
  if (!groups.empty()) lines.push_back("groups: " + groups);
  return lines;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  std::vector<std::byte> bytes_a(a.bytes()), bytes_b(b.bytes());
  a.device().download(bytes_a, a);
  b.device().download(bytes_b, b);
  return bytes_a == bytes_b;
}

bool splits_tokens(const ParallelRun& run) {
  const auto& applied = run.ranks.front().applied;
  return std::any_of(applied.begin(), applied.end(),
                     [](const AppliedEntry& entry) { return entry.action == AppliedEntry::Action::split; });
}

void describe_run(const ParallelRun& run, VerificationResult& result) {
  const bool divides_tokens = std::any_of(run.ranks.begin(), run.ranks.end(),
                                          [](const RankOutcome& rank) { return rank.attention_tokens > 0; });
  for (const RankOutcome& rank : run.ranks) {
    if (divides_tokens) result.tokens_per_rank.push_back(rank.attention_tokens);
    result.bytes_sent_per_rank = std::max(result.bytes_sent_per_rank, rank.statistics.bytes_sent);
    result.collectives = std::max(result.collectives, rank.statistics.data_calls());
  }
  result.skipped_entries = notes_of(run);
}

std::string structural_difference(const ParallelRun& run, const std::vector<std::string>& outputs,
                                  const DifferenceText& difference) {
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const std::vector<Tensor>& tensors = run.ranks[rank].outputs.tensors;
    if (tensors.size() != outputs.size()) {
      return fmt::format("rank {} returned {} outputs, expected {}", rank, tensors.size(), outputs.size());
    }
    for (std::size_t other = 0; other < rank; ++other) {
      if (run.replica_of[other] != run.replica_of[rank]) continue;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const Tensor& of_other = run.ranks[other].outputs.tensors[i];
        if (same_bits(tensors[i], of_other)) continue;
        return fmt::format("output '{}' differs between ranks {} and {}: {}", outputs[i], other, rank,
                           difference(tensors[i], of_other));
      }
      break;  // equality with one rank of the replica is equality with all before it
    }
  }
  return {};
}

std::string replicated_tokens(const ParallelRun& run, int tp_degree,
                              const std::function<std::int64_t(int replica)>& dense_tokens) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(run.mesh.size()), 0);
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    if (run.ranks[rank].attention_exchanges == 0) return {};
    tokens[static_cast<std::size_t>(run.replica_of[rank])] += run.ranks[rank].attention_tokens;
  }
  for (const int replica : run.replica_of) {
    // Ranks that share heads by tensor parallelism have the same tokens.
    const std::int64_t all = tokens[static_cast<std::size_t>(replica)] / tp_degree;
    const std::int64_t dense = dense_tokens(replica);
    if (all == dense) continue;
    return fmt::format(
        "the first attention has {} query tokens over the ranks, the dense one {}: the plan leaves a sequence whole "
        "that attention exchanges, so its tokens count more than once",
        all, dense);
  }
  return {};
}

std::string reason_of_difference(const ParallelRun& run, const std::string& replicated, const std::string& difference) {
  const bool is_unconnected = splits_tokens(run) && run.ranks.front().attention_exchanges == 0;
  return replicated + (replicated.empty() || difference.empty() ? "" : "; ") +
         (is_unconnected ? "plan splits tokens but no attention collective was issued; " : "") + difference;
}

}  // namespace shardproof
