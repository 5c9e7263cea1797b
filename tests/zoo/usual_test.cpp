#include "tests/zoo/usual_test.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "core/host_memory.h"
#include "core/ops.h"
#include "core/random.h"
#include "models/state.h"
#include "sim/cpu_device.h"
#include "tests/zoo/plan_changes.h"
#include "tests/zoo/scenarios.h"
#include "tests/zoo/tiers.h"

namespace shardproof::zoo {
namespace {

constexpr double kDeviation = 0.02;
constexpr double kContextTolerance = 1e-4;
constexpr double kTensorTolerance = 1e-3;

// Weights are small, biases zero, norms one.
ModelState initial_state(Module& declared, std::uint64_t seed, const ModelContext& context) {
  ModelState state;
  state.dtype = context.dtype;
  for_each_parameter(declared, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    const Shape& shape = parameter.tensor->shape();
    const bool is_norm = shape.rank() == 1 && path.ends_with("weight");
    const bool is_bias = shape.rank() == 1 && !is_norm;
    std::vector<double> values(static_cast<std::size_t>(shape.numel()), is_norm ? 1.0 : 0.0);
    if (!is_norm && !is_bias) {
      RandomStream(seed, path).fill_normal(values);
      for (double& value : values) value *= kDeviation;
    }
    state.names.push_back(path);
    state.tensors.push_back(
        std::make_shared<const Tensor>(ops::from_doubles(*context.device, values, shape, context.dtype)));
  });
  return state;
}

// The smallest case without a mask.
ModelCase unmasked_case(const std::vector<ModelCase>& cases) {
  const auto found = std::ranges::find_if(cases, [](const ModelCase& made) {
    return made.name.find("mask") == std::string::npos && made.name.find("even") == 0;
  });
  return found == cases.end() ? cases.front() : *found;
}

std::optional<ParallelConfig> on_two_ranks(std::string_view mode) {
  if (mode == "unified" || mode == "tp+ring" || mode == "tp+ulysses") return std::nullopt;
  return configurations_of_mode(mode).front();
}

bool is_close(const Tensor& actual, const Tensor& expected, double tolerance) {
  if (!(actual.shape() == expected.shape())) return false;
  const std::vector<double> x = ops::to_doubles(actual), y = ops::to_doubles(expected);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool within = std::abs(x[i] - y[i]) <= tolerance + tolerance * std::abs(y[i]);
    if (!within) return false;
  }
  return true;
}

}  // namespace

struct UsualTest::Bench {
  ModelType type;
  HostDevice host;
  std::unique_ptr<Device> device = make_cpu_device();
  ModelContext context;
  ModelState state;
  Arguments arguments;
  std::vector<Tensor> dense;
  ParallelPlans plans;

  std::unique_ptr<Module> make_tree() {
    std::unique_ptr<Module> tree = type.create(type.hostile_config(), context);
    assign_state(*tree, state);
    return tree;
  }
};

UsualTest::UsualTest(std::uint64_t seed) : seed_(seed) {}
UsualTest::~UsualTest() = default;

UsualTest::Bench& UsualTest::bench_of(const std::string& model) {
  std::unique_ptr<Bench>& bench = benches_[model];
  if (bench) return *bench;
  bench = std::make_unique<Bench>();
  bench->type = model_named(model);
  bench->context = {bench->device.get(), kFloat32, TablePrecision::float32};
  const std::unique_ptr<Module> declared = bench->type.create(bench->type.hostile_config(), bench->context);
  bench->state = initial_state(*declared, seed_, bench->context);
  const ModelCase made = unmasked_case(bench->type.hostile_cases(seed_, bench->host));
  bench->arguments = prepared_arguments(*declared, made.arguments, bench->context, bench->host);
  bench->dense = bench->make_tree()->call(bench->arguments).tensors;
  bench->plans = healthy_plans(model);
  return *bench;
}

bool UsualTest::fails(Bench& bench, const ParallelConfig& config, const ParallelPlans& plans, double tolerance) {
  const ParallelRun run = run_parallel([&] { return bench.make_tree(); }, {bench.arguments}, plans, {.config = config});
  if (run.end != RunEnd::completed) return run.end == RunEnd::failed;
  const std::vector<Tensor>& of_rank_0 = run.ranks.front().outputs.tensors;
  return of_rank_0.size() != bench.dense.size() || !is_close(of_rank_0.front(), bench.dense.front(), tolerance);
}

bool UsualTest::fails_for(const Fault& fault) {
  std::set<std::string> models;
  for (const std::string& model : words_of(fault.models)) models.insert(model == "layer" ? "flux" : model);
  for (const std::string& model : models) {
    Bench& bench = bench_of(model);
    for (const std::string& mode : words_of(fault.modes)) {
      const std::optional<ParallelConfig> config = on_two_ranks(mode);
      if (!config) continue;
      const bool is_tensor = effective_tp_degree(*config) > 1;
      if (is_tensor ? !bench.plans.tp.has_value() : !bench.plans.cp.has_value()) continue;
      try {
        const ParallelPlans plans = changed_plans(fault, bench.plans);
        if (fails(bench, *config, plans, is_tensor ? kTensorTolerance : kContextTolerance)) return true;
      } catch (const std::exception&) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace shardproof::zoo
