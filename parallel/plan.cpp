#include "parallel/plan.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {
namespace {

std::string dims_text(const std::optional<int>& dims) { return dims ? std::to_string(*dims) : "none"; }

std::string child_names(const Module& module) {
  if (module.children().empty()) return "it has no children";
  if (module.is_list()) return fmt::format("its elements are 0..{}", module.children().size() - 1);
  std::string names;
  for (const auto& child : module.children()) names += (names.empty() ? "" : ", ") + child->name().text();
  return "it has " + names;
}

Module& child_at(Module& module, std::string_view atom, std::string_view id) {
  Module* child = module.find_child(atom);
  if (child != nullptr) return *child;
  int index = 0;
  const auto [end, status] = std::from_chars(atom.data(), atom.data() + atom.size(), index);
  const bool is_number = status == std::errc{} && end == atom.data() + atom.size();
  if (module.is_list() && is_number && std::cmp_greater_equal(index, module.children().size())) {
    fail(ErrorKind::plan_error, "module id '{}': index {} is past the end of '{}' ({}), which has {} elements",
         printable(id), printable(atom), module.path(), module.class_name(), module.children().size());
  }
  fail(ErrorKind::plan_error, "module id '{}': '{}' was not found in '{}' ({}); {}", printable(id), printable(atom),
       module.path(), module.class_name(), child_names(module));
}

std::vector<Module*> expand(const std::vector<Module*>& modules, std::string_view atom, std::string_view id) {
  std::vector<Module*> result;
  for (Module* module : modules) {
    if (atom != "*") {
      result.push_back(&child_at(*module, atom, id));
      continue;
    }
    SHARDPROOF_CHECK(module->is_list(), plan_error,
                     "module id '{}': '*' stands for the elements of a module list, but '{}' is a {}", printable(id),
                     module->path(), module->class_name());
    for (const auto& element : module->children()) result.push_back(element.get());
  }
  return result;
}

// Judges the entries of one id against one module.
class EntryChecker {
 public:
  EntryChecker(std::string_view id, const Module& module, std::vector<std::string>& problems)
      : id_(id), module_(module), problems_(problems) {}

  void check(const SplitEntries& entries) {
    std::set<std::string> seen;
    for (const auto& [key, entry] : entries) {
      const std::string name = split_key_text(key);
      if (!seen.insert(name).second) add(name, "stands twice in the plan");
      if (const auto* argument = std::get_if<std::string>(&key)) {
        check_argument(*argument, entry);
      } else {
        check_output(std::get<int>(key), name, entry);
      }
      check_split_dims(name, entry);
    }
  }
  void check(const GatherEntry& entry) {
    const auto* one = std::get_if<ContextParallelOutput>(&entry);
    const auto outputs = one ? std::vector{*one} : std::get<std::vector<ContextParallelOutput>>(entry);
    if (outputs.empty()) add("gather", "lists no outputs");
    for (const ContextParallelOutput& output : outputs)
      check_dims("gather_dim", "gather", output.gather_dim, output.expected_dims);
  }

 private:
  void check_argument_exists(const std::string& argument) {
    std::string known;
    for (const ArgumentSpec& spec : module_.forward_arguments()) {
      if (spec.name.text() == argument) return;
      known += (known.empty() ? "" : ", ") + spec.name.text();
    }
    add(argument, fmt::format("is not an argument of {}; its arguments are {}", module_.class_name(), known));
  }

  void check_argument(const std::string& name, const SplitEntry& entry) {
    check_argument_exists(name);
    // In a list an entry with split_output leaves its element whole.
    const auto* input = std::get_if<ContextParallelInput>(&entry);
    if (input != nullptr && input->split_output)
      add(name, "is an argument name and cannot have split_output=true; use an output index");
  }

  void check_output(int index, const std::string& name, const SplitEntry& entry) {
    const auto* input = std::get_if<ContextParallelInput>(&entry);
    if (index < 0) add(name, "is a negative output index");
    if (input == nullptr) add(name, "is an output index, which takes one entry and no list");
    if (input != nullptr && !input->split_output) add(name, "is an output index and needs split_output=true");
  }

  void check_split_dims(const std::string& name, const SplitEntry& entry) {
    const auto* one = std::get_if<ContextParallelInput>(&entry);
    const auto inputs = one ? std::vector{*one} : std::get<std::vector<ContextParallelInput>>(entry);
    if (inputs.empty()) add(name, "lists no entries");
    for (const ContextParallelInput& input : inputs)
      check_dims("split_dim", name, input.split_dim, input.expected_dims);
  }

  void check_dims(std::string_view field, const std::string& name, int dim, const std::optional<int>& expected) {
    if (expected && *expected < 1) add(name, fmt::format("has expected_dims {}; it must be at least 1", *expected));
    if (dim < 0 && !expected) add(name, fmt::format("has {} {}; a negative one needs expected_dims", field, dim));
    if (expected && (dim >= *expected || dim < -*expected)) {
      add(name, fmt::format("has {} {}, which lies outside expected_dims {}", field, dim, *expected));
    }
  }

  void add(const std::string& name, const std::string& what) {
    problems_.push_back(fmt::format("plan entry '{}' of module id '{}' (module '{}'): {}", printable(name),
                                    printable(id_), module_.path(), what));
  }

  std::string_view id_;
  const Module& module_;
  std::vector<std::string>& problems_;
};

}  // namespace

std::string ContextParallelInput::text() const {
  return fmt::format("ContextParallelInput(split_dim={}, expected_dims={}, split_output={}{})", split_dim,
                     dims_text(expected_dims), split_output,
                     on_mismatch == OnMismatch::error ? ", on_mismatch=error" : "");
}

std::string ContextParallelOutput::text() const {
  return fmt::format("ContextParallelOutput(gather_dim={}, expected_dims={})", gather_dim, dims_text(expected_dims));
}

std::string split_key_text(const SplitKey& key) {
  const auto* name = std::get_if<std::string>(&key);
  return name ? *name : std::to_string(std::get<int>(key));
}

std::string_view style_name(TensorParallelStyle style) {
  switch (style) {
    case TensorParallelStyle::colwise: return "colwise";
    case TensorParallelStyle::rowwise: return "rowwise";
    case TensorParallelStyle::packed_colwise: return "packed_colwise";
    case TensorParallelStyle::packed_rowwise: return "packed_rowwise";
    case TensorParallelStyle::replicated_input_rowwise: return "replicated_input_rowwise";
  }
  return "?";
}

std::vector<Module*> resolve_module_id(Module& root, std::string_view id) {
  SHARDPROOF_CHECK(std::count(id.begin(), id.end(), '*') <= 1, plan_error, "module id '{}': at most one '*' is allowed",
                   printable(id));
  std::vector<Module*> modules{&root};
  std::string_view rest = id;
  while (!rest.empty()) {
    const std::size_t dot = rest.find('.');
    modules = expand(modules, rest.substr(0, dot), id);
    SHARDPROOF_CHECK(dot != rest.size() - 1, plan_error, "module id '{}' ends with a dot", printable(id));
    rest = dot == std::string_view::npos ? std::string_view{} : rest.substr(dot + 1);
  }
  return modules;
}

std::vector<std::string> plan_problems(Module& root, const ContextParallelPlan& plan) {
  std::vector<std::string> problems;
  std::set<std::string> ids;
  for (const auto& [id, entry] : plan.entries) {
    if (!ids.insert(id + (std::holds_alternative<SplitEntries>(entry) ? "/split" : "/gather")).second) {
      problems.push_back(fmt::format("module id '{}' stands twice in the plan", printable(id)));
    }
    try {
      for (Module* module : resolve_module_id(root, id)) {
        std::visit([&](const auto& entries) { EntryChecker(id, *module, problems).check(entries); }, entry);
      }
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  return problems;
}

}  // namespace shardproof
