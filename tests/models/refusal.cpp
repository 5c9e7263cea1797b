#include "tests/models/refusal.h"

#include <utility>
#include <vector>

#include "models/model_type.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {

std::string refusal_of(std::string_view model, std::string_view key, Json value) {
  const ModelType& type = find_model_type(model);
  Json config = type.hostile_config();
  config.set(key, std::move(value));
  const auto error = thrown_by([&] { type.attention_heads(parse_json(config.dump(), "config.json")); });
  return error ? error->message : "accepted";
}

NestedNumbers nested_numbers(const Json& json) {
  if (!json.is_array()) return {json.as_double()};
  std::vector<NestedNumbers> items;
  for (const Json& item : json.items()) items.push_back(nested_numbers(item));
  return {items};
}

}  // namespace shardproof::test
