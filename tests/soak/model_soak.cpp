// Whole models: a small one in random shapes, and those of the catalogue with drawn weights and inputs in a random one
// of the default configurations.
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "reference/field_compare.h"
#include "reference/field_device.h"
#include "tests/soak/soak.h"
#include "tests/support/small_model.h"
#include "verify/exact_verifier.h"

namespace shardproof::soak {
namespace {

// The test model with joint attention, a text mask, rotary tables, cross attention and modulations, in any shape.
Outcome soak_small_model(Draws& draws) {
  const DrawnMode mode(draws);
  const test::SmallModelConfig config{.heads = mode.heads(draws),
                                      .layers = 1 + draws.below(2),
                                      .context = draws.one_in(2) ? Placement::replicated : Placement::split};
  const test::SmallInputShape shape{
      .batch = 1 + draws.below(2),
      .text = mode.length(draws, 5),
      .image = mode.length(draws, 8),
      .context = config.context == Placement::split ? mode.length(draws, 4) : 1 + draws.below(5),
      .timestep_per_token = draws.one_in(2),
      .has_text_mask = draws.one_in(2)};
  Outcome outcome;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::uint64_t seed = draws.bits();
    const std::unique_ptr<FieldDevice> device = make_field_device(seed);
    HostDevice host;
    const test::SmallModelWeights weights(config, *device, field_dtype(), seed);
    const Arguments arguments = test::small_model_inputs(shape, *device, host, field_dtype(), seed);
    const Tensor dense = weights.make_model()->call(arguments).tensors.front();
    const ParallelRun run =
        run_parallel([&] { return weights.make_model(); }, {arguments}, {.cp = test::small_model_plan(config)},
                     {.config = {.context_parallel_config = mode.config},
                      .gather_form = mode.padded ? GatherForm::padded : GatherForm::ragged,
                      .schedule_seed = mode.schedule_seed,
                      .workers = mode.workers});
    bool equal = run.end == RunEnd::completed;
    for (const RankOutcome& rank : run.ranks)
      equal = equal && compare_exact(rank.outputs.tensors.front(), dense).equal();
    if (equal) return outcome;
    outcome.alarm =
        fmt::format("{}; heads {}, layers {}, batch {}, text {}, image {}, context {}: {}", mode.text(), config.heads,
                    config.layers, shape.batch, shape.text, shape.image, shape.context, run.reason);
    if (device->zero_divisions() == 0) return outcome;
    outcome.redrawn = true;
  }
  return outcome;
}

// A model of the catalogue with one of its cases, weights and inputs drawn, in one of the default configurations.
Outcome soak_catalogue(Draws& draws) {
  const std::vector<ModelType>& models = model_types();
  const ModelType& model = models[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(models.size())))];
  const std::uint64_t seed = draws.bits() >> 1;
  Subject subject = Subject::of_model(model, seed);
  const ParallelPlans plans = plans_of_model(model, subject.config(), "default");
  std::vector<ParallelConfig> configurations;
  for (const ContextParallelConfig& config : default_configurations()) {
    if (plans.cp) configurations.push_back({.context_parallel_config = config});
  }
  for (const ParallelConfig& config : default_tensor_parallel_configurations()) {
    if (plans.tp && (plans.cp || !config.context_parallel_config)) configurations.push_back(config);
  }
  const std::vector<std::string> cases = subject.case_names();
  const std::string& name = cases[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(cases.size())))];
  ExactVerifier verifier(subject, {.seed = seed, .schedule_seed = draws.bits() >> 1});
  // What is refused is drawn again: only legal ones count.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const ParallelConfig& config =
        configurations[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(configurations.size())))];
    const VerificationResult result = verifier.verify(name, config, plans);
    if (result.verdict == Verdict::exact) return {};
    if (result.verdict == Verdict::refused) continue;
    return {.alarm = fmt::format("{} {} {} {}, seed {}: {} {}", model.short_name, name, result.mode, result.mesh, seed,
                                 verdict_word(result.verdict), result.reason)};
  }
  return {.alarm = {}, .counts = false};
}

}  // namespace

Outcome soak_model(std::uint64_t seed, std::uint64_t index) {
  Draws draws(seed, "model", index);
  return draws.one_in(4) ? soak_catalogue(draws) : soak_small_model(draws);
}

}  // namespace shardproof::soak
