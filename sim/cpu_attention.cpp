#include "sim/cpu_attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/host_parallel.h"
#include "sim/cpu_elements.h"
#include "sim/cpu_math.h"
#include "sim/cpu_products.h"

namespace shardproof::cpu {
namespace {

constexpr std::int64_t kQueryTile = 128;
constexpr std::int64_t kKeyTile = 128;
// Queries that meet a tile of keys while it lies in the cache; one unit of work.
constexpr std::int64_t kQueryGroup = 2 * kQueryTile;

// Rows of one head of a tensor [batch, tokens, heads, head_dim].
template <class T>
T* head_rows(const Tensor& x, std::int64_t batch, std::int64_t head, std::int64_t token) {
  const Strides& stride = x.strides();
  return x.data_as<T>() + batch * stride[0] + token * stride[1] + head * stride[2];
}

// logits + bias for one row; -infinity where the mask removes the key, NaN where it is poison.
template <class Real, class Entry>
void mask_row(Real* logits, std::int64_t keys, const Entry* mask, std::int64_t stride) {
  constexpr Real kNever = -std::numeric_limits<Real>::infinity();
  for (std::int64_t key = 0; key < keys; ++key) {
    const Real scaled = logits[key];
    if constexpr (std::same_as<Entry, Bool8>) {
      const std::uint8_t flag = mask[key * stride].byte;
      const Real attended = flag > 1 ? std::numeric_limits<Real>::quiet_NaN() : scaled;
      logits[key] = flag == 0 ? kNever : attended;
    } else {
      const Real bias = convert_element<Real>(mask[key * stride]);
      logits[key] = bias == kNever ? kNever : scaled + bias;
    }
  }
}

template <class Storage>
struct AttentionTask {
  using Real = Accumulator<Storage>;

  const AttentionOutput& dst;
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& mask;
  Real scale;

  // Scratch of one query group, all of it contiguous: rows of one head lie a whole token apart in the tensors, often a
  // power of two, and products over such rows fight for the same lines of the cache.
  struct Scratch {
    Real *q, *out, *maximum, *sum;  // of the group
    Real *k, *v, *logits;           // of one tile
  };
  std::int64_t query_group() const { return std::min(kQueryGroup, q.size(1)); }
  std::int64_t query_tile() const { return std::min(kQueryTile, q.size(1)); }
  std::int64_t key_tile() const { return std::min(kKeyTile, k.size(1)); }
  std::int64_t scratch_elements() const {
    return query_group() * (2 * q.size(3) + 2) + key_tile() * (2 * q.size(3) + query_tile());
  }
  Scratch scratch_at(Real* base) const {
    Scratch scratch{};
    scratch.q = base;
    scratch.out = scratch.q + query_group() * q.size(3);
    scratch.maximum = scratch.out + query_group() * q.size(3);
    scratch.sum = scratch.maximum + query_group();
    scratch.k = scratch.sum + query_group();
    scratch.v = scratch.k + key_tile() * q.size(3);
    scratch.logits = scratch.v + key_tile() * q.size(3);
    return scratch;
  }

  // Rows of one head, copied side by side.
  static MatrixView<const Real> packed_rows(const Tensor& x, std::int64_t batch, std::int64_t head, std::int64_t first,
                                            std::int64_t count, Real* packed) {
    load_rows(packed, head_rows<Storage>(x, batch, head, first), count, x.size(3), x.strides()[1]);
    return {packed, count, x.size(3), x.size(3)};
  }

  // The queries of a group: copied where they meet many tiles of keys, as they lie where the copy would not pay.
  MatrixView<const Real> rows_of_queries(std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count,
                                         Real* packed) const {
    if constexpr (std::same_as<Storage, Real>) {
      if (k.size(1) <= 2 * kKeyTile) {
        return {head_rows<Storage>(q, batch, head, first), count, q.size(3), q.strides()[1]};
      }
    }
    return packed_rows(q, batch, head, first, count, packed);
  }

  void add_mask(Real* logits, std::int64_t keys, std::int64_t batch, std::int64_t head, std::int64_t query,
                std::int64_t first_key) const {
    if (!mask.defined()) return;
    const Strides& stride = mask.strides();
    const std::int64_t first = batch * stride[0] + head * stride[1] + query * stride[2] + first_key * stride[3];
    if (mask.dtype() == kBool) {
      mask_row(logits, keys, mask.data_as<Bool8>() + first, stride[3]);
    } else if (mask.dtype() == q.dtype()) {
      mask_row(logits, keys, mask.data_as<Storage>() + first, stride[3]);
    } else {
      mask_row(logits, keys, mask.data_as<Real>() + first, stride[3]);
    }
  }

  // Turns a row of logits into weights relative to the running maximum; rescales what the row has gathered so far, if
  // anything. A row without any key yet keeps maximum -infinity and weights 0; NaN stays in the weights.
  static void weigh_row(Real* logits, std::int64_t keys, Real& maximum, Real& sum, Real* gathered, std::int64_t width) {
    constexpr Real kNever = -std::numeric_limits<Real>::infinity();
    const Real previous = maximum;
    maximum = std::max(previous, row_maximum(logits, keys));
    const Real base = maximum == kNever ? Real{0} : maximum;
    for (std::int64_t key = 0; key < keys; ++key) logits[key] = exponential(logits[key] - base);
    const Real kept = exponential(previous - base);
    sum = sum * kept + row_sum(logits, keys);
    if (kept == Real{1} || gathered == nullptr) return;
    for (std::int64_t i = 0; i < width; ++i) gathered[i] *= kept;
  }

  // Takes one tile of keys into the running result of one tile of queries, `first` rows into the group.
  void attend(std::int64_t batch, std::int64_t head, std::int64_t first_query, std::int64_t first, std::int64_t queries,
              std::int64_t first_key, MatrixView<const Real> query_rows, MatrixView<const Real> key_rows,
              MatrixView<const Real> value_rows, const Scratch& scratch) const {
    const std::int64_t width = q.size(3), count = key_rows.rows;
    const MatrixView<Real> logits{scratch.logits, queries, count, count};
    const MatrixView<Real> out{scratch.out + first * width, queries, width, width};
    multiply_transposed<Real>(logits, {query_rows.data + first * query_rows.stride, queries, width, query_rows.stride},
                              key_rows, scale);
    for (std::int64_t i = 0; i < queries; ++i) {
      Real* row = logits.data + i * count;
      add_mask(row, count, batch, head, first_query + first + i, first_key);
      weigh_row(row, count, scratch.maximum[first + i], scratch.sum[first + i],
                first_key > 0 ? out.data + i * width : nullptr, width);
    }
    multiply<Real>(out, {logits.data, queries, count, count}, value_rows,
                   first_key > 0 ? Product::adds : Product::replaces);
  }

  void compute(std::int64_t batch, std::int64_t head, std::int64_t first_query, const Scratch& scratch) const {
    constexpr Real kNever = -std::numeric_limits<Real>::infinity();
    const std::int64_t width = q.size(3), queries = std::min(kQueryGroup, q.size(1) - first_query), keys = k.size(1);
    std::fill_n(scratch.maximum, queries, kNever);
    std::fill_n(scratch.sum, queries, Real{0});
    const MatrixView<const Real> query_rows = rows_of_queries(batch, head, first_query, queries, scratch.q);
    for (std::int64_t first_key = 0; first_key < keys; first_key += kKeyTile) {
      const std::int64_t count = std::min(kKeyTile, keys - first_key);
      const auto key_rows = packed_rows(k, batch, head, first_key, count, scratch.k);
      const auto value_rows = packed_rows(v, batch, head, first_key, count, scratch.v);
      for (std::int64_t first = 0; first < queries; first += kQueryTile) {
        attend(batch, head, first_query, first, std::min(kQueryTile, queries - first), first_key, query_rows, key_rows,
               value_rows, scratch);
      }
    }
    for (std::int64_t i = 0; i < queries; ++i) {
      finish_row(batch, head, first_query + i, scratch.out + i * width, scratch.maximum[i], scratch.sum[i]);
    }
  }

  void finish_row(std::int64_t batch, std::int64_t head, std::int64_t query, const Real* gathered, Real maximum,
                  Real sum) const {
    const std::int64_t width = q.size(3);
    const Strides& stride = dst.lse.strides();
    Real* out = head_rows<Real>(dst.out, batch, head, query);
    Real& lse = dst.lse.data_as<Real>()[batch * stride[0] + query * stride[1] + head * stride[2]];
    if (sum == Real{0}) {
      std::fill_n(out, width, Real{0});
      lse = -std::numeric_limits<Real>::infinity();
      return;
    }
    for (std::int64_t i = 0; i < width; ++i) out[i] = gathered[i] / sum;
    lse = maximum + std::log(sum);
  }
};

template <class Storage>
void attention_of(BlockPool& pool, const AttentionTask<Storage>& task) {
  using Real = Accumulator<Storage>;
  const std::int64_t queries = task.q.size(1), heads = task.q.size(2);
  const std::int64_t groups = (queries + kQueryGroup - 1) / kQueryGroup;
  const std::int64_t units = task.q.size(0) * heads * groups;
  const std::int64_t row_steps = task.k.size(1) * (task.q.size(3) / 4 + 1);
  const int threads = threads_for(task.q.size(0) * heads * queries * row_steps, units);
  const std::int64_t scratch = task.scratch_elements();
  const PoolBlock block(pool, static_cast<std::size_t>(scratch * threads) * sizeof(Real));
  Real* const all_scratch = block.template data_as<Real>();
  const auto compute = [&](std::int64_t unit, int thread) {
    const std::int64_t group = unit % groups, head = unit / groups % heads;
    const std::int64_t batch = unit / (groups * heads);
    task.compute(batch, head, group * kQueryGroup, task.scratch_at(all_scratch + scratch * thread));
  };
  if (threads == 1) {
    for (std::int64_t unit = 0; unit < units; ++unit) compute(unit, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t unit = 0; unit < units; ++unit) compute(unit, omp_get_thread_num());
}

}  // namespace

void attention(BlockPool& pool, const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& mask, double scale) {
  visit_floating(q.dtype(), "attention", [&](auto type) {
    using Storage = typename decltype(type)::type;
    attention_of<Storage>(pool, {dst, q, k, v, mask, static_cast<Accumulator<Storage>>(scale)});
  });
}

}  // namespace shardproof::cpu
