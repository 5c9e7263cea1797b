#include "verify/field_draw.h"

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace shardproof {

ModelState random_field_state(Module& tree, FieldDevice& device, std::uint64_t seed) {
  ModelState state;
  state.dtype = field_dtype();
  for_each_parameter(tree, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    state.names.push_back(path);
    state.tensors.push_back(
        std::make_shared<const Tensor>(random_field_tensor(device, seed, path, parameter.tensor->shape())));
  });
  return state;
}

void draw_field_values(Arguments& arguments, const Module& tree, FieldDevice& device, std::uint64_t seed,
                       std::string_view prefix) {
  for (const ArgumentSpec& spec : tree.forward_arguments()) {
    Value* value = arguments.find(spec.name);
    if (spec.kind != ArgumentKind::value || value == nullptr) continue;
    const auto drawn = [&](const Tensor& of_case, std::size_t number) {
      return random_field_tensor(device, seed, fmt::format("{}{}/{}", prefix, spec.name.text(), number),
                                 of_case.shape());
    };
    if (auto* tensor = std::get_if<Tensor>(value)) {
      *tensor = drawn(*tensor, 0);
    } else if (auto* list = std::get_if<std::vector<Tensor>>(value)) {
      for (std::size_t i = 0; i < list->size(); ++i) (*list)[i] = drawn((*list)[i], i);
    }
  }
}

}  // namespace shardproof
