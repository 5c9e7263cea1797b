// What one rank knows about context parallelism once it is set up: the configuration with its degrees resolved, the
// groups (flat, ring, Ulysses), and the record of plan entries that were skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "parallel/attention_mask.h"
#include "parallel/config.h"

namespace shardproof {

// A plan entry that left its value as it was, because its number of dimensions is not the one that the plan expects.
struct SkippedEntry {
  std::string module;    // path; "" is the root
  std::string argument;  // name or output index
  std::string reason;    // "1 dimension, plan expects 2"
  Shape shape = {};      // of the value that was left whole
  friend bool operator==(const SkippedEntry&, const SkippedEntry&) = default;
};

// What an entry did on this rank: divided a value of `total` entries along `axis` and kept `local` of them from
// `start`, or gathered an output of which this rank has `local` entries.
struct AppliedEntry {
  enum class Action : std::uint8_t { split, gather };
  Action action = Action::split;
  std::string module;
  std::string argument;  // name or output index
  int axis = 0;
  std::int64_t total = 0;
  std::int64_t start = 0;
  std::int64_t local = 0;
  friend bool operator==(const AppliedEntry&, const AppliedEntry&) = default;
};

// One call of attention that exchanged data, as this rank made it.
struct AttentionCall {
  Shape q, k;       // [batch, tokens of this rank, heads, head_dim]
  Shape mask = {};  // [batch|1, heads|1, queries|1, keys]; no entries: none
  KeyAxis key_axis = KeyAxis::local;
  QueryAxis query_axis = QueryAxis::one;
  friend bool operator==(const AttentionCall&, const AttentionCall&) = default;
};

class ContextParallelState {
 public:
  // Collective over `world`. Throws the problems of the configuration, or config_error if the mesh and the number of
  // ranks differ. `world` must outlive the state.
  ContextParallelState(Communicator& world, const ContextParallelConfig& config);

  // The state of a run on one rank: attention runs locally and is only recorded, for comparison with a parallel run.
  static std::shared_ptr<const ContextParallelState> for_one_rank();

  const ContextParallelConfig& config() const { return config_; }
  bool is_one_rank() const { return flat_ == nullptr; }
  const Mesh& mesh() const { return mesh_; }
  int ring_degree() const { return ring_degree_; }
  int ulysses_degree() const { return ulysses_degree_; }
  // Lengths may differ between ranks: they are exchanged and never derived from totals.
  bool is_ragged() const { return config_.ulysses_anything || config_.ring_anything; }
  // All context-parallel ranks of this replica in flat order (ring * ulysses_degree + ulysses): plans split over these.
  Communicator& flat() const { return *flat_; }
  Communicator& ring() const { return *ring_; }
  Communicator& ulysses() const { return *ulysses_; }

  void record_skipped(SkippedEntry entry) const;
  const std::vector<SkippedEntry>& skipped() const { return skipped_; }
  // Entries whose argument a call did not have, or had as none: its default is not divided. As skipped ones, with the
  // reason "not given".
  void record_omitted(std::string module, std::string argument) const;
  const std::vector<SkippedEntry>& omitted() const { return omitted_; }
  void record_applied(AppliedEntry entry) const;
  const std::vector<AppliedEntry>& applied() const { return applied_; }
  // Attention calls that exchanged data (a plan that splits tokens needs at least one).
  void record_attention_exchange(const AttentionCall& call) const;
  std::int64_t attention_exchanges() const { return static_cast<std::int64_t>(attention_sequence_.size()); }
  // The different ones, and in the order in which they were made the number of each among them.
  const std::vector<AttentionCall>& attention_calls() const { return attention_calls_; }
  const std::vector<int>& attention_sequence() const { return attention_sequence_; }
  // This rank's queries in the first of them; 0 if there was none.
  std::int64_t attention_tokens() const { return attention_calls_.empty() ? 0 : attention_calls_.front().q[1]; }

 private:
  ContextParallelState() = default;

  ContextParallelConfig config_;
  Mesh mesh_;
  int ring_degree_ = 1;
  int ulysses_degree_ = 1;
  std::vector<std::unique_ptr<Communicator>> owned_;
  Communicator* flat_ = nullptr;
  Communicator* ring_ = nullptr;
  Communicator* ulysses_ = nullptr;
  // Written by the hooks of this rank only.
  mutable std::vector<SkippedEntry> skipped_;
  mutable std::vector<SkippedEntry> omitted_;
  mutable std::vector<AppliedEntry> applied_;
  mutable std::vector<AttentionCall> attention_calls_;
  mutable std::vector<int> attention_sequence_;
};

}  // namespace shardproof
