#include "verify/subject.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"

namespace shardproof {
namespace {

bool is_model_name(std::string_view name) {
  return std::any_of(model_types().begin(), model_types().end(),
                     [&](const ModelType& type) { return type.class_name == name || type.short_name == name; });
}

std::string model_names() {
  std::string names;
  for (const ModelType& type : model_types()) names += (names.empty() ? "" : ", ") + type.short_name;
  return names;
}

}  // namespace

Subject Subject::open(const std::string& source, std::uint64_t seed) {
  std::error_code status;
  if (std::filesystem::exists(source, status)) {
    Subject subject;
    subject.source_ = source;
    subject.seed_ = seed;
    subject.export_ = std::make_unique<ExportDirectory>(source);
    subject.model_ = subject.export_->model();
    subject.config_ = subject.export_->config();
    return subject;
  }
  SHARDPROOF_CHECK(is_model_name(source), usage_error,
                   "'{}' is neither an export directory (no such folder) nor a model's name; models: {}",
                   printable(source, 1000), model_names());
  return of_model(find_model_type(source), seed);
}

Subject Subject::of_model(const ModelType& model, std::uint64_t seed) {
  Subject subject;
  subject.source_ = model.short_name;
  subject.seed_ = seed;
  subject.model_ = model;
  subject.config_ = model.hostile_config();
  subject.made_cases_ = model.hostile_cases(seed, *subject.host_);
  return subject;
}

Subject Subject::of_size(const ModelType& model, const Json& settings, const ModelSize& size, std::uint64_t seed) {
  const Json config = sized_config(model, settings, size);
  ModelType sized = model;
  sized.hostile_config = [config] { return config; };
  sized.hostile_cases = [config, size, make = model.sized_case](std::uint64_t of_case, Device& host) {
    return std::vector<ModelCase>{make(config, size, of_case, host)};
  };
  return of_model(sized, seed);
}

std::vector<std::string> Subject::case_names() const {
  if (export_) return export_->case_names();
  std::vector<std::string> names;
  for (const ModelCase& made : made_cases_) names.push_back(made.name);
  return names;
}

ModelCase Subject::load_case(std::string_view name) {
  if (export_) return export_->load_case(name, *host_);
  for (const ModelCase& made : made_cases_) {
    if (made.name == name) return made;
  }
  fail(ErrorKind::usage_error, "{}: no case is named '{}'; known: {}", source_, name, fmt::join(case_names(), ", "));
}

Device& Subject::reference_device() {
  if (!reference_device_) reference_device_ = make_reference_device(kFloat64);
  return *reference_device_;
}

Device& Subject::cpu_device() {
  if (!cpu_device_) cpu_device_ = make_cpu_device();
  return *cpu_device_;
}

FieldDevice& Subject::field_device(std::uint64_t seed) {
  std::unique_ptr<FieldDevice>& device = field_devices_[seed];
  if (!device) device = make_field_device(seed);
  return *device;
}

const ModelState& Subject::state_for(const ModelContext& context, WeightForm form) {
  if (!export_) form = WeightForm::converted;
  for (const auto& cached : states_) {
    if (cached->device == context.device && cached->state.dtype == context.dtype && cached->form == form)
      return cached->state;
  }
  const std::unique_ptr<Module> declared = model_.create(config_, context);
  ModelState state =
      export_ ? load_state(*declared, export_->weights(), context, form) : random_state(*declared, seed_, context);
  states_.push_back(std::make_unique<CachedState>(CachedState{context.device, form, std::move(state)}));
  return states_.back()->state;
}

std::unique_ptr<Module> Subject::make_tree(const ModelContext& context, WeightForm form) {
  std::unique_ptr<Module> tree = model_.create(config_, context);
  assign_state(*tree, state_for(context, form));
  return tree;
}

Arguments Subject::prepare(const ModelCase& model_case, const ModelContext& context) {
  const std::unique_ptr<Module> declared = model_.create(config_, context);
  return prepared_arguments(*declared, model_case.arguments, context, *host_);
}

}  // namespace shardproof
