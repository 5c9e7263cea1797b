#include "core/module.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/operation_recorder.h"
#include "core/ops.h"

namespace shardproof {

std::string Module::path() const {
  if (parent_ == nullptr) return "";
  const std::string above = parent_->path();
  return above.empty() ? name_.text() : above + "." + name_.text();
}

Outputs Module::call(Arguments arguments) {
  const auto declared = forward_arguments();
  for (const auto& [name, value] : arguments.entries()) {
    const bool known =
        std::any_of(declared.begin(), declared.end(), [&](const ArgumentSpec& spec) { return spec.name == name; });
    SHARDPROOF_CHECK(known, state_error, "module '{}' ({}) has no argument '{}'", path(), class_name(), name.text());
  }
  const ModuleMark mark(*this);
  Outputs outputs = has_hooks() ? hooks_->run(*this, arguments) : forward(arguments);
  if (observer_ != nullptr) observer_->on_outputs(*this, outputs);
  return outputs;
}

Module* Module::find_child(std::string_view name) const {
  for (const auto& child : children_) {
    if (child->name_.text() == name) return child.get();
  }
  return nullptr;
}

Module* Module::find_module(std::string_view path) {
  Module* module = this;
  while (module != nullptr && !path.empty()) {
    const std::size_t dot = path.find('.');
    module = module->find_child(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
  }
  return module;
}

void Module::for_each_module(const std::function<void(Module&)>& visit) {
  visit(*this);
  for (const auto& child : children_) child->for_each_module(visit);
}

void Module::assign_parameter(Name name, std::shared_ptr<const Tensor> tensor) {
  const DType dtype = tensor->dtype();
  assign_parameter(name, std::move(tensor), dtype);
}

void Module::assign_parameter(Name name, std::shared_ptr<const Tensor> tensor, DType used_as) {
  for (Parameter& parameter : parameters_) {
    if (parameter.name == name) {
      parameter.tensor = std::move(tensor);
      parameter.used_as = used_as;
      return;
    }
  }
  fail(ErrorKind::state_error, "module '{}' ({}) has no parameter '{}'", path(), class_name(), name.text());
}

HookRegistry& Module::hooks() {
  if (hooks_ == nullptr) hooks_ = std::make_unique<HookRegistry>();
  return *hooks_;
}

void Module::remove_hook(std::string_view name, bool recursive) {
  if (hooks_ != nullptr) hooks_->remove(name);
  if (!recursive) return;
  for (const auto& child : children_) child->remove_hook(name, true);
}

void Module::set_observer(ModuleObserver* observer) {
  for_each_module([observer](Module& module) { module.observer_ = observer; });
}

void Module::adopt(Name name, std::unique_ptr<Module> child) {
  SHARDPROOF_CHECK(find_child(name.text()) == nullptr, internal_error, "module {} has two children named '{}'",
                   class_name(), name.text());
  child->name_ = name;
  child->parent_ = this;
  children_.push_back(std::move(child));
}

void Module::declare_parameter(Name name, const Shape& shape) {
  parameters_.push_back({name, std::make_shared<const Tensor>(shape, kFloat32), kFloat32});
}

Tensor Module::parameter(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  return ops::cast(*parameter.tensor, parameter.used_as);
}

Outputs ModuleList::forward(Arguments&) {
  fail(ErrorKind::state_error, "module list '{}' cannot be called; call its elements", path());
}

std::span<const ArgumentSpec> TensorModule::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{"hidden_states", ArgumentKind::value}};
  return kArguments;
}

Outputs TensorModule::forward(Arguments& arguments) {
  static const Name kHiddenStates("hidden_states");
  return compute(arguments.tensor(kHiddenStates));
}

Tensor TensorModule::operator()(const Tensor& x) {
  if (!is_watched()) {
    const ModuleMark mark(*this);
    return compute(x);
  }
  static const Name kHiddenStates("hidden_states");
  return call({{kHiddenStates, x}}).tensors.front();
}

Linear::Linear(std::int64_t in_features, std::int64_t out_features, Bias bias)
    : Linear(in_features, out_features, bias, Blocks{}) {}

Linear::Linear(std::int64_t in_features, std::int64_t out_features, Bias bias, Blocks blocks)
    : TensorModule("Linear"), in_features_(in_features), out_features_(out_features), blocks_(std::move(blocks)) {
  declare_parameter("weight", {out_features, in_features});
  if (bias == Bias::present) declare_parameter("bias", {out_features});
}

Tensor Linear::linear_with(const Tensor& x, const Tensor& bias) const {
  const Tensor weight = parameter(0);
  SHARDPROOF_CHECK(x.rank() > 0 && x.size(-1) == weight.size(1), shape_error,
                   "layer '{}' with weight {} expects rows of {}, got {}", path(), weight.shape().text(),
                   weight.size(1), x.text());
  return ops::linear(x, weight, bias);
}

void for_each_parameter(Module& root,
                        const std::function<void(const std::string& path, Module&, const Module::Parameter&)>& visit) {
  root.for_each_module([&](Module& module) {
    const std::string prefix = module.path();
    for (const Module::Parameter& parameter : module.parameters()) {
      visit(prefix.empty() ? parameter.name.text() : prefix + "." + parameter.name.text(), module, parameter);
    }
  });
}

}  // namespace shardproof
