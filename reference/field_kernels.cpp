#include "reference/field_kernels.h"

#include <omp.h>

#include <algorithm>
#include <bit>

#include "core/element_types.h"
#include "core/host_parallel.h"
#include "reference/field_product.h"

namespace shardproof::field {
namespace {

std::uint64_t packed(const Value& x) { return std::bit_cast<std::uint64_t>(x); }
std::uint64_t packed(Wide x) { return x.a; }
static_assert(std::endian::native == std::endian::little);

std::int64_t panels_of(std::int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// Calls body(part, thread) for all parts, on so many threads.
template <class Body>
void for_parts(std::int64_t parts, int threads, const Body& body) {
  if (threads == 1) {
    for (std::int64_t part = 0; part < parts; ++part) body(part, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t part = 0; part < parts; ++part) body(part, omp_get_thread_num());
}

// Elements (column, t) at data[column * stride + t * step], to be packed in panels [t][8].
template <class Element>
struct Columns {
  const Element* data;
  std::int64_t count;
  std::int64_t depth;
  std::int64_t stride;
  std::int64_t step;
};

// True where the highest bit of any part is set: no residue has it.
bool has_poison_bits(std::uint64_t bits) { return (bits & 0x8000000080000000ULL) != 0; }

// Packs panel `number`; poisoned[column] says whether the column holds poison, for the eight columns of the panel.
template <class Element>
void pack_panel(const Columns<Element>& columns, std::int64_t number, std::uint64_t* panel, std::uint8_t* poisoned) {
  const std::int64_t first = number * kPanel, count = std::min(kPanel, columns.count - first);
  if (count < kPanel) std::fill_n(panel, columns.depth * kPanel, 0);
  std::uint64_t bits[kPanel] = {};
  const Element* data = columns.data + first * columns.stride;
  if (columns.step == 1) {
    for (std::int64_t j = 0; j < count; ++j) {
      const Element* column = data + j * columns.stride;
      std::uint64_t all = 0;
      for (std::int64_t t = 0; t < columns.depth; ++t) all |= panel[t * kPanel + j] = packed(column[t]);
      bits[j] = all;
    }
  } else {
    for (std::int64_t t = 0; t < columns.depth; ++t) {
      const Element* row = data + t * columns.step;
      for (std::int64_t j = 0; j < count; ++j) bits[j] |= panel[t * kPanel + j] = packed(row[j * columns.stride]);
    }
  }
  for (std::int64_t j = 0; j < kPanel; ++j) poisoned[j] = has_poison_bits(bits[j]) ? 1 : 0;
}

template <class Element>
bool row_has_poison(const Element* row, std::int64_t count) {
  std::uint64_t bits = 0;
  for (std::int64_t i = 0; i < count; ++i) bits |= packed(row[i]);
  return has_poison_bits(bits);
}

Rows rows_of(const Value* data, std::int64_t stride, Modulus modulus) {
  const auto* parts = reinterpret_cast<const std::uint32_t*>(data);
  return {parts + (modulus == Modulus::p ? 0 : 1), 2 * stride, 2};
}
Rows rows_of(const Wide* data, std::int64_t stride, Modulus) {
  return {reinterpret_cast<const std::uint32_t*>(data), stride, 1};
}

// One product dst[i][j] = sum over t of rows[i][t] columns[j][t] + bias, where either x or the weight is packed: the
// one with fewer rows, since packing is a transposition.
template <class Element>
struct Linear {
  Element* dst;
  std::int64_t dst_row, dst_column;  // strides for a row and a column of the product
  const Element* rows;
  std::int64_t row_count, row_stride;
  Columns<Element> columns;
  const Element* bias;  // or null
  std::int64_t bias_row, bias_column;
  std::uint8_t* row_poisoned;  // a flag for every row

  void look_for_poison() const {
    for (std::int64_t i = 0; i < row_count; ++i)
      row_poisoned[i] = row_has_poison(rows + i * row_stride, columns.depth) ? 1 : 0;
  }
  void panel(std::int64_t number, std::uint64_t* scratch) const {
    std::uint8_t poisoned[kPanel];
    pack_panel(columns, number, scratch, poisoned);
    const std::int64_t first = number * kPanel, width = std::min(kPanel, columns.count - first);
    for (std::int64_t i = 0; i < row_count; i += kRowTile) {
      const std::int64_t count = std::min(kRowTile, row_count - i);
      std::uint32_t a[kRowTile][kPanel], b[kRowTile][kPanel];
      multiply_panel(Modulus::p, a, rows_of(rows + i * row_stride, row_stride, Modulus::p), count, scratch,
                     columns.depth);
      if constexpr (std::is_same_v<Element, Value>) {
        multiply_panel(Modulus::q, b, rows_of(rows + i * row_stride, row_stride, Modulus::q), count, scratch,
                       columns.depth);
      }
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t j = 0; j < width; ++j) {
          Element result;
          if constexpr (std::is_same_v<Element, Value>) {
            result = {a[r][j], b[r][j]};
          } else {
            result = {a[r][j]};
          }
          bool is_bad = row_poisoned[i + r] != 0 || poisoned[j] != 0;
          if (bias != nullptr) {
            const Element& shift = bias[(i + r) * bias_row + (first + j) * bias_column];
            is_bad = is_bad || is_poison(shift);
            result = add(result, shift);
          }
          dst[(i + r) * dst_row + (first + j) * dst_column] =
              is_bad ? std::bit_cast<Element>(poison_element<Element>()) : result;
        }
      }
    }
  }
};

template <class Element>
void linear_of(BlockPool& pool, const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::int64_t m = dst.size(0), n = dst.size(1), depth = x.size(1), weight_stride = weight.strides()[0];
  const Element* shift = bias.defined() ? bias.data_as<Element>() : nullptr;
  const bool packs_x = m < n;
  const PoolBlock flags(pool, static_cast<std::size_t>(std::max(m, n)));
  auto* row_poisoned = flags.data_as<std::uint8_t>();
  const Linear<Element> product = packs_x ? Linear<Element>{dst.data_as<Element>(),
                                                            1,
                                                            n,
                                                            weight.data_as<Element>(),
                                                            n,
                                                            weight_stride,
                                                            {x.data_as<Element>(), m, depth, depth, 1},
                                                            shift,
                                                            1,
                                                            0,
                                                            row_poisoned}
                                          : Linear<Element>{dst.data_as<Element>(),
                                                            n,
                                                            1,
                                                            x.data_as<Element>(),
                                                            m,
                                                            depth,
                                                            {weight.data_as<Element>(), n, depth, weight_stride, 1},
                                                            shift,
                                                            0,
                                                            1,
                                                            row_poisoned};
  const std::int64_t panels = panels_of(product.columns.count), entries = depth * kPanel;
  product.look_for_poison();
  const int threads = threads_for(m * n * depth / 32, panels);
  const PoolBlock scratch(pool, static_cast<std::size_t>(entries * threads) * sizeof(std::uint64_t));
  for_parts(panels, threads, [&](std::int64_t part, int thread) {
    product.panel(part, scratch.data_as<std::uint64_t>() + entries * thread);
  });
}

// Attention of one head of one item.
struct Head {
  const Functions& functions;
  const Value* q;
  const Value* k;
  const Value* v;
  std::int64_t q_stride, k_stride, v_stride;  // from token to token
  std::int64_t queries, keys, width;
  Value scale;
  Wide* out;
  std::int64_t out_stride;
  Mass* lse;
  std::int64_t lse_stride;
  const Tensor* mask;  // or null
  std::int64_t mask_first;

  // Scratch in 64-bit words: packed keys, packed values, weights of a tile of rows, flags of keys.
  static std::int64_t key_words(std::int64_t keys, std::int64_t width) { return panels_of(keys) * kPanel * width; }
  static std::int64_t value_words(std::int64_t keys, std::int64_t width) { return panels_of(width) * kPanel * keys; }
  static std::int64_t scratch_words(std::int64_t keys, std::int64_t width) {
    const std::int64_t padded = panels_of(keys) * kPanel;
    return key_words(keys, width) + value_words(keys, width) + kRowTile * padded / 2 + padded / 8;
  }

  std::int64_t compute(std::uint64_t* scratch) const;  // returns the number of vanished masses
  // Replaces logits by weights; returns whether the row is spoilt.
  bool weigh(std::int64_t query, std::uint32_t* row, const std::uint8_t* poisoned_keys, bool& has_key) const;
};

bool Head::weigh(std::int64_t query, std::uint32_t* row, const std::uint8_t* poisoned_keys, bool& has_key) const {
  bool is_bad = false;
  const std::int64_t first = mask == nullptr ? 0 : mask_first + query * mask->strides()[2];
  const std::int64_t step = mask == nullptr ? 0 : mask->strides()[3];
  for (std::int64_t key = 0; key < keys; ++key) {
    std::uint32_t logit = multiply_q(row[key], scale.b);
    bool attended = true;
    if (mask != nullptr && mask->dtype() == kBool) {
      const std::uint8_t flag = mask->data_as<Bool8>()[first + key * step].byte;
      attended = flag != 0;
      is_bad = is_bad || flag > 1;
    } else if (mask != nullptr) {
      const Value& bias = mask->data_as<Value>()[first + key * step];
      is_bad = is_bad || (is_poison(bias) && !is_never(bias));
      attended = !is_poison(bias);
      if (attended) logit = add_modulo(logit, bias.b, kQ);
    }
    row[key] = attended ? functions.exponential(logit) : 0;
    has_key = has_key || attended;
    is_bad = is_bad || (attended && poisoned_keys[key] != 0);
  }
  return is_bad;
}

std::int64_t Head::compute(std::uint64_t* scratch) const {
  const std::int64_t key_panels = panels_of(keys), value_panels = panels_of(width), padded = key_panels * kPanel;
  std::uint64_t* packed_keys = scratch;
  std::uint64_t* packed_values = packed_keys + key_words(keys, width);
  auto* weights = reinterpret_cast<std::uint32_t*>(packed_values + value_words(keys, width));
  auto* poisoned_keys = reinterpret_cast<std::uint8_t*>(weights + kRowTile * padded);
  for (std::int64_t panel = 0; panel < key_panels; ++panel) {
    pack_panel(Columns<Value>{k, keys, width, k_stride, 1}, panel, packed_keys + panel * kPanel * width,
               poisoned_keys + panel * kPanel);
  }
  bool value_poisoned = false;
  for (std::int64_t panel = 0; panel < value_panels; ++panel) {
    std::uint8_t poisoned[kPanel];
    pack_panel(Columns<Value>{v, width, keys, 1, v_stride}, panel, packed_values + panel * kPanel * keys, poisoned);
    value_poisoned = value_poisoned || std::any_of(poisoned, poisoned + kPanel, [](std::uint8_t p) { return p != 0; });
  }
  std::int64_t vanished = 0;
  for (std::int64_t query = 0; query < queries; query += kRowTile) {
    const std::int64_t count = std::min(kRowTile, queries - query);
    const Rows rows = rows_of(q + query * q_stride, q_stride, Modulus::q);
    std::uint32_t tile[kRowTile][kPanel];
    for (std::int64_t panel = 0; panel < key_panels; ++panel) {
      multiply_panel(Modulus::q, tile, rows, count, packed_keys + panel * kPanel * width, width);
      for (std::int64_t r = 0; r < count; ++r) std::copy_n(tile[r], kPanel, weights + r * padded + panel * kPanel);
    }
    std::uint32_t inverses[kRowTile];
    bool is_bad[kRowTile];
    for (std::int64_t r = 0; r < count; ++r) {
      bool has_key = false;
      std::uint32_t* row = weights + r * padded;
      is_bad[r] = weigh(query + r, row, poisoned_keys, has_key) || value_poisoned ||
                  row_has_poison(q + (query + r) * q_stride, width);
      std::uint32_t mass = 0;
      for (std::int64_t key = 0; key < keys; ++key) mass = add_modulo(mass, row[key], kP);
      if (has_key && mass == 0 && !is_bad[r]) {
        ++vanished;
        is_bad[r] = true;
      }
      inverses[r] = mass == 0 ? 0 : inverse_modulo(mass, kP);
      lse[(query + r) * lse_stride] = is_bad[r] ? Mass{kPoison} : Mass{mass};
    }
    for (std::int64_t panel = 0; panel < value_panels; ++panel) {
      multiply_panel(Modulus::p, tile, {weights, padded, 1}, count, packed_values + panel * kPanel * keys, keys);
      const std::int64_t channels = std::min(kPanel, width - panel * kPanel);
      for (std::int64_t r = 0; r < count; ++r) {
        Wide* result = out + (query + r) * out_stride + panel * kPanel;
        for (std::int64_t j = 0; j < channels; ++j)
          result[j] = is_bad[r] ? kPoisonWide : Wide{multiply_p(tile[r][j], inverses[r])};
      }
    }
  }
  return vanished;
}

}  // namespace

void linear(BlockPool& pool, const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (dst.dtype().size() == sizeof(Value)) return linear_of<Value>(pool, dst, x, weight, bias);
  linear_of<Wide>(pool, dst, x, weight, bias);
}

void attention(BlockPool& pool, const Functions& functions, std::atomic<std::int64_t>& zero_divisions,
               const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
               Value scale) {
  const std::int64_t heads = q.size(2), queries = q.size(1), keys = k.size(1), width = q.size(3);
  const std::int64_t words = Head::scratch_words(keys, width) + 1, parts = q.size(0) * heads;
  const int threads = threads_for(parts * queries * keys * width / 16, parts);
  const PoolBlock scratch(pool, static_cast<std::size_t>(words * threads) * sizeof(std::uint64_t));
  for_parts(parts, threads, [&](std::int64_t part, int thread) {
    const std::int64_t item = part / heads, head = part % heads;
    const auto first = [&](const Tensor& x) { return item * x.strides()[0] + head * x.strides()[2]; };
    const Head one{.functions = functions,
                   .q = q.data_as<Value>() + first(q),
                   .k = k.data_as<Value>() + first(k),
                   .v = v.data_as<Value>() + first(v),
                   .q_stride = q.strides()[1],
                   .k_stride = k.strides()[1],
                   .v_stride = v.strides()[1],
                   .queries = queries,
                   .keys = keys,
                   .width = width,
                   .scale = scale,
                   .out = dst.out.data_as<Wide>() + first(dst.out),
                   .out_stride = dst.out.strides()[1],
                   .lse = dst.lse.data_as<Mass>() + first(dst.lse),
                   .lse_stride = dst.lse.strides()[1],
                   .mask = mask.defined() ? &mask : nullptr,
                   .mask_first = mask.defined() ? item * mask.strides()[0] + head * mask.strides()[1] : 0};
    const std::int64_t vanished = one.compute(scratch.data_as<std::uint64_t>() + words * thread);
    if (vanished != 0) zero_divisions.fetch_add(vanished, std::memory_order_relaxed);
  });
}

}  // namespace shardproof::field
