#include "app/repeat.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "core/file.h"

namespace shardproof {
namespace {

void add_configuration(const ParallelConfig& config, std::string& line) {
  const auto add = [&](std::string_view option, const auto& value) { line += fmt::format(" {} {}", option, value); };
  const auto& context = config.context_parallel_config;
  const auto& tensor = config.tensor_parallel_config;
  if (context) {
    if (context->ring_degree) add("--ring-degree", *context->ring_degree);
    if (context->ulysses_degree) add("--ulysses-degree", *context->ulysses_degree);
    if (context->ulysses_anything) line += " --ulysses-anything";
    if (context->ring_anything) line += " --ring-anything";
    if (effective_ring_degree(*context) > 1) add("--rotate-method", context->rotate_method);
    if (!context->convert_to_fp32) line += " --no-convert-to-fp32";
  }
  const std::optional<Mesh> mesh = context && context->mesh ? context->mesh : tensor ? tensor->mesh : std::nullopt;
  if (tensor && !mesh) add("--tp-degree", tensor->tp_degree);
  if (mesh) add("--mesh", mesh->text());
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,+:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  // A word with control characters is spelt for bash; a terminal never sees them as they are.
  if (printable(word, word.size()) != word) return fmt::format("$'{}'", printable(word, word.size()));
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string repeat_command(const Options& options, const VerificationResult& result, const ParallelConfig& config,
                           const std::optional<ModelSize>& size) {
  std::string line = fmt::format("shardproof verify {}", shell_word(options.sources.front()));
  const std::optional<ModelSize>& shown = size ? size : options.size;
  if (shown) line += fmt::format(" --size {}", size_text(*shown));
  if (!shown) line += fmt::format(" --case {}", shell_word(result.case_name));
  add_configuration(config, line);
  if (options.plan != "default") line += fmt::format(" --plan {}", shell_word(options.plan));
  line += fmt::format(" --tier {}", result.tier);
  if (result.tier == "rounding") line += fmt::format(" --dtype {}", result.dtype);
  if (result.tier == "rounding" && !result.device.empty()) line += fmt::format(" --device {}", result.device);
  if (options.gather != GatherChoice::both)
    line += fmt::format(" --gather {}", options.gather == GatherChoice::padded ? "padded" : "ragged");
  line += fmt::format(" --seed {}", result.seed);
  if (result.schedule_seed != 0) line += fmt::format(" --schedule-seed {}", result.schedule_seed);
  return line;
}

}  // namespace shardproof
