#include "models/state.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/ops.h"
#include "core/random.h"

namespace shardproof {
namespace {

constexpr std::size_t kMaxListed = 8;

class StateProblems {
 public:
  void add(std::string text) { problems_.push_back(std::move(text)); }
  void throw_if_any(const std::string& folder) const {
    if (problems_.empty()) return;
    std::string message = fmt::format("{}: the weights do not fit the configuration: ", folder);
    for (std::size_t i = 0; i < std::min(problems_.size(), kMaxListed); ++i)
      message += (i == 0 ? "" : "; ") + problems_[i];
    if (problems_.size() > kMaxListed) message += fmt::format("; and {} more", problems_.size() - kMaxListed);
    throw Error(ErrorKind::config_error, message);
  }

 private:
  std::vector<std::string> problems_;
};

bool is_norm_of_queries_or_keys(const std::string& name) {
  for (const std::string_view part : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

// The distribution of a parameter's values, from those of the normal one.
struct Distribution {
  double mean = 0.0, deviation = 1.0, factor = 1.0, divisor = 1.0;
  // Rounded to float32, so that runs in different types have the same weights as far as their types allow.
  double from(double normal) const {
    return static_cast<double>(static_cast<float>((mean + deviation * normal) * factor / divisor));
  }
};

Distribution distribution_of(const std::string& name, const Shape& shape) {
  const bool is_table = name.ends_with("table") || name.ends_with("pos_embed");
  if (name.ends_with("bias") || is_table) return {.deviation = 0.5};
  if (shape.rank() == 1) {
    return {.mean = 1.0, .deviation = 0.3, .factor = is_norm_of_queries_or_keys(name) ? 1.5 : 1.0};
  }
  return {.divisor = std::sqrt(static_cast<double>(shape.numel() / shape[0]))};
}

// Reads every parameter of `declared` by `read`, once the files are known to hold it in its whole shape.
template <class Read>
ModelState load_parameters(Module& declared, const WeightFiles& files, const ModelContext& context, const Read& read) {
  ModelState state;
  state.dtype = context.dtype;
  StateProblems problems;
  std::set<std::string> known;
  for_each_parameter(declared, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    known.insert(path);
    state.names.push_back(path);
    state.tensors.push_back(nullptr);
    if (files.find(path) == nullptr) return problems.add(fmt::format("'{}' is missing", path));
    const SafetensorsEntry& entry = files.at(path);
    if (!(entry.shape == parameter.tensor->shape())) {
      return problems.add(
          fmt::format("'{}' has shape {}, expected {}", path, entry.shape.text(), parameter.tensor->shape().text()));
    }
    if (entry.dtype.category() != DTypeCategory::floating) {
      return problems.add(fmt::format("'{}' has element type {}, expected a floating one", path, entry.dtype.name()));
    }
  });
  for (const std::string& name : files.names()) {
    if (!known.contains(name))
      problems.add(fmt::format("'{}' is not a parameter of {}", printable(name), declared.class_name()));
  }
  problems.throw_if_any(printable(files.folder().native(), 1000));
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    state.tensors[i] = std::make_shared<const Tensor>(read(state.names[i]));
  }
  return state;
}

// Hands out the tensors in tree order; `fits` says whether one may take a parameter's place.
template <class Fits>
void assign_tensors(Module& tree, const ModelState& state, const Fits& fits) {
  std::size_t next = 0;
  tree.for_each_module([&](Module& module) {
    for (std::size_t i = 0; i < module.parameters().size(); ++i, ++next) {
      SHARDPROOF_CHECK(next < state.tensors.size() && fits(*module.parameters()[i].tensor, *state.tensors[next]),
                       internal_error, "the state does not belong to this {}", tree.class_name());
      module.assign_parameter(module.parameters()[i].name, state.tensors[next], state.dtype);
    }
  });
  SHARDPROOF_CHECK(next == state.tensors.size(), internal_error, "the state does not belong to this {}",
                   tree.class_name());
}

}  // namespace

ModelState load_state(Module& declared, const WeightFiles& files, const ModelContext& context, WeightForm form) {
  return load_parameters(declared, files, context, [&](const std::string& path) {
    const Tensor tensor = files.tensor_view(path, *context.device);
    return form == WeightForm::converted ? ops::cast(tensor, context.dtype) : tensor;
  });
}

ModelState load_sharded_state(Module& declared, const WeightFiles& files, const ModelContext& context,
                              std::span<const ShardSpec> specs, int rank, int degree) {
  std::unordered_map<std::string_view, const ShardSpec*> planned;
  for (const ShardSpec& spec : specs) planned.emplace(spec.parameter, &spec);
  return load_parameters(declared, files, context, [&](const std::string& path) {
    const auto found = planned.find(path);
    if (found == planned.end() || !found->second->dim) {
      return ops::cast(files.tensor(path, *context.device), context.dtype);
    }
    const int dim = *found->second->dim;
    std::vector<Tensor> slices;
    for (const ShardRange& range : ranges_of_rank(*found->second, rank, degree)) {
      slices.push_back(files.slice(path, {{dim, range.start, range.length}}, *context.device));
    }
    return ops::cast(ops::concat(slices, dim), context.dtype);
  });
}

Tensor random_parameter(const std::string& path, const Shape& shape, std::uint64_t seed, Device& device, DType dtype) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;  // values that wait as doubles
  const Distribution distribution = distribution_of(path, shape);
  const RandomStream random(seed, path);
  const std::int64_t count = shape.numel();
  const Tensor flat = device.empty({count}, dtype);
  std::vector<double> values;
  for (std::int64_t first = 0; first < count; first += kAtOnce) {
    values.resize(static_cast<std::size_t>(std::min(kAtOnce, count - first)));
    random.fill_normal(values, static_cast<std::uint64_t>(first));
    for (double& value : values) value = distribution.from(value);
    const auto length = static_cast<std::int64_t>(values.size());
    ops::copy_into(flat.narrow(0, first, length), device.upload(std::as_bytes(std::span(values)), {length}, kFloat64));
  }
  return flat.view(shape);
}

ModelState random_state(Module& declared, std::uint64_t seed, const ModelContext& context) {
  ModelState state;
  state.dtype = context.dtype;
  for_each_parameter(declared, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    state.names.push_back(path);
    state.tensors.push_back(std::make_shared<const Tensor>(
        random_parameter(path, parameter.tensor->shape(), seed, *context.device, context.dtype)));
  });
  return state;
}

void assign_state(Module& tree, const ModelState& state) {
  assign_tensors(tree, state,
                 [](const Tensor& declared, const Tensor& own) { return declared.shape() == own.shape(); });
}

void assign_sharded_state(Module& tree, const ModelState& state) {
  assign_tensors(tree, state, [](const Tensor& declared, const Tensor& own) { return declared.rank() == own.rank(); });
}

}  // namespace shardproof
