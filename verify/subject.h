// What is verified: a model with its configuration, weights and cases, from an export directory or from a model's name
// (then with random seeded weights and inputs made to expose faults). Weights are read once per device and type and
// shared by all trees.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/host_memory.h"
#include "models/export_directory.h"
#include "models/state.h"
#include "reference/field_device.h"

namespace shardproof {

class Subject {
 public:
  // `source` is an export directory, or a model's class or short name. usage_error saying both where it is neither.
  static Subject open(const std::string& source, std::uint64_t seed);
  // A model of one's own, with its hostile configuration and cases; for test suites that link the library.
  static Subject of_model(const ModelType& model, std::uint64_t seed);

  // A small model of that size like the one whose configuration is `settings`, with one case, named "sized". Throws as
  // sized_config() and ModelType::sized_case do.
  static Subject of_size(const ModelType& model, const Json& settings, const ModelSize& size, std::uint64_t seed);

  const ModelType& model() const { return model_; }
  const Json& config() const { return config_; }
  const std::string& source() const { return source_; }
  // Null unless it comes from an export directory.
  const ExportDirectory* export_directory() const { return export_.get(); }
  std::vector<std::string> case_names() const;
  // usage_error listing the cases if there is none of that name.
  ModelCase load_case(std::string_view name);
  Device& host() { return *host_; }
  // Devices that live as long as the subject, so that weights are converted once for each.
  Device& reference_device();  // float64
  Device& cpu_device();
  FieldDevice& field_device(std::uint64_t seed);  // exact arithmetic

  // A tree of the model with its weights; `context` must outlive it. Drawn weights have the context's type in either
  // form.
  std::unique_ptr<Module> make_tree(const ModelContext& context, WeightForm form = WeightForm::converted);
  // The case's arguments as the model takes them.
  Arguments prepare(const ModelCase& model_case, const ModelContext& context);

 private:
  const ModelState& state_for(const ModelContext& context, WeightForm form);

  std::string source_;
  ModelType model_;
  Json config_;
  std::uint64_t seed_ = 0;
  std::unique_ptr<HostDevice> host_ = std::make_unique<HostDevice>();
  std::unique_ptr<Device> reference_device_;
  std::unique_ptr<Device> cpu_device_;
  std::map<std::uint64_t, std::unique_ptr<FieldDevice>> field_devices_;  // by seed
  std::unique_ptr<ExportDirectory> export_;
  std::vector<ModelCase> made_cases_;
  struct CachedState {
    Device* device = nullptr;
    WeightForm form = WeightForm::converted;
    ModelState state;
  };
  std::vector<std::unique_ptr<CachedState>> states_;
};

}  // namespace shardproof
