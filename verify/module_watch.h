// Sees, and may replace, the tensors that the modules of a tree give each other: every tensor argument as the caller
// gives it, before the hooks of plans divide it, and every output as the caller gets it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/module.h"

namespace shardproof {

struct WatchedValue {
  std::string module;  // path
  std::string class_name;
  int call = 0;      // 0 = the module's first
  std::string name;  // "argument 'rotary.1'", "output 0"
  // The same for the same value of any run.
  std::string key() const;
};

class ModuleWatch : public ModuleObserver {
 public:
  // For a tree without plans.
  void watch(Module& tree);
  // For a tree to which plans are yet to be applied: only what lies below the root is watched, and the root's outputs.
  void watch_outside_of_plans(Module& tree);
  void on_outputs(const Module& module, const Outputs& outputs) final;

 private:
  class Outer;
  class Root;
  virtual void on_argument(const WatchedValue& value, Tensor& tensor) = 0;
  virtual void on_output(const WatchedValue& value, const Tensor& tensor) = 0;
  // The same before it reaches the caller, who may get another; not of the root of a tree with plans.
  virtual void on_return(const WatchedValue&, Tensor&) {}
  virtual void on_begin(Module&) {}
  virtual void on_end(const Module&) {}
  void see_returned(Module& module, Outputs& outputs);
  void see_arguments(Module& module, Arguments& arguments);

  std::unordered_map<std::string, int> calls_;  // by path
};

}  // namespace shardproof
