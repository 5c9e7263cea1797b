// Attention in exact arithmetic for the property tests: operands are uniform residues, which no host number holds, so
// problems are tensors of the field device and a law changes them by operations. The dense and the parallel attention
// go through the same function and are compared element by element. A zero that had to be divided by (one chance in
// 2^30 for each sum) is no verdict: then the law is asked once more, on a device with another base of exponentials.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops.h"
#include "parallel/attention.h"
#include "property_tests/generators.h"
#include "reference/field_compare.h"
#include "reference/field_device.h"
#include "tests/support/rank_results.h"

namespace shardproof::test {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

// ---- devices

// The base of exponentials and the salts are the seed's; a few are kept, as their tables cost more than an attention.
inline FieldDevice& exact_device(std::uint64_t seed) {
  static std::array<std::unique_ptr<FieldDevice>, 4> devices;
  std::unique_ptr<FieldDevice>& device = devices[static_cast<std::size_t>(seed % devices.size())];
  if (!device) device = make_field_device(seed % devices.size());
  return *device;
}

// law(FieldDevice&) -> bool.
template <class Law>
bool holds_exactly(std::uint64_t seed, const Law& law) {
  FieldDevice& device = exact_device(seed);
  const std::int64_t before = device.zero_divisions();
  if (law(device)) return true;
  return device.zero_divisions() != before && law(*make_field_device(seed + 1000));
}

// Says what differs where a law fails.
inline bool same(std::string_view what, const Tensor& actual, const Tensor& expected) {
  const ExactComparison comparison = compare_exact(actual, expected);
  if (comparison.equal()) return true;
  RC_LOG() << what << ": " << comparison.shape_problem << comparison.differing << " elements differ, the first is "
           << comparison.first_actual << ", expected " << comparison.first_expected << "\n";
  return false;
}

// ---- tensors

// The entries `indices` of one axis, in that order.
inline Tensor selected(const Tensor& x, int axis, const Indices& indices) {
  if (indices.empty()) return ops::contiguous(x.narrow(axis, 0, 0));
  std::vector<Tensor> entries;
  for (const std::int64_t index : indices) entries.push_back(x.narrow(axis, index, 1));
  return ops::concat(entries, axis);
}

// Copies side by side; with a single part `concat` hands it out as it is.
inline Tensor repeated(const Tensor& x, int axis, int copies) {
  return ops::concat(std::vector<Tensor>(static_cast<std::size_t>(copies), x), axis);
}

// `finite` where a key counts, "never" where `bias` is -infinity; both have the same shape.
inline Tensor additive_mask(FieldDevice& device, const HostArray& bias, const Tensor& finite) {
  const auto count = static_cast<std::int64_t>(bias.values.size());
  const Tensor never = ops::full(device, {1, 1}, field_dtype(), kNever);
  HostArray index({count});
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    index.values[at] = static_cast<double>(bias.values[at] == kNever ? count : i);
  }
  const Tensor table = ops::concat({ops::reshape(ops::contiguous(finite), {count, 1}), never}, 0);
  return ops::reshape(ops::gather_rows(table, to_device(device, index, kInt64)), bias.shape);
}

inline Tensor boolean_mask(FieldDevice& device, HostArray bias) {
  for (double& value : bias.values) value = value == kNever ? 0.0 : 1.0;
  return to_device(device, bias, kBool);
}

// ---- problems

struct ExactProblem {
  std::vector<std::int64_t> query_streams, key_streams;
  Tensor q, k, v;  // [batch, tokens, heads, width] in "field"
  HostArray bias;  // which keys count, as AttentionProblem has it; empty: all
  Tensor mask;     // of them, bool or with finite biases in "field"; no tensor: none
  double scale = 0.0;

  const Device& device() const { return q.device(); }
  std::int64_t batch() const { return q.size(0); }
  std::int64_t queries() const { return q.size(1); }
  std::int64_t keys() const { return k.size(1); }
  std::int64_t heads() const { return q.size(2); }
  std::int64_t width() const { return q.size(3); }
};

inline ExactProblem exact_problem(FieldDevice& device, const AttentionProblem& shapes, bool is_boolean,
                                  std::uint64_t seed) {
  ExactProblem problem{.query_streams = shapes.query_streams,
                       .key_streams = shapes.key_streams,
                       .q = random_field_tensor(device, seed, "q", shapes.q.shape),
                       .k = random_field_tensor(device, seed, "k", shapes.k.shape),
                       .v = random_field_tensor(device, seed, "v", shapes.v.shape),
                       .bias = shapes.bias,
                       .mask = {},
                       .scale = shapes.scale};
  if (shapes.bias.empty()) return problem;
  problem.mask = is_boolean
                     ? boolean_mask(device, shapes.bias)
                     : additive_mask(device, shapes.bias, random_field_tensor(device, seed, "bias", shapes.bias.shape));
  return problem;
}
inline ExactProblem exact_problem(FieldDevice& device, const AttentionDraw& draw) {
  return exact_problem(device, draw.problem(), draw.additive == 0, draw.seed);
}

// Keys, values and mask in another order.
inline ExactProblem with_keys_in_order(ExactProblem problem, const Indices& order) {
  problem.k = selected(problem.k, 1, order);
  problem.v = selected(problem.v, 1, order);
  if (problem.mask.defined()) problem.mask = selected(problem.mask, 3, order);
  return problem;
}

// Rank f gets the keys of rank shards[f]; all have equally many.
inline ExactProblem with_shards_in_order(const ExactProblem& problem, const Indices& shards) {
  return with_keys_in_order(problem, keys_in_order_of_shards(problem.key_streams, shards));
}

// ---- runs

// With its axes declared by their sizes; queries and heads are divided like the tensors.
inline AttentionMask declared_mask(const Tensor& values, KeyAxis key_axis) {
  AttentionMask mask{.values = values, .key_axis = key_axis};
  if (!values.defined()) return mask;
  mask.head_axis = values.size(1) == 1 ? HeadAxis::one : HeadAxis::all;
  mask.query_axis = values.size(2) == 1 ? QueryAxis::one : QueryAxis::local;
  return mask;
}

// out in "field", after the one cast; lse as masses.
inline AttentionResult exact_dense(const ExactProblem& problem) {
  return attention(problem.q, problem.k, problem.v, declared_mask(problem.mask, KeyAxis::global),
                   {.scale = problem.scale, .return_lse = true}, nullptr);
}

// What a rank has of a problem, in flat order: tokens of queries and keys, and how the mask is divided.
struct ExactShares {
  std::vector<Indices> queries, keys;
  KeyAxis key_axis = KeyAxis::local;

  static ExactShares of(const ExactProblem& problem, const ModeDraw& mode, KeyAxis key_axis) {
    return {pieces_of(problem.query_streams, mode.ranks()), pieces_of(problem.key_streams, mode.ranks()), key_axis};
  }
};

inline AttentionResult exact_on_rank(const ExactProblem& problem, const ExactShares& shares,
                                     const ContextParallelState& state) {
  const auto flat = static_cast<std::size_t>(state.flat().rank());
  AttentionMask mask = declared_mask(problem.mask, shares.key_axis);
  if (mask.values.defined()) {
    mask.values =
        selected(mask.values, 3, shares.key_axis == KeyAxis::local ? shares.keys[flat] : rank_major(shares.keys));
    if (mask.query_axis == QueryAxis::local) mask.values = selected(mask.values, 2, shares.queries[flat]);
  }
  return attention(selected(problem.q, 1, shares.queries[flat]), selected(problem.k, 1, shares.keys[flat]),
                   selected(problem.v, 1, shares.keys[flat]), mask, {.scale = problem.scale, .return_lse = true},
                   &state);
}

inline SimulationOptions options_of(const ModeDraw& mode) {
  return {.world_size = mode.ranks(), .schedule_seed = mode.schedule_seed, .workers = 1 + mode.workers};
}
inline GatherForm gather_form_of(const ModeDraw& mode) {
  return mode.padded == 0 ? GatherForm::ragged : GatherForm::padded;
}

// Calls one after the other under one state; what all ranks returned for each, in dense order.
inline std::vector<AttentionResult> exact_calls(const std::vector<ExactProblem>& problems,
                                                const std::vector<ExactShares>& shares, const ModeDraw& mode,
                                                const ContextParallelConfig& config) {
  std::vector<std::vector<AttentionResult>> by_flat_rank(static_cast<std::size_t>(mode.ranks()));
  run_ranks(options_of(mode), [&](Communicator& world) {
    world.set_gather_form(gather_form_of(mode));
    const ContextParallelState state(world, config);
    std::vector<AttentionResult>& own = by_flat_rank[static_cast<std::size_t>(state.flat().rank())];
    for (std::size_t i = 0; i < problems.size(); ++i) own.push_back(exact_on_rank(problems[i], shares[i], state));
  });
  std::vector<AttentionResult> results;
  for (std::size_t call = 0; call < problems.size(); ++call) {
    std::vector<Tensor> outs, masses;
    for (const auto& own : by_flat_rank) {
      outs.push_back(own[call].out);
      masses.push_back(own[call].lse);
    }
    const Indices order = rank_major(shares[call].queries);
    Indices place(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      place[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    results.push_back({selected(ops::concat(outs, 1), 1, place), selected(ops::concat(masses, 1), 1, place)});
  }
  return results;
}

inline AttentionResult exact_parallel(const ExactProblem& problem, const AttentionDraw& draw) {
  return exact_calls({problem}, {ExactShares::of(problem, draw.mode, draw.key_axis())}, draw.mode, draw.mode.config())
      .front();
}

inline bool same(const AttentionResult& actual, const AttentionResult& expected) {
  return same("output", actual.out, expected.out) && same("masses", actual.lse, expected.lse);
}

}  // namespace shardproof::test
