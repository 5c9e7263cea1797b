// What a module's forward takes and returns: values by argument name, and one or several output tensors. An argument
// that is absent differs from one that was given as none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/name.h"
#include "core/tensor.h"

namespace shardproof {

// A number or a list of such: [[1, 4, 4], [1, 2, 2]].
struct NestedNumbers {
  std::variant<double, std::vector<NestedNumbers>> content;
  friend bool operator==(const NestedNumbers&, const NestedNumbers&) = default;
};

using Value = std::variant<std::monostate,  // none
                           Tensor, std::vector<Tensor>, bool, std::int64_t, double, std::string, NestedNumbers>;

inline bool is_none(const Value& value) { return std::holds_alternative<std::monostate>(value); }
// "none", "a tensor", "a list of tensors", ..
std::string_view value_kind_name(const Value& value);

// How an argument reaches the model.
enum class ArgumentKind : std::uint8_t {
  value,       // tensor in the compute type on the compute device
  coordinate,  // timesteps, ids, guidance: float64 on the host, only ever used to make tables
  index,       // int64 on the compute device
  mask,        // bool, or additive in the compute type
  setting,     // not a tensor: flags and numbers
};

struct ArgumentSpec {
  Name name;
  ArgumentKind kind = ArgumentKind::value;
};

// Arguments of one call, by keyword, in the order in which they were given.
class Arguments {
 public:
  Arguments() = default;
  Arguments(std::initializer_list<std::pair<Name, Value>> entries) : entries_(entries) {}
  // Adds or replaces.
  void set(Name name, Value value);
  // Null if absent.
  const Value* find(Name name) const;
  Value* find(Name name);
  // The tensor of that name; state_error naming the argument if absent, none or something else.
  const Tensor& tensor(Name name) const;
  // A tensor, or "no tensor" if absent or none.
  Tensor optional_tensor(Name name) const;
  // A list of tensors, empty if absent or none.
  std::vector<Tensor> tensor_list(Name name) const;
  bool flag(Name name, bool default_value) const;
  const std::vector<std::pair<Name, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<Name, Value>> entries_;
};

// One tensor, or a list of them (a tuple of the original model).
struct Outputs {
  Outputs() = default;
  Outputs(Tensor tensor) : tensors{std::move(tensor)} {}
  explicit Outputs(std::vector<Tensor> list) : tensors(std::move(list)), is_list(true) {}
  std::vector<Tensor> tensors;
  bool is_list = false;
};

}  // namespace shardproof
