#include "models/config_reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {
ConfigReader::ConfigReader(const Json& json) : json_(json) {
  if (!json.is_object()) json.reject("an object");
}

const Json* ConfigReader::find(std::string_view field) {
  known_.emplace_back(field);
  const Json* value = json_.find(field);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void ConfigReader::read(std::string_view field, std::int64_t& value, std::int64_t min, std::int64_t max) {
  if (const Json* json = find(field)) value = json->as_int(min, max);
}

void ConfigReader::read(std::string_view field, bool& value) {
  if (const Json* json = find(field)) value = json->as_bool();
}

void ConfigReader::read(std::string_view field, double& value) {
  if (const Json* json = find(field)) value = json->as_double();
}

void ConfigReader::read_positive(std::string_view field, double& value) {
  const Json* json = find(field);
  if (json == nullptr) return;
  value = json->as_double();
  if (!std::isfinite(value) || value <= 0.0) json->reject("a number above zero");
}

void ConfigReader::read(std::string_view field, std::string& value) {
  if (const Json* json = find(field)) value = json->as_string();
}

void ConfigReader::read(std::string_view field, std::vector<std::int64_t>& value, std::int64_t min) {
  const Json* json = find(field);
  if (json == nullptr) return;
  value.clear();
  for (const Json& item : json->items()) value.push_back(item.as_int(min, kLargestSize));
  if (value.empty()) json->reject("a list of at least one number");
}

void ConfigReader::read(std::string_view field, std::optional<std::int64_t>& value, std::int64_t min,
                        std::int64_t max) {
  if (const Json* json = find(field)) value = json->as_int(min, max);
}

void ConfigReader::read(std::string_view field, std::array<std::int64_t, 3>& value, std::int64_t min,
                        std::int64_t max) {
  const Json* json = find(field);
  if (json == nullptr) return;
  if (!json->is_array() || json->size() != value.size()) json->reject("a list of three numbers");
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = json->at(i).as_int(min, max);
}

void ConfigReader::read_only(std::string_view field, std::string_view offered) {
  const Json* json = find(field);
  if (json == nullptr) return;
  const std::string given = json->as_string();
  SHARDPROOF_CHECK(given == offered, unsupported_error, "{}: key '{}' is '{}'; only '{}' is offered", json_.where(),
                   field, printable(given), offered);
}

void ConfigReader::finish() const {
  for (const JsonMember& member : json_.members()) {
    if (member.key.starts_with('_')) continue;
    SHARDPROOF_CHECK(std::find(known_.begin(), known_.end(), member.key) != known_.end(), config_error,
                     "{}: unknown field '{}'; the fields of this model are {}", json_.where(), printable(member.key),
                     fmt::join(known_, ", "));
  }
}

void ConfigReader::check_rope_axes(const std::vector<std::int64_t>& axes, std::int64_t head_dim,
                                   std::string_view field) const {
  const std::int64_t sum = std::accumulate(axes.begin(), axes.end(), std::int64_t{0});
  SHARDPROOF_CHECK(sum == head_dim, config_error,
                   "{}: key '{}' adds up to {}, but 'attention_head_dim' is {}; they must be equal", json_.where(),
                   field, sum, head_dim);
  for (const std::int64_t axis : axes) {
    SHARDPROOF_CHECK(axis % 2 == 0, config_error, "{}: key '{}' contains {}; every entry must be even", json_.where(),
                     field, axis);
  }
}

void ConfigReader::check_three_axes(const std::vector<std::int64_t>& axes, std::string_view field) const {
  SHARDPROOF_CHECK(axes.size() == 3, config_error,
                   "{}: key '{}' has {} entries; expected 3, for frame, height and width", json_.where(), field,
                   axes.size());
}

}  // namespace shardproof
