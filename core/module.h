// Module: a tree of named children and parameters with declared forward arguments. Every rank has a light tree of its
// own over shared tensors: a replicated weight exists once, however many ranks are simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/hook.h"
#include "core/name.h"
#include "core/tensor.h"
#include "core/value.h"

namespace shardproof {

class Module;

// Sees the outputs of every module call of a tree, after its hooks.
class ModuleObserver {
 public:
  virtual ~ModuleObserver() = default;
  virtual void on_outputs(const Module& module, const Outputs& outputs) = 0;
};

class Module {
 public:
  explicit Module(Name class_name) : class_name_(class_name) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // The class name of the original model, for instance "FluxTransformerBlock".
  const std::string& class_name() const { return class_name_.text(); }
  // "" for the root; "transformer_blocks.0.attn.to_q" below it.
  std::string path() const;
  Name name() const { return name_; }
  Module* parent() const { return parent_; }
  // A list of modules (numeric child names, "*" in plans), as opposed to a module that happens to have numbered
  // children.
  virtual bool is_list() const { return false; }
  // Names and kinds of forward's arguments, in the order of the original signature.
  virtual std::span<const ArgumentSpec> forward_arguments() const = 0;

  // Calls forward through the hooks. Throws state_error for an argument that forward does not have.
  Outputs call(Arguments arguments);
  // The computation itself, without hooks; called by call() and by hooks.
  virtual Outputs forward(Arguments& arguments) = 0;

  const std::vector<std::unique_ptr<Module>>& children() const { return children_; }
  // Null if there is none.
  Module* find_child(std::string_view name) const;
  // The module at a dotted path below this one; null if there is none.
  Module* find_module(std::string_view path);
  // This module and all below it, parents first, in declaration order.
  void for_each_module(const std::function<void(Module&)>& visit);

  struct Parameter {
    Name name;
    std::shared_ptr<const Tensor> tensor;  // without storage until weights are assigned
    DType used_as;                         // the type in which the module sees it
  };
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Replaces a parameter's tensor; state_error if there is no such parameter. A tensor of another type than `used_as`
  // is converted whenever the module uses it, and the copy is dropped after: a tree over weights in the type of their
  // file needs the memory of one converted module at a time.
  void assign_parameter(Name name, std::shared_ptr<const Tensor> tensor, DType used_as);
  // The same, used as it is.
  void assign_parameter(Name name, std::shared_ptr<const Tensor> tensor);

  bool has_hooks() const { return hooks_ != nullptr && !hooks_->empty(); }
  HookRegistry& hooks();
  // Removes a hook here and, if `recursive`, in every module below.
  void remove_hook(std::string_view name, bool recursive);
  // Sets the observer of this module and all below it; null for none.
  void set_observer(ModuleObserver* observer);

 protected:
  template <class T, class... Arguments_>
  T& add_child(Name name, Arguments_&&... arguments) {
    auto child = std::make_unique<T>(std::forward<Arguments_>(arguments)...);
    T& reference = *child;
    adopt(name, std::move(child));
    return reference;
  }
  void adopt(Name name, std::unique_ptr<Module> child);
  // Declares a parameter of that shape; its type is decided when weights are assigned.
  void declare_parameter(Name name, const Shape& shape);
  // In the type in which it is used.
  Tensor parameter(std::size_t index) const;
  // True if calls must go through call() to be seen by hooks or an observer.
  bool is_watched() const { return observer_ != nullptr || has_hooks(); }

 private:
  Name class_name_;
  Name name_;
  Module* parent_ = nullptr;
  std::vector<std::unique_ptr<Module>> children_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<HookRegistry> hooks_;
  ModuleObserver* observer_ = nullptr;
};

// A list of modules, children "0", "1", ..; has no forward of its own.
class ModuleList final : public Module {
 public:
  ModuleList() : Module("ModuleList") {}
  bool is_list() const override { return true; }
  std::span<const ArgumentSpec> forward_arguments() const override { return {}; }
  Outputs forward(Arguments& arguments) override;
  template <class T, class... Arguments_>
  T& append(Arguments_&&... arguments) {
    return add_child<T>(Name(std::to_string(children().size())), std::forward<Arguments_>(arguments)...);
  }
};

// A module of one tensor in, one tensor out.
class TensorModule : public Module {
 public:
  using Module::Module;
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;
  // Direct call: skips the argument list where nobody watches.
  Tensor operator()(const Tensor& x);

 private:
  virtual Tensor compute(const Tensor& x) const = 0;
};

// y = x W^T + b with parameters "weight" [out, in] and, if present, "bias" [out]. Under tensor parallelism the
// parameters are this rank's slices; the declared sizes stay those of the whole layer.
class Linear final : public TensorModule {
 public:
  enum class Bias : bool { absent, present };
  // Sizes of the blocks that the rows or columns are made of where a layer joins several projections, or takes several
  // inputs side by side; none for a plain layer.
  struct Blocks {
    std::vector<std::int64_t> rows = {};
    std::vector<std::int64_t> columns = {};
  };
  Linear(std::int64_t in_features, std::int64_t out_features, Bias bias = Bias::present);
  Linear(std::int64_t in_features, std::int64_t out_features, Bias bias, Blocks blocks);

  std::int64_t in_features() const { return in_features_; }
  std::int64_t out_features() const { return out_features_; }
  bool has_bias() const { return parameters().size() > 1; }
  const std::vector<std::int64_t>& packed_col_blocks() const { return blocks_.rows; }
  const std::vector<std::int64_t>& packed_row_blocks() const { return blocks_.columns; }
  // x W^T, without the bias.
  Tensor product(const Tensor& x) const { return linear_with(x, Tensor()); }
  // No tensor if there is none.
  Tensor bias() const { return has_bias() ? parameter(1) : Tensor(); }

 private:
  Tensor compute(const Tensor& x) const override { return linear_with(x, bias()); }
  Tensor linear_with(const Tensor& x, const Tensor& bias) const;

  std::int64_t in_features_;
  std::int64_t out_features_;
  Blocks blocks_;
};

// All parameters of a tree by dotted path, in tree order.
void for_each_parameter(Module& root,
                        const std::function<void(const std::string& path, Module&, const Module::Parameter&)>& visit);

}  // namespace shardproof
