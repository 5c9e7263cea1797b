#include "core/dtype.h"

#include <array>
#include <mutex>

#include "core/error.h"

namespace shardproof {
namespace {

struct Entry {
  std::string name;
  std::size_t size = 0;
  DTypeCategory category = DTypeCategory::floating;
  std::uint8_t wide = 0;
  std::uint8_t log = 0;
};

constexpr std::size_t kMaxTypes = 32;

// Entries are never moved or removed, so a handle can be resolved without the lock.
struct Registry {
  std::array<Entry, kMaxTypes> entries;
  std::size_t count = 6;
  std::mutex mutex;

  Registry() {
    entries[0] = {"float64", 8, DTypeCategory::floating, 0, 0};
    entries[1] = {"float32", 4, DTypeCategory::floating, 1, 1};
    entries[2] = {"bfloat16", 2, DTypeCategory::floating, 1, 1};
    entries[3] = {"float16", 2, DTypeCategory::floating, 1, 1};
    entries[4] = {"int64", 8, DTypeCategory::integer, 4, 4};
    entries[5] = {"bool", 1, DTypeCategory::boolean, 5, 5};
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

std::size_t DType::size() const { return registry().entries[id_].size; }
std::string_view DType::name() const { return registry().entries[id_].name; }
DTypeCategory DType::category() const { return registry().entries[id_].category; }
bool DType::is_value() const { return category() == DTypeCategory::floating || category() == DTypeCategory::exact; }

DType wide_dtype(DType type) { return DType(registry().entries[type.id()].wide); }
DType log_dtype(DType type) { return DType(registry().entries[type.id()].log); }

DType register_dtype(const DTypeDescription& description) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (std::size_t i = 0; i < all.count; ++i) {
    if (all.entries[i].name != description.name) continue;
    SHARDPROOF_CHECK(all.entries[i].size == description.size && all.entries[i].category == description.category,
                     type_error, "element type '{}' is registered already with another size or category",
                     description.name);
    return DType(static_cast<std::uint8_t>(i));
  }
  SHARDPROOF_CHECK(all.count < kMaxTypes, type_error, "no room for element type '{}': at most {} types",
                   description.name, kMaxTypes);
  const auto id = static_cast<std::uint8_t>(all.count);
  all.entries[id] = {description.name, description.size, description.category, id, id};
  ++all.count;
  return DType(id);
}

void set_related_dtypes(DType type, DType wide, DType log) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.entries[type.id()].wide = wide.id();
  all.entries[type.id()].log = log.id();
}

DType dtype_named(std::string_view name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::string known;
  for (std::size_t i = 0; i < all.count; ++i) {
    if (all.entries[i].name == name) return DType(static_cast<std::uint8_t>(i));
    known += (known.empty() ? "" : ", ") + all.entries[i].name;
  }
  fail(ErrorKind::type_error, "no element type is named '{}'; known: {}", name, known);
}

}  // namespace shardproof
