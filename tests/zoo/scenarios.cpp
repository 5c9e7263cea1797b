#include "tests/zoo/scenarios.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "core/error.h"
#include "core/host_memory.h"
#include "tests/zoo/layer_model.h"

namespace shardproof::zoo {
namespace {

ParallelConfig with_tensor_parallelism(std::optional<ContextParallelConfig> context, int degree,
                                       const std::string& device_type = "sim") {
  return {.context_parallel_config = std::move(context),
          .tensor_parallel_config = TensorParallelConfig{.tp_degree = degree, .device_type = device_type}};
}

std::vector<ParallelConfig> rings(int degree, int ulysses, bool anything) {
  std::vector<ParallelConfig> both;
  for (const char* method : {"allgather", "alltoall"}) {
    ContextParallelConfig config{.ring_degree = degree, .rotate_method = method, .ring_anything = anything};
    if (ulysses > 1) config.ulysses_degree = ulysses;
    both.push_back({.context_parallel_config = config});
  }
  return both;
}

std::int64_t elements_of(const Arguments& arguments) {
  std::int64_t elements = 0;
  for (const auto& [name, value] : arguments.entries()) {
    if (const auto* tensor = std::get_if<Tensor>(&value)) elements += tensor->numel();
  }
  return elements;
}

void append(std::vector<ParallelConfig>& all, const std::vector<ParallelConfig>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

std::string Scenario::text() const {
  std::string text = fmt::format("{} {}, {} {}", model, case_name, mode_name(config), effective_mesh(config).text());
  const auto& context = config.context_parallel_config;
  if (context && effective_ring_degree(*context) > 1) text += ", " + context->rotate_method;
  if (config.tensor_parallel_config && config.tensor_parallel_config->device_type != "sim") text += ", scattered";
  return text;
}

ModelType model_named(std::string_view name) { return name == "layer" ? layer_model_type() : find_model_type(name); }

std::vector<ParallelConfig> configurations_of_mode(std::string_view mode) {
  std::vector<ParallelConfig> all;
  if (mode == "ring" || mode == "ring_anything") {
    for (const int degree : {2, 3, 4}) append(all, rings(degree, 1, mode == "ring_anything"));
  } else if (mode == "ulysses" || mode == "ulysses_anything") {
    for (const int degree : {2, 3, 4}) {
      all.push_back({.context_parallel_config = ContextParallelConfig{.ulysses_degree = degree,
                                                                      .ulysses_anything = mode == "ulysses_anything"}});
    }
  } else if (mode == "unified") {
    append(all, rings(2, 2, false));
    append(all, rings(3, 2, false));
    append(all, rings(2, 3, false));
  } else if (mode == "tp") {
    for (const int degree : {2, 3}) all.push_back(with_tensor_parallelism(std::nullopt, degree));
  } else if (mode == "tp_scattered") {
    for (const int degree : {2, 3}) all.push_back(with_tensor_parallelism(std::nullopt, degree, "cuda"));
  } else if (mode == "tp+ring") {
    all.push_back(with_tensor_parallelism(ContextParallelConfig{.ring_degree = 2, .ring_anything = true}, 2));
  } else if (mode == "tp+ulysses") {
    all.push_back(with_tensor_parallelism(ContextParallelConfig{.ulysses_degree = 3, .ulysses_anything = true}, 2));
  } else {
    fail(ErrorKind::usage_error, "the zoo has no mode '{}'", mode);
  }
  return all;
}

std::vector<Scenario> scenarios(std::string_view models, std::string_view modes, std::uint64_t seed) {
  std::vector<Scenario> all;
  for (const std::string& model : words_of(models)) {
    HostDevice host;
    for (const ModelCase& made : model_named(model).hostile_cases(seed, host)) {
      for (const std::string& mode : words_of(modes)) {
        for (ParallelConfig& config : configurations_of_mode(mode)) {
          Scenario scenario{model, made.name, std::move(config), elements_of(made.arguments)};
          scenario.ranks = effective_mesh(scenario.config).size();
          all.push_back(std::move(scenario));
        }
      }
    }
  }
  std::ranges::stable_sort(
      all, [](const Scenario& a, const Scenario& b) { return std::tie(a.ranks, a.size) < std::tie(b.ranks, b.size); });
  return all;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

}  // namespace shardproof::zoo
