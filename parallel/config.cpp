#include "parallel/config.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardproof {
namespace {

int effective_degree(const std::optional<int>& given, const std::optional<Mesh>& mesh, std::string_view dimension) {
  if (given) return *given;
  return mesh && mesh->has(dimension) ? mesh->size_of(dimension) : 1;
}

class Problems {
 public:
  template <class... Arguments>
  void add(ErrorKind kind, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    list.push_back({kind, fmt::format(format, std::forward<Arguments>(arguments)...)});
  }
  std::vector<Problem> list;
};

void validate_mesh(const ContextParallelConfig& config, Problems& problems) {
  if (!config.mesh) return;
  std::vector<std::string> missing;
  std::string completed = config.mesh->text();
  const auto check = [&](std::string_view dimension, const std::optional<int>& degree) {
    if (!config.mesh->has(dimension)) {
      missing.push_back(fmt::format("'{}'", dimension));
      completed += fmt::format("{}{}={}", completed.empty() ? "" : ",", dimension, degree.value_or(1));
    } else if (degree && *degree != config.mesh->size_of(dimension)) {
      problems.add(ErrorKind::config_error,
                   "{}_degree is {}, but the mesh '{}' has {}={}; they must agree (or leave the degree unset)",
                   dimension, *degree, config.mesh->text(), dimension, config.mesh->size_of(dimension));
    }
  };
  check("ring", config.ring_degree);
  check("ulysses", config.ulysses_degree);
  if (missing.empty()) return;
  problems.add(
      ErrorKind::config_error,
      "mesh: '{}' has no dimension {}; a custom mesh must contain 'ring' and 'ulysses', of size 1 if unused, as "
      "in '{}'",
      config.mesh->text(), fmt::join(missing, " and no "), completed);
}

// Both kinds live in one mesh, whichever of them brings it.
void validate_common_mesh(const ParallelConfig& config, Problems& problems) {
  const std::optional<Mesh>& of_context = config.context_parallel_config->mesh;
  const std::optional<Mesh>& of_tensor = config.tensor_parallel_config->mesh;
  if (of_context && of_tensor && !(*of_context == *of_tensor)) {
    problems.add(ErrorKind::config_error,
                 "context parallelism has the mesh '{}' and tensor parallelism '{}'; both must be in one mesh with the "
                 "dimensions 'tp', 'ring' and 'ulysses'",
                 of_context->text(), of_tensor->text());
    return;
  }
  const std::optional<Mesh>& mesh = of_context ? of_context : of_tensor;
  if (!mesh) return;
  for (const std::string_view dimension : {"tp", "ring", "ulysses"}) {
    // Of its own mesh, context parallelism has said that itself.
    if (mesh->has(dimension) || (of_context && dimension != "tp")) continue;
    problems.add(ErrorKind::config_error,
                 "mesh: '{}' has no dimension '{}'; context and tensor parallelism together need one mesh with the "
                 "dimensions 'tp', 'ring' and 'ulysses'",
                 mesh->text(), dimension);
  }
}

}  // namespace

int effective_ring_degree(const ContextParallelConfig& config) {
  return effective_degree(config.ring_degree, config.mesh, "ring");
}

int effective_ulysses_degree(const ContextParallelConfig& config) {
  return effective_degree(config.ulysses_degree, config.mesh, "ulysses");
}

int effective_tp_degree(const TensorParallelConfig& config) {
  if (!config.mesh) return config.tp_degree;
  return config.mesh->has("tp") ? config.mesh->size_of("tp") : config.mesh->size();
}

int effective_tp_degree(const ParallelConfig& config) {
  if (!config.tensor_parallel_config) return 1;
  const std::optional<ContextParallelConfig>& context = config.context_parallel_config;
  const bool in_its_mesh = context && context->mesh && context->mesh->has("tp");
  if (!config.tensor_parallel_config->mesh && in_its_mesh) return context->mesh->size_of("tp");
  return effective_tp_degree(*config.tensor_parallel_config);
}

Mesh effective_mesh(const ParallelConfig& config) {
  const int tp_degree = effective_tp_degree(config);
  const std::optional<ContextParallelConfig>& context = config.context_parallel_config;
  if (context && context->mesh) return *context->mesh;
  if (config.tensor_parallel_config && config.tensor_parallel_config->mesh) return *config.tensor_parallel_config->mesh;
  if (!context) return Mesh({"tp"}, {tp_degree});
  if (tp_degree == 1) return effective_mesh(*context);
  return Mesh({"tp", "ring", "ulysses"},
              {tp_degree, effective_ring_degree(*context), effective_ulysses_degree(*context)});
}

Mesh effective_mesh(const ContextParallelConfig& config) {
  if (config.mesh) return *config.mesh;
  return Mesh({"ring", "ulysses"}, {effective_ring_degree(config), effective_ulysses_degree(config)});
}

std::vector<Problem> validate(const ContextParallelConfig& config) {
  Problems problems;
  const int ring = effective_ring_degree(config);
  const int ulysses = effective_ulysses_degree(config);
  if (ring == 1 && ulysses == 1) {
    problems.add(ErrorKind::config_error, "either ring_degree or ulysses_degree must be greater than 1 (both are 1)");
  }
  if (ring < 1) problems.add(ErrorKind::config_error, "ring_degree is {}; it must be greater than or equal to 1", ring);
  if (ulysses < 1)
    problems.add(ErrorKind::config_error, "ulysses_degree is {}; it must be greater than or equal to 1", ulysses);
  if (config.rotate_method != "allgather" && config.rotate_method != "alltoall") {
    problems.add(ErrorKind::config_error, "rotate_method is '{}'; it must be 'allgather' or 'alltoall'",
                 config.rotate_method);
  }
  if (config.ulysses_anything) {
    if (ulysses <= 1) {
      problems.add(ErrorKind::config_error, "ulysses_anything needs ulysses_degree greater than 1 (it is {})", ulysses);
    }
    if (ring > 1) problems.add(ErrorKind::config_error, "ulysses_anything needs ring_degree 1 (it is {})", ring);
  }
  if (config.ring_anything) {
    if (ring <= 1)
      problems.add(ErrorKind::config_error, "ring_anything needs ring_degree greater than 1 (it is {})", ring);
    if (ulysses > 1) problems.add(ErrorKind::config_error, "ring_anything needs ulysses_degree 1 (it is {})", ulysses);
  }
  if (config.ulysses_anything && config.ring_anything) {
    problems.add(ErrorKind::config_error, "ulysses_anything and ring_anything exclude each other");
  }
  validate_mesh(config, problems);
  return problems.list;
}

std::vector<Problem> validate(const TensorParallelConfig& config) {
  Problems problems;
  if (config.tp_degree < 1) {
    problems.add(ErrorKind::config_error, "tp_degree is {}; it must be greater than or equal to 1", config.tp_degree);
  }
  return problems.list;
}

std::vector<Problem> validate(const ParallelConfig& config) {
  Problems all;
  if (config.context_parallel_config) all.list = validate(*config.context_parallel_config);
  if (config.tensor_parallel_config) {
    for (Problem& problem : validate(*config.tensor_parallel_config)) all.list.push_back(std::move(problem));
  }
  if (config.context_parallel_config && effective_tp_degree(config) > 1) validate_common_mesh(config, all);
  return all.list;
}

void throw_problems(const std::vector<Problem>& problems) {
  if (problems.empty()) return;
  constexpr std::size_t kListed = 4;
  std::string message = problems.front().message;
  for (std::size_t i = 1; i < std::min(problems.size(), kListed); ++i) message += "; also: " + problems[i].message;
  if (problems.size() > kListed) message += fmt::format("; and {} more", problems.size() - kListed);
  throw Refusal(problems.front().kind, message);
}

std::string mode_name(const ContextParallelConfig& config) {
  const bool ring = effective_ring_degree(config) > 1;
  const bool ulysses = effective_ulysses_degree(config) > 1;
  if (ring && ulysses) return "unified";
  if (ring) return config.ring_anything ? "ring_anything" : "ring";
  if (ulysses) return config.ulysses_anything ? "ulysses_anything" : "ulysses";
  return "none";
}

std::string mode_name(const ParallelConfig& config) {
  const std::string context = config.context_parallel_config ? mode_name(*config.context_parallel_config) : "none";
  if (effective_tp_degree(config) == 1) return context;
  return context == "none" ? "tp" : "tp+" + context;
}

}  // namespace shardproof
