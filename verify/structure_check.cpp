#include "verify/structure_check.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/random.h"
#include "core/sharding.h"
#include "parallel/attention.h"
#include "parallel/movement.h"
#include "parallel/parallelism.h"
#include "reference/identity_device.h"

namespace shardproof {
namespace {

constexpr std::size_t kMostDifferences = 8;
constexpr std::int64_t kMaskTokens = 1 << 21;  // of a masked call, which the work bounds far below
// Elements that one rank may look at in one call: some seconds.
constexpr std::int64_t kMostWork = std::int64_t{1} << 31;

std::string shapes_text(const AttentionCall& call) {
  std::string text = fmt::format("attention of q {} and k {} on a rank", call.q.text(), call.k.text());
  if (call.mask.rank() > 0) text += fmt::format(", mask {}", call.mask.text());
  return text;
}

// Where this rank's tokens stand in the whole sequence, and who has the others.
struct Layout {
  std::vector<std::int64_t> tokens;  // by member of the flat group
  std::int64_t start(int member) const {
    return std::accumulate(tokens.begin(), tokens.begin() + member, std::int64_t{0});
  }
  std::int64_t total() const { return start(static_cast<int>(tokens.size())); }
};

// Whether key `key` of the whole sequence is to be attended, for the axes that a mask has; drawn, the same on all
// ranks.
class DrawnMask {
 public:
  DrawnMask(const AttentionCall& call, std::uint64_t seed) : call_(call), random_(seed, "structure: mask") {}
  bool defined() const { return call_.mask.rank() > 0; }
  // batch entry, head, query and key of the whole, undivided operands
  bool attends(std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t key) const {
    if (!defined()) return true;
    const std::int64_t batch = call_.mask[0] == 1 ? 0 : b, head = call_.mask[1] == 1 ? 0 : h;
    const std::int64_t row = call_.query_axis == QueryAxis::one ? 0 : query;
    const std::int64_t index = ((batch * kIdentityHeads + head) * kMaskTokens + row) * kMaskTokens + key;
    return random_.below(static_cast<std::uint64_t>(index), 4) != 0;
  }

 private:
  const AttentionCall& call_;
  RandomStream random_;
};

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
  AttentionCheck(const AttentionCall& call, const ContextParallelState& state, std::shared_ptr<KeySets> sets, int rank,
                 std::uint64_t seed)
      : call_(call), state_(state), sets_(std::move(sets)), device_(sets_, rank), rank_(rank), mask_(call, seed) {}

  std::vector<std::string> run() {
    Communicator& flat = state_.flat();
    queries_.tokens = gather_size_by_comm(call_.q[1], flat, "structure: queries");
    keys_.tokens = gather_size_by_comm(call_.k[1], flat, "structure: keys");
    first_query_ = queries_.start(flat.rank());
    first_key_ = keys_.start(flat.rank());
    const Tensor q = identities(device_, call_.q, IdentityRole::query, first_query_);
    const Tensor k = identities(device_, call_.k, IdentityRole::key, first_key_);
    const Tensor v = identities(device_, call_.k, IdentityRole::value, first_key_);
    const AttentionResult result = attention(q, k, v, mask(), {.scale = 1.0, .return_lse = true}, &state_);
    std::vector<std::string> differences = device_.findings();
    compare_rows(result, differences);
    return differences;
  }

 private:
  AttentionMask mask() {
    if (!mask_.defined()) return {};
    const Shape& shape = call_.mask;
    const std::int64_t key_start = call_.key_axis == KeyAxis::local ? first_key_ : 0;
    std::vector<std::byte> values;
    values.reserve(static_cast<std::size_t>(shape.numel()));
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t h = 0; h < shape[1]; ++h) {
        for (std::int64_t i = 0; i < shape[2]; ++i) {
          for (std::int64_t j = 0; j < shape[3]; ++j) {
            values.push_back(std::byte{mask_.attends(b, h, first_query_ + i, key_start + j)});
          }
        }
      }
    }
    return {.values = device_.upload(values, shape, kBool),
            .key_axis = call_.key_axis,
            .query_axis = call_.query_axis,
            .head_axis = shape[1] == 1 ? HeadAxis::one : HeadAxis::all};
  }

  void compare_rows(const AttentionResult& result, std::vector<std::string>& differences) const {
    const std::vector<std::int64_t> out = integers_of(result.out), sets = integers_of(result.lse);
    const Shape& shape = call_.q;
    std::size_t element = 0, row = 0;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t t = 0; t < shape[1]; ++t) {
        for (std::int64_t h = 0; h < shape[2]; ++h, ++row) {
          if (differences.size() >= kMostDifferences) return;
          for (std::int64_t c = 0; c < shape[3]; ++c, ++element)
            compare_element({IdentityRole::query, b, first_query_ + t, h, c}, out[element], differences);
          compare_keys(b, first_query_ + t, h, sets[row], differences);
        }
      }
    }
  }

  void compare_element(const Identity& expected, std::int64_t bits, std::vector<std::string>& differences) const {
    Identity found;
    const bool is_identity = unpack(bits, found);
    if ((is_identity && found == expected) || differences.size() >= kMostDifferences) return;
    differences.push_back(fmt::format(
        "rank {}: the output has {} where the layout has {}", rank_,
        is_identity ? text_of(found) : std::string("memory that nothing was received into"), text_of(expected)));
  }

  void compare_keys(std::int64_t b, std::int64_t query, std::int64_t h, std::int64_t number,
                    std::vector<std::string>& differences) const {
    bool is_known = false;
    KeySets::Counts counts = sets_->counts_of(number, is_known);
    const auto total = static_cast<std::size_t>(keys_.total());
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
        fmt::format("rank {}: query token {}, head {} of batch entry {}: {}", rank_, query, h, b, wrong));
  }

  const AttentionCall& call_;
  const ContextParallelState& state_;
  std::shared_ptr<KeySets> sets_;
  IdentityDevice device_;
  int rank_;
  DrawnMask mask_;
  Layout queries_, keys_;
  std::int64_t first_query_ = 0, first_key_ = 0;
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

// One of the calls that all ranks made at the same place in their sequence.
struct CallOfAll {
  std::vector<AttentionCall> by_rank;
  friend bool operator==(const CallOfAll&, const CallOfAll&) = default;
};

std::vector<CallOfAll> different_calls(const ParallelRun& run) {
  std::vector<CallOfAll> calls;
  std::vector<std::vector<int>> seen;
  for (std::size_t i = 0; i < run.ranks.front().attention_sequence.size(); ++i) {
    std::vector<int> numbers;
    for (const RankOutcome& rank : run.ranks) {
      numbers.push_back(i < rank.attention_sequence.size() ? rank.attention_sequence[i] : 0);
    }
    if (std::find(seen.begin(), seen.end(), numbers) != seen.end()) continue;
    CallOfAll call;
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      call.by_rank.push_back(run.ranks[rank].attention_calls[static_cast<std::size_t>(numbers[rank])]);
    }
    seen.push_back(std::move(numbers));
    calls.push_back(std::move(call));
  }
  return calls;
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

std::int64_t work_of(const AttentionCall& call, int ranks) {
  const std::int64_t rows = call.q[0] * call.q[1] * call.q[2], keys = call.k[1] * ranks;
  const bool is_masked = call.mask.rank() > 0;
  return rows * (call.q[3] + keys) * (is_masked ? 8 : 1) + call.q[0] * call.q[2] * keys * call.q[3];
}

// Runs `body(state, rank)` on all ranks and takes down what each finds.
template <class Body>
void on_all_ranks(const ParallelRunOptions& options, int world, const std::string& what, const Body& body,
                  std::vector<std::string>& differences) {
  std::vector<std::vector<std::string>> found(static_cast<std::size_t>(world));
  try {
    run_ranks({.world_size = world, .schedule_seed = options.schedule_seed, .workers = options.workers},
              [&](Communicator& communicator) {
                communicator.set_gather_form(options.gather_form);
                const ParallelState state = set_up_parallelism(communicator, options.config);
                found[static_cast<std::size_t>(communicator.rank())] = body(*state.cp, communicator.rank());
              });
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal_error) throw;
    differences.push_back(fmt::format("{}: {}", what, error.what()));
  }
  for (const std::vector<std::string>& of_rank : found) {
    for (const std::string& difference : of_rank) {
      if (differences.size() < kMostDifferences) differences.push_back(fmt::format("{}: {}", what, difference));
    }
  }
}

}  // namespace

StructureResult check_structure(const ParallelRun& run, const ParallelRunOptions& options) {
  StructureResult result;
  if (!options.config.context_parallel_config || run.end != RunEnd::completed) return result;
  const int world = run.mesh.size();
  for (const CallOfAll& call : different_calls(run)) {
    const AttentionCall& first = call.by_rank.front();
    const bool fits = first.q[0] <= kIdentityBatches && first.q[2] <= kIdentityHeads &&
                      first.q[3] <= kIdentityChannels && first.q[1] * world < kIdentityTokens &&
                      first.k[1] * world < kIdentityTokens && work_of(first, world) <= kMostWork;
    if (!fits) {
      result.not_checked = fmt::format("{} is too large for identities", shapes_text(first));
      continue;
    }
    ++result.attention_calls;
    const auto sets = std::make_shared<KeySets>();
    on_all_ranks(
        options, world, shapes_text(first),
        [&](const ContextParallelState& state, int rank) {
          return AttentionCheck(call.by_rank[static_cast<std::size_t>(rank)], state, sets, rank, options.schedule_seed)
              .run();
        },
        result.differences);
  }
  for (const AppliedEntry& entry : different_entries(run)) {
    ++result.plan_entries;
    on_all_ranks(
        options, world, fmt::format("entries of the plan that divide {} along axis {}", entry.total, entry.axis),
        [&](const ContextParallelState& state, int rank) { return check_entry(entry, state, rank); },
        result.differences);
  }
  return result;
}

}  // namespace shardproof
