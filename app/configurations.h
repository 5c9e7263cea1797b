// What the options ask for: the configurations of a run, its plan and its cases. Without an option that names a
// configuration it is the default set, whose refused entries are no failure.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"
#include "core/json.h"
#include "models/model_type.h"
#include "parallel/config.h"
#include "parallel/plan.h"
#include "verify/subject.h"

namespace shardproof {

struct RequestedConfiguration {
  ContextParallelConfig context;
  int tp_degree = 1;  // tensor parallelism is not offered yet: above 1 the configuration is refused
};

struct RequestedConfigurations {
  std::vector<RequestedConfiguration> list;
  bool is_named = false;  // one that was asked for by name, as opposed to a default set
};

// usage_error for more ranks than can be simulated, or a tp_degree that contradicts the mesh.
RequestedConfigurations requested_configurations(const Options& options);

// "ring", "tp", "tp+ring", ..; and the mesh with a dimension for tensor parallelism, if any.
std::string requested_mode(const RequestedConfiguration& requested);
std::string requested_mesh(const RequestedConfiguration& requested);

// The model's "default" or "shipped" plan; usage_error if it has only the other one. A model with neither has the empty
// plan, under which its attention refuses by rule.
ContextParallelPlan plan_of_model(const ModelType& model, const Json& config, const std::string& name);

struct RequestedPlan {
  ContextParallelPlan plan;
  std::vector<std::string> notes;
};

// usage_error or file_error: the model has no such plan, the file is for another model or has no "cp".
RequestedPlan requested_plan(const Options& options, const Subject& subject);

// usage_error listing the cases if there is none of the name asked for.
std::vector<std::string> requested_cases(const Options& options, const Subject& subject);

}  // namespace shardproof
