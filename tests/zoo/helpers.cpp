#include "tests/zoo/helpers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/sharding.h"

namespace shardproof::zoo {
namespace {

std::int64_t total(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

using Place = std::pair<std::string, const void*>;
std::map<Place, Tensor>& kept_tensors() {
  static std::map<Place, Tensor> kept;
  return kept;
}
std::map<Place, std::vector<std::int64_t>>& kept_sizes() {
  static std::map<Place, std::vector<std::int64_t>> kept;
  return kept;
}

bool has_floats(const Tensor& x) { return x.dtype().category() == DTypeCategory::floating; }

void need_floats(const Tensor& x) {
  SHARDPROOF_CHECK(has_floats(x), unsupported_error, "{}, not in {}", kNeedsFloats, x.dtype().name());
}

// Attention computed on the host one row at a time; `rounded` is applied to every intermediate value.
template <class Rounded>
AttentionOutput attention_on_host(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale,
                                  const Rounded& rounded, bool subtract_maximum) {
  need_floats(q);
  const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), width = q.size(3), keys = k.size(1);
  const std::vector<double> all_q = ops::to_doubles(q), all_k = ops::to_doubles(k), all_v = ops::to_doubles(v);
  std::vector<double> bias;
  if (mask.defined()) bias = ops::to_doubles(mask.expand({batch, heads, queries, keys}));
  std::vector<double> out(all_q.size()), lse(static_cast<std::size_t>(batch * queries * heads));
  std::vector<double> logits(static_cast<std::size_t>(keys));
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t tokens, std::int64_t h, std::int64_t c) {
    return static_cast<std::size_t>(((b * tokens + t) * heads + h) * width + c);
  };
  for (std::int64_t row = 0; row < batch * queries * heads; ++row) {
    const std::int64_t h = row % heads, t = row / heads % queries, b = row / heads / queries;
    double maximum = subtract_maximum ? -HUGE_VAL : 0.0;
    for (std::int64_t j = 0; j < keys; ++j) {
      double logit = 0.0;
      for (std::int64_t c = 0; c < width; ++c) logit += all_q[at(b, t, queries, h, c)] * all_k[at(b, j, keys, h, c)];
      logit *= scale;
      if (mask.defined()) {
        const double value = bias[static_cast<std::size_t>(((b * heads + h) * queries + t) * keys + j)];
        logit = mask.dtype() == kBool ? (value != 0.0 ? logit : -HUGE_VAL) : logit + value;
      }
      logits[static_cast<std::size_t>(j)] = rounded(logit);
      if (subtract_maximum) maximum = std::max(maximum, logit);
    }
    const bool empty = std::all_of(logits.begin(), logits.end(), [](double x) { return x == -HUGE_VAL; });
    double sum = 0.0;
    for (std::int64_t j = 0; j < keys && !empty; ++j) {
      const double weight = rounded(std::exp(logits[static_cast<std::size_t>(j)] - maximum));
      sum = rounded(sum + weight);
      for (std::int64_t c = 0; c < width; ++c) {
        double& sum_of_values = out[at(b, t, queries, h, c)];
        sum_of_values = rounded(sum_of_values + rounded(weight * all_v[at(b, j, keys, h, c)]));
      }
    }
    for (std::int64_t c = 0; c < width && !empty; ++c) out[at(b, t, queries, h, c)] /= sum;
    lse[static_cast<std::size_t>((b * queries + t) * heads + h)] = empty ? -HUGE_VAL : maximum + std::log(sum);
  }
  const AttentionOutput healthy = ops::attention(q, k, v, mask, scale);
  return {ops::from_doubles(q.device(), out, q.shape(), healthy.out.dtype()),
          ops::from_doubles(q.device(), lse, healthy.lse.shape(), healthy.lse.dtype())};
}

double to_bfloat16(double x) {
  if (!std::isfinite(x) || x == 0.0) return x;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

template <class Combine>
Tensor combined(const Tensor& a, const Tensor& b, const Combine& combine) {
  std::vector<double> x = ops::to_doubles(a);
  const std::vector<double> y = ops::to_doubles(b);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = combine(x[i], y[i]);
  return ops::from_doubles(a.device(), x, a.shape(), a.dtype());
}

}  // namespace

Tensor reversed(const Tensor& x, int axis) {
  std::vector<Tensor> parts;
  for (std::int64_t i = x.size(axis); i-- > 0;) parts.push_back(x.narrow(axis, i, 1));
  return ops::concat(parts, axis);
}

Tensor rolled(const Tensor& x, int axis, std::int64_t by) {
  const std::int64_t size = x.size(axis), first = size == 0 ? 0 : (by % size + size) % size;
  return ops::concat({x.narrow(axis, first, size - first), x.narrow(axis, 0, first)}, axis);
}

Tensor with_tail_missing(const Tensor& rows) {
  return with_rows_added(rows.narrow(0, 0, rows.size(0) - 1), rows.size(0), Filling::garbage);
}

Tensor with_rows_added(const Tensor& rows, std::int64_t total, Filling filling) {
  if (rows.size(0) >= total) return rows;
  const Shape shape = rows.shape().erased(0).inserted(0, total - rows.size(0));
  return ops::concat({rows, filling == Filling::zeros ? ops::zeros(rows.device(), shape, rows.dtype())
                                                      : ops::padding(rows.device(), shape, rows.dtype())},
                     0);
}

Tensor first_rows(const Tensor& rows, std::int64_t most) { return rows.narrow(0, 0, std::min(rows.size(0), most)); }

Tensor blocks_reversed(const Tensor& rows, std::int64_t blocks) {
  const std::int64_t length = rows.size(0) / blocks;
  std::vector<Tensor> parts;
  for (std::int64_t block = blocks; block-- > 0;) parts.push_back(rows.narrow(0, block * length, length));
  return ops::concat(parts, 0);
}

Tensor thirds_first(const Tensor& rows, std::int64_t blocks) {
  const std::int64_t length = rows.size(0) / blocks, third = length / 3;
  std::vector<Tensor> parts;
  for (std::int64_t block = 0; block < blocks; ++block) parts.push_back(rows.narrow(0, block * length, third));
  for (std::int64_t block = 0; block < blocks; ++block)
    parts.push_back(rows.narrow(0, block * length + third, length - third));
  return ops::concat(parts, 0);
}

Tensor prefix_like(const Tensor& whole, const Tensor& part, int axis) { return whole.narrow(axis, 0, part.size(axis)); }

Tensor inverted(const Tensor& mask) {
  if (mask.dtype() != kBool) return mask;
  return combined(mask, mask, [](double x, double) { return 1.0 - x; });
}

Tensor through(const Tensor& x, DType narrow) {
  need_floats(x);
  return ops::cast(ops::cast(x, narrow), x.dtype());
}

std::vector<double> from_first(std::vector<double> values) {
  const double first = values.empty() ? 0.0 : values.front();
  for (double& value : values) value -= first;
  return values;
}

Tensor left_over(std::string_view place, const void* owner, const Tensor& x) {
  Tensor& kept = kept_tensors()[{std::string(place), owner}];
  const bool fits =
      kept.defined() && kept.shape() == x.shape() && kept.dtype() == x.dtype() && &kept.device() == &x.device();
  const Tensor result = fits ? kept : x;
  kept = x;
  return result;
}

std::vector<std::int64_t> left_over(std::string_view place, const void* owner, std::vector<std::int64_t> sizes) {
  return kept_sizes().try_emplace({std::string(place), owner}, std::move(sizes)).first->second;
}

void forget_left_overs() {
  kept_tensors().clear();
  kept_sizes().clear();
}

std::vector<std::int64_t> ceil_chunks(std::int64_t total, std::size_t parts) {
  const auto count = static_cast<std::int64_t>(parts);
  const std::int64_t chunk = (total + count - 1) / count;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < count; ++i) sizes.push_back(std::clamp<std::int64_t>(total - i * chunk, 0, chunk));
  return sizes;
}

std::vector<std::int64_t> ceil_chunks_like(std::span<const std::int64_t> sizes) {
  return ceil_chunks(total(sizes), sizes.size());
}

std::vector<std::int64_t> balanced_like(std::span<const std::int64_t> sizes) {
  return balanced_sizes(total(sizes), static_cast<int>(sizes.size()));
}

std::int64_t average(std::span<const std::int64_t> sizes) {
  return total(sizes) / static_cast<std::int64_t>(sizes.size());
}

std::int64_t largest(std::span<const std::int64_t> sizes) { return *std::ranges::max_element(sizes); }

namespace {

// [members * longest, ..]
Tensor gather_padded(Communicator& group, const Tensor& rows, std::int64_t longest, std::string_view purpose,
                     Filling filling) {
  return collectives::all_gather(group, with_rows_added(rows, longest, filling), purpose).wait();
}

}  // namespace

Tensor gather_assuming(Communicator& group, const Tensor& rows, std::span<const std::int64_t> sizes,
                       std::span<const std::int64_t> assumed, std::string_view purpose, Filling filling) {
  const std::int64_t longest = std::max(largest(sizes), largest(assumed));
  const Tensor all = gather_padded(group, rows, longest, purpose, filling);
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < assumed.size(); ++i)
    parts.push_back(all.narrow(0, static_cast<std::int64_t>(i) * longest, assumed[i]));
  return ops::concat(parts, 0);
}

Tensor gather_trimming_the_tail(Communicator& group, const Tensor& rows, std::span<const std::int64_t> sizes,
                                std::string_view purpose, Filling filling) {
  return gather_padded(group, rows, largest(sizes), purpose, filling).narrow(0, 0, total(sizes));
}

Tensor gather_along_the_last(const Tensor& part, int axis, Communicator& group, std::string_view purpose) {
  Shape shape = part.shape();
  shape[axis] *= group.size();
  const Tensor columns = ops::contiguous(part.transpose(0, part.rank() - 1));
  const Tensor gathered = collectives::all_gather(group, columns, purpose).wait();
  return ops::reshape(gathered.transpose(0, part.rank() - 1), shape);
}

Communicator* skewed_group(Communicator& world, const Mesh& mesh, std::vector<std::unique_ptr<Communicator>>& owned) {
  const int ulysses = mesh.size_of("ulysses"), row = world.rank() / ulysses;
  owned.push_back(world.split((world.rank() + row) % ulysses, row, "ring"));
  return owned.back().get();
}

AttentionOutput merge_by_average(const AttentionOutput& a, const AttentionOutput& b) {
  return {ops::multiply(ops::add(a.out, b.out), 0.5), ops::logaddexp(a.lse, b.lse)};
}

AttentionOutput merge_by_sigmoid(const AttentionOutput& a, const AttentionOutput& b) {
  need_floats(a.lse);
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const Tensor weight = combined(a.lse, b.lse, [&](double x, double y) { return sigmoid(y - x); });
  const Tensor wide = ops::cast(weight, a.out.dtype()).unsqueeze(-1);
  return {ops::subtract(a.out, ops::multiply(ops::subtract(a.out, b.out), wide)),
          combined(a.lse, b.lse, [&](double x, double y) { return x - std::log(sigmoid(x - y)); })};
}

Tensor updated_with_wrong_sign(const Tensor& a, const Tensor& b) {
  if (!has_floats(a)) return ops::logaddexp(a, ops::logaddexp(a, b));
  return ops::subtract(ops::add(a, a), ops::logaddexp(a, b));
}

Tensor to_base_2(const Tensor& lse) {
  need_floats(lse);
  return ops::multiply(lse, 1.4426950408889634);
}

Tensor larger_of(const Tensor& a, const Tensor& b) {
  if (!has_floats(a)) return a;
  return combined(a, b, [](double x, double y) { return std::max(x, y); });
}

AttentionOutput attention_without_maximum(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                          double scale) {
  if (q.dtype() == kFloat64) {
    return attention_on_host(q, k, v, mask, scale, [](double x) { return x; }, false);
  }
  const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  return attention_on_host(q, k, v, mask, scale, rounded, false);
}

AttentionOutput attention_with_narrow_sums(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                           double scale) {
  return attention_on_host(q, k, v, mask, scale, to_bfloat16, true);
}

AttentionOutput attention_over_padding(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                       double scale, std::int64_t keys) {
  if (k.size(1) >= keys) return ops::attention(q, k, v, mask, scale);
  const auto padded = [&](const Tensor& x, Filling filling) {
    return with_rows_added(x.permute({1, 0, 2, 3}), keys, filling).permute({1, 0, 2, 3});
  };
  Device& device = q.device();
  const Tensor own = mask.defined() ? mask : ops::full(device, {1, 1, 1, k.size(1)}, kBool, 1.0);
  Shape rest = own.shape();
  rest[3] = keys - k.size(1);
  const double never = own.dtype() == kBool ? 0.0 : -HUGE_VAL;
  const Tensor all = ops::concat({own, ops::full(device, rest, own.dtype(), never)}, 3);
  return ops::attention(q, padded(k, Filling::zeros), padded(v, Filling::garbage), all, scale);
}

double scale_of(std::int64_t width) { return 1.0 / std::sqrt(static_cast<double>(width)); }

Tensor all_reduce_by(Communicator& group, const Tensor& x, Combination combination) {
  const Tensor all =
      collectives::all_gather(group, ops::contiguous(x).unsqueeze(0), "tp: sum of partial results").wait();
  Tensor result = all.narrow(0, 0, 1).squeeze(0);
  for (int rank = 1; rank < group.size(); ++rank) {
    const Tensor part = all.narrow(0, rank, 1).squeeze(0);
    result = combination == Combination::maximum ? larger_of(result, part) : ops::add(result, part);
  }
  return combination == Combination::maximum ? result : ops::multiply(result, 1.0 / group.size());
}

Tensor round_robin_heads(const Tensor& full, int dim, std::int64_t head_dim, int rank, int degree) {
  std::vector<Tensor> heads;
  for (std::int64_t head = rank; head < full.size(dim) / head_dim; head += degree)
    heads.push_back(full.narrow(dim, head * head_dim, head_dim));
  return ops::concat(heads, dim);
}

std::vector<ShardRange> contiguous_range(const ShardSpec& spec, int rank, int degree) {
  const std::int64_t length = total(spec.blocks) / degree;
  return {{rank * length, length}};
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace shardproof::zoo
