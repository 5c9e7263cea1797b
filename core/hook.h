// Hooks around a module's forward, an onion: the hook that was registered last sees the arguments first and the outputs
// last. Source of the rules: parallelism specification 4.1 (names and order as in the diffusers hook registry).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.h"

namespace shardproof {

class Module;

class Hook {
 public:
  virtual ~Hook() = default;
  // For display: "ContextParallelSplitHook".
  virtual std::string_view class_name() const = 0;
  virtual void pre_forward(Module&, Arguments&) {}
  virtual void post_forward(Module&, Outputs&) {}
  // True if this hook computes the module's outputs itself, in new_forward.
  virtual bool replaces_forward() const { return false; }
  virtual Outputs new_forward(Module&, Arguments&) { return {}; }
  // Forgets what the hook carried over from earlier calls.
  virtual void reset() {}
};

class HookRegistry {
 public:
  // Wraps the present forward. Throws state_error if the name is taken.
  void register_hook(std::string_view name, std::unique_ptr<Hook> hook);
  // Null if there is none of that name.
  Hook* find(std::string_view name) const;
  // Relinks the chain; an unknown name is ignored. Returns whether one was removed.
  bool remove(std::string_view name);
  void reset();
  bool empty() const { return hooks_.empty(); }
  // In registration order.
  std::vector<std::string> names() const;
  // One line a hook in registration order: "(0) cp_input--- - ContextParallelSplitHook".
  std::string describe() const;
  // Runs the onion around module.forward.
  Outputs run(Module& module, Arguments& arguments) const;

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Hook> hook;
  };
  std::vector<Entry> hooks_;
};

}  // namespace shardproof
