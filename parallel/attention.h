// Attention as models call it: local, or exchanged between ranks as the context-parallel state says (Ulysses, ring,
// Unified, and their "anything" forms). Source: parallelism specification, section 5.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/device.h"
#include "parallel/attention_mask.h"
#include "parallel/context_parallel_state.h"

namespace shardproof {

enum class Placement : std::uint8_t {
  split,       // each rank has its piece of the sequence
  replicated,  // each rank has all of it
};

struct AttentionOptions {
  std::optional<double> scale = std::nullopt;  // default 1/sqrt(head_dim)
  bool return_lse = false;
  Placement queries = Placement::split;
  Placement keys = Placement::split;  // of keys and values
  // Known to the API and refused, in this order.
  bool is_causal = false;
  bool enable_gqa = false;
  double dropout = 0.0;
};

struct AttentionResult {
  Tensor out;  // [batch, queries, heads, head_dim] in the queries' type
  Tensor lse;  // [batch, queries, heads] in the log type; no tensor unless asked for
};

// q [batch, queries_r, heads, head_dim]; k, v [batch, keys_r, heads, head_dim]; `state` null for one rank. The result
// covers this rank's queries against the keys of all ranks, which stand in flat-rank-major order. Ends, in every mode,
// with one cast to the queries' type, before heads travel back. Errors: unsupported_error (causal, grouped heads,
// dropout, replicated queries with split keys, masks without meaning), shape_error (heads or mask axes that do not
// fit), collective_error (unequal lengths in the equal modes).
AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                          const AttentionOptions& options, const ContextParallelState* state);

// Where a rank's tokens stand in a sequence that the ranks divide, in flat-rank order.
struct SequencePart {
  std::int64_t start = 0;
  std::int64_t total = 0;
};
// Of `tokens` of this rank; all of the sequence on one rank (`state` null or for one rank). For modules that treat a
// part of a sequence in another way, such as its beginning. Under the "anything" forms the lengths are exchanged, so
// that all ranks must call.
SequencePart part_of_sequence(std::int64_t tokens, const ContextParallelState* state);

// Attention modules of models derive from this besides Module; apply_context_parallel hands them the state.
class AttentionSlot {
 public:
  virtual ~AttentionSlot() = default;
  void set_context_parallel(std::shared_ptr<const ContextParallelState> state) { state_ = std::move(state); }
  const ContextParallelState* context_parallel() const { return state_.get(); }
  // Why the module's attention cannot run under context parallelism at all; empty if it can. Part of the refusal.
  virtual std::string_view context_parallel_obstacle() const { return {}; }

 private:
  std::shared_ptr<const ContextParallelState> state_;
};

}  // namespace shardproof
