// Laws of attention under context parallelism in exact arithmetic: P1, P7, P11 to P20 and P23 of the verification
// specification, section 7. Operands, finite biases and factors are uniform residues; equal means every element, in
// both residues. The float64 laws of the same numbers stand in attention_properties.cpp.
#include <algorithm>
#include <numeric>

#include "parallel/softmax_merge.h"
#include "property_tests/exact_attention.h"

namespace shardproof::test {
namespace {

RC_GTEST_PROP(ExactAttention, P1_ParallelEqualsDenseOnAllRanks, ()) {
  const AttentionDraw draw = *any_attention();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, draw);
    return same(exact_parallel(problem, draw), exact_dense(problem));
  }));
}

// Receive buffers and pads are poison until they are written, and poison spreads through every operation.
RC_GTEST_PROP(ExactAttention, P7_NoPoisonReachesAnOutput, ()) {
  AttentionDraw draw = *any_attention();
  draw.mode.padded = 1;
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const AttentionResult result = exact_parallel(exact_problem(device, draw), draw);
    return !holds_poison(result.out) && !holds_poison(result.lse);
  }));
}

// ---- order and partition of keys

// Another start is a rotation of the chunks, another direction their reversal.
RC_GTEST_PROP(ExactAttention, P11_ARingDependsOnNeitherStartNorDirectionNorRotation, ()) {
  AttentionDraw draw = *any_attention(any_ring());
  draw.mode.mode = static_cast<int>(Mode::ring);
  const int ring = draw.mode.ring();
  const int start = *rc::gen::inRange(0, ring);
  const bool reversed = *rc::gen::arbitrary<bool>();
  Indices shards(static_cast<std::size_t>(ring));
  for (int rank = 0; rank < ring; ++rank) {
    shards[static_cast<std::size_t>(rank)] = (start + (reversed ? ring - rank : rank)) % ring;
  }
  AttentionDraw other = draw;
  other.mode.rotate = 1 - draw.mode.rotate;
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, draw);
    const AttentionResult plain = exact_parallel(problem, draw);
    return same(exact_parallel(with_shards_in_order(problem, shards), draw), plain) &&
           same(exact_parallel(problem, other), plain);
  }));
}

RC_GTEST_PROP(ExactAttention, P12_APermutationOfTheKeyShardsChangesNothing, ()) {
  const AttentionDraw draw = *any_attention(any_equal_mode());
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const Indices order = permutation(draw.mode.ranks(), seed);
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, draw);
    return same(exact_parallel(with_shards_in_order(problem, order), draw), exact_parallel(problem, draw));
  }));
}

bool same_partials(const AttentionOutput& actual, const AttentionOutput& expected) {
  return same("outputs", actual.out, expected.out) && same("masses", actual.lse, expected.lse);
}

// Results of any numbers of keys, none among them, before the one cast.
RC_GTEST_PROP(ExactMerge, P13_IsAssociativeAndCommutativeWithTheEmptySetAsIdentity, ()) {
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const auto lengths = *rc::gen::container<std::vector<std::int64_t>>(3, rc::gen::inRange<std::int64_t>(0, 4));
  RC_ASSERT(holds_exactly(seed, [&](FieldDevice& device) {
    const Tensor q = random_field_tensor(device, seed, "q", {2, 3, 2, 4});
    const auto rows = [&](std::string_view name, std::int64_t n) {
      return random_field_tensor(device, seed, name, {2, n, 2, 4});
    };
    std::vector<Tensor> keys, values;
    std::vector<AttentionOutput> parts;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      keys.push_back(rows("k" + std::to_string(i), lengths[i]));
      values.push_back(rows("v" + std::to_string(i), lengths[i]));
      parts.push_back(ops::attention(q, keys.back(), values.back(), {}, 0.5));
    }
    const AttentionOutput &a = parts[0], &b = parts[1], &c = parts[2];
    const AttentionOutput all = ops::attention(q, ops::concat(keys, 1), ops::concat(values, 1), {}, 0.5);
    const AttentionOutput empty{ops::zeros(device, a.out.shape(), field_wide_dtype()),
                                ops::full(device, a.lse.shape(), field_log_dtype(), kNever)};
    return same_partials(merge_softmax(merge_softmax(a, b), c), all) &&
           same_partials(merge_softmax(a, merge_softmax(b, c)), all) &&
           same_partials(merge_softmax(a, b), merge_softmax(b, a)) && same_partials(merge_softmax(a, empty), a) &&
           same_partials(merge_softmax(empty, a), a);
  }));
}

// Ranks hold any numbers of queries and keys, none among them, with and without a mask that travels with the keys.
RC_GTEST_PROP(ExactAttention, P14_AnyPartitionOfTheKeysGivesTheSame, ()) {
  const ModeDraw mode = *any_anything_mode();
  const auto ranks = static_cast<std::size_t>(mode.ranks());
  const auto any_parts = rc::gen::container<std::vector<std::int64_t>>(ranks, rc::gen::inRange<std::int64_t>(0, 5));
  const std::vector<std::int64_t> query_lengths = *any_parts, key_lengths = *any_parts;
  const int block = *rc::gen::inRange(0, 3), last = *rc::gen::inRange(0, 3);
  const bool masked = *rc::gen::arbitrary<bool>(), is_boolean = *rc::gen::arbitrary<bool>();
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const auto total = [](const std::vector<std::int64_t>& n) { return std::accumulate(n.begin(), n.end(), 0L); };
  AttentionProblem shapes = random_problem({.batch = 2,
                                            .heads = mode.heads(block, last),
                                            .width = 3,
                                            .streams = {total(query_lengths)},
                                            .key_streams = {total(key_lengths)}},
                                           seed);
  if (masked) shapes.bias = key_bias(shapes, [](std::int64_t b, std::int64_t key) { return (key + b) % 3 != 0; });
  const ExactShares shares{runs_of(query_lengths), runs_of(key_lengths), KeyAxis::local};
  RC_ASSERT(holds_exactly(seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, shapes, is_boolean, seed);
    return same(exact_calls({problem}, {shares}, mode, mode.config()).front(), exact_dense(problem));
  }));
}

// ---- degrees and modes

// Drawn masks, on as many ranks in every mode that the number allows.
RC_GTEST_PROP(ExactAttention, P15_EveryDegreeAndModeGivesTheSame, ()) {
  constexpr int kRanks[] = {2, 3, 4, 6};
  const int ranks = kRanks[*rc::gen::inRange(0, 4)];
  AttentionDraw draw = *any_attention();
  draw.mode.degree = ranks - 2;
  AttentionDraw equal = draw;  // lengths and heads that every mode takes
  equal.mode.mode = static_cast<int>(Mode::ulysses);
  const AttentionProblem shapes = equal.problem();
  std::vector<ContextParallelConfig> configs{ulysses_config(ranks), ulysses_config(ranks, Lengths::anything),
                                             ring_config(ranks, "allgather"),
                                             ring_config(ranks, "alltoall", Lengths::anything)};
  if (ranks % 2 == 0 && ranks > 2) configs.push_back(unified_config(2, ranks / 2, "alltoall"));
  if (ranks % 2 == 0 && ranks > 2) configs.push_back(unified_config(ranks / 2, 2, "allgather"));
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, shapes, draw.additive == 0, draw.seed);
    const AttentionResult one = exact_dense(problem);
    const ExactShares shares = ExactShares::of(problem, equal.mode, equal.key_axis());
    return std::all_of(configs.begin(), configs.end(), [&](const ContextParallelConfig& config) {
      return same(exact_calls({problem}, {shares}, equal.mode, config).front(), one);
    });
  }));
}

// ---- what changes nothing, or shifts the masses only

// True if the masses of `actual` are those of `expected` times `factors`, and the outputs are equal. One factor for
// all, or one for each.
bool same_but_for_masses(const AttentionResult& actual, const AttentionResult& expected,
                         const std::vector<field::Value>& factors) {
  std::vector<field::Value> masses = field_elements(expected.lse);
  for (std::size_t i = 0; i < masses.size(); ++i) {
    masses[i].a = field::multiply_p(masses[i].a, factors[factors.size() == 1 ? 0 : i].a);
  }
  return same("output", actual.out, expected.out) && !holds_poison(actual.lse) && field_elements(actual.lse) == masses;
}

// The shift is a drawn residue; the masses grow by g to its power, which is the mass of one key with that logit.
RC_GTEST_PROP(ExactAttention, P16_AConstantBiasOnlyMultipliesTheMasses, ()) {
  AttentionDraw draw = *any_attention();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactProblem problem = exact_problem(device, draw);
    if (problem.bias.empty()) problem.bias = HostArray({1, 1, 1, problem.keys()});
    const Tensor finite = random_field_tensor(device, draw.seed, "biases", problem.bias.shape);
    const Tensor shift = random_field_tensor(device, draw.seed, "shift", {1, 1, 1, 1});
    problem.mask = additive_mask(device, problem.bias, finite);
    ExactProblem shifted = problem;
    shifted.mask = additive_mask(device, problem.bias, ops::add(finite, shift));
    const Tensor zero = ops::zeros(device, {1, 1, 1, 1}, field_dtype());
    return same_but_for_masses(exact_parallel(shifted, draw), exact_parallel(problem, draw),
                               field_elements(ops::attention(zero, zero, zero, shift, 1.0).lse));
  }));
}

// One direction is added to all keys of a head: every logit of a query grows by the same.
RC_GTEST_PROP(ExactAttention, P16_ACommonDirectionInTheKeysOnlyMultipliesTheMasses, ()) {
  const AttentionDraw draw = *any_attention();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, draw);
    const Shape one_key{problem.batch(), 1, problem.heads(), problem.width()};
    const Tensor direction = random_field_tensor(device, draw.seed, "direction", one_key);
    ExactProblem shifted = problem;
    shifted.k = ops::add(problem.k, direction);
    return same_but_for_masses(exact_parallel(shifted, draw), exact_parallel(problem, draw),
                               field_elements(ops::attention(problem.q, direction, direction, {}, problem.scale).lse));
  }));
}

RC_GTEST_PROP(ExactAttention, P17_AppendingMaskedKeysChangesNothing, ()) {
  const AttentionDraw draw = *any_attention();
  const std::int64_t more = draw.mode.length(*rc::gen::inRange(0, 8));
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactProblem problem = exact_problem(device, draw);
    if (!problem.mask.defined()) problem.mask = boolean_mask(device, HostArray({1, 1, 1, problem.keys()}));
    ExactProblem longer = problem;
    const Shape rows{problem.batch(), more, problem.heads(), problem.width()};
    Shape never = problem.mask.shape();
    never[3] = more;
    longer.key_streams.push_back(more);
    longer.k = ops::concat({problem.k, random_field_tensor(device, draw.seed, "more k", rows)}, 1);
    longer.v = ops::concat({problem.v, random_field_tensor(device, draw.seed, "more v", rows)}, 1);
    const bool is_boolean = problem.mask.dtype() == kBool;
    longer.mask =
        ops::concat({problem.mask, ops::full(device, never, problem.mask.dtype(), is_boolean ? 0.0 : kNever)}, 3);
    return same(exact_parallel(longer, draw), exact_parallel(problem, draw));
  }));
}

RC_GTEST_PROP(ExactAttention, P18_DuplicatingAllKeysOnlyMultipliesTheMasses, ()) {
  const AttentionDraw draw = *any_attention();
  const int copies = *rc::gen::inRange(2, 5);
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, draw);
    ExactProblem longer = problem;
    for (int copy = 1; copy < copies; ++copy) {
      longer.key_streams.insert(longer.key_streams.end(), problem.key_streams.begin(), problem.key_streams.end());
    }
    longer.k = repeated(problem.k, 1, copies);
    longer.v = repeated(problem.v, 1, copies);
    if (problem.mask.defined()) longer.mask = repeated(problem.mask, 3, copies);
    return same_but_for_masses(exact_parallel(longer, draw), exact_parallel(problem, draw),
                               {field::value_of(static_cast<double>(copies))});
  }));
}

RC_GTEST_PROP(ExactAttention, P19_PermutingItemsOrHeadsPermutesTheOutputs, ()) {
  const AttentionDraw draw = *any_attention();
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    const ExactProblem problem = exact_problem(device, draw);
    const Indices items = permutation(problem.batch(), seed), heads = permutation(problem.heads(), seed);
    const auto permuted = [&](const Tensor& x) { return selected(selected(x, 0, items), 2, heads); };
    ExactProblem other = problem;
    other.q = permuted(problem.q);
    other.k = permuted(problem.k);
    other.v = permuted(problem.v);
    if (other.mask.defined() && other.mask.size(0) > 1) other.mask = selected(other.mask, 0, items);
    if (other.mask.defined() && other.mask.size(1) > 1) other.mask = selected(other.mask, 1, heads);
    const AttentionResult plain = exact_parallel(problem, draw);
    return same(exact_parallel(other, draw), {permuted(plain.out), permuted(plain.lse)});
  }));
}

// The one cast hides sums, so the dense combination is made before it and then cast. The factor is a residue.
RC_GTEST_PROP(ExactAttention, P20_IsLinearInTheValuesBeforeTheCast, ()) {
  const AttentionDraw draw = *any_attention();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactProblem problem = exact_problem(device, draw);
    const Tensor other = random_field_tensor(device, draw.seed, "other v", problem.v.shape());
    const Tensor factor = random_field_tensor(device, draw.seed, "factor", {1, 1, 1, 1});
    const auto before_cast = [&](const Tensor& v) {
      return ops::attention(problem.q, problem.k, v, problem.mask, problem.scale).out;
    };
    const Tensor scaled = ops::multiply(before_cast(other), ops::cast(factor, field_wide_dtype()));
    const Tensor expected = ops::cast(ops::add(before_cast(problem.v), scaled), field_dtype());
    problem.v = ops::add(problem.v, ops::multiply(other, factor));
    return same("output", exact_parallel(problem, draw).out, expected);
  }));
}

// Values of 1 give the cast of exactly 1, or of 0 where a row has no keys.
RC_GTEST_PROP(ExactAttention, P20_WeightsSumToExactlyOne, ()) {
  const AttentionDraw draw = *any_attention();
  RC_ASSERT(holds_exactly(draw.seed, [&](FieldDevice& device) {
    ExactProblem problem = exact_problem(device, draw);
    problem.v = ops::full(device, problem.v.shape(), field_dtype(), 1.0);
    const AttentionResult result = exact_parallel(problem, draw);
    const auto cast_of = [&](double x) {
      return field_elements(ops::cast(ops::full(device, {1}, field_wide_dtype(), x), field_dtype())).front();
    };
    const field::Value one = cast_of(1.0), zero = cast_of(0.0);
    const std::vector<field::Value> out = field_elements(result.out), masses = field_elements(result.lse);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] != (masses[i / static_cast<std::size_t>(problem.width())].a == 0 ? zero : one)) return false;
    }
    return !holds_poison(result.out);
  }));
}

RC_GTEST_PROP(ExactAttention, P23_SuccessiveCallsOfDifferentShapesAreLikeFreshOnes, ()) {
  const AttentionDraw first = *any_attention();
  const AttentionDraw second = *any_attention(rc::gen::just(first.mode));
  RC_ASSERT(holds_exactly(first.seed, [&](FieldDevice& device) {
    std::vector<ExactProblem> problems;
    std::vector<ExactShares> shares;
    for (const AttentionDraw* draw : {&first, &second, &first}) {
      problems.push_back(exact_problem(device, *draw));
      shares.push_back(ExactShares::of(problems.back(), draw->mode, draw->key_axis()));
    }
    const std::vector<AttentionResult> calls = exact_calls(problems, shares, first.mode, first.mode.config());
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const auto fresh = exact_calls({problems[i]}, {shares[i]}, first.mode, first.mode.config());
      if (!same(calls[i], fresh.front()) || !same(calls[i], exact_dense(problems[i]))) return false;
    }
    return true;
  }));
}

}  // namespace
}  // namespace shardproof::test
