#include "sim/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/cpu_elements.h"
#include "sim/cpu_math.h"
#include "sim/cpu_products.h"

namespace shardproof::cpu {
namespace {

constexpr std::int64_t kQueryTile = 128;
constexpr std::int64_t kKeyTile = 128;

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
  static constexpr bool kConverts = !std::same_as<Storage, Real>;

  const AttentionOutput& dst;
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& mask;
  Real scale;

  // Scratch of one query tile; the sizes are those of a full tile, cut to what there is.
  struct Scratch {
    Real *logits, *maximum, *sum, *q, *k, *v;
  };
  std::int64_t query_tile() const { return std::min(kQueryTile, q.size(1)); }
  std::int64_t key_tile() const { return std::min(kKeyTile, k.size(1)); }
  std::int64_t scratch_elements() const {
    const std::int64_t converted = kConverts ? (query_tile() + 2 * key_tile()) * q.size(3) : 0;
    return query_tile() * (key_tile() + 2) + converted;
  }
  Scratch scratch_at(Real* base) const {
    Scratch scratch{};
    scratch.logits = base;
    scratch.maximum = base + query_tile() * key_tile();
    scratch.sum = scratch.maximum + query_tile();
    scratch.q = scratch.sum + query_tile();
    scratch.k = scratch.q + query_tile() * q.size(3);
    scratch.v = scratch.k + key_tile() * q.size(3);
    return scratch;
  }

  MatrixView<const Real> rows_of(const Tensor& x, std::int64_t batch, std::int64_t head, std::int64_t first,
                                 std::int64_t count, [[maybe_unused]] Real* converted) const {
    const Storage* data = head_rows<Storage>(x, batch, head, first);
    const std::int64_t width = x.size(3), stride = x.strides()[1];
    if constexpr (kConverts) {
      load_rows(converted, data, count, width, stride);
      return {converted, count, width, width};
    } else {
      return {data, count, width, stride};
    }
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

  // Turns a row of logits into weights relative to the running maximum; rescales what the row has gathered so far.
  // A row without any key yet keeps maximum -infinity and weights 0; NaN stays in the weights.
  static void weigh_row(Real* logits, std::int64_t keys, Real& maximum, Real& sum, Real* out, std::int64_t width) {
    constexpr Real kNever = -std::numeric_limits<Real>::infinity();
    const Real previous = maximum;
    maximum = std::max(previous, row_maximum(logits, keys));
    const Real base = maximum == kNever ? Real{0} : maximum;
    for (std::int64_t key = 0; key < keys; ++key) logits[key] = exponential(logits[key] - base);
    const Real kept = exponential(previous - base);
    sum = sum * kept + row_sum(logits, keys);
    if (kept == Real{1}) return;
    for (std::int64_t i = 0; i < width; ++i) out[i] *= kept;
  }

  void compute(std::int64_t batch, std::int64_t head, std::int64_t first_query, const Scratch& scratch) const {
    constexpr Real kNever = -std::numeric_limits<Real>::infinity();
    const std::int64_t width = q.size(3), queries = std::min(kQueryTile, q.size(1) - first_query), keys = k.size(1);
    const MatrixView<Real> out{head_rows<Real>(dst.out, batch, head, first_query), queries, width,
                               dst.out.strides()[1]};
    for (std::int64_t i = 0; i < queries; ++i) std::fill_n(out.data + i * out.stride, width, Real{0});
    std::fill_n(scratch.maximum, queries, kNever);
    std::fill_n(scratch.sum, queries, Real{0});
    const auto query_rows = rows_of(q, batch, head, first_query, queries, scratch.q);
    for (std::int64_t first_key = 0; first_key < keys; first_key += kKeyTile) {
      const std::int64_t count = std::min(kKeyTile, keys - first_key);
      const MatrixView<Real> logits{scratch.logits, queries, count, count};
      multiply_transposed<Real>(logits, query_rows, rows_of(k, batch, head, first_key, count, scratch.k), scale);
      for (std::int64_t i = 0; i < queries; ++i) {
        Real* row = logits.data + i * count;
        add_mask(row, count, batch, head, first_query + i, first_key);
        weigh_row(row, count, scratch.maximum[i], scratch.sum[i], out.data + i * out.stride, width);
      }
      add_product<Real>(out, {logits.data, queries, count, count},
                        rows_of(v, batch, head, first_key, count, scratch.v));
    }
    for (std::int64_t i = 0; i < queries; ++i)
      finish_row(batch, head, first_query + i, out.data + i * out.stride, scratch.maximum[i], scratch.sum[i]);
  }

  void finish_row(std::int64_t batch, std::int64_t head, std::int64_t query, Real* out, Real maximum, Real sum) const {
    const std::int64_t width = q.size(3);
    const Strides& stride = dst.lse.strides();
    Real& lse = dst.lse.data_as<Real>()[batch * stride[0] + query * stride[1] + head * stride[2]];
    if (sum == Real{0}) {
      std::fill_n(out, width, Real{0});
      lse = -std::numeric_limits<Real>::infinity();
      return;
    }
    for (std::int64_t i = 0; i < width; ++i) out[i] /= sum;
    lse = maximum + std::log(sum);
  }
};

template <class Storage>
void attention_of(BlockPool& pool, const AttentionTask<Storage>& task) {
  using Real = Accumulator<Storage>;
  const std::int64_t queries = task.q.size(1), heads = task.q.size(2);
  const std::int64_t query_tiles = (queries + kQueryTile - 1) / kQueryTile;
  const std::int64_t units = task.q.size(0) * heads * query_tiles;
  const std::int64_t row_steps = task.k.size(1) * (task.q.size(3) / 4 + 1);
  const int threads = threads_for(task.q.size(0) * heads * queries * row_steps, units);
  const std::int64_t scratch = task.scratch_elements();
  const PoolBlock block(pool, static_cast<std::size_t>(scratch * threads) * sizeof(Real));
  Real* const all_scratch = block.template data_as<Real>();
  const auto compute = [&](std::int64_t unit, int thread) {
    const std::int64_t tile = unit % query_tiles, head = unit / query_tiles % heads;
    const std::int64_t batch = unit / (query_tiles * heads);
    task.compute(batch, head, tile * kQueryTile, task.scratch_at(all_scratch + scratch * thread));
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
