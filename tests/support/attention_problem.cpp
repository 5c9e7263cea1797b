#include "tests/support/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/ops.h"
#include "parallel/movement.h"

namespace shardproof::test {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::int64_t total(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// This rank's part of every stream of x [batch, tokens, ..], joined.
Tensor divided(const Tensor& x, const std::vector<std::int64_t>& streams, const ContextParallelState& state) {
  const Division division = state.is_ragged() ? Division::balanced : Division::equal;
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (streams[i] == 0) continue;
    parts.push_back(shard(x.narrow(1, start, streams[i]), 1, state.flat(), division, "stream " + std::to_string(i)));
    start += streams[i];
  }
  return ops::concat(parts, 1);
}

double relative_difference(const HostArray& actual, const HostArray& expected, double magnitude) {
  return max_difference(actual, expected) / std::max(1.0, magnitude);
}

}  // namespace

ContextParallelConfig ulysses_config(int degree, Lengths lengths) {
  return {.ulysses_degree = degree, .ulysses_anything = lengths == Lengths::anything};
}

ContextParallelConfig ring_config(int degree, const std::string& rotate_method, Lengths lengths) {
  return {.ring_degree = degree, .rotate_method = rotate_method, .ring_anything = lengths == Lengths::anything};
}

ContextParallelConfig unified_config(int ring_degree, int ulysses_degree, const std::string& rotate_method) {
  return {.ring_degree = ring_degree, .ulysses_degree = ulysses_degree, .rotate_method = rotate_method};
}

AttentionProblem random_problem(const ProblemShape& shape, std::uint64_t seed) {
  AttentionProblem problem;
  problem.query_streams = shape.streams;
  problem.key_streams = shape.key_streams.empty() ? shape.streams : shape.key_streams;
  const std::int64_t queries = total(problem.query_streams), keys = total(problem.key_streams);
  problem.q = random_array({shape.batch, queries, shape.heads, shape.width}, seed, "q", 3.0);
  problem.k = random_array({shape.batch, keys, shape.heads, shape.width}, seed, "k");
  problem.v = random_array({shape.batch, keys, shape.heads, shape.width}, seed, "v");
  problem.scale = 1.0 / std::sqrt(static_cast<double>(shape.width));
  return problem;
}

HostArray key_bias(const AttentionProblem& problem, const std::function<bool(std::int64_t b, std::int64_t key)>& keep) {
  HostArray bias({problem.batch(), 1, 1, problem.keys()});
  for (std::int64_t b = 0; b < problem.batch(); ++b) {
    for (std::int64_t key = 0; key < problem.keys(); ++key) {
      if (!keep(b, key)) bias.at({b, 0, 0, key}) = kNever;
    }
  }
  return bias;
}

HostArray full_bias(const AttentionProblem& problem,
                    const std::function<bool(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t key)>& keep) {
  HostArray bias({problem.batch(), problem.heads(), problem.queries(), problem.keys()});
  std::size_t i = 0;
  for (std::int64_t b = 0; b < problem.batch(); ++b) {
    for (std::int64_t h = 0; h < problem.heads(); ++h) {
      for (std::int64_t q = 0; q < problem.queries(); ++q) {
        for (std::int64_t key = 0; key < problem.keys(); ++key, ++i) {
          if (!keep(b, h, q, key)) bias.values[i] = kNever;
        }
      }
    }
  }
  return bias;
}

AttentionMask local_mask(const AttentionProblem& problem, const AttentionRun& run, int rank, int ranks) {
  if (problem.bias.empty()) return {};
  const auto flat = static_cast<std::size_t>(rank);
  HostArray values = problem.bias;
  AttentionMask mask{.key_axis = run.key_axis,
                     .query_axis = values.shape[2] == 1 ? QueryAxis::one : QueryAxis::local,
                     .head_axis = values.shape[1] == 1 ? HeadAxis::one : HeadAxis::all};
  if (run.keys == Placement::split) {
    const std::vector<Indices> pieces = pieces_of(problem.key_streams, ranks);
    values = selected(values, 3, run.key_axis == KeyAxis::local ? pieces[flat] : rank_major(pieces));
  }
  if (mask.query_axis == QueryAxis::local) values = selected(values, 2, pieces_of(problem.query_streams, ranks)[flat]);
  if (run.mask_form == MaskForm::boolean) {
    for (double& value : values.values) value = value == kNever ? 0.0 : 1.0;
  }
  mask.values =
      to_device(*run.device, values, run.mask_form == MaskForm::boolean ? kBool : run.mask_dtype.value_or(run.dtype));
  return mask;
}

AttentionResult attend_on_rank(const AttentionProblem& problem, const AttentionRun& run,
                               const ContextParallelState& state, const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool split = run.keys == Placement::split;
  const Tensor own_q = divided(q, problem.query_streams, state);
  const Tensor own_k = split ? divided(k, problem.key_streams, state) : k;
  const Tensor own_v = split ? divided(v, problem.key_streams, state) : v;
  const AttentionMask mask = local_mask(problem, run, state.flat().rank(), state.flat().size());
  const AttentionOptions options{.scale = problem.scale, .return_lse = run.return_lse, .keys = run.keys};
  return attention(own_q, own_k, own_v, mask, options, &state);
}

ParallelAttention run_parallel(const AttentionProblem& problem, const AttentionRun& run) {
  const Tensor q = to_device(*run.device, problem.q, run.dtype);
  const Tensor k = to_device(*run.device, problem.k, run.dtype);
  const Tensor v = to_device(*run.device, problem.v, run.dtype);
  const int world_size = validate(run.config).empty() ? effective_mesh(run.config).size() : 1;
  ParallelAttention result;
  result.ranks.resize(static_cast<std::size_t>(world_size));
  result.flat_ranks.resize(static_cast<std::size_t>(world_size));
  const auto body = [&](Communicator& world) {
    world.set_gather_form(run.gather_form);
    const ContextParallelState state(world, run.config);
    const auto index = static_cast<std::size_t>(world.rank());
    result.ranks[index] = attend_on_rank(problem, run, state, q, k, v);
    result.flat_ranks[index] = state.flat().rank();
  };
  result.report =
      run_ranks({.world_size = world_size, .schedule_seed = run.schedule_seed, .workers = run.workers}, body);
  return result;
}

DenseAttention assembled(const AttentionProblem& problem, const ParallelAttention& result) {
  DenseAttention whole{HostArray(problem.q.shape), HostArray({problem.batch(), problem.queries(), problem.heads()})};
  const int ranks = *std::max_element(result.flat_ranks.begin(), result.flat_ranks.end()) + 1;
  const std::vector<Indices> pieces = pieces_of(problem.query_streams, ranks);
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const Indices& tokens = pieces[static_cast<std::size_t>(result.flat_ranks[rank])];
    assign(whole.out, 1, tokens, to_host(result.ranks[rank].out));
    if (result.ranks[rank].lse.defined()) assign(whole.lse, 1, tokens, to_host(result.ranks[rank].lse));
  }
  return whole;
}

double worst_difference(const AttentionProblem& problem, const DenseAttention& dense, const ParallelAttention& result) {
  const int ranks = *std::max_element(result.flat_ranks.begin(), result.flat_ranks.end()) + 1;
  const std::vector<Indices> pieces = pieces_of(problem.query_streams, ranks);
  const double magnitude = max_magnitude(dense.out), lse_magnitude = max_magnitude(dense.lse);
  double worst = 0;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const Indices& tokens = pieces[static_cast<std::size_t>(result.flat_ranks[rank])];
    const AttentionResult& own = result.ranks[rank];
    worst = std::max(worst, relative_difference(to_host(own.out), selected(dense.out, 1, tokens), magnitude));
    if (!own.lse.defined()) continue;
    worst = std::max(worst, relative_difference(to_host(own.lse), selected(dense.lse, 1, tokens), lse_magnitude));
  }
  return worst;
}

}  // namespace shardproof::test
