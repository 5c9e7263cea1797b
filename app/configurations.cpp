#include "app/configurations.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "parallel/plan_json.h"
#include "sim/simulation.h"

namespace shardproof {
namespace {

bool names_configuration(const Options& options) {
  return options.ring_degree || options.ulysses_degree || options.tp_degree.value_or(1) > 1 || options.mesh ||
         options.ulysses_anything || options.ring_anything;
}

ContextParallelConfig named_configuration(const Options& options) {
  return {.ring_degree = options.ring_degree,
          .ulysses_degree = options.ulysses_degree,
          .convert_to_fp32 = options.convert_to_fp32,
          .rotate_method = options.rotate_method.value_or("allgather"),
          .mesh = options.mesh,
          .ulysses_anything = options.ulysses_anything,
          .ring_anything = options.ring_anything};
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

void check_rank_count(const ContextParallelConfig& config) {
  const std::int64_t degrees = std::int64_t{effective_ring_degree(config)} * effective_ulysses_degree(config);
  const std::int64_t ranks = config.mesh ? config.mesh->size() : degrees;
  SHARDPROOF_CHECK(ranks <= kMaxSimulatedRanks, usage_error, "{}: {} ranks are asked for; at most {} can be simulated",
                   config.mesh ? "--mesh " + config.mesh->text() : "--ring-degree x --ulysses-degree", ranks,
                   kMaxSimulatedRanks);
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
  SHARDPROOF_CHECK(file.cp.has_value(), usage_error,
                   "--plan {}: it has no \"cp\"; expected a context-parallel plan under that key", shown);
  RequestedPlan requested{.plan = *std::move(file.cp), .notes = {}};
  if (file.tp) requested.notes.push_back(fmt::format("the \"tp\" part of {} is not used", shown));
  return requested;
}

bool has_context_parallel_plan(const ModelPlans& plans) {
  return plans.shipped_cp.has_value() || plans.default_cp.has_value();
}

}  // namespace

RequestedConfigurations requested_configurations(const Options& options) {
  RequestedConfigurations requested;
  requested.is_named = names_configuration(options);
  if (requested.is_named) {
    const ContextParallelConfig config = named_configuration(options);
    check_rank_count(config);
    requested.list.push_back({config, requested_tp_degree(options)});
    return requested;
  }
  for (ContextParallelConfig config : default_configurations()) {
    if (options.rotate_method && rotates(config) && config.rotate_method != *options.rotate_method) continue;
    config.convert_to_fp32 = options.convert_to_fp32;
    requested.list.push_back({config, 1});
  }
  return requested;
}

std::string requested_mode(const RequestedConfiguration& requested) {
  const std::string context = mode_name(requested.context);
  if (requested.tp_degree == 1) return context;
  return context == "none" ? "tp" : "tp+" + context;
}

std::string requested_mesh(const RequestedConfiguration& requested) {
  const std::string mesh = effective_mesh(requested.context).text();
  const bool has_tp = requested.context.mesh && requested.context.mesh->has("tp");
  return requested.tp_degree == 1 || has_tp ? mesh : fmt::format("{},tp={}", mesh, requested.tp_degree);
}

ContextParallelPlan plan_of_model(const ModelType& model, const Json& config, const std::string& name) {
  ModelPlans plans = model.plans(config);
  if (!has_context_parallel_plan(plans)) return {};
  std::optional<ContextParallelPlan>& plan = name == "default" ? plans.default_cp : plans.shipped_cp;
  SHARDPROOF_CHECK(plan.has_value(), usage_error, "--plan {}: {} has no {} context-parallel plan; expected a plan file",
                   name, model.class_name, name);
  return *std::move(plan);
}

RequestedPlan requested_plan(const Options& options, const Subject& subject) {
  if (is_file_plan(options)) return plan_of_file(options, subject);
  RequestedPlan requested{.plan = plan_of_model(subject.model(), subject.config(), options.plan), .notes = {}};
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
