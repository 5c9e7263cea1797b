#include "parallel/attention.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/ops.h"
#include "parallel/ring_attention.h"
#include "parallel/ulysses_attention.h"

namespace shardproof {
namespace {

// Tokens of the members of the groups that this rank exchanges with.
struct SequenceLengths {
  std::vector<std::int64_t> queries;  // of the Ulysses group
  std::vector<std::int64_t> keys;     // of the Ulysses group
  std::vector<std::int64_t> chunks;   // of the ring: keys of every member's whole Ulysses group
};

std::int64_t total(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

// Equal lengths are known; a violation shows in the signature of the exchange. Ragged ones are exchanged, every call
// anew.
SequenceLengths sequence_lengths(std::int64_t queries, std::int64_t keys, const ContextParallelState& state) {
  const auto members = [](int count, std::int64_t value) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(count), value);
  };
  if (!state.is_ragged()) {
    return {members(state.ulysses_degree(), queries), members(state.ulysses_degree(), keys),
            members(state.ring_degree(), keys * state.ulysses_degree())};
  }
  SequenceLengths lengths{{queries}, {keys}, {keys}};
  if (state.ulysses_degree() > 1) {
    lengths.queries = gather_size_by_comm(queries, state.ulysses(), "ulysses: query lengths");
    lengths.keys = gather_size_by_comm(keys, state.ulysses(), "ulysses: key lengths");
  }
  if (state.ring_degree() > 1) {
    lengths.chunks = gather_size_by_comm(total(lengths.keys), state.ring(), "ring: key lengths");
  }
  return lengths;
}

// Sizes on which all ranks agree, so that all take the same decision and none is left waiting.
void check_request(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  SHARDPROOF_REFUSE_UNLESS(!options.is_causal, unsupported_error, "causal attention is not yet supported");
  const bool have_heads = q.rank() == 4 && k.rank() == 4;
  SHARDPROOF_REFUSE_UNLESS(!options.enable_gqa && (!have_heads || q.size(2) == k.size(2)), unsupported_error,
                           "GQA is not yet supported: q {} and k {} must have equally many heads", q.text(), k.text());
  SHARDPROOF_REFUSE_UNLESS(options.dropout == 0.0, unsupported_error,
                           "attention dropout {} is not supported; it must be 0", options.dropout);
  SHARDPROOF_CHECK(have_heads && k.shape() == v.shape() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
                   shape_error,
                   "attention of q {}, k {}, v {}: expected [batch, tokens, heads, head_dim] with one batch, heads and "
                   "head_dim, and as many keys as values",
                   q.text(), k.text(), v.text());
}

AttentionResult local_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                                double scale, bool return_lse) {
  SHARDPROOF_CHECK(!mask.defined() || mask.values.size(3) == k.size(1), shape_error,
                   "attention mask {}: its key axis must cover {} keys, not {}", mask.values.text(), k.size(1),
                   mask.values.size(3));
  const AttentionOutput output = ops::attention(q, k, v, mask.values, scale);
  return {ops::cast(output.out, q.dtype()), return_lse ? output.lse : Tensor()};
}

AttentionCall call_of(const Tensor& q, const Tensor& k, const AttentionMask& mask) {
  return {q.shape(), k.shape(), mask.defined() ? mask.values.shape() : Shape(), mask.key_axis, mask.query_axis};
}

bool runs_locally(const AttentionOptions& options, const ContextParallelState* state, const AttentionCall& call) {
  if (state == nullptr || options.keys == Placement::replicated) return true;
  SHARDPROOF_REFUSE_UNLESS(
      options.queries == Placement::split, unsupported_error,
      "attention of replicated queries against split keys is not supported: every rank would compute the same rows");
  if (!state->is_one_rank()) return false;
  state->record_attention_exchange(call);
  return true;
}

}  // namespace

AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                          const AttentionOptions& options, const ContextParallelState* state) {
  check_request(q, k, v, options);
  // From the true head width; ranks may hold fewer heads, never narrower ones.
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  const AttentionMask normal = normalised_mask(mask, q, k.size(1));
  const AttentionCall call = call_of(q, k, normal);
  if (runs_locally(options, state, call)) return local_attention(q, k, v, normal, scale, options.return_lse);

  check_mask_for_exchange(normal);
  state->record_attention_exchange(call);
  const SequenceLengths lengths = sequence_lengths(q.size(1), k.size(1), *state);
  const InnerAttention inner = [&](const Tensor& all_q, const Tensor& all_k, const Tensor& all_v,
                                   const AttentionMask& own_mask) {
    if (state->ring_degree() > 1) {
      return ring_attention(all_q, all_k, all_v, own_mask, scale, lengths.chunks, state->config(), state->ring());
    }
    const std::int64_t keys = all_k.size(1);
    SHARDPROOF_CHECK(!own_mask.defined() || own_mask.values.size(3) == keys, shape_error,
                     "attention mask {}: its global key axis must cover the {} keys of all ranks, not {}",
                     own_mask.values.text(), keys, own_mask.values.size(3));
    return ops::attention(all_q, all_k, all_v, own_mask.values, scale);
  };
  if (state->ulysses_degree() > 1) {
    const Division heads = state->config().ulysses_anything ? Division::balanced : Division::equal;
    return ulysses_attention(q, k, v, normal, options.return_lse, lengths.queries, lengths.keys, heads,
                             state->ulysses(), inner);
  }
  const AttentionOutput output = inner(q, k, v, normal);
  return {ops::cast(output.out, q.dtype()), options.return_lse ? output.lse : Tensor()};
}

SequencePart part_of_sequence(std::int64_t tokens, const ContextParallelState* state) {
  if (state == nullptr || state->is_one_rank()) return {0, tokens};
  Communicator& flat = state->flat();
  if (!state->is_ragged()) return {flat.rank() * tokens, flat.size() * tokens};
  const std::vector<std::int64_t> lengths = gather_size_by_comm(tokens, flat, "part of a sequence: lengths");
  return {std::accumulate(lengths.begin(), lengths.begin() + flat.rank(), std::int64_t{0}), total(lengths)};
}

}  // namespace shardproof
