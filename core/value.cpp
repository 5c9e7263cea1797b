#include "core/value.h"

#include "core/error.h"

namespace shardproof {

std::string_view value_kind_name(const Value& value) {
  static constexpr std::string_view kNames[] = {"none",       "a tensor", "a list of tensors", "a bool",
                                                "an integer", "a number", "a string",          "a list of numbers"};
  return kNames[value.index()];
}

void Arguments::set(Name name, Value value) {
  if (Value* existing = find(name)) {
    *existing = std::move(value);
  } else {
    entries_.emplace_back(name, std::move(value));
  }
}

const Value* Arguments::find(Name name) const {
  for (const auto& [key, value] : entries_) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value* Arguments::find(Name name) { return const_cast<Value*>(std::as_const(*this).find(name)); }

const Tensor& Arguments::tensor(Name name) const {
  const Value* value = find(name);
  SHARDPROOF_CHECK(value != nullptr, state_error, "argument '{}' is missing", name.text());
  const Tensor* tensor = std::get_if<Tensor>(value);
  SHARDPROOF_CHECK(tensor != nullptr, state_error, "argument '{}' must be a tensor, got {}", name.text(),
                   value_kind_name(*value));
  return *tensor;
}

Tensor Arguments::optional_tensor(Name name) const {
  const Value* value = find(name);
  return value == nullptr || is_none(*value) ? Tensor() : tensor(name);
}

std::vector<Tensor> Arguments::tensor_list(Name name) const {
  const Value* value = find(name);
  if (value == nullptr || is_none(*value)) return {};
  const auto* list = std::get_if<std::vector<Tensor>>(value);
  SHARDPROOF_CHECK(list != nullptr, state_error, "argument '{}' must be a list of tensors, got {}", name.text(),
                   value_kind_name(*value));
  return *list;
}

bool Arguments::flag(Name name, bool default_value) const {
  const Value* value = find(name);
  if (value == nullptr || is_none(*value)) return default_value;
  const bool* flag = std::get_if<bool>(value);
  SHARDPROOF_CHECK(flag != nullptr, state_error, "argument '{}' must be a bool, got {}", name.text(),
                   value_kind_name(*value));
  return *flag;
}

}  // namespace shardproof
