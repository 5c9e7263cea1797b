#include "verify/verifier.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/ops.h"
#include "parallel/context_parallel.h"
#include "reference/compare.h"
#include "reference/eigen_device.h"
#include "verify/extreme_check.h"
#include "verify/judging.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool is_sixteen_bit(DType dtype) { return dtype.size() == 2; }

// Replica 0 has the case's own inputs; the others differ from it in every value.
Arguments inputs_of_replica(const Module& module, const Arguments& raw, int replica, std::uint64_t seed, Device& host) {
  if (replica == 0) return raw;
  Arguments changed = raw;
  for (const ArgumentSpec& spec : module.forward_arguments()) {
    Value* value = changed.find(spec.name);
    const auto* tensor = value == nullptr ? nullptr : std::get_if<Tensor>(value);
    if (spec.kind != ArgumentKind::value || tensor == nullptr) continue;
    const std::vector<double> old = ops::to_doubles(*tensor);
    std::vector<double> values = ops::to_doubles(
        random_input(host, seed, fmt::format("replica {}/{}", replica, spec.name.text()), tensor->shape()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += old[i];
    *value = ops::from_doubles(host, values, tensor->shape(), tensor->dtype());
  }
  return changed;
}

// Says of which case a dense run went wrong.
template <class Work>
void naming_the_case(const Subject& subject, const std::string& case_name, const Work& work) {
  try {
    work();
  } catch (const Refusal&) {
    throw;  // a rule, which the model breaks in a dense run already
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}, case '{}', dense run: {}", subject.source(), case_name, error.what()));
  }
}

std::string where_text(const Comparison& comparison, int rank, int replica, std::string_view output) {
  return fmt::format("output '{}' on rank {}{}: {} elements differ, indices {} to {}, worst {} at {}", output, rank,
                     replica > 0 ? fmt::format(" (replica {})", replica) : "", comparison.differing,
                     index_text(comparison.first), index_text(comparison.last), comparison.max_abs,
                     index_text(comparison.worst));
}

std::string difference_text(const Tensor& actual, const Tensor& expected) {
  const Comparison comparison = compare(actual, expected);
  return !comparison.shape_problem.empty() ? comparison.shape_problem
                                           : fmt::format("{} elements differ, worst {} at {}", comparison.differing,
                                                         comparison.max_abs, index_text(comparison.worst));
}

}  // namespace

// The worst finding over ranks and outputs.
class Verifier::Findings {
 public:
  explicit Findings(VerificationResult& result) : result_(result) {}

  void add_figure(double figure, double max_abs, int rank, const std::vector<std::int64_t>& index) {
    const bool is_worse = !result_.figure || figure > *result_.figure || std::isnan(figure);
    result_.max_abs = std::max(result_.max_abs.value_or(0.0), max_abs);
    if (!is_worse) return;
    result_.figure = figure;
    if (!index.empty()) result_.worst = WorstElement{rank, index};
  }
  void add_difference(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
  }
  const std::string& difference() const { return reason_; }

 private:
  VerificationResult& result_;
  std::string reason_;
};

struct Verifier::DenseCase {
  std::string name;
  int replica = 0;
  ModelCase raw;  // with the replica's inputs
  Arguments arguments;
  bool has_run = false;  // the next two are there
  std::vector<Tensor> outputs;
  std::int64_t attention_tokens = 0;         // queries of the first attention
  std::optional<bool> says_nothing;          // see the function of that name
  std::optional<std::string> obstacle;       // why it is no measure, once that was looked at; empty if it is one
  std::vector<Tensor> reference;             // float64 with the same tables; made when first needed
  std::unique_ptr<ModuleReference> modules;  // the same
};

Verifier::Verifier(Subject& subject, const VerifierOptions& options) : subject_(subject), options_(options) {
  const bool is_float64 = options.dtype == kFloat64;
  if (options.device == DeviceChoice::cpu) {
    device_ = &subject.cpu_device();
  } else if (options.device == DeviceChoice::given) {
    SHARDPROOF_CHECK(options.given_device != nullptr, config_error, "a given device is to compute, but none is given");
    device_ = options.given_device;
  } else if (is_float64) {
    device_ = &subject.reference_device();
  } else {
    own_device_ = make_reference_device(options.dtype);
    device_ = own_device_.get();
  }
  context_ = {device_, options.dtype, is_float64 ? TablePrecision::float64 : TablePrecision::float32};
  reference_context_ = {&subject.reference_device(), kFloat64, TablePrecision::float32};
}

Verifier::~Verifier() = default;

Verifier::DenseCase& Verifier::prepared_case(const std::string& case_name, int replica) {
  for (const auto& known : cases_) {
    if (known->name == case_name && known->replica == replica) return *known;
  }
  auto dense = std::make_unique<DenseCase>();
  dense->name = case_name;
  dense->replica = replica;
  dense->raw = subject_.load_case(case_name);
  naming_the_case(subject_, case_name, [&] {
    const std::unique_ptr<Module> tree = subject_.make_tree(context_);
    dense->raw.arguments = inputs_of_replica(*tree, dense->raw.arguments, replica, options_.seed, subject_.host());
    dense->arguments = prepared_arguments(*tree, dense->raw.arguments, context_, subject_.host());
  });
  cases_.push_back(std::move(dense));
  return *cases_.back();
}

Verifier::DenseCase& Verifier::dense_case(const std::string& case_name, int replica) {
  DenseCase& dense = prepared_case(case_name, replica);
  if (!dense.has_run) naming_the_case(subject_, case_name, [&] { run_dense(dense); });
  return dense;
}

void Verifier::run_dense(DenseCase& dense) {
  const std::unique_ptr<Module> tree = subject_.make_tree(context_);
  const auto recorder = ContextParallelState::for_one_rank();
  set_attention_state(*tree, recorder);
  dense.outputs = tree->call(dense.arguments).tensors;
  dense.attention_tokens = recorder->attention_tokens();
  SHARDPROOF_CHECK(dense.outputs.size() == dense.raw.outputs.size(), usage_error,
                   "it names {} outputs, but {} returns {}", dense.raw.outputs.size(), tree->class_name(),
                   dense.outputs.size());
  dense.has_run = true;
}

const std::vector<Tensor>& Verifier::reference_outputs(DenseCase& dense) {
  if (!dense.reference.empty()) return dense.reference;
  // One run a case: a float64 copy of all weights would need more memory than everything else.
  const std::unique_ptr<Module> tree = subject_.make_tree(reference_context_, WeightForm::stored);
  dense.reference =
      tree->call(prepared_arguments(*tree, dense.raw.arguments, reference_context_, subject_.host())).tensors;
  return dense.reference;
}

const ModuleReference& Verifier::module_reference(DenseCase& dense) {
  if (dense.modules) return *dense.modules;
  const TreeFactory reference_tree = [this] { return subject_.make_tree(reference_context_, WeightForm::stored); };
  dense.modules = std::make_unique<ModuleReference>(ModuleReferenceInput{
      .reference_tree = reference_tree,
      .reference_arguments =
          prepared_arguments(*reference_tree(), dense.raw.arguments, reference_context_, subject_.host()),
      .tree = tree_factory(),
      .arguments = dense.arguments,
      .dtype = options_.dtype,
      .reference_device = reference_context_.device});
  return *dense.modules;
}

ModuleCheck Verifier::module_ratios(const std::string& case_name, const ParallelConfig& config,
                                    const ParallelPlans& plans, const ParallelRun& run, std::string& obstacle) {
  ModuleRatioInput input{.references = {},
                         .tree = tree_factory(),
                         .arguments = {},
                         .plans = plans,
                         .options = {.config = config,
                                     .gather_form = first_form(options_.gather),
                                     .schedule_seed = options_.schedule_seed,
                                     .workers = options_.workers,
                                     .mover = options_.mover}};
  for (int replica = 0; replica < replica_count(config); ++replica) {
    DenseCase& dense = dense_case(case_name, replica);
    const ModuleReference& reference = module_reference(dense);
    if (obstacle.empty()) obstacle = reference.obstacle();
    input.references.push_back(&reference);
    input.arguments.push_back(dense.arguments);
  }
  return obstacle.empty() ? check_modules(input, run, kRatioLimit) : ModuleCheck{};
}

ParallelRun Verifier::run(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                          GatherForm form, ReductionOrder order) {
  std::vector<Arguments> arguments;
  const bool is_valid = validate(config).empty();
  try {
    for (int replica = 0; is_valid && replica < replica_count(config); ++replica) {
      arguments.push_back(dense_case(case_name, replica).arguments);
    }
  } catch (const Refusal& refusal) {
    ParallelRun refused;
    refused.end = RunEnd::refused;
    refused.reason = refusal.what();
    refused.mesh = effective_mesh(config);
    return refused;
  }
  return run_parallel([this] { return subject_.make_tree(context_); }, arguments, plans,
                      {.config = config,
                       .gather_form = form,
                       .reduction_order = order,
                       .schedule_seed = options_.schedule_seed,
                       .workers = options_.workers,
                       .mover = options_.mover});
}

TreeFactory Verifier::tree_factory() {
  return [this] { return subject_.make_tree(context_); };
}

const Arguments& Verifier::arguments_of_rank(const std::string& case_name, const ParallelConfig& config, int rank) {
  return prepared_case(case_name, replica_of_rank(config, rank)).arguments;
}

const std::string& Verifier::obstacle_of(DenseCase& dense) {
  if (!dense.obstacle) dense.obstacle = unjudgeable(dense);
  return *dense.obstacle;
}

bool Verifier::says_nothing(DenseCase& dense) {
  if (!dense.says_nothing) {
    dense.says_nothing = std::all_of(dense.outputs.begin(), dense.outputs.end(), is_constant);
  }
  return *dense.says_nothing;
}

std::string Verifier::unjudgeable(DenseCase& dense) {
  const bool is_float32 = options_.dtype == kFloat32;
  for (std::size_t i = 0; i < dense.outputs.size(); ++i) {
    if (dense.outputs[i].numel() == 0)
      return fmt::format("output '{}' of the dense run has no elements", dense.raw.outputs[i]);
    if (!is_finite(dense.outputs[i])) {
      return fmt::format("output '{}' of the dense run is not finite everywhere", dense.raw.outputs[i]);
    }
    if (!is_float32) continue;
    const Comparison of_dense = compare(dense.outputs[i], reference_outputs(dense)[i]);
    if (of_dense.relative > kFloat32DenseLimit) {
      return fmt::format(
          "output '{}' of the dense float32 run is itself off by {:.1e} of the largest output, so that a "
          "ratio to it says nothing; verify in float64",
          dense.raw.outputs[i], of_dense.relative);
    }
  }
  return {};
}

void Verifier::judge_outputs(DenseCase& dense, const Outputs& actual, int rank, Findings& findings) {
  const std::vector<std::string>& names = dense.raw.outputs;
  const bool is_float64 = options_.dtype == kFloat64;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Tensor& tensor = actual.tensors[i];
    const Comparison comparison = compare(tensor, dense.outputs[i]);
    const double figure = is_float64 ? comparison.relative
                                     : rounding_ratio(tensor, dense.outputs[i], reference_outputs(dense)[i],
                                                      unit_roundoff(options_.dtype))
                                           .ratio;
    findings.add_figure(figure, comparison.max_abs, rank, comparison.worst);
    if (figure <= (is_float64 ? kFloat64Tolerance : kRatioLimit)) continue;
    findings.add_difference(comparison.shape_problem.empty()
                                ? where_text(comparison, rank, dense.replica, names[i])
                                : fmt::format("output '{}' on rank {}: {}", names[i], rank, comparison.shape_problem));
  }
}

bool Verifier::cannot_be_judged(const std::string& case_name, std::span<const int> replicas,
                                VerificationResult& result) {
  for (const int replica : replicas) {
    const std::string& obstacle = obstacle_of(dense_case(case_name, replica));
    if (obstacle.empty()) continue;
    result.verdict = Verdict::not_checked;
    result.reason = obstacle;
    return true;
  }
  return false;
}

void Verifier::conclude(const std::string& case_name, const ParallelRun& run, std::span<const int> replicas,
                        int tp_degree, const Findings& findings, VerificationResult& result) {
  const std::string replicated =
      replicated_tokens(run, tp_degree, [&](int replica) { return dense_case(case_name, replica).attention_tokens; });
  if (!findings.difference().empty() || !replicated.empty()) {
    result.verdict = Verdict::different;
    result.reason = reason_of_difference(run, replicated, findings.difference());
  } else if (std::any_of(replicas.begin(), replicas.end(),
                         [&](int replica) { return says_nothing(dense_case(case_name, replica)); })) {
    result.verdict = Verdict::not_checked;
    result.reason = "the dense run has one value in all elements of its output, so that equality with it says nothing";
  } else {
    result.verdict = Verdict::rounding_equivalent;
  }
}

void Verifier::judge(const std::string& case_name, const ParallelRun& run, int tp_degree, VerificationResult& result) {
  if (cannot_be_judged(case_name, run.replica_of, result)) return;
  Findings findings(result);
  const std::string structural = structural_difference(run, dense_case(case_name, 0).raw.outputs, difference_text);
  if (!structural.empty()) findings.add_difference(structural);
  for (std::size_t rank = 0; rank < run.ranks.size() && structural.empty(); ++rank) {
    judge_outputs(dense_case(case_name, run.replica_of[rank]), run.ranks[rank].outputs, static_cast<int>(rank),
                  findings);
  }
  conclude(case_name, run, run.replica_of, tp_degree, findings, result);
}

VerificationResult Verifier::judge_rank(const std::string& case_name, const ParallelConfig& config,
                                        const ParallelRun& run, int rank) {
  VerificationResult result = result_of_configuration(case_name, config);
  const auto own = static_cast<std::size_t>(rank);
  const std::array replicas{run.replica_of[own]};
  if (cannot_be_judged(case_name, replicas, result)) return result;
  DenseCase& dense = dense_case(case_name, replicas.front());
  Findings findings(result);
  const Outputs& outputs = run.ranks[own].outputs;
  if (outputs.tensors.size() == dense.raw.outputs.size()) {
    judge_outputs(dense, outputs, rank, findings);
  } else {
    findings.add_difference(fmt::format("rank {} returned {} outputs, the dense run {}", rank, outputs.tensors.size(),
                                        dense.raw.outputs.size()));
  }
  conclude(case_name, run, replicas, effective_tp_degree(config), findings, result);
  return result;
}

void Verifier::check_padded_form(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                                 const ParallelRun& first, VerificationResult& result) {
  const ParallelRun second = run(case_name, config, plans, GatherForm::padded);
  if (second.end != RunEnd::completed) {
    result.verdict = Verdict::different;
    result.stopped = true;
    result.reason = "with padded gathers: " + second.reason;
    return;
  }
  for (std::size_t rank = 0; rank < first.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < first.ranks[rank].outputs.tensors.size(); ++i) {
      if (same_bits(first.ranks[rank].outputs.tensors[i], second.ranks[rank].outputs.tensors[i])) continue;
      result.verdict = Verdict::different;
      result.reason = fmt::format("rank {} returns other bits when gathers are padded than when they are ragged", rank);
    }
  }
}

void Verifier::check_other_orders(const std::string& case_name, const ParallelConfig& config,
                                  const ParallelPlans& plans, VerificationResult& result) {
  for (const ReductionOrder order : {ReductionOrder::tree, ReductionOrder::ring, ReductionOrder::random}) {
    const ParallelRun other = run(case_name, config, plans, first_form(options_.gather), order);
    const std::string where = fmt::format("with partial results added in {} order: ", reduction_order_name(order));
    if (other.end != RunEnd::completed) {
      result.verdict = Verdict::different;
      result.stopped = true;
      result.reason = where + other.reason;
      return;
    }
    judge(case_name, other, effective_tp_degree(config), result);
    if (result.verdict != Verdict::different) continue;
    result.reason = where + result.reason;
    return;
  }
}

void Verifier::judge_modules(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                             const ParallelRun& run, VerificationResult& result) {
  std::string obstacle;
  const ModuleCheck check = module_ratios(case_name, config, plans, run, obstacle);
  if (!obstacle.empty()) {
    result.not_checked.push_back("the ratio of every module by itself: " + obstacle);
    return;
  }
  result.modules = check.ratios;
  if (check.ratios.not_comparable > 0) {
    result.not_checked.push_back(
        fmt::format("the ratio of {} of {} values of modules, whose shapes no division explains",
                    check.ratios.not_comparable, check.ratios.not_comparable + check.ratios.compared));
  }
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < std::min(kShown, check.wrong.size()); ++i) {
    result.diagnosis.push_back("given the reference's inputs, " + module_ratio_text(check.wrong[i]) +
                               " times the error of the dense run");
  }
  if (check.wrong.size() > kShown) {
    result.diagnosis.push_back(fmt::format("and {} modules more", check.wrong.size() - kShown));
  }
  if (result.verdict == Verdict::different) return;
  if (!check.failure.empty()) {
    result.verdict = Verdict::different;
    result.reason = "when every module is given the reference's inputs: " + check.failure;
  } else if (!check.wrong.empty()) {
    result.verdict = Verdict::different;
    result.reason = fmt::format(
        "{} of {} modules are off by more than {:g} times the error of the dense run when each "
        "is given the reference's inputs",
        check.wrong.size(), check.ratios.modules, kRatioLimit);
  }
}

void Verifier::judge_extremes(const ParallelConfig& config, const ParallelRun& run, VerificationResult& result) {
  const ParallelRunOptions options{.config = config,
                                   .gather_form = first_form(options_.gather),
                                   .schedule_seed = options_.schedule_seed,
                                   .workers = options_.workers,
                                   .mover = options_.mover};
  ExtremeResult extremes = check_extremes(run, options, options_.dtype, *device_);
  result.extremes_checked = extremes.problems;
  result.not_checked.insert(result.not_checked.end(), extremes.not_checked.begin(), extremes.not_checked.end());
  if (extremes.problems == 0 && extremes.not_checked.empty()) {
    result.not_checked.push_back(
        fmt::format("extreme inputs: attention exchanges nothing in mode {}", mode_name(config)));
  }
  if (extremes.differences.empty()) return;
  for (const std::string& difference : extremes.differences) {
    result.diagnosis.push_back("extreme inputs: " + difference);
  }
  if (result.verdict == Verdict::different) return;
  result.verdict = Verdict::different;
  result.reason = "with extreme inputs: " + extremes.differences.front();
}

void Verifier::judge_sixteen_bits(const std::string& case_name, const ParallelConfig& config,
                                  const ParallelPlans& plans, Passed passed, VerificationResult& result) {
  if (result.verdict != Verdict::rounding_equivalent) return;
  if (passed == Passed::exact) {
    result.also_passed = "exact arithmetic";
  } else {
    if (!in_float64_) {
      VerifierOptions options = options_;
      options.dtype = kFloat64;
      options.device = DeviceChoice::reference;
      options.mover = nullptr;
      in_float64_ = std::make_unique<Verifier>(subject_, options);
    }
    const VerificationResult wide = in_float64_->verify(case_name, config, plans);
    if (wide.verdict == Verdict::rounding_equivalent) {
      result.also_passed = fmt::format("float64 ({:.2e})", wide.figure.value_or(0.0));
    } else {
      const bool is_different = wide.verdict == Verdict::different;
      result.verdict = is_different ? Verdict::different : Verdict::not_checked;
      result.reason =
          (is_different ? "in float64: " : "16-bit end to end: not checked in float64 either: ") + wide.reason;
      return;
    }
  }
  if (result.modules && result.modules->worst) return;
  result.verdict = Verdict::not_checked;
  result.reason = "16-bit end to end: there is no ratio of every module by itself";
}

VerificationResult Verifier::verify(const std::string& case_name, const ParallelConfig& config,
                                    const ParallelPlans& plans, Passed passed) {
  const Clock::time_point start = Clock::now();
  const ContextParallelConfig context = config.context_parallel_config.value_or(ContextParallelConfig{});
  const int tp_degree = effective_tp_degree(config);
  VerificationResult result = result_of_configuration(case_name, config);
  result.dtype = options_.dtype.name();
  result.device = device_->name();
  result.tier = "rounding";
  result.seed = options_.seed;
  result.schedule_seed = options_.schedule_seed;
  const ParallelRun first = run(case_name, config, plans, first_form(options_.gather));
  describe_run(first, result);
  if (first.end != RunEnd::completed) {
    result.verdict = first.end == RunEnd::refused ? Verdict::refused : Verdict::different;
    result.stopped = first.end == RunEnd::failed;
    result.plan_does_not_fit = is_refused_by_plan(first);
    result.reason = first.reason;
    result.tokens_per_rank.clear();
  } else {
    judge(case_name, first, tp_degree, result);
    const bool has_two_forms = context.ulysses_anything || context.ring_anything;
    if (has_two_forms && options_.gather == GatherChoice::both && result.verdict != Verdict::different) {
      check_padded_form(case_name, config, plans, first, result);
    }
    if (tp_degree > 1 && result.verdict != Verdict::different) check_other_orders(case_name, config, plans, result);
    const bool is_judged = result.verdict == Verdict::rounding_equivalent || result.verdict == Verdict::different;
    const bool is_narrow = options_.dtype != kFloat64 && is_judged;
    if (options_.modules && is_narrow) judge_modules(case_name, config, plans, first, result);
    if (options_.extremes && is_narrow) judge_extremes(config, first, result);
    if (is_sixteen_bit(options_.dtype)) judge_sixteen_bits(case_name, config, plans, passed, result);
  }
  result.seconds = seconds_since(start);
  return result;
}

GatherForm first_form(GatherChoice gather) {
  return gather == GatherChoice::padded ? GatherForm::padded : GatherForm::ragged;
}

std::vector<ContextParallelConfig> default_configurations() {
  std::vector<ContextParallelConfig> configurations;
  const auto add_both_rotations = [&](ContextParallelConfig config) {
    configurations.push_back(config);
    config.rotate_method = "alltoall";
    configurations.push_back(config);
  };
  for (const int degree : {2, 3, 4}) configurations.push_back({.ulysses_degree = degree});
  for (const int degree : {2, 3, 4}) add_both_rotations({.ring_degree = degree});
  add_both_rotations({.ring_degree = 2, .ulysses_degree = 2});
  for (const int degree : {2, 3, 4}) configurations.push_back({.ulysses_degree = degree, .ulysses_anything = true});
  for (const int degree : {2, 3, 4}) add_both_rotations({.ring_degree = degree, .ring_anything = true});
  return configurations;
}

std::vector<ParallelConfig> default_tensor_parallel_configurations() {
  std::vector<ParallelConfig> configurations;
  for (const int degree : {2, 3, 4}) {
    configurations.push_back({.tensor_parallel_config = TensorParallelConfig{.tp_degree = degree}});
  }
  for (const ContextParallelConfig& context : default_configurations()) {
    const int ranks = effective_mesh(context).size();
    if (ranks != 2 && mode_name(context) != "unified") continue;
    configurations.push_back(
        {.context_parallel_config = context, .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}});
  }
  return configurations;
}

ParallelPlans plans_of_model(const ModelType& model, const Json& config, std::string_view name) {
  ModelPlans plans = model.plans(config);
  const bool shipped = name == "shipped";
  return {.cp = shipped ? std::move(plans.shipped_cp) : std::move(plans.default_cp),
          .tp = shipped ? std::move(plans.shipped_tp) : std::move(plans.default_tp),
          .attention_heads = model.attention_heads ? std::optional(model.attention_heads(config)) : std::nullopt};
}

}  // namespace shardproof
