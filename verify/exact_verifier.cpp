#include "verify/exact_verifier.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include "core/error.h"
#include "core/random.h"
#include "parallel/context_parallel.h"
#include "reference/compare.h"
#include "reference/field_compare.h"
#include "verify/bitwise_check.h"
#include "verify/contributors.h"
#include "verify/diagnosis.h"
#include "verify/field_draw.h"
#include "verify/independent_faults.h"
#include "verify/judging.h"
#include "verify/structure_check.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

// A mass that vanishes by chance does so once in 2^30; several times in a row it is no chance.
constexpr int kAttempts = 4;

std::string difference_text(const Tensor& actual, const Tensor& expected) {
  const ExactComparison found = compare_exact(actual, expected);
  if (!found.shape_problem.empty()) return found.shape_problem;
  if (found.poisoned > 0) {
    return fmt::format("{} elements differ, {} of them poison (from memory that nothing wrote), indices {} to {}",
                       found.differing, found.poisoned, index_text(found.first), index_text(found.last));
  }
  return fmt::format("{} elements differ, indices {} to {}, the first is {}, expected {}", found.differing,
                     index_text(found.first), index_text(found.last), found.first_actual, found.first_expected);
}

// True if all elements are equal: whatever equals them proves little.
bool is_one_value(const Tensor& tensor) {
  const std::vector<field::Value> elements = field_elements(tensor);
  return elements.size() > 1 &&
         std::all_of(elements.begin(), elements.end(), [&](const field::Value& x) { return x == elements.front(); });
}

// Movement by identities and attention to the last bit, which are the same for every draw. False with a verdict that is
// not EXACT.
bool moves_what_it_should(const ParallelRun& run, const ParallelRunOptions& options, bool with_bits,
                          VerificationResult& result) {
  const StructureResult structure = check_structure(run, options);
  const BitwiseResult bits = with_bits ? check_bits(run, options) : BitwiseResult();
  result.movements_checked = structure.attention_calls + structure.plan_entries;
  result.bitwise_checked = bits.problems;
  result.not_checked = bits.not_checked;
  if (!structure.differences.empty() || !bits.differences.empty()) {
    result.verdict = Verdict::different;
    result.reason =
        structure.differences.empty()
            ? "every number is equal in exact arithmetic, but not every bit where attention has one answer to the "
              "last: " +
                  bits.differences.front()
            : "every number is equal, but what was moved is not what the layout says: " + structure.differences.front();
    return false;
  }
  if (structure.not_checked.empty()) return true;
  result.verdict = Verdict::not_checked;
  result.reason = "equal in exact arithmetic, but its movement was not followed: " + structure.not_checked;
  return false;
}

}  // namespace

struct ExactVerifier::Draw {
  int number = 0;
  int attempt = 0;
  std::uint64_t seed = 0;
  FieldDevice* device = nullptr;
  ModelContext context;
  std::optional<ModelState> weights;  // drawn; nothing: the subject's
  std::vector<std::unique_ptr<DenseCase>> cases;
};

struct ExactVerifier::DenseCase {
  std::string name;
  int replica = 0;
  std::vector<std::string> output_names;
  Arguments arguments;
  std::vector<Tensor> outputs;
  std::int64_t attention_tokens = 0;
  bool is_poisoned = false;
  std::string obstacle;  // why it is no measure; empty if it is one
};

// How one of the runs under a draw is made.
struct ExactVerifier::Variation {
  GatherForm form = GatherForm::ragged;
  ReductionOrder order = ReductionOrder::ranks;
  std::string words;  // what the reason of a difference begins with
};

ExactVerifier::ExactVerifier(Subject& subject, const ExactOptions& options) : subject_(subject), options_(options) {
  SHARDPROOF_CHECK(options.seeds >= 2, usage_error, "{} seeds for the exact tier; expected at least 2", options.seeds);
}

ExactVerifier::~ExactVerifier() = default;

const std::string& ExactVerifier::obstacle() {
  if (obstacle_) return *obstacle_;
  std::int64_t parameters = 0;
  const ModelContext context{&subject_.host(), field_dtype(), TablePrecision::float64};
  const std::unique_ptr<Module> declared = subject_.model().create(subject_.config(), context);
  for_each_parameter(*declared, [&](const std::string&, Module&, const Module::Parameter& parameter) {
    parameters += parameter.tensor->numel();
  });
  const std::int64_t most = options_.most_weight_bytes / (options_.seeds * static_cast<int>(field_dtype().size()));
  obstacle_ = parameters <= most
                  ? ""
                  : fmt::format(
                        "{} parameters are too many for exact arithmetic on {} seeds, at most {} are taken: fewer "
                        "blocks of the same layers prove as much",
                        parameters, options_.seeds, most);
  return *obstacle_;
}

ExactVerifier::Draw& ExactVerifier::draw(int number, int attempt) {
  for (const auto& known : draws_) {
    if (known->number == number && known->attempt == attempt) return *known;
  }
  auto made = std::make_unique<Draw>();
  made->number = number;
  made->attempt = attempt;
  made->seed = RandomStream(options_.seed, "exact tier").bits(static_cast<std::uint64_t>(number * kAttempts + attempt));
  made->device = &subject_.field_device(made->seed);
  made->context = {made->device, field_dtype(), TablePrecision::float64};
  draws_.push_back(std::move(made));
  return *draws_.back();
}

std::unique_ptr<Module> ExactVerifier::make_tree(Draw& draw) {
  if (draw.number == 0) return subject_.make_tree(draw.context);
  std::unique_ptr<Module> tree = subject_.model().create(subject_.config(), draw.context);
  if (!draw.weights) draw.weights = random_field_state(*tree, *draw.device, draw.seed);
  assign_state(*tree, *draw.weights);
  return tree;
}

ExactVerifier::DenseCase& ExactVerifier::dense_case(Draw& draw, const std::string& case_name, int replica) {
  for (const auto& known : draw.cases) {
    if (known->name == case_name && known->replica == replica) return *known;
  }
  auto dense = std::make_unique<DenseCase>();
  dense->name = case_name;
  dense->replica = replica;
  const ModelCase raw = subject_.load_case(case_name);
  try {
    run_dense(draw, raw, *dense);
  } catch (const Refusal&) {
    throw;  // a rule, which the model breaks in a dense run already
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}, case '{}', dense run: {}", subject_.source(), case_name, error.what()));
  }
  draw.cases.push_back(std::move(dense));
  return *draw.cases.back();
}

void ExactVerifier::run_dense(Draw& draw, const ModelCase& raw, DenseCase& dense) {
  const std::unique_ptr<Module> tree = make_tree(draw);
  dense.output_names = raw.outputs;
  dense.arguments = prepared_arguments(*tree, raw.arguments, draw.context, subject_.host());
  draw_field_values(dense.arguments, *tree, *draw.device, draw.seed, fmt::format("replica {}/", dense.replica));
  const auto recorder = ContextParallelState::for_one_rank();
  set_attention_state(*tree, recorder);
  dense.outputs = tree->call(dense.arguments).tensors;
  dense.attention_tokens = recorder->attention_tokens();
  SHARDPROOF_CHECK(dense.outputs.size() == dense.output_names.size(), usage_error,
                   "it names {} outputs, but {} returns {}", dense.output_names.size(), tree->class_name(),
                   dense.outputs.size());
  for (std::size_t i = 0; i < dense.outputs.size(); ++i) {
    if (dense.outputs[i].numel() == 0)
      dense.obstacle = fmt::format("output '{}' of the dense run has no elements", dense.output_names[i]);
    if (!holds_poison(dense.outputs[i])) continue;
    dense.is_poisoned = true;
    dense.obstacle = fmt::format("output '{}' of the dense run is not defined everywhere", dense.output_names[i]);
  }
  if (dense.obstacle.empty() && std::all_of(dense.outputs.begin(), dense.outputs.end(), is_one_value))
    dense.obstacle = "the dense run has one value in all elements of its output, so that equality with it says nothing";
}

std::string ExactVerifier::difference_of(Draw& draw, const std::string& case_name, const ParallelRun& run,
                                         int tp_degree, VerificationResult& result) {
  const std::vector<std::string> outputs = dense_case(draw, case_name, 0).output_names;
  std::string difference = structural_difference(run, outputs, difference_text);
  const std::string replicated = replicated_tokens(
      run, tp_degree, [&](int replica) { return dense_case(draw, case_name, replica).attention_tokens; });
  const bool has_outputs = std::all_of(run.ranks.begin(), run.ranks.end(), [&](const RankOutcome& rank) {
    return rank.outputs.tensors.size() == outputs.size();
  });
  for (std::size_t rank = 0; has_outputs && rank < run.ranks.size(); ++rank) {
    const DenseCase& dense = dense_case(draw, case_name, run.replica_of[rank]);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const ExactComparison found = compare_exact(run.ranks[rank].outputs.tensors[i], dense.outputs[i]);
      if (found.equal()) continue;
      if (!result.worst && !found.first.empty()) result.worst = WorstElement{static_cast<int>(rank), found.first};
      if (!difference.empty()) continue;
      difference = fmt::format("output '{}' on rank {}{}: {}", outputs[i], rank,
                               run.replica_of[rank] > 0 ? fmt::format(" (replica {})", run.replica_of[rank]) : "",
                               difference_text(run.ranks[rank].outputs.tensors[i], dense.outputs[i]));
    }
  }
  if (replicated.empty() && difference.empty()) return {};
  return reason_of_difference(run, replicated, difference);
}

void ExactVerifier::diagnose_difference(Draw& draw, const ParallelRun& run, const std::vector<Arguments>& arguments,
                                        const ParallelPlans& plans, const ParallelRunOptions& options,
                                        VerificationResult& result) {
  const TreeFactory tree = [&] { return make_tree(draw); };
  const Diagnosis diagnosis = diagnose({.dense_tree = tree,
                                        .rank_tree = tree,
                                        .arguments = arguments,
                                        .plans = plans,
                                        .options = options,
                                        .tolerance = 0.0});
  // A run that ended in a report may have ended before anything could be compared.
  if (diagnosis.found || diagnosis.compared > 0 || !diagnosis.ended.empty() || run.end == RunEnd::completed)
    result.diagnosis = diagnosis.lines();
  result.locus = diagnosis.locus();
  for (std::string& line : layout_lines(run)) result.diagnosis.push_back(std::move(line));
  if (run.end != RunEnd::completed) return;
  const IndependentFaults independent = independent_faults(
      {.dense_tree = tree, .rank_tree = tree, .arguments = arguments, .plans = plans, .options = options}, run);
  for (std::string& line : independent.lines()) result.diagnosis.push_back(std::move(line));
  constexpr std::size_t kShown = 3;
  const std::vector<std::string> contributors = wrong_contributors(run, options);
  for (std::size_t i = 0; i < std::min(kShown, contributors.size()); ++i)
    result.diagnosis.push_back("weights: " + contributors[i]);
  const std::vector<std::string> moved = check_structure(run, options).differences;
  for (std::size_t i = 0; i < std::min(kShown, moved.size()); ++i) result.diagnosis.push_back("movement: " + moved[i]);
}

bool ExactVerifier::verify_under(Draw& draw, const std::string& case_name, const ParallelConfig& config,
                                 const ParallelPlans& plans, const std::vector<Variation>& variations,
                                 VerificationResult& result) {
  std::vector<Arguments> arguments;
  try {
    for (int replica = 0; validate(config).empty() && replica < replica_count(config); ++replica) {
      const DenseCase& dense = dense_case(draw, case_name, replica);
      arguments.push_back(dense.arguments);
      if (dense.obstacle.empty()) continue;
      result.verdict = Verdict::not_checked;
      result.reason = dense.obstacle;
      return !dense.is_poisoned;
    }
  } catch (const Refusal& refusal) {
    result.verdict = Verdict::refused;
    result.reason = refusal.what();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported_error) throw;
    result.verdict = Verdict::not_checked;
    result.reason = error.what();
    return true;
  }
  const auto options_of = [&](const Variation& variation) {
    return ParallelRunOptions{.config = config,
                              .gather_form = variation.form,
                              .reduction_order = variation.order,
                              .schedule_seed = options_.schedule_seed,
                              .workers = options_.workers};
  };
  const std::int64_t zero_divisions = draw.device->zero_divisions();
  for (const Variation& variation : variations) {
    const ParallelRunOptions options = options_of(variation);
    const ParallelRun run = run_parallel([&] { return make_tree(draw); }, arguments, plans, options);
    const bool is_first = draw.number == 0 && &variation == &variations.front();
    if (is_first) describe_run(run, result);
    if (run.end != RunEnd::completed) {
      result.verdict = run.end == RunEnd::refused ? Verdict::refused : Verdict::different;
      result.reason = variation.words + run.reason;
      result.tokens_per_rank.clear();
      result.stopped = run.end == RunEnd::failed;
      result.plan_does_not_fit = is_refused_by_plan(run);
      if (result.stopped && options_.diagnose) diagnose_difference(draw, run, arguments, plans, options, result);
      return true;
    }
    const std::string difference = difference_of(draw, case_name, run, effective_tp_degree(config), result);
    if (!difference.empty()) {
      result.verdict = Verdict::different;
      result.reason = variation.words + difference;
      if (draw.device->zero_divisions() != zero_divisions) return false;
      if (options_.diagnose) diagnose_difference(draw, run, arguments, plans, options, result);
      return true;
    }
    if (is_first && !moves_what_it_should(run, options, options_.bits, result)) return true;
  }
  result.verdict = Verdict::exact;
  return true;
}

VerificationResult ExactVerifier::verify(const std::string& case_name, const ParallelConfig& config,
                                         const ParallelPlans& plans) {
  const Clock::time_point start = Clock::now();
  const ContextParallelConfig context = config.context_parallel_config.value_or(ContextParallelConfig{});
  const bool has_two_forms = context.ulysses_anything || context.ring_anything;
  const GatherForm first = first_form(options_.gather);
  const bool pads_later = has_two_forms && options_.gather == GatherChoice::both;
  VerificationResult result = result_of_configuration(case_name, config);
  result.dtype = field_dtype().name();
  result.device = "field";
  result.tier = "exact";
  result.seed = options_.seed;
  result.schedule_seed = options_.schedule_seed;
  result.reason = obstacle();
  for (int number = 0; result.reason.empty() && number < options_.seeds; ++number) {
    // Every draw may take another path to the same result: the forms of gathers and the orders of sums are spread over
    // them.
    std::vector<Variation> variations;
    const bool pads = number > 0 && pads_later;
    variations.push_back({pads ? GatherForm::padded : first,
                          number == 0 ? ReductionOrder::ranks : ReductionOrder::random,
                          pads ? "with padded gathers: " : ""});
    if (number == 0 && effective_tp_degree(config) > 1) {
      for (const ReductionOrder order : {ReductionOrder::tree, ReductionOrder::ring})
        variations.push_back(
            {first, order, fmt::format("with partial results added in {} order: ", reduction_order_name(order))});
    }
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      result.worst.reset();
      if (verify_under(draw(number, attempt), case_name, config, plans, variations, result)) break;
    }
    if (result.verdict != Verdict::exact) break;
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace shardproof
