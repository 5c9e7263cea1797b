#include "core/hook.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/module.h"

namespace shardproof {

void HookRegistry::register_hook(std::string_view name, std::unique_ptr<Hook> hook) {
  SHARDPROOF_CHECK(find(name) == nullptr, state_error, "a hook named '{}' is registered already; remove it first",
                   name);
  hooks_.push_back({std::string(name), std::move(hook)});
}

Hook* HookRegistry::find(std::string_view name) const {
  const auto found = std::find_if(hooks_.begin(), hooks_.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == hooks_.end() ? nullptr : found->hook.get();
}

bool HookRegistry::remove(std::string_view name) {
  return std::erase_if(hooks_, [&](const Entry& entry) { return entry.name == name; }) > 0;
}

void HookRegistry::reset() {
  for (Entry& entry : hooks_) entry.hook->reset();
}

std::vector<std::string> HookRegistry::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : hooks_) names.push_back(entry.name);
  return names;
}

std::string HookRegistry::describe() const {
  std::string text;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    text += fmt::format("({}) {} - {}\n", i, hooks_[i].name, hooks_[i].hook->class_name());
  }
  return text;
}

Outputs HookRegistry::run(Module& module, Arguments& arguments) const {
  // A replacement stands for everything inside it: the outermost one wins, and the hooks inside do not see the call.
  std::size_t first = 0;
  const Hook* replacement = nullptr;
  for (std::size_t i = hooks_.size(); i-- > 0;) {
    hooks_[i].hook->pre_forward(module, arguments);
    if (hooks_[i].hook->replaces_forward()) {
      first = i;
      replacement = hooks_[i].hook.get();
      break;
    }
  }
  Outputs outputs = replacement ? hooks_[first].hook->new_forward(module, arguments) : module.forward(arguments);
  for (std::size_t i = first; i < hooks_.size(); ++i) hooks_[i].hook->post_forward(module, outputs);
  return outputs;
}

}  // namespace shardproof
