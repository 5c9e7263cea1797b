// The list of models: how each is made from its configuration, its plans, and the inputs that verification uses when no
// exported case is at hand. A new model is its own file and one line in model_type.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/module.h"
#include "models/model_context.h"
#include "models/model_size.h"
#include "parallel/plan.h"

namespace shardproof {

// Arguments of one forward as a user has them: host tensors in the types of their file, settings as they are.
struct ModelCase {
  std::string name;
  Arguments arguments;
  std::vector<std::string> outputs;  // names of the outputs, in order
};

struct ModelPlans {
  std::optional<ContextParallelPlan> shipped_cp = std::nullopt;  // as the library ships it
  std::optional<ContextParallelPlan> default_cp = std::nullopt;  // corrected where the shipped one is wrong
  std::optional<TensorParallelPlan> shipped_tp = std::nullopt;
  std::optional<TensorParallelPlan> default_tp = std::nullopt;
};

// What a case can have beside its streams of tokens, so that a search may leave it out.
struct CaseFeature {
  std::string name;  // "key_mask"
  std::function<bool(const Arguments&)> is_in;
};

struct ModelType {
  std::string class_name;  // "FluxTransformer2DModel"
  std::string short_name;  // "flux"
  // Throws file_error or config_error for a configuration that is wrong. Weights are declared, not loaded.
  std::function<std::unique_ptr<Module>(const Json& config, const ModelContext& context)> create;
  std::function<ModelPlans(const Json& config)> plans;
  // What timesteps and guidance are multiplied with before they become angles.
  double timestep_factor = 1.0;
  // Absolute error that a float64 run with float32 tables may have against a recorded one beside what timesteps allow,
  // for cases in which the original computes angles in double from rounded frequencies. None: nothing.
  std::function<double(const ModelCase&)> mixed_table_tolerance = nullptr;
  // Heads of attention, for the rules that concern them.
  std::function<std::int64_t(const Json& config)> attention_heads;
  // A small configuration and cases made to expose faults: uneven lengths, several heads a rank, batches that differ,
  // position-dependent content.
  std::function<Json()> hostile_config;
  std::function<std::vector<ModelCase>(std::uint64_t seed, Device& host)> hostile_cases;
  // One case of a given size, for a model with the configuration of sized_config(); what the size has and the model
  // has not, is ignored. config_error for a size that the model cannot have. None: the model has no sizes.
  std::function<ModelCase(const Json& config, const ModelSize& size, std::uint64_t seed, Device& host)> sized_case =
      nullptr;
  std::vector<CaseFeature> features = {};
  // Sets the entries of a configuration that depend on heads and layers. None: num_attention_heads and num_layers do.
  std::function<void(Json& config, const ModelSize& size)> resize = nullptr;
};

// All models, in the order of models/CMakeLists.txt.
const std::vector<ModelType>& model_types();
// By class name or short name; usage_error listing what exists.
const ModelType& find_model_type(std::string_view name);

// A configuration of that size: the numbers of the hostile one, the switches, words and nulls of `settings`.
// usage_error for a feature that the model's cases do not have, listing those that they have, and for a model without
// sizes.
Json sized_config(const ModelType& model, const Json& settings, const ModelSize& size);
// True for a switch, a word or null, which sized_config() takes from the settings.
bool is_setting(const Json& value);
// The features of the model that a case has.
std::vector<std::string> features_of(const ModelType& model, const Arguments& arguments);
// A feature of a case: it has an argument of that name.
CaseFeature feature_by_argument(std::string name, std::string argument);

// The arguments as the model takes them, by the kinds that `module` declares: values in the compute type on the compute
// device, coordinates as float64 on `host`, indices and masks on the compute device. state_error for an argument that
// the model does not have, type_error for an element type that does not fit the kind.
Arguments prepared_arguments(const Module& module, const Arguments& raw, const ModelContext& context, Device& host);

// Normal values of a given deviation from (seed, name), on the host in float32. For hostile cases.
Tensor random_input(Device& host, std::uint64_t seed, std::string_view name, const Shape& shape,
                    double deviation = 1.0);

}  // namespace shardproof
