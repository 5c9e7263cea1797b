// Element types. A DType is a small handle into a registry {id, size, name}, so that exact scalars can be added by the
// library that defines them. Every value type has a wide type (the accumulator: what attention returns) and a log type
// (log-sum-exp); operations never mix types implicitly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardproof {

enum class DTypeCategory : std::uint8_t {
  floating,  // arithmetic with rounding
  integer,   // indices and identifiers: movement only
  boolean,   // masks
  exact,     // registered scalars: arithmetic without rounding
  log_mass,  // registered log types: only logaddexp and lse_weight are defined
};

class DType {
 public:
  constexpr DType() = default;
  constexpr explicit DType(std::uint8_t id) : id_(id) {}
  constexpr std::uint8_t id() const { return id_; }
  std::size_t size() const;
  std::string_view name() const;
  DTypeCategory category() const;
  // True for the types that a model's values may have (floating and exact).
  bool is_value() const;
  friend constexpr bool operator==(DType, DType) = default;

 private:
  std::uint8_t id_ = 0;
};

inline constexpr DType kFloat64{0};
inline constexpr DType kFloat32{1};
inline constexpr DType kBFloat16{2};
inline constexpr DType kFloat16{3};
inline constexpr DType kInt64{4};
inline constexpr DType kBool{5};

// The accumulator type: float32 for the 16-bit types, the type itself for float64, float32 and the types without
// arithmetic.
DType wide_dtype(DType type);
// The type of a log-sum-exp of logits of `type`.
DType log_dtype(DType type);

struct DTypeDescription {
  std::string name;
  std::size_t size = 0;
  DTypeCategory category = DTypeCategory::exact;
};

// Adds a type, or returns the registered one of the same name; throws type_error if that one is described differently.
DType register_dtype(const DTypeDescription& description);
// Declares the wide and the log type of a registered type. To be called once, before tensors of the type exist.
void set_related_dtypes(DType type, DType wide, DType log);
// The type of that name; throws type_error listing the names that exist.
DType dtype_named(std::string_view name);

}  // namespace shardproof
