#include "parallel/ring_attention.h"

#include <numeric>

#include "core/error.h"
#include "core/ops.h"
#include "parallel/softmax_merge.h"

namespace shardproof {
namespace {

// What travels: packed keys and values, and the mask piece that belongs to them where the key axis is local.
struct Chunk {
  Tensor packed;  // [keys, 2, batch, heads, d]
  Tensor mask;    // [keys, batch|1, heads|1, 1], or no tensor
};

struct PendingChunk {
  Pending<Tensor> packed;
  Pending<Tensor> mask;
  Chunk wait() { return {packed.wait(), mask.wait()}; }
};

// Says in the signature whether a mask exists and travels: ranks that disagree are told.
std::string_view purpose_of_keys(const AttentionMask& mask) {
  if (!mask.defined()) return "ring: keys and values";
  return mask.key_axis == KeyAxis::local ? "ring: keys and values, mask follows" : "ring: keys and values, global mask";
}

// Computes one step and merges it into the running result.
class Accumulator {
 public:
  Accumulator(const Tensor& q, const AttentionMask& mask, double scale, std::span<const std::int64_t> lengths,
              bool merge_wide)
      : q_(q), mask_(mask), scale_(scale), lengths_(lengths), merge_wide_(merge_wide) {}

  void add(int chunk, const Tensor& k, const Tensor& v, const Tensor& mask_rows) {
    AttentionOutput step = ops::attention(q_, k, v, mask_of(chunk, mask_rows), scale_);
    if (!merge_wide_) step.out = ops::cast(step.out, q_.dtype());
    result_ = result_.out.defined() ? merge_softmax(result_, step) : step;
  }
  AttentionOutput result() && { return std::move(result_); }

 private:
  Tensor mask_of(int chunk, const Tensor& mask_rows) const {
    if (!mask_.defined()) return {};
    if (mask_.key_axis == KeyAxis::local) return mask_from_rows(mask_rows);
    const std::int64_t offset = std::accumulate(lengths_.begin(), lengths_.begin() + chunk, std::int64_t{0});
    return mask_.values.narrow(3, offset, lengths_[static_cast<std::size_t>(chunk)]);
  }

  const Tensor& q_;
  const AttentionMask& mask_;
  double scale_;
  std::span<const std::int64_t> lengths_;
  bool merge_wide_;
  AttentionOutput result_;
};

void visit_gathered(const Chunk& own, const AttentionMask& mask, std::span<const std::int64_t> lengths,
                    Communicator& ring, const Tensor& k, const Tensor& v, Accumulator& accumulator) {
  Pending<Gathered> packed = collectives::all_gather(ring, own.packed, lengths, purpose_of_keys(mask));
  Pending<Gathered> masks = own.mask.defined() ? collectives::all_gather(ring, own.mask, lengths, "ring: key mask")
                                               : Pending<Gathered>(Gathered());
  accumulator.add(ring.rank(), k, v, own.mask);
  const Gathered all = packed.wait();
  const Gathered all_masks = masks.wait();
  for (int step = 1; step < ring.size(); ++step) {
    const int chunk = chunk_at_step(ring.rank(), step, ring.size());
    const Tensor piece = all.piece(chunk);
    accumulator.add(chunk, unpack_keys(piece), unpack_values(piece),
                    own.mask.defined() ? all_masks.piece(chunk) : Tensor());
  }
}

PendingChunk post_rotation(const Chunk& held, std::int64_t next_length, const AttentionMask& mask, Communicator& ring) {
  Pending<Tensor> packed = rotate(held.packed, next_length, ring, purpose_of_keys(mask));
  Pending<Tensor> rows =
      held.mask.defined() ? rotate(held.mask, next_length, ring, "ring: key mask") : Pending<Tensor>(Tensor());
  return {std::move(packed), std::move(rows)};
}

void visit_rotating(Chunk held, const AttentionMask& mask, std::span<const std::int64_t> lengths, Communicator& ring,
                    const Tensor& k, const Tensor& v, Accumulator& accumulator) {
  for (int step = 0; step < ring.size(); ++step) {
    const int chunk = chunk_at_step(ring.rank(), step, ring.size());
    const bool is_last = step + 1 == ring.size();
    const int next = chunk_at_step(ring.rank(), step + 1, ring.size());
    // The next exchange is posted before this chunk is computed on, so that both can go on at once.
    PendingChunk coming = is_last ? PendingChunk{Pending<Tensor>(Tensor()), Pending<Tensor>(Tensor())}
                                  : post_rotation(held, lengths[static_cast<std::size_t>(next)], mask, ring);
    const bool is_own = step == 0;
    accumulator.add(chunk, is_own ? k : unpack_keys(held.packed), is_own ? v : unpack_values(held.packed), held.mask);
    held = coming.wait();
  }
}

}  // namespace

AttentionOutput ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                               double scale, std::span<const std::int64_t> lengths, const ContextParallelConfig& config,
                               Communicator& ring) {
  if (mask.defined() && mask.key_axis == KeyAxis::global) {
    const std::int64_t keys = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    SHARDPROOF_CHECK(mask.values.size(3) == keys, shape_error,
                     "attention mask {}: its global key axis must cover the {} keys of all ranks, not {}",
                     mask.values.text(), keys, mask.values.size(3));
  }
  // Without rounding there is nothing that the setting could save.
  const bool merges_wide = config.convert_to_fp32 || q.dtype().category() == DTypeCategory::exact;
  Accumulator accumulator(q, mask, scale, lengths, merges_wide);
  const bool mask_travels = mask.defined() && mask.key_axis == KeyAxis::local;
  const Chunk own{pack_keys_values(k, v), mask_travels ? mask_to_rows(mask.values) : Tensor()};
  if (config.rotate_method == "alltoall") {
    visit_rotating(own, mask, lengths, ring, k, v, accumulator);
  } else {
    visit_gathered(own, mask, lengths, ring, k, v, accumulator);
  }
  return std::move(accumulator).result();
}

}  // namespace shardproof
