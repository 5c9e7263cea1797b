// How the CPU device loads and stores its four floating types: float64 and float32 as they are, the 16-bit types as
// float32, rounded once when stored.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "core/element_types.h"

namespace shardproof::cpu {

// The type that arithmetic on Storage happens in.
template <class Storage>
using Accumulator = std::conditional_t<std::same_as<Storage, double>, double, float>;

template <class Storage>
inline Accumulator<Storage> load(Storage x) {
  return convert_element<Accumulator<Storage>>(x);
}
template <class Storage>
inline Storage store(Accumulator<Storage> x) {
  return convert_element<Storage>(x);
}

// Copies rows of `columns` elements to contiguous rows in the accumulator type.
template <class Storage>
void load_rows(Accumulator<Storage>* to, const Storage* from, std::int64_t rows, std::int64_t columns,
               std::int64_t stride) {
  // Rows lie far apart, where the processor does not foresee them.
  constexpr std::int64_t kAhead = 8, kLine = 64 / static_cast<std::int64_t>(sizeof(Storage));
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i + kAhead < rows) {
      for (std::int64_t j = 0; j < columns; j += kLine) __builtin_prefetch(from + (i + kAhead) * stride + j);
    }
    for (std::int64_t j = 0; j < columns; ++j) to[i * columns + j] = load(from[i * stride + j]);
  }
}

// Calls visitor(std::type_identity<Storage>{}) for a floating type.
template <class Visitor>
decltype(auto) visit_floating(DType dtype, std::string_view operation, Visitor&& visitor) {
  if (dtype == kFloat64) return visitor(std::type_identity<double>{});
  if (dtype == kFloat32) return visitor(std::type_identity<float>{});
  if (dtype == kBFloat16) return visitor(std::type_identity<BFloat16>{});
  if (dtype == kFloat16) return visitor(std::type_identity<Float16>{});
  fail(ErrorKind::type_error, "{} is not defined for element type {}", operation, dtype.name());
}

}  // namespace shardproof::cpu
