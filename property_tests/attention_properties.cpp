// Laws of attention under context parallelism in float64: P1, P7, P10 to P20 and P23 of the verification specification,
// section 7. Tolerance: rows have at most 200 keys and logits below 20 (120 where a bias is added), so a result is off
// by less than 200 * 20 * 2^-53 = 5e-13 of the largest value, and a law that does not hold is off by more than 1e-6.
#include <cmath>
#include <limits>
#include <numeric>

#include "core/ops.h"
#include "parallel/attention.h"
#include "parallel/softmax_merge.h"
#include "property_tests/generators.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"

namespace shardproof::test {
namespace {

constexpr double kTolerance = 1e-12;
constexpr double kNever = -std::numeric_limits<double>::infinity();

Device& device() {
  static const std::unique_ptr<Device> kDevice = make_reference_device(kFloat64);
  return *kDevice;
}

DenseAttention whole_result(const AttentionProblem& problem, const AttentionRun& run) {
  return assembled(problem, run_parallel(problem, run));
}

double difference(const DenseAttention& a, const DenseAttention& b) {
  return std::max(max_difference(a.out, b.out) / std::max(1.0, max_magnitude(b.out)),
                  max_difference(a.lse, b.lse) / std::max(1.0, max_magnitude(b.lse)));
}

HostArray plus(HostArray array, double constant) {
  for (double& value : array.values) value += constant;
  return array;
}

// An additive mask, zeros where there was none.
HostArray bias_of(const AttentionProblem& problem) {
  return problem.bias.empty() ? HostArray({1, 1, 1, problem.keys()}) : problem.bias;
}

// Keys, values and mask in another order.
AttentionProblem with_keys_in_order(AttentionProblem problem, const Indices& order) {
  problem.k = selected(problem.k, 1, order);
  problem.v = selected(problem.v, 1, order);
  if (!problem.bias.empty()) problem.bias = selected(problem.bias, 3, order);
  return problem;
}

// Rank f gets the keys of rank shards[f]; all have equally many.
AttentionProblem with_shards_in_order(const AttentionProblem& problem, const Indices& shards) {
  return with_keys_in_order(problem, keys_in_order_of_shards(problem.key_streams, shards));
}

RC_GTEST_PROP(Attention, P1_ParallelEqualsDenseOnAllRanks, ()) {
  const AttentionDraw draw = *any_attention();
  const AttentionProblem problem = draw.problem();
  RC_ASSERT(worst_difference(problem, problem.dense(), run_parallel(problem, draw.run(device()))) <= kTolerance);
}

RC_GTEST_PROP(Attention, P7_NoPoisonReachesAnOutput, ()) {
  AttentionDraw draw = *any_attention();
  draw.mode.padded = 1;
  const DenseAttention result = whole_result(draw.problem(), draw.run(device()));
  for (const double value : result.out.values) RC_ASSERT(std::isfinite(value));
  for (const double value : result.lse.values) RC_ASSERT(std::isfinite(value) || value == kNever);
}

// ---- P10: traffic

struct Traffic {
  std::int64_t all_to_all = 0, all_gather = 0, exchange = 0, sizes = 0, bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Traffic& t) {
    return out << t.all_to_all << " all_to_all, " << t.all_gather << " all_gather, " << t.exchange << " exchange, "
               << t.sizes << " sizes, " << t.bytes << " bytes";
  }
};

// The prediction of the parallelism specification, section 9, from lengths alone.
class Prediction {
 public:
  Prediction(const AttentionDraw& draw, const AttentionProblem& problem, int rank)
      : draw_(draw), problem_(problem), u_(rank % draw.mode.ulysses()), r_(rank / draw.mode.ulysses()) {
    const int ranks = draw.mode.ranks();
    for (const Indices& piece : pieces_of(problem.query_streams, ranks)) queries_.push_back(std::ssize(piece));
    for (const Indices& piece : pieces_of(problem.key_streams, ranks)) keys_.push_back(std::ssize(piece));
    const std::int64_t block = (problem.heads() + draw.mode.ulysses() - 1) / draw.mode.ulysses();
    block_ = block;
    own_heads_ = std::min(block, problem.heads() - u_ * block);
  }
  Traffic traffic() {
    if (draw_.mode.ulysses() > 1) add_ulysses();
    if (draw_.mode.ring() > 1) add_ring();
    return traffic_;
  }

 private:
  std::int64_t at(const Indices& lengths, int ring, int ulysses) const {
    return lengths[static_cast<std::size_t>(ring * draw_.mode.ulysses() + ulysses)];
  }
  std::int64_t chunk(int ring) const {
    std::int64_t sum = 0;
    for (int u = 0; u < draw_.mode.ulysses(); ++u) sum += at(keys_, ring, u);
    return sum;
  }
  // Rows that a member sends to each other one in a gather.
  std::int64_t gathered_rows(const std::vector<std::int64_t>& rows, int own) const {
    const bool padded = draw_.mode.padded != 0;
    return padded ? *std::max_element(rows.begin(), rows.end()) : rows[static_cast<std::size_t>(own)];
  }
  std::int64_t element() const { return draw_.additive == 0 ? 1 : 8; }
  bool has_local_mask() const { return !problem_.bias.empty() && draw_.key_axis() == KeyAxis::local; }
  bool has_query_rows() const { return !problem_.bias.empty() && problem_.bias.shape[2] > 1; }

  void add_ulysses() {
    const int others = draw_.mode.ulysses() - 1;
    const std::int64_t head_row = problem_.batch() * block_ * problem_.q.shape[3] * 8;
    const std::int64_t lse_row = problem_.batch() * block_ * 8;
    std::int64_t back = 0;
    std::vector<std::int64_t> query_rows, key_rows;
    for (int u = 0; u < draw_.mode.ulysses(); ++u) {
      query_rows.push_back(at(queries_, r_, u));
      key_rows.push_back(at(keys_, r_, u));
      if (u != u_) back += query_rows.back();
    }
    traffic_.all_to_all = 5;
    traffic_.bytes += others * (at(queries_, r_, u_) + 2 * at(keys_, r_, u_)) * head_row + back * (head_row + lse_row);
    if (draw_.mode.is_anything()) traffic_.sizes += 2;
    const std::int64_t mask_heads = problem_.bias.empty() ? 0 : problem_.bias.shape[0] * problem_.bias.shape[1];
    if (has_local_mask()) {
      ++traffic_.all_gather;
      traffic_.bytes += others * gathered_rows(key_rows, u_) * mask_heads * element();
    }
    if (has_query_rows()) {
      ++traffic_.all_gather;
      traffic_.bytes += others * gathered_rows(query_rows, u_) * mask_heads * problem_.keys() * element();
    }
  }

  void add_ring() {
    const int ring = draw_.mode.ring();
    const std::int64_t row = 2 * problem_.batch() * own_heads_ * problem_.q.shape[3] * 8;
    const bool by_head = has_local_mask() && problem_.bias.shape[1] > 1;
    const std::int64_t mask_row =
        has_local_mask() ? problem_.bias.shape[0] * (by_head ? own_heads_ : 1) * element() : 0;
    std::vector<std::int64_t> chunks;
    for (int r = 0; r < ring; ++r) chunks.push_back(chunk(r));
    const int messages = has_local_mask() ? 2 : 1;
    if (draw_.mode.is_anything()) ++traffic_.sizes;
    if (draw_.mode.rotate == 0) {
      traffic_.all_gather += messages;
      traffic_.bytes += (ring - 1) * gathered_rows(chunks, r_) * (row + mask_row);
      return;
    }
    traffic_.exchange += (ring - 1) * messages;
    for (int step = 0; step + 1 < ring; ++step) {
      traffic_.bytes += chunks[static_cast<std::size_t>((r_ + step) % ring)] * (row + mask_row);
    }
  }

  const AttentionDraw& draw_;
  const AttentionProblem& problem_;
  int u_, r_;
  Indices queries_, keys_;
  std::int64_t block_ = 0, own_heads_ = 0;
  Traffic traffic_;
};

RC_GTEST_PROP(Attention, P10_NumberAndBytesOfCollectivesAreAsPredicted, ()) {
  const AttentionDraw draw = *any_attention();
  const AttentionProblem problem = draw.problem();
  const ParallelAttention result = run_parallel(problem, draw.run(device()));
  for (int rank = 0; rank < draw.mode.ranks(); ++rank) {
    const RankStatistics& own = result.report.ranks[static_cast<std::size_t>(rank)];
    const Traffic observed{own.calls_of(Operation::all_to_all), own.calls_of(Operation::all_gather),
                           own.calls_of(Operation::exchange), own.calls_of(Operation::all_gather_numbers),
                           own.bytes_sent};
    RC_ASSERT(observed == Prediction(draw, problem, rank).traffic());
  }
}

// ---- order and partition of keys

// Another start is a rotation of the chunks, another direction their reversal.
RC_GTEST_PROP(Attention, P11_ARingDependsOnNeitherStartNorDirectionAndBothRotationsGiveTheSameBits, ()) {
  AttentionDraw draw = *any_attention(any_ring());
  draw.mode.mode = static_cast<int>(Mode::ring);
  const int ring = draw.mode.ring();
  const int start = *rc::gen::inRange(0, ring);
  const bool reversed = *rc::gen::arbitrary<bool>();
  const AttentionProblem problem = draw.problem();
  Indices shards(static_cast<std::size_t>(ring));
  for (int rank = 0; rank < ring; ++rank) {
    shards[static_cast<std::size_t>(rank)] = (start + (reversed ? ring - rank : rank)) % ring;
  }
  AttentionRun run = draw.run(device());
  const ParallelAttention plain = run_parallel(problem, run);
  const AttentionProblem turned = with_shards_in_order(problem, shards);
  RC_ASSERT(difference(whole_result(turned, run), assembled(problem, plain)) <= kTolerance);
  run.config.rotate_method = run.config.rotate_method == "allgather" ? "alltoall" : "allgather";
  const ParallelAttention other = run_parallel(problem, run);
  for (std::size_t rank = 0; rank < plain.ranks.size(); ++rank) {
    RC_ASSERT(bitwise_equal(plain.ranks[rank].out, other.ranks[rank].out));
    RC_ASSERT(bitwise_equal(plain.ranks[rank].lse, other.ranks[rank].lse));
  }
}

RC_GTEST_PROP(Attention, P12_APermutationOfTheKeyShardsChangesNothing, ()) {
  const AttentionDraw draw = *any_attention(any_equal_mode());
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const AttentionProblem problem = draw.problem();
  const AttentionProblem permuted = with_shards_in_order(problem, permutation(draw.mode.ranks(), seed));
  RC_ASSERT(difference(whole_result(permuted, draw.run(device())), whole_result(problem, draw.run(device()))) <=
            kTolerance);
}

// Results of disjoint sets of keys, some empty, with log-sum-exps far apart.
AttentionOutput partial(std::uint64_t seed, std::string_view name) {
  HostArray lse = random_array({2, 3, 2}, seed, std::string(name) + " lse", 20.0);
  HostArray out = random_array({2, 3, 2, 2}, seed, std::string(name) + " out");
  const RandomStream stream(seed, name);
  for (std::size_t i = 0; i < lse.values.size(); ++i) {
    if (stream.below(i, 4) > 0) continue;
    lse.values[i] = kNever;
    out.values[2 * i] = out.values[2 * i + 1] = 0.0;
  }
  return {to_device(device(), out, kFloat64), to_device(device(), lse, kFloat64)};
}

double difference(const AttentionOutput& a, const AttentionOutput& b) {
  return difference(DenseAttention{to_host(a.out), to_host(a.lse)}, DenseAttention{to_host(b.out), to_host(b.lse)});
}

RC_GTEST_PROP(Merge, P13_IsAssociativeAndCommutativeWithTheEmptySetAsIdentity, ()) {
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const AttentionOutput a = partial(seed, "a"), b = partial(seed, "b"), c = partial(seed, "c");
  RC_ASSERT(difference(merge_softmax(merge_softmax(a, b), c), merge_softmax(a, merge_softmax(b, c))) <= kTolerance);
  RC_ASSERT(difference(merge_softmax(a, b), merge_softmax(b, a)) <= kTolerance);
  const AttentionOutput empty{ops::zeros(device(), {2, 3, 2, 2}, kFloat64),
                              ops::full(device(), {2, 3, 2}, kFloat64, kNever)};
  RC_ASSERT(bitwise_equal(merge_softmax(a, empty).lse, a.lse));
  RC_ASSERT(difference(merge_softmax(a, empty), a) == 0.0);
  RC_ASSERT(difference(merge_softmax(empty, a), a) == 0.0);
}

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

// Ranks hold any numbers of queries and keys, none among them, with and without a mask that travels with the keys.
RC_GTEST_PROP(Attention, P14_AnyPartitionOfTheKeysGivesTheSame, ()) {
  const ModeDraw mode = *any_anything_mode();
  const auto ranks = static_cast<std::size_t>(mode.ranks());
  const auto any_parts = rc::gen::container<std::vector<std::int64_t>>(ranks, rc::gen::inRange<std::int64_t>(0, 5));
  const std::vector<std::int64_t> query_lengths = *any_parts, key_lengths = *any_parts;
  const std::int64_t block = *rc::gen::inRange(0, 3), last = *rc::gen::inRange(0, 3);
  const bool masked = *rc::gen::arbitrary<bool>();
  AttentionProblem problem = random_problem({.batch = 2,
                                             .heads = mode.heads(static_cast<int>(block), static_cast<int>(last)),
                                             .width = 3,
                                             .streams = {total(query_lengths)},
                                             .key_streams = {total(key_lengths)}},
                                            *rc::gen::inRange<std::uint64_t>(0, 1000));
  if (masked) problem.bias = key_bias(problem, [](std::int64_t b, std::int64_t key) { return (key + b) % 3 != 0; });
  const DenseAttention dense = problem.dense();
  const std::vector<Indices> queries = runs_of(query_lengths), keys = runs_of(key_lengths);
  const SimulationOptions options{
      .world_size = mode.ranks(), .schedule_seed = mode.schedule_seed, .workers = 1 + mode.workers};
  const auto results = rank_results(options, [&](Communicator& world) {
    world.set_gather_form(mode.padded == 0 ? GatherForm::ragged : GatherForm::padded);
    const ContextParallelState state(world, mode.config());
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto part = [&](const HostArray& x, int axis, const Indices& tokens) {
      return to_device(device(), selected(x, axis, tokens), kFloat64);
    };
    const AttentionMask mask{.values = masked ? part(problem.bias, 3, keys[rank]) : Tensor()};
    return attention(part(problem.q, 1, queries[rank]), part(problem.k, 1, keys[rank]), part(problem.v, 1, keys[rank]),
                     mask, {.scale = problem.scale, .return_lse = true}, &state);
  });
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    RC_ASSERT(max_difference(to_host(results[rank].out), selected(dense.out, 1, queries[rank])) <= 10 * kTolerance);
    RC_ASSERT(max_difference(to_host(results[rank].lse), selected(dense.lse, 1, queries[rank])) <= 10 * kTolerance);
  }
}

// ---- degrees and modes

RC_GTEST_PROP(Attention, P15_EveryDegreeAndModeGivesTheSame, ()) {
  constexpr int kRanks[] = {2, 3, 4, 6};
  const int ranks = kRanks[*rc::gen::inRange(0, 4)];
  AttentionDraw draw = *any_attention();
  AttentionProblem problem = random_problem({.batch = 1 + draw.batch,
                                             .heads = ranks * (1 + draw.head_block % 2),
                                             .width = 1 + draw.width,
                                             .streams = {ranks * (1 + draw.text % 3), ranks * (1 + draw.image % 3)}},
                                            draw.seed);
  problem.bias = key_bias(problem, [](std::int64_t b, std::int64_t key) { return (key + b) % 3 != 0; });
  const AttentionRun base = draw.run(device());
  const auto run_of = [&](const ContextParallelConfig& config) {
    AttentionRun run = base;
    run.config = config;
    run.key_axis = KeyAxis::local;
    return whole_result(problem, run);
  };
  const DenseAttention one = problem.dense();
  RC_ASSERT(difference(run_of(ulysses_config(ranks)), one) <= kTolerance);
  RC_ASSERT(difference(run_of(ulysses_config(ranks, Lengths::anything)), one) <= kTolerance);
  for (const char* rotate_method : {"allgather", "alltoall"}) {
    RC_ASSERT(difference(run_of(ring_config(ranks, rotate_method)), one) <= kTolerance);
    RC_ASSERT(difference(run_of(ring_config(ranks, rotate_method, Lengths::anything)), one) <= kTolerance);
    for (int ring = 2; ring < ranks; ++ring) {
      if (ranks % ring != 0) continue;
      RC_ASSERT(difference(run_of(unified_config(ring, ranks / ring, rotate_method)), one) <= kTolerance);
    }
  }
}

// ---- metamorphic relations

RC_GTEST_PROP(Attention, P16_AConstantBiasOnlyShiftsTheLogSumExp, ()) {
  AttentionDraw draw = *any_attention();
  draw.additive = 1;
  const double constant = *rc::gen::inRange(-100, 101);
  AttentionProblem problem = draw.problem();
  DenseAttention expected = whole_result(problem, draw.run(device()));
  expected.lse = plus(expected.lse, constant);
  problem.bias = plus(bias_of(problem), constant);
  RC_ASSERT(difference(whole_result(problem, draw.run(device())), expected) <= kTolerance);
}

RC_GTEST_PROP(Attention, P17_AppendingMaskedKeysChangesNothing, ()) {
  const AttentionDraw draw = *any_attention();
  const std::int64_t more = draw.mode.length(*rc::gen::inRange(0, 4));
  const AttentionProblem problem = draw.problem();
  AttentionProblem longer = problem;
  const HostArray bias = bias_of(problem);
  Shape masked = bias.shape;
  masked[3] = more;
  const Shape extra{problem.batch(), more, problem.heads(), problem.q.shape[3]};
  longer.key_streams.push_back(more);
  longer.k = joined(problem.k, random_array(extra, draw.seed, "more keys", 10.0), 1);
  longer.v = joined(problem.v, random_array(extra, draw.seed, "more values", 1000.0), 1);
  longer.bias = joined(bias, HostArray(masked, kNever), 3);
  RC_ASSERT(difference(whole_result(longer, draw.run(device())), whole_result(problem, draw.run(device()))) <=
            kTolerance);
}

RC_GTEST_PROP(Attention, P18_DuplicatingAllKeysOnlyShiftsTheLogSumExp, ()) {
  const AttentionDraw draw = *any_attention();
  const int copies = 2 + *rc::gen::inRange(0, 3);
  const AttentionProblem problem = draw.problem();
  AttentionProblem longer = problem;
  for (int copy = 1; copy < copies; ++copy) {
    longer.key_streams.insert(longer.key_streams.end(), problem.key_streams.begin(), problem.key_streams.end());
    longer.k = joined(longer.k, problem.k, 1);
    longer.v = joined(longer.v, problem.v, 1);
    if (!problem.bias.empty()) longer.bias = joined(longer.bias, problem.bias, 3);
  }
  DenseAttention expected = whole_result(problem, draw.run(device()));
  expected.lse = plus(expected.lse, std::log(copies));
  RC_ASSERT(difference(whole_result(longer, draw.run(device())), expected) <= kTolerance);
}

RC_GTEST_PROP(Attention, P19_PermutingItemsOrHeadsPermutesTheOutputs, ()) {
  const AttentionDraw draw = *any_attention();
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const AttentionProblem problem = draw.problem();
  const DenseAttention plain = whole_result(problem, draw.run(device()));
  const Indices items = permutation(problem.batch(), seed), heads = permutation(problem.heads(), seed);
  const auto permuted = [&](const HostArray& x) { return selected(selected(x, 0, items), 2, heads); };
  AttentionProblem other = problem;
  other.q = permuted(problem.q);
  other.k = permuted(problem.k);
  other.v = permuted(problem.v);
  if (!other.bias.empty() && other.bias.shape[0] > 1) other.bias = selected(other.bias, 0, items);
  if (!other.bias.empty() && other.bias.shape[1] > 1) other.bias = selected(other.bias, 1, heads);
  RC_ASSERT(difference(whole_result(other, draw.run(device())), {permuted(plain.out), permuted(plain.lse)}) <=
            kTolerance);
}

RC_GTEST_PROP(Attention, P20_IsLinearInTheValuesAndItsWeightsSumToOne, ()) {
  const AttentionDraw draw = *any_attention();
  const double factor = *rc::gen::inRange(-5, 6);
  AttentionProblem first = draw.problem(), second = first, sum = first, ones = first;
  second.v = random_array(first.v.shape, draw.seed, "other values");
  for (std::size_t i = 0; i < sum.v.values.size(); ++i) sum.v.values[i] += factor * second.v.values[i];
  ones.v = HostArray(ones.v.shape, 1.0);
  const AttentionRun run = draw.run(device());
  DenseAttention expected = whole_result(first, run);
  const DenseAttention other = whole_result(second, run);
  for (std::size_t i = 0; i < expected.out.values.size(); ++i) {
    expected.out.values[i] += factor * other.out.values[i];
  }
  RC_ASSERT(difference(whole_result(sum, run), expected) <= kTolerance);
  const DenseAttention weights = whole_result(ones, run);
  for (std::size_t i = 0; i < weights.out.values.size(); ++i) {
    const bool has_keys = weights.lse.values[i / static_cast<std::size_t>(ones.q.shape[3])] != kNever;
    RC_ASSERT(std::abs(weights.out.values[i] - (has_keys ? 1.0 : 0.0)) <= kTolerance);
  }
}

RC_GTEST_PROP(Attention, P23_SuccessiveCallsOfDifferentShapesAreLikeFreshOnes, ()) {
  const AttentionDraw first = *any_attention();
  AttentionDraw second = *any_attention(rc::gen::just(first.mode));
  const std::vector<const AttentionDraw*> draws{&first, &second, &first};
  const SimulationOptions options{
      .world_size = first.mode.ranks(), .schedule_seed = first.mode.schedule_seed, .workers = 1 + first.mode.workers};
  const auto results = rank_results(options, [&](Communicator& world) {
    world.set_gather_form(first.mode.padded == 0 ? GatherForm::ragged : GatherForm::padded);
    const ContextParallelState state(world, first.mode.config());
    std::vector<AttentionResult> calls;
    for (const AttentionDraw* draw : draws) {
      const AttentionProblem problem = draw->problem();
      calls.push_back(attend_on_rank(problem, draw->run(device()), state, to_device(device(), problem.q, kFloat64),
                                     to_device(device(), problem.k, kFloat64),
                                     to_device(device(), problem.v, kFloat64)));
    }
    return calls;
  });
  for (std::size_t call = 0; call < draws.size(); ++call) {
    const ParallelAttention fresh = run_parallel(draws[call]->problem(), draws[call]->run(device()));
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      RC_ASSERT(bitwise_equal(results[rank][call].out, fresh.ranks[rank].out));
      RC_ASSERT(bitwise_equal(results[rank][call].lse, fresh.ranks[rank].lse));
    }
  }
}

}  // namespace
}  // namespace shardproof::test
