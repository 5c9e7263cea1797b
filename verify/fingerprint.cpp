#include "verify/fingerprint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/checksum.h"
#include "core/error.h"
#include "core/ops.h"
#include "verify/field_draw.h"
#include "verify/parallel_run.h"
#include "verify/subject.h"

namespace shardproof {
namespace {

// A change of it changes every fingerprint.
constexpr std::uint64_t kSeed = 20;

using Features = FingerprintConfiguration::Features;

ContextParallelConfig ring(int degree, const char* rotate_method, int ulysses_degree = 1) {
  ContextParallelConfig config{.ring_degree = degree, .rotate_method = rotate_method};
  if (ulysses_degree > 1) config.ulysses_degree = ulysses_degree;
  return config;
}

ContextParallelConfig ring_anything(int degree, const char* rotate_method) {
  return {.ring_degree = degree, .rotate_method = rotate_method, .ring_anything = true};
}

ContextParallelConfig ulysses(int degree) { return {.ulysses_degree = degree}; }

ContextParallelConfig ulysses_anything(int degree) { return {.ulysses_degree = degree, .ulysses_anything = true}; }

ParallelConfig tensor_parallel(int degree, const char* device_type,
                               std::optional<ContextParallelConfig> context = std::nullopt) {
  return {.context_parallel_config = std::move(context),
          .tensor_parallel_config = TensorParallelConfig{.tp_degree = degree, .device_type = device_type}};
}

ParallelConfig context_parallel(ContextParallelConfig config) { return {.context_parallel_config = std::move(config)}; }

std::string hash_text(const std::string& text) { return fmt::format("{:016x}", checksum_of(text)); }

// The shape and the bits of every output.
std::string outputs_text(const Outputs& outputs) {
  std::string text;
  for (const Tensor& output : outputs.tensors) {
    const Tensor rows = output.defined() ? ops::contiguous(output) : output;
    text += fmt::format("{} {:016x};", output.defined() ? output.text() : "none", checksum_of(rows));
  }
  return text + "|";
}

bool has_plans(const ParallelConfig& config, const ParallelPlans& plans) {
  return (!config.context_parallel_config || plans.cp) && (!config.tensor_parallel_config || plans.tp);
}

}  // namespace

std::string FingerprintConfiguration::text() const {
  std::string text = fmt::format("{}; {} with {}", size_text(size), mode_name(config), effective_mesh(config).text());
  const auto& context = config.context_parallel_config;
  if (context && effective_ring_degree(*context) > 1) text += ", " + context->rotate_method;
  return text + (features == Features::all ? "; all features" : "");
}

const std::vector<FingerprintConfiguration>& fingerprint_configurations() {
  // Three ranks and uneven lengths wherever they are possible: with two ranks, or one head a rank, much is hidden.
  const ModelSize threes{.text = 3, .image = 12, .heads = 3, .layers = 2, .batch = 2};
  const ModelSize fours{.text = 4, .image = 8, .heads = 4, .layers = 2, .batch = 2};
  const ModelSize sixes{.text = 6, .image = 12, .heads = 6, .layers = 2, .batch = 2};
  const ModelSize primes{.text = 5, .image = 7, .heads = 5, .layers = 2, .batch = 2};
  const ModelSize uneven{.text = 7, .image = 11, .heads = 5, .layers = 2, .batch = 2};
  const ModelSize uneven_fours{.text = 3, .image = 7, .heads = 4, .layers = 2, .batch = 2};
  static const std::vector<FingerprintConfiguration> kAll{
      {threes, Features::none, context_parallel(ring(3, "allgather"))},
      {threes, Features::all, context_parallel(ring(3, "alltoall"))},
      {sixes, Features::none, context_parallel(ulysses(3))},
      {fours, Features::all, context_parallel(ulysses(2))},
      {uneven, Features::all, context_parallel(ring_anything(3, "allgather"))},
      {primes, Features::none, context_parallel(ring_anything(3, "alltoall"))},
      {primes, Features::all, context_parallel(ulysses_anything(3))},
      {uneven, Features::none, context_parallel(ulysses_anything(3))},
      {sixes, Features::none, context_parallel(ring(3, "allgather", 2))},
      {fours, Features::all, context_parallel(ring(2, "alltoall", 2))},
      {fours, Features::all, tensor_parallel(2, "sim")},
      {threes, Features::none, tensor_parallel(3, "cuda")},
      {uneven_fours, Features::none, tensor_parallel(2, "sim", ring_anything(2, "alltoall"))},
      {sixes, Features::all, tensor_parallel(2, "sim", ulysses_anything(2))},
  };
  return kAll;
}

// The model of one configuration, and what it is called with.
struct Fingerprinter::Bench {
  std::optional<Subject> subject;  // none for a size that the model cannot have
  ModelContext context;
  ModelState weights;
  Arguments arguments;
  std::string dense;

  std::unique_ptr<Module> make_tree() {
    std::unique_ptr<Module> tree = subject->model().create(subject->config(), context);
    assign_state(*tree, weights);
    return tree;
  }
};

ParallelRun Fingerprinter::run_of(Bench& bench, const ParallelConfig& config, const ParallelPlans& plans) {
  try {
    return run_parallel([&] { return bench.make_tree(); }, {bench.arguments}, plans, {.config = config});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal_error) throw;
    ParallelRun run;
    run.end = RunEnd::failed;
    run.reason = kInternalErrorReason;
    return run;
  }
}

Fingerprinter::Fingerprinter(const ModelType& model) : model_(model), benches_(fingerprint_configurations().size()) {}

Fingerprinter::~Fingerprinter() = default;

Fingerprinter::Bench& Fingerprinter::bench(std::size_t configuration) {
  std::unique_ptr<Bench>& made = benches_.at(configuration);
  if (made) return *made;
  made = std::make_unique<Bench>();
  const FingerprintConfiguration& wanted = fingerprint_configurations()[configuration];
  ModelSize size = wanted.size;
  if (wanted.features == Features::all) {
    for (const CaseFeature& feature : model_.features) size.with.push_back(feature.name);
  }
  try {
    Subject subject = Subject::of_size(model_, Json::object(), size, kSeed);
    FieldDevice& device = subject.field_device(kSeed);
    made->context = {&device, field_dtype(), TablePrecision::float64};
    const ModelCase sized = subject.load_case(subject.case_names().front());
    const std::unique_ptr<Module> tree = subject.model().create(subject.config(), made->context);
    made->weights = random_field_state(*tree, device, kSeed);
    assign_state(*tree, made->weights);
    made->arguments = prepared_arguments(*tree, sized.arguments, made->context, subject.host());
    draw_field_values(made->arguments, *tree, device, kSeed, "");
    const std::string outputs = outputs_text(tree->call(made->arguments));
    std::string everywhere;
    for (int rank = 0; rank < effective_mesh(wanted.config).size(); ++rank) everywhere += outputs;
    made->dense = hash_text(everywhere);
    made->subject = std::move(subject);
  } catch (const Error& error) {
    // A size that the model cannot have, or a function that exact arithmetic does not have.
    if (error.kind() == ErrorKind::internal_error) throw;
  }
  return *made;
}

const std::string& Fingerprinter::dense(std::size_t configuration) { return bench(configuration).dense; }

Fingerprint Fingerprinter::take(std::size_t configuration, const Plans& plans) {
  Bench& of = bench(configuration);
  const ParallelConfig& config = fingerprint_configurations()[configuration].config;
  if (!of.subject) return {};
  const ParallelPlans used = plans(of.subject->config());
  if (!has_plans(config, used)) return {};
  const ParallelRun run = run_of(of, config, used);
  if (run.end == RunEnd::refused) return {"refused " + hash_text(run.reason), run.reason};
  if (run.end == RunEnd::failed) return {"stopped " + hash_text(run.reason), run.reason};
  std::string outputs;
  for (const RankOutcome& rank : run.ranks) outputs += outputs_text(rank.outputs);
  return {hash_text(outputs), {}};
}

}  // namespace shardproof
