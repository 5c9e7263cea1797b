#include "verify/structure_check.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/sharding.h"
#include "parallel/attention.h"
#include "parallel/movement.h"
#include "reference/identity_device.h"
#include "verify/attention_replay.h"

namespace shardproof {
namespace {

// Elements that one rank may look at in one call: some seconds.
constexpr std::int64_t kMostWork = std::int64_t{1} << 31;

Tensor identities(Device& device, const Shape& shape, IdentityRole role, std::int64_t start) {
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(shape.numel()));
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t t = 0; t < shape[1]; ++t) {
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        for (std::int64_t c = 0; c < shape[3]; ++c) values.push_back(packed({role, b, start + t, h, c}));
      }
    }
  }
  return device.upload(std::as_bytes(std::span(values)), shape, identity_dtype());
}

std::vector<std::int64_t> integers_of(const Tensor& x) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(x.numel()));
  x.device().download(std::as_writable_bytes(std::span(values)), x);
  return values;
}

// One attention call on one rank.
class AttentionCheck {
 public:
  AttentionCheck(const ReplayedCall& replayed, std::shared_ptr<KeySets> sets, std::uint64_t seed)
      : replayed_(replayed), sets_(std::move(sets)), device_(sets_, replayed.rank), mask_(replayed.call, seed) {}

  std::vector<std::string> run() {
    const AttentionCall& call = replayed_.call;
    const Tensor q = identities(device_, call.q, IdentityRole::query, replayed_.first_query);
    const Tensor k = identities(device_, call.k, IdentityRole::key, replayed_.first_key);
    const Tensor v = identities(device_, call.k, IdentityRole::value, replayed_.first_key);
    const AttentionMask mask = mask_.of_rank(device_, replayed_.first_query, replayed_.first_key);
    const AttentionResult result = attention(q, k, v, mask, {.scale = 1.0, .return_lse = true}, &replayed_.state);
    std::vector<std::string> differences = device_.findings();
    compare_rows(result, differences);
    return differences;
  }

 private:
  void compare_rows(const AttentionResult& result, std::vector<std::string>& differences) const {
    const std::vector<std::int64_t> out = integers_of(result.out), sets = integers_of(result.lse);
    const Shape& shape = replayed_.call.q;
    std::size_t element = 0, row = 0;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t t = 0; t < shape[1]; ++t) {
        for (std::int64_t h = 0; h < shape[2]; ++h, ++row) {
          if (differences.size() >= kMostDifferences) return;
          for (std::int64_t c = 0; c < shape[3]; ++c, ++element)
            compare_element({IdentityRole::query, b, replayed_.first_query + t, h, c}, out[element], differences);
          compare_keys(b, replayed_.first_query + t, h, sets[row], differences);
        }
      }
    }
  }

  void compare_element(const Identity& expected, std::int64_t bits, std::vector<std::string>& differences) const {
    Identity found;
    const bool is_identity = unpack(bits, found);
    if ((is_identity && found == expected) || differences.size() >= kMostDifferences) return;
    differences.push_back(fmt::format(
        "rank {}: the output has {} where the layout has {}", replayed_.rank,
        is_identity ? text_of(found) : std::string("memory that nothing was received into"), text_of(expected)));
  }

  void compare_keys(std::int64_t b, std::int64_t query, std::int64_t h, std::int64_t number,
                    std::vector<std::string>& differences) const {
    bool is_known = false;
    KeySets::Counts counts = sets_->counts_of(number, is_known);
    const auto total = static_cast<std::size_t>(replayed_.keys.total());
    std::string wrong = is_known ? "" : "a log-sum-exp that no attention made";
    if (is_known && counts.size() > total) wrong = fmt::format("key token {}, which does not exist", counts.size() - 1);
    counts.resize(total);
    int named = 0;
    for (std::size_t key = 0; key < total && wrong.size() < 200 && is_known; ++key) {
      const int expected = mask_.attends(b, h, query, static_cast<std::int64_t>(key)) ? 1 : 0;
      if (counts[key] == expected) continue;
      wrong += fmt::format("{}key token {} {}", named++ > 0 ? ", " : "", key,
                           counts[key] == 0 ? std::string("missing")
                           : expected == 0  ? fmt::format("counted {} times although masked", counts[key])
                                            : fmt::format("counted {} times", counts[key]));
    }
    if (wrong.empty()) return;
    differences.push_back(
        fmt::format("rank {}: query token {}, head {} of batch entry {}: {}", replayed_.rank, query, h, b, wrong));
  }

  const ReplayedCall& replayed_;
  std::shared_ptr<KeySets> sets_;
  IdentityDevice device_;
  DrawnMask mask_;
};

// One division and gathering on one rank: numbers 0.. along the axis, with an axis on either side.
std::vector<std::string> check_entry(const AppliedEntry& entry, const ContextParallelState& state, int rank) {
  HostDevice device;
  const int axis = std::min(entry.axis, kMaxRank - 2);
  Shape shape;
  for (int i = 0; i < axis; ++i) shape.push_back(i + 1 == axis ? 2 : 1);
  shape.push_back(entry.total);
  shape.push_back(3);
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0);
  const Tensor whole = device.upload(std::as_bytes(std::span(values)), shape, kInt64);
  const Division division = state.is_ragged() ? Division::balanced : Division::equal;
  const Tensor part = shard(whole, axis, state.flat(), division, "structure");
  std::vector<std::string> differences;
  const int members = state.flat().size(), member = state.flat().rank();
  const std::int64_t start = balanced_offset(entry.total, members, member);
  const std::int64_t local = balanced_size(entry.total, members, member);
  if (part.size(axis) != local || integers_of(part) != integers_of(whole.narrow(axis, start, local))) {
    differences.push_back(fmt::format("rank {}: dividing {} entries does not give it entries {} to {}", rank,
                                      entry.total, start, start + local - 1));
  }
  const Tensor back = gather(part, axis, state.flat(), division, "structure: gather");
  if (integers_of(back) != values) {
    differences.push_back(fmt::format("rank {}: gathering {} entries does not give them in order", rank, entry.total));
  }
  return differences;
}

std::vector<AppliedEntry> different_entries(const ParallelRun& run) {
  std::vector<AppliedEntry> entries;
  for (AppliedEntry entry : run.ranks.front().applied) {
    entry = {
        .action = AppliedEntry::Action::split, .module = "", .argument = "", .axis = entry.axis, .total = entry.total};
    if (entry.total > 0 && std::find(entries.begin(), entries.end(), entry) == entries.end()) entries.push_back(entry);
  }
  return entries;
}

void append(std::vector<std::string>& all, std::vector<std::string> more) {
  more.resize(std::min(more.size(), kMostDifferences - std::min(kMostDifferences, all.size())));
  std::ranges::move(more, std::back_inserter(all));
}

std::int64_t work_of(const AttentionCall& call, int ranks) {
  const std::int64_t rows = call.q[0] * call.q[1] * call.q[2], keys = call.k[1] * ranks;
  const bool is_masked = call.mask.rank() > 0;
  return rows * (call.q[3] + keys) * (is_masked ? 8 : 1) + call.q[0] * call.q[2] * keys * call.q[3];
}

}  // namespace

StructureResult check_structure(const ParallelRun& run, const ParallelRunOptions& options) {
  StructureResult result;
  if (!options.config.context_parallel_config || run.end != RunEnd::completed) return result;
  const int world = run.mesh.size();
  for (const CallOfAllRanks& call : different_attention_calls(run)) {
    const AttentionCall& first = call.by_rank.front();
    const bool fits = first.q[0] <= kIdentityBatches && first.q[2] <= kIdentityHeads &&
                      first.q[3] <= kIdentityChannels && first.q[1] * world < kIdentityTokens &&
                      first.k[1] * world < kIdentityTokens && work_of(first, world) <= kMostWork;
    if (!fits) {
      result.not_checked = fmt::format("{} is too large for identities", call_text(first));
      continue;
    }
    ++result.attention_calls;
    const auto sets = std::make_shared<KeySets>();
    std::vector<std::string> found;
    replay_on_all_ranks(
        options, call,
        [&](const ReplayedCall& replayed) { return AttentionCheck(replayed, sets, options.schedule_seed).run(); },
        found);
    result.wrong_attention_calls += found.empty() ? 0 : 1;
    append(result.differences, std::move(found));
  }
  for (const AppliedEntry& entry : different_entries(run)) {
    ++result.plan_entries;
    std::vector<std::string> found;
    check_on_all_ranks(
        options, world, fmt::format("entries of the plan that divide {} along axis {}", entry.total, entry.axis),
        [&](const ContextParallelState& state, int rank) { return check_entry(entry, state, rank); }, found);
    result.wrong_plan_entries += found.empty() ? 0 : 1;
    append(result.differences, std::move(found));
  }
  return result;
}

}  // namespace shardproof
