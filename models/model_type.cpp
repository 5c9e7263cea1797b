#include "models/model_type.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/ops.h"
#include "core/random.h"

namespace shardproof {
namespace {

bool is_there(const Arguments& arguments, const std::string& name) {
  const Value* value = arguments.find(name);
  return value != nullptr && !is_none(*value);
}

Tensor onto(Device& device, const Tensor& x, DType dtype) {
  if (&x.device() == &device) return ops::cast(x, dtype);
  const Tensor rows = ops::contiguous(x);
  std::vector<std::byte> bytes(rows.bytes());
  rows.device().download(bytes, rows);
  return ops::cast(device.upload(bytes, rows.shape(), rows.dtype()), dtype);
}

Tensor prepared_tensor(const Tensor& x, const ArgumentSpec& spec, const ModelContext& context, Device& host) {
  const bool is_float = x.dtype().category() == DTypeCategory::floating;
  const auto refuse = [&](std::string_view expected) {
    fail(ErrorKind::type_error, "argument '{}' is {}; {} is expected", spec.name.text(), x.text(), expected);
  };
  switch (spec.kind) {
    case ArgumentKind::value:
      if (!is_float) refuse("a floating type");
      return onto(*context.device, x, context.dtype);
    case ArgumentKind::coordinate:
      if (x.dtype() == kBool) refuse("a number");
      return onto(host, x, kFloat64);
    case ArgumentKind::index:
      if (x.dtype() != kInt64) refuse("int64");
      return onto(*context.device, x, kInt64);
    case ArgumentKind::mask:
      // Whole numbers are how tokenizers give masks: what is not zero is attended.
      return onto(*context.device, x, is_float ? context.dtype : kBool);
    case ArgumentKind::setting: refuse("no tensor");
  }
  return x;
}

const ArgumentSpec& spec_of(const Module& module, Name name) {
  std::string known;
  for (const ArgumentSpec& spec : module.forward_arguments()) {
    if (spec.name == name) return spec;
    known += (known.empty() ? "" : ", ") + spec.name.text();
  }
  fail(ErrorKind::state_error, "{} has no argument '{}'; its arguments are {}", module.class_name(), name.text(),
       known);
}

}  // namespace

bool is_setting(const Json& value) { return value.is_bool() || value.is_string() || value.is_null(); }

Json sized_config(const ModelType& model, const Json& settings, const ModelSize& size) {
  SHARDPROOF_CHECK(model.sized_case, usage_error, "{} has no sizes; expected a model that has (ModelType::sized_case)",
                   model.class_name);
  for (const std::string& feature : size.with) {
    std::string known;
    for (const CaseFeature& other : model.features) known += (known.empty() ? "" : ", ") + other.name;
    SHARDPROOF_CHECK(std::any_of(model.features.begin(), model.features.end(),
                                 [&](const CaseFeature& other) { return other.name == feature; }),
                     usage_error, "cases of {} have no feature '{}'; expected {}", model.class_name, printable(feature),
                     known.empty() ? "none" : "of " + known);
  }
  Json config = model.hostile_config();
  for (const JsonMember& member : settings.members()) {
    if (is_setting(member.value)) config.set(member.key, member.value);
  }
  if (model.resize) {
    model.resize(config, size);
  } else {
    config.set("num_attention_heads", size.heads);
    config.set("num_layers", size.layers);
  }
  return config;
}

std::vector<std::string> features_of(const ModelType& model, const Arguments& arguments) {
  std::vector<std::string> names;
  for (const CaseFeature& feature : model.features) {
    if (feature.is_in(arguments)) names.push_back(feature.name);
  }
  return names;
}

CaseFeature feature_by_argument(std::string name, std::string argument) {
  return {std::move(name),
          [argument = std::move(argument)](const Arguments& arguments) { return is_there(arguments, argument); }};
}

const ModelType& find_model_type(std::string_view name) {
  std::string known;
  for (const ModelType& type : model_types()) {
    if (type.class_name == name || type.short_name == name) return type;
    known += (known.empty() ? "" : ", ") + type.short_name + " (" + type.class_name + ")";
  }
  fail(ErrorKind::usage_error, "no model is named '{}'; known: {}", printable(name), known);
}

Arguments prepared_arguments(const Module& module, const Arguments& raw, const ModelContext& context, Device& host) {
  Arguments prepared;
  for (const auto& [name, value] : raw.entries()) {
    const ArgumentSpec& spec = spec_of(module, name);
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      prepared.set(name, prepared_tensor(*tensor, spec, context, host));
    } else if (const auto* list = std::get_if<std::vector<Tensor>>(&value)) {
      std::vector<Tensor> tensors;
      for (const Tensor& element : *list) tensors.push_back(prepared_tensor(element, spec, context, host));
      prepared.set(name, std::move(tensors));
    } else {
      prepared.set(name, value);
    }
  }
  return prepared;
}

Tensor random_input(Device& host, std::uint64_t seed, std::string_view name, const Shape& shape, double deviation) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  RandomStream(seed, name).fill_normal(values);
  for (double& value : values) value *= deviation;
  return ops::from_doubles(host, values, shape, kFloat32);
}

}  // namespace shardproof
