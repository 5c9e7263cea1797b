#include "verify/module_watch.h"

#include <variant>
#include <vector>

#include <fmt/format.h>

namespace shardproof {
namespace {

constexpr std::string_view kOuter = "watch: outer", kRoot = "watch: root";

}  // namespace

class ModuleWatch::Outer final : public Hook {
 public:
  explicit Outer(ModuleWatch& watch) : watch_(watch) {}
  std::string_view class_name() const override { return "ModuleWatchHook"; }
  void pre_forward(Module& module, Arguments& arguments) override { watch_.see_arguments(module, arguments); }
  void post_forward(Module& module, Outputs& outputs) override { watch_.see_returned(module, outputs); }

 private:
  ModuleWatch& watch_;
};

// The innermost hook of the root comes last, when the hooks of all plans are there.
class ModuleWatch::Root final : public Hook {
 public:
  explicit Root(ModuleWatch& watch) : watch_(watch) {}
  std::string_view class_name() const override { return "ModuleWatchHook"; }
  void pre_forward(Module& root, Arguments&) override {
    root.for_each_module([&](Module& module) {
      if (&module != &root && module.hooks().find(kOuter) == nullptr)
        module.hooks().register_hook(kOuter, std::make_unique<Outer>(watch_));
    });
  }

 private:
  ModuleWatch& watch_;
};

std::string WatchedValue::key() const { return fmt::format("{}|{}|{}", module, call, name); }

void ModuleWatch::watch(Module& tree) {
  tree.set_observer(this);
  tree.for_each_module([&](Module& module) { module.hooks().register_hook(kOuter, std::make_unique<Outer>(*this)); });
}

void ModuleWatch::watch_outside_of_plans(Module& tree) {
  tree.set_observer(this);
  tree.hooks().register_hook(kRoot, std::make_unique<Root>(*this));
}

void ModuleWatch::see_arguments(Module& module, Arguments& arguments) {
  on_begin(module);
  WatchedValue value{module.path(), module.class_name(), calls_[module.path()], {}};
  for (const ArgumentSpec& spec : module.forward_arguments()) {
    Value* const given = arguments.find(spec.name);
    if (given == nullptr) continue;
    if (auto* tensor = std::get_if<Tensor>(given); tensor != nullptr && tensor->defined()) {
      value.name = fmt::format("argument '{}'", spec.name.text());
      on_argument(value, *tensor);
    }
    auto* const list = std::get_if<std::vector<Tensor>>(given);
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      if (!(*list)[i].defined()) continue;
      value.name = fmt::format("argument '{}.{}'", spec.name.text(), i);
      on_argument(value, (*list)[i]);
    }
  }
}

void ModuleWatch::see_returned(Module& module, Outputs& outputs) {
  WatchedValue value{module.path(), module.class_name(), calls_[module.path()], {}};
  for (std::size_t i = 0; i < outputs.tensors.size(); ++i) {
    if (!outputs.tensors[i].defined()) continue;
    value.name = fmt::format("output {}", i);
    on_return(value, outputs.tensors[i]);
  }
}

void ModuleWatch::on_outputs(const Module& module, const Outputs& outputs) {
  on_end(module);
  int& calls = calls_[module.path()];
  WatchedValue value{module.path(), module.class_name(), calls, {}};
  for (std::size_t i = 0; i < outputs.tensors.size(); ++i) {
    if (!outputs.tensors[i].defined()) continue;
    value.name = fmt::format("output {}", i);
    on_output(value, outputs.tensors[i]);
  }
  ++calls;
}

}  // namespace shardproof
