#include "app/configurations.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "parallel/plan_json.h"
#include "sim/simulation.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

bool names_configuration(const Options& options) {
  return options.ring_degree || options.ulysses_degree || options.tp_degree || options.mesh ||
         options.ulysses_anything || options.ring_anything;
}

// Whether the mesh divides weights and no tokens: it has "tp", and neither "ring" nor "ulysses" or both of size 1.
bool is_for_tensors_only(const Mesh& mesh) {
  const bool has_ring = mesh.has("ring");
  const bool has_ulysses = mesh.has("ulysses");
  if (!mesh.has("tp")) return false;
  if (!has_ring && !has_ulysses) return true;
  return has_ring && has_ulysses && mesh.size_of("tp") > 1 && mesh.size_of("ring") == 1 && mesh.size_of("ulysses") == 1;
}

bool names_context_parallelism(const Options& options) {
  return options.ring_degree || options.ulysses_degree || options.ulysses_anything || options.ring_anything ||
         (options.mesh && !is_for_tensors_only(*options.mesh));
}

// A dimension "tp" of the mesh means tensor parallelism; it must not pass for one of replicas.
int requested_tp_degree(const Options& options) {
  const bool mesh_has_tp = options.mesh && options.mesh->has("tp");
  const int of_mesh = mesh_has_tp ? options.mesh->size_of("tp") : 1;
  SHARDPROOF_CHECK(!mesh_has_tp || options.tp_degree.value_or(of_mesh) == of_mesh, usage_error,
                   "--tp-degree {} contradicts --mesh {}, which has tp={}; expected the same, or only one of them",
                   options.tp_degree.value_or(0), options.mesh ? options.mesh->text() : "", of_mesh);
  return options.tp_degree.value_or(of_mesh);
}

// Degrees of 1 and nothing else would be a run on one rank, or be taken for no request at all.
void check_divides_something(const Options& options) {
  if (options.mesh || options.ulysses_anything || options.ring_anything) return;
  std::string given;
  for (const auto& [name, degree] : {std::pair{"--tp-degree", options.tp_degree},
                                     {"--ring-degree", options.ring_degree},
                                     {"--ulysses-degree", options.ulysses_degree}}) {
    if (!degree) continue;
    if (*degree > 1) return;
    given += fmt::format("{}{} {}", given.empty() ? "" : " ", name, *degree);
  }
  SHARDPROOF_CHECK(given.empty(), usage_error,
                   "{}: on one rank nothing is divided; expected at least one degree of 2 or more, or no degree at all "
                   "for every mode",
                   given);
}

ParallelConfig named_configuration(const Options& options) {
  ParallelConfig config;
  if (const int tp_degree = requested_tp_degree(options); tp_degree > 1 || !names_context_parallelism(options)) {
    config.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp_degree, .mesh = options.mesh};
  }
  if (!names_context_parallelism(options)) return config;
  config.context_parallel_config = ContextParallelConfig{.ring_degree = options.ring_degree,
                                                         .ulysses_degree = options.ulysses_degree,
                                                         .convert_to_fp32 = options.convert_to_fp32,
                                                         .rotate_method = options.rotate_method.value_or("allgather"),
                                                         .mesh = options.mesh,
                                                         .ulysses_anything = options.ulysses_anything,
                                                         .ring_anything = options.ring_anything};
  return config;
}

void check_rank_count(const Options& options, const ParallelConfig& config) {
  std::int64_t ranks = effective_tp_degree(config);
  std::string asked_by = "--tp-degree";
  if (const auto& context = config.context_parallel_config) {
    ranks *= std::int64_t{effective_ring_degree(*context)} * effective_ulysses_degree(*context);
    asked_by = ranks > effective_tp_degree(config) && effective_tp_degree(config) > 1
                   ? "--tp-degree x --ring-degree x --ulysses-degree"
                   : "--ring-degree x --ulysses-degree";
  }
  if (options.mesh) {
    ranks = options.mesh->size();
    asked_by = "--mesh " + options.mesh->text();
  }
  SHARDPROOF_CHECK(ranks <= kMaxSimulatedRanks, usage_error, "{}: {} ranks are asked for; at most {} can be simulated",
                   asked_by, ranks, kMaxSimulatedRanks);
}

bool rotates(const ContextParallelConfig& config) { return effective_ring_degree(config) > 1; }

bool is_file_plan(const Options& options) { return options.plan != "default" && options.plan != "shipped"; }

PlanFile read_plan(const std::string& path) {
  try {
    return read_plan_file(path);
  } catch (const Error& error) {
    fail(error.kind(), "--plan (expected shipped, default or a plan file): {}", error.what());
  }
}

RequestedPlan plan_of_file(const Options& options, const Subject& subject) {
  const std::string shown = printable(options.plan);
  PlanFile file = read_plan(options.plan);
  SHARDPROOF_CHECK(file.model == subject.model().class_name, usage_error,
                   "--plan {}: it is a plan of '{}'; expected a plan of {}", shown, printable(file.model),
                   subject.model().class_name);
  SHARDPROOF_CHECK(file.cp.has_value() || file.tp.has_value(), usage_error,
                   "--plan {}: it has neither \"cp\" nor \"tp\"; expected a plan under at least one of these keys",
                   shown);
  return {.plans = {.cp = std::move(file.cp),
                    .tp = std::move(file.tp),
                    .attention_heads = subject.model().attention_heads(subject.config())},
          .notes = {}};
}

bool has_context_parallel_plan(const ModelPlans& plans) {
  return plans.shipped_cp.has_value() || plans.default_cp.has_value();
}

}  // namespace

RequestedConfigurations requested_configurations(const Options& options, const ParallelPlans& plans) {
  check_divides_something(options);
  RequestedConfigurations requested;
  requested.is_named = names_configuration(options);
  if (requested.is_named) {
    const ParallelConfig config = named_configuration(options);
    check_rank_count(options, config);
    requested.list.push_back(config);
    return requested;
  }
  const auto add = [&](ParallelConfig config) {
    if (auto& context = config.context_parallel_config) {
      if (options.rotate_method && rotates(*context) && context->rotate_method != *options.rotate_method) return;
      context->convert_to_fp32 = options.convert_to_fp32;
    }
    requested.list.push_back(std::move(config));
  };
  if (plans.cp) {
    for (const ContextParallelConfig& config : default_configurations()) add({.context_parallel_config = config});
  }
  if (plans.tp) {
    for (const ParallelConfig& config : default_tensor_parallel_configurations()) {
      if (plans.cp || !config.context_parallel_config) add(config);
    }
  }
  return requested;
}

ParallelPlans named_plans(const ModelType& model, const Json& config, const std::string& name) {
  ParallelPlans plans = plans_of_model(model, config, name);
  SHARDPROOF_CHECK(plans.cp || !has_context_parallel_plan(model.plans(config)), usage_error,
                   "--plan {}: {} has no {} context-parallel plan; expected a plan file", name, model.class_name, name);
  if (!plans.cp) plans.cp.emplace();
  return plans;
}

RequestedPlan requested_plan(const Options& options, const Subject& subject) {
  if (is_file_plan(options)) return plan_of_file(options, subject);
  RequestedPlan requested{.plans = named_plans(subject.model(), subject.config(), options.plan), .notes = {}};
  if (!has_context_parallel_plan(subject.model().plans(subject.config()))) {
    requested.notes.push_back(
        fmt::format("{} has no context-parallel plan; nothing of it is divided", subject.model().class_name));
  }
  return requested;
}

std::vector<std::string> requested_cases(const Options& options, const Subject& subject) {
  const std::vector<std::string> known = subject.case_names();
  if (!options.case_name) return known;
  const bool exists = std::find(known.begin(), known.end(), *options.case_name) != known.end();
  if (!exists && *options.case_name == "all") return known;
  SHARDPROOF_CHECK(exists, usage_error, "--case: '{}' is no case of {}; expected one of {}",
                   printable(*options.case_name), printable(subject.source()),
                   printable(fmt::format("{}", fmt::join(known, ", ")), 1000));
  return {*options.case_name};
}

}  // namespace shardproof
