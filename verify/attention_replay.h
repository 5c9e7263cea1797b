// The attention calls of a run, made again by the same code on the same ranks with operands of one's own: what the
// tiers that judge movement and bits, and not a model's numbers, have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/random.h"
#include "parallel/attention_mask.h"
#include "verify/parallel_run.h"

namespace shardproof {

// One of the calls that all ranks made at the same place in their sequence.
struct CallOfAllRanks {
  std::vector<AttentionCall> by_rank;
};

// The different ones, in the order in which they were first made. Calls that stay on the rank are not among them.
std::vector<CallOfAllRanks> different_attention_calls(const ParallelRun& run);

// "attention of q [1, 4, 2, 8] and k [1, 4, 2, 8] on a rank, mask [1, 1, 1, 4]".
std::string call_text(const AttentionCall& call);

// Where the ranks' tokens stand in the whole sequence.
struct SequenceLayout {
  std::vector<std::int64_t> tokens;  // by member of the flat group
  std::int64_t start(int member) const;
  std::int64_t total() const;
};

// A mask with the axes of a recorded one and drawn values, the same on all ranks.
class DrawnMask {
 public:
  DrawnMask(const AttentionCall& call, std::uint64_t seed) : call_(call), random_(seed, "drawn mask") {}
  bool defined() const { return call_.mask.rank() > 0; }
  // In terms of the whole, undivided operands.
  bool attends(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const;
  // A rank's part of it; no mask where the recorded call had none.
  AttentionMask of_rank(Device& device, std::int64_t first_query, std::int64_t first_key) const;

 private:
  const AttentionCall& call_;
  RandomStream random_;
};

// One rank's place in a call that is made again.
struct ReplayedCall {
  const AttentionCall& call;
  const ContextParallelState& state;
  int rank = 0;  // of the world
  SequenceLayout queries, keys;
  std::int64_t first_query = 0, first_key = 0;  // of this rank, in the whole sequence
};

inline constexpr std::size_t kMostDifferences = 8;

// What each rank finds, `body` running on every rank of the configuration's mesh; at most kMostDifferences, each
// beginning with `what`. An error of the run is a difference. Adds to `differences`.
using RankCheck = std::function<std::vector<std::string>(const ContextParallelState& state, int rank)>;
void check_on_all_ranks(const ParallelRunOptions& options, int world, const std::string& what, const RankCheck& body,
                        std::vector<std::string>& differences);
// The same for an attention call.
void replay_on_all_ranks(const ParallelRunOptions& options, const CallOfAllRanks& call,
                         const std::function<std::vector<std::string>(const ReplayedCall& replayed)>& body,
                         std::vector<std::string>& differences);

}  // namespace shardproof
