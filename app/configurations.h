// What the options ask for: the configurations of a run, its plan and its cases. Without an option that names a
// configuration it is the default set, whose refused entries are no failure.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"
#include "core/json.h"
#include "models/model_type.h"
#include "parallel/config.h"
#include "parallel/parallelism.h"
#include "verify/subject.h"

namespace shardproof {

struct RequestedConfigurations {
  std::vector<ParallelConfig> list;
  bool is_named = false;  // one that was asked for by name, as opposed to a default set
};

// usage_error for more ranks than can be simulated, degrees that are all 1, or a tp_degree that contradicts the mesh.
// The default set has the kinds of parallelism that the subject's model has a plan for.
RequestedConfigurations requested_configurations(const Options& options, const ParallelPlans& plans);

// The model's "default" or "shipped" plans; usage_error if its context-parallel plan has only the other name. A model
// with no context-parallel plan at all has the empty one, under which its attention refuses by rule.
ParallelPlans named_plans(const ModelType& model, const Json& config, const std::string& name);

struct RequestedPlan {
  ParallelPlans plans;
  std::vector<std::string> notes;
};

// The model's plans of the name asked for, or those of a file. usage_error or file_error: the model has no plan of that
// name, the file is for another model or has neither "cp" nor "tp". A model with no context-parallel plan at all has
// the empty one, under which its attention refuses by rule.
RequestedPlan requested_plan(const Options& options, const Subject& subject);

// usage_error listing the cases if there is none of the name asked for.
std::vector<std::string> requested_cases(const Options& options, const Subject& subject);

}  // namespace shardproof
