#include "app/shrinking.h"

#include <fmt/format.h>

#include "app/repeat.h"
#include "core/error.h"
#include "verify/reproduction.h"
#include "verify/shrink.h"

namespace shardproof {
namespace {

ShrinkInput input_for(RunRequest& request, const Options& options, const VerificationResult& failed,
                      const ParallelConfig& config) {
  ShrinkInput input;
  input.model = request.subject.model();
  input.settings = request.subject.config();
  input.plans = plans_of_sizes(request, options);
  input.features = features_of(input.model, request.subject.load_case(failed.case_name).arguments);
  input.config = config;
  input.stopped = failed.stopped;
  input.tier = failed.tier == "rounding" ? ShrinkTier::rounding : ShrinkTier::exact;
  input.exact = exact_options(options);
  input.rounding = verifier_options(request, options);
  return input;
}

std::string configuration_text(const ModelSize& size, const ParallelConfig& config) {
  std::string text = fmt::format("{} with {}", mode_name(config), effective_mesh(config).text());
  const auto& context = config.context_parallel_config;
  if (context && effective_ring_degree(*context) > 1) text += fmt::format(", {}", context->rotate_method);
  return fmt::format("{}; {}", size_text(size), text);
}

}  // namespace

void shrink_first_difference(RunRequest& request, const Options& options,
                             const std::vector<ParallelConfig>& configurations, Progress& progress, Report& report) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < report.verifications.size(); ++i) {
    if (report.verifications[i].verdict != Verdict::different) continue;
    const auto ranks = [&](std::size_t at) { return effective_mesh(configurations[at]).size(); };
    if (!first || ranks(i) < ranks(*first)) first = i;
  }
  if (!first) {
    report.notes.emplace_back("--shrink: nothing differs, so there is nothing to make smaller");
    return;
  }
  const VerificationResult& failed = report.verifications[*first];
  ShrinkInput input = input_for(request, options, failed, configurations[*first]);
  progress.step(0, 1, "the smallest configuration that fails");
  Shrunk shrunk = shrink(input);
  if (!shrunk.smallest && input.tier == ShrinkTier::exact) {
    input.tier = ShrinkTier::exact_bits;
    const Shrunk with_bits = shrink(input);
    shrunk = {with_bits.smallest, shrunk.tried + with_bits.tried, with_bits.was_cut_off,
              shrunk.seconds + with_bits.seconds};
  }
  ShrunkResult result{.tried = shrunk.tried, .seconds = shrunk.seconds, .was_cut_off = shrunk.was_cut_off};
  if (shrunk.smallest) {
    result.configuration = configuration_text(shrunk.smallest->size, shrunk.smallest->config);
    result.result = shrunk.smallest->result;
    result.result.repeat =
        repeat_command(options, shrunk.smallest->result, shrunk.smallest->config, shrunk.smallest->size);
    result.test = reproducing_test(input, *shrunk.smallest, {options.plan, request.plans},
                                   {"real/torch_device.h", options.torch.place == TorchPlace::cuda
                                                               ? "make_torch_device({.place = TorchPlace::cuda})"
                                                               : "make_torch_device()"});
  }
  report.shrunk = std::move(result);
}

}  // namespace shardproof
