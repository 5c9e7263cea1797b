// One attention with random inputs, run on simulated ranks as a plan would run it (streams divided, pieces joined) and
// compared on every rank with nested loops over the whole sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/attention.h"
#include "parallel/config.h"
#include "sim/simulation.h"
#include "tests/support/host_array.h"
#include "tests/support/layout.h"

namespace shardproof::test {

// ---- configurations
enum class Lengths : std::uint8_t { equal, anything };
ContextParallelConfig ulysses_config(int degree, Lengths lengths = Lengths::equal);
ContextParallelConfig ring_config(int degree, const std::string& rotate_method, Lengths lengths = Lengths::equal);
ContextParallelConfig unified_config(int ring_degree, int ulysses_degree, const std::string& rotate_method);

// ---- problems
struct AttentionProblem {
  std::vector<std::int64_t> query_streams;  // lengths; dense order is stream after stream; 0 = no such stream
  std::vector<std::int64_t> key_streams;
  HostArray q;     // [batch, queries, heads, width]
  HostArray k;     // [batch, keys, heads, width]
  HostArray v;     // [batch, keys, heads, width]
  HostArray bias;  // empty or [batch|1, heads|1, queries|1, keys]; -inf = never
  double scale = 0.0;

  std::int64_t batch() const { return q.shape[0]; }
  std::int64_t queries() const { return q.shape[1]; }
  std::int64_t keys() const { return k.shape[1]; }
  std::int64_t heads() const { return q.shape[2]; }
  DenseAttention dense() const { return dense_attention(q, k, v, bias, scale); }
};

struct ProblemShape {
  std::int64_t batch = 1;
  std::int64_t heads = 2;
  std::int64_t width = 4;
  std::vector<std::int64_t> streams = {};      // of queries, and of keys unless given
  std::vector<std::int64_t> key_streams = {};  // empty: as the queries (self attention over the same tokens)
};
// Logits of standard deviation 3, values of 1.
AttentionProblem random_problem(const ProblemShape& shape, std::uint64_t seed);

// Masks for `bias`. A key is kept where keep(..) says so.
HostArray key_bias(const AttentionProblem& problem, const std::function<bool(std::int64_t b, std::int64_t key)>& keep);
HostArray full_bias(const AttentionProblem& problem,
                    const std::function<bool(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t key)>& keep);

// ---- runs
enum class MaskForm : std::uint8_t { boolean, additive };

struct AttentionRun {
  ContextParallelConfig config;
  Device* device = nullptr;
  DType dtype = kFloat64;
  // Of the mask; a mask with query rows needs the global axis. A local one is divided like the keys.
  KeyAxis key_axis = KeyAxis::local;
  MaskForm mask_form = MaskForm::boolean;
  std::optional<DType> mask_dtype = std::nullopt;  // of an additive mask; none: dtype
  Placement keys = Placement::split;
  bool return_lse = true;
  GatherForm gather_form = GatherForm::ragged;
  std::uint64_t schedule_seed = 0;
  int workers = 1;
};

struct ParallelAttention {
  std::vector<AttentionResult> ranks;  // by world rank
  std::vector<int> flat_ranks;         // whose piece of the sequence each world rank has
  SimulationReport report;
};
ParallelAttention run_parallel(const AttentionProblem& problem, const AttentionRun& run);

// The part of one rank, for bodies of their own: q, k and v are the whole tensors on the device.
AttentionResult attend_on_rank(const AttentionProblem& problem, const AttentionRun& run,
                               const ContextParallelState& state, const Tensor& q, const Tensor& k, const Tensor& v);

// What all ranks returned, in dense order; replicas must agree with each other where they are compared.
DenseAttention assembled(const AttentionProblem& problem, const ParallelAttention& result);

// The mask as flat rank `rank` of `ranks` gives it to attention().
AttentionMask local_mask(const AttentionProblem& problem, const AttentionRun& run, int rank, int ranks);

// Largest difference of any rank's output, and of its log-sum-exp where there is one, from the rows of `dense` that it
// must be, relative to the largest magnitude of the dense result (at least 1).
double worst_difference(const AttentionProblem& problem, const DenseAttention& dense, const ParallelAttention& result);

}  // namespace shardproof::test
