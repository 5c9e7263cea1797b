// What the replacements of the faults call: the wrong ways of doing things that take more than a line. Included by the
// generated copies, together with the switch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/collectives.h"
#include "core/device.h"
#include "core/mesh.h"
#include "core/module.h"
#include "core/ops.h"
#include "core/tensor.h"
#include "parallel/tensor_parallel_specs.h"
#include "tests/zoo/switch.h"

namespace shardproof::zoo {

// What a helper throws in arithmetic without floating-point numbers, where its fault cannot be expressed. A tier that
// meets it has not checked the fault.
inline constexpr std::string_view kNeedsFloats = "this fault exists in floating-point numbers only";

// ---- Order and completeness of rows
// The entries along the axis in reverse order.
Tensor reversed(const Tensor& x, int axis);
// Entry i is what entry i + by was, cyclically.
Tensor rolled(const Tensor& x, int axis, std::int64_t by);
// The first rows as they are; the last one as if it had not arrived.
Tensor with_tail_missing(const Tensor& rows);
// [n, ..] -> [total, ..]: rows of zeros, or of memory that nobody wrote, behind.
enum class Filling : bool { zeros, garbage };
Tensor with_rows_added(const Tensor& rows, std::int64_t total, Filling filling);
Tensor first_rows(const Tensor& rows, std::int64_t most);
// The rows as that many equal blocks, in reverse order.
Tensor blocks_reversed(const Tensor& rows, std::int64_t blocks);
// Of that many equal blocks the first third of each, then the rest of each.
Tensor thirds_first(const Tensor& rows, std::int64_t blocks);
// As long as `part`, but from the beginning.
Tensor prefix_like(const Tensor& whole, const Tensor& part, int axis);
// A bool mask with true and false exchanged; others as they are.
Tensor inverted(const Tensor& mask);
// Rounded to a narrower type and back.
Tensor through(const Tensor& x, DType narrow);
// Every value counted from the first.
std::vector<double> from_first(std::vector<double> values);

// ---- What is left over from earlier calls
// What was given at this place before, if it had the same shape; the first time, and otherwise, what is given.
Tensor left_over(std::string_view place, const void* owner, const Tensor& x);
std::vector<std::int64_t> left_over(std::string_view place, const void* owner, std::vector<std::int64_t> sizes);
// To be called when a fault is switched off.
void forget_left_overs();

// ---- Sizes that are derived instead of exchanged
std::vector<std::int64_t> ceil_chunks(std::int64_t total, std::size_t parts);
std::vector<std::int64_t> ceil_chunks_like(std::span<const std::int64_t> sizes);
std::vector<std::int64_t> balanced_like(std::span<const std::int64_t> sizes);
std::int64_t average(std::span<const std::int64_t> sizes);
std::int64_t largest(std::span<const std::int64_t> sizes);

// ---- Gathers
// Every member sends its rows padded to the longest; the receiver takes `assumed` rows of each.
Tensor gather_assuming(Communicator& group, const Tensor& rows, std::span<const std::int64_t> sizes,
                       std::span<const std::int64_t> assumed, std::string_view purpose, Filling filling);
// The same, cut to the true total at the end only.
Tensor gather_trimming_the_tail(Communicator& group, const Tensor& rows, std::span<const std::int64_t> sizes,
                                std::string_view purpose, Filling filling);
// The parts side by side along the last axis, read as if they stood along `axis`.
Tensor gather_along_the_last(const Tensor& part, int axis, Communicator& group, std::string_view purpose);

// ---- Groups
// The ring of a mesh ring x ulysses, whose members have other places in their Ulysses groups; kept in `owned`.
Communicator* skewed_group(Communicator& world, const Mesh& mesh, std::vector<std::unique_ptr<Communicator>>& owned);

// ---- Softmax
// Weights that do not see the masses.
AttentionOutput merge_by_average(const AttentionOutput& a, const AttentionOutput& b);
// By sigmoid and log-sigmoid, as diffusers does it: not a number where a chunk has no keys.
AttentionOutput merge_by_sigmoid(const AttentionOutput& a, const AttentionOutput& b);
// In arithmetic without an order, the first.
Tensor larger_of(const Tensor& a, const Tensor& b);
// 2 a - log(exp a + exp b), which is a + log sigmoid(a - b) instead of a - log sigmoid(a - b). Where log-sum-exps are
// masses that cannot be subtracted, the first counts twice.
Tensor updated_with_wrong_sign(const Tensor& a, const Tensor& b);
// A natural logarithm as one to the base 2.
Tensor to_base_2(const Tensor& lse);
// exp(x) / sum exp(x) in the tensors' type, without the maximum that keeps it finite.
AttentionOutput attention_without_maximum(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                          double scale);
// Every partial sum rounded to bfloat16.
AttentionOutput attention_with_narrow_sums(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                           double scale);
// Keys padded to `keys`, masked, with values that nobody wrote.
AttentionOutput attention_over_padding(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                       double scale, std::int64_t keys);

// 1 / sqrt(width)
double scale_of(std::int64_t width);

// ---- Tensor parallelism
enum class Combination : std::uint8_t { maximum, average };
Tensor all_reduce_by(Communicator& group, const Tensor& x, Combination combination);
// Rows r, r + degree, .. of blocks of `head_dim` instead of one run of them.
Tensor round_robin_heads(const Tensor& full, int dim, std::int64_t head_dim, int rank, int degree);
// One run of the whole dimension, whatever blocks it is made of.
std::vector<ShardRange> contiguous_range(const ShardSpec& spec, int rank, int degree);
bool contains(std::string_view text, std::string_view part);

}  // namespace shardproof::zoo
