#include "models/argument_checks.h"

#include "core/error.h"
#include "models/layers.h"

namespace shardproof {

void ArgumentChecks::must_be_none(Name name, std::string_view why) const {
  const Value* value = arguments_.find(name);
  SHARDPROOF_CHECK(value == nullptr || is_none(*value), unsupported_error,
                   "argument '{}' of {} must be none, got {}; {}", name.text(), model_,
                   value == nullptr ? "" : value_kind_name(*value), why);
}

void ArgumentChecks::must_be_off(Name name, std::string_view why) const {
  const Value* value = arguments_.find(name);
  const auto is_off_as = [&]<class T>(T off) {
    const T* held = value == nullptr ? nullptr : std::get_if<T>(value);
    return held != nullptr && *held == off;
  };
  const bool is_off =
      value == nullptr || is_none(*value) || is_off_as(false) || is_off_as(std::int64_t{0}) || is_off_as(0.0);
  SHARDPROOF_REFUSE_UNLESS(is_off, unsupported_error, "argument '{}' of {} must be none, got {}; {}", name.text(),
                           model_, value == nullptr ? "" : value_kind_name(*value), why);
}

void ArgumentChecks::must_return_a_tuple() const {
  SHARDPROOF_CHECK(!arguments_.flag(argument::return_dict, false), unsupported_error,
                   "argument 'return_dict' of {} must be false", model_);
}

void ArgumentChecks::shape(Name name, const Tensor& tensor, bool fits, std::string_view expected) const {
  SHARDPROOF_CHECK(fits, shape_error, "argument '{}' of {} is {}; expected {}", name.text(), model_, tensor.text(),
                   expected);
}

const Tensor& ArgumentChecks::sequence(Name name, std::string_view meaning) const {
  const Tensor& tensor = arguments_.tensor(name);
  shape(name, tensor, tensor.rank() == 3, meaning);
  return tensor;
}

const Tensor& ArgumentChecks::sequence(Name name, std::int64_t batch, std::string_view meaning) const {
  const Tensor& tensor = sequence(name, meaning);
  shape(name, tensor, tensor.size(0) == batch, meaning);
  return tensor;
}

void ArgumentChecks::per_item(Name name, std::int64_t batch) const {
  const Tensor tensor = arguments_.optional_tensor(name);
  const bool fits = !tensor.defined() || (tensor.rank() == 1 && (tensor.size(0) == batch || tensor.size(0) == 1));
  shape(name, tensor, fits, "[batch] with the batch of hidden_states");
}

void ArgumentChecks::per_item_or_token(Name name, std::int64_t batch) const {
  const Tensor& tensor = arguments_.tensor(name);
  const bool fits = (tensor.rank() == 1 || tensor.rank() == 2) && tensor.size(0) == batch;
  shape(name, tensor, fits, "[batch] or [batch, tokens] with the batch of hidden_states");
}

void ArgumentChecks::position_ids(Name name) const {
  const Tensor& ids = arguments_.tensor(name);
  const bool fits = ids.rank() == 2 || (ids.rank() == 3 && ids.size(0) > 0);
  shape(name, ids, fits, "[tokens, axes], or [batch, tokens, axes] with one entry for all");
}

}  // namespace shardproof
