#include "verify/attention_replay.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "parallel/movement.h"
#include "parallel/parallelism.h"

namespace shardproof {
namespace {

// Bits of an index for the axes of a mask; what is drawn for larger operands repeats.
constexpr std::uint64_t kHeadBits = 12, kTokenBits = 23;

}  // namespace

std::vector<CallOfAllRanks> different_attention_calls(const ParallelRun& run) {
  std::vector<CallOfAllRanks> calls;
  std::vector<std::vector<int>> seen;
  for (std::size_t i = 0; i < run.ranks.front().attention_sequence.size(); ++i) {
    std::vector<int> numbers;
    for (const RankOutcome& rank : run.ranks) {
      numbers.push_back(i < rank.attention_sequence.size() ? rank.attention_sequence[i] : 0);
    }
    if (std::find(seen.begin(), seen.end(), numbers) != seen.end()) continue;
    CallOfAllRanks& call = calls.emplace_back();
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      call.by_rank.push_back(run.ranks[rank].attention_calls.at(static_cast<std::size_t>(numbers[rank])));
    }
    seen.push_back(std::move(numbers));
  }
  return calls;
}

std::string call_text(const AttentionCall& call) {
  std::string text = fmt::format("attention of q {} and k {} on a rank", call.q.text(), call.k.text());
  if (call.mask.rank() > 0) text += fmt::format(", mask {}", call.mask.text());
  return text;
}

std::int64_t SequenceLayout::start(int member) const {
  return std::accumulate(tokens.begin(), tokens.begin() + member, std::int64_t{0});
}

std::int64_t SequenceLayout::total() const { return start(static_cast<int>(tokens.size())); }

bool DrawnMask::attends(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const {
  if (!defined()) return true;
  const auto index = [](std::int64_t value, bool is_one) { return is_one ? 0 : static_cast<std::uint64_t>(value); };
  std::uint64_t position = index(batch, call_.mask[0] == 1);
  position = (position << kHeadBits) + index(head, call_.mask[1] == 1);
  position = (position << kTokenBits) + index(query, call_.query_axis == QueryAxis::one);
  position = (position << kTokenBits) + index(key, false);
  return random_.below(position, 4) != 0;
}

AttentionMask DrawnMask::of_rank(Device& device, std::int64_t first_query, std::int64_t first_key) const {
  if (!defined()) return {};
  const Shape& shape = call_.mask;
  const std::int64_t key_start = call_.key_axis == KeyAxis::local ? first_key : 0;
  std::vector<std::byte> values;
  values.reserve(static_cast<std::size_t>(shape.numel()));
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t i = 0; i < shape[2]; ++i) {
        for (std::int64_t j = 0; j < shape[3]; ++j) {
          values.push_back(std::byte{attends(b, h, first_query + i, key_start + j)});
        }
      }
    }
  }
  return {.values = device.upload(values, shape, kBool),
          .key_axis = call_.key_axis,
          .query_axis = call_.query_axis,
          .head_axis = shape[1] == 1 ? HeadAxis::one : HeadAxis::all};
}

void check_on_all_ranks(const ParallelRunOptions& options, int world, const std::string& what, const RankCheck& body,
                        std::vector<std::string>& differences) {
  std::vector<std::vector<std::string>> found(static_cast<std::size_t>(world));
  try {
    run_ranks({.world_size = world,
               .schedule_seed = options.schedule_seed,
               .workers = options.workers,
               .mover = options.mover},
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

void replay_on_all_ranks(const ParallelRunOptions& options, const CallOfAllRanks& call,
                         const std::function<std::vector<std::string>(const ReplayedCall& replayed)>& body,
                         std::vector<std::string>& differences) {
  const auto on_rank = [&](const ContextParallelState& state, int rank) {
    const AttentionCall& own = call.by_rank[static_cast<std::size_t>(rank)];
    ReplayedCall replayed{.call = own, .state = state, .rank = rank, .queries = {}, .keys = {}};
    replayed.queries.tokens = gather_size_by_comm(own.q[1], state.flat(), "replay: queries");
    replayed.keys.tokens = gather_size_by_comm(own.k[1], state.flat(), "replay: keys");
    replayed.first_query = replayed.queries.start(state.flat().rank());
    replayed.first_key = replayed.keys.start(state.flat().rank());
    return body(replayed);
  };
  const auto world = static_cast<int>(call.by_rank.size());
  check_on_all_ranks(options, world, call_text(call.by_rank.front()), on_rank, differences);
}

}  // namespace shardproof
