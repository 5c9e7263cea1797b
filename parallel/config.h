// The configurations of the API, with the names and defaults of diffusers: plain aggregates that `validate` judges as a
// whole. Source of the rules and their order: parallelism specification, section 2.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mesh.h"

namespace shardproof {

struct ContextParallelConfig {
  std::optional<int> ring_degree = std::nullopt;
  std::optional<int> ulysses_degree = std::nullopt;
  // Partial results of a ring are merged in the wide type (float32 for the 16-bit types) instead of the queries' type.
  bool convert_to_fp32 = true;
  // "allgather": all chunks at once; "alltoall": chunks travel from neighbour to neighbour. Bitwise the same result.
  std::string rotate_method = "allgather";
  // Any dimensions, among them "ring" and "ulysses"; the others are replicas.
  std::optional<Mesh> mesh = std::nullopt;
  bool ulysses_anything = false;
  bool ring_anything = false;
};

struct TensorParallelConfig {
  int tp_degree = 1;
  // Overrides tp_degree: the effective degree is its size (of the dimension "tp" if it has one).
  std::optional<Mesh> mesh = std::nullopt;
  // Decides how weights are placed (see tensor_parallel.h): "cuda", "xpu", "cpu" scatter those of rank 0; "neuron",
  // "tpu", "sim" slice each rank's own.
  std::string device_type = "sim";
};

struct ParallelConfig {
  std::optional<ContextParallelConfig> context_parallel_config = std::nullopt;
  std::optional<TensorParallelConfig> tensor_parallel_config = std::nullopt;
};

struct Problem {
  ErrorKind kind = ErrorKind::config_error;
  std::string message;
};

// All problems, in the order of the specification; empty if the configuration can work.
std::vector<Problem> validate(const ContextParallelConfig& config);
std::vector<Problem> validate(const TensorParallelConfig& config);
std::vector<Problem> validate(const ParallelConfig& config);
// Throws the first problem as an error, with the next three and the number of the rest named after it; does nothing for
// an empty list.
void throw_problems(const std::vector<Problem>& problems);

// Degrees as they act: what is given, else the size of the mesh's dimension of that name, else 1.
int effective_ring_degree(const ContextParallelConfig& config);
int effective_ulysses_degree(const ContextParallelConfig& config);
int effective_tp_degree(const TensorParallelConfig& config);
// 1 without tensor parallelism.
int effective_tp_degree(const ParallelConfig& config);
// The given mesh, or ring x ulysses in this order.
Mesh effective_mesh(const ContextParallelConfig& config);
// Of both kinds together: the mesh that either brings, or tp x ring x ulysses, each as far as it is configured. Of no
// kind: one rank.
Mesh effective_mesh(const ParallelConfig& config);

// "ulysses", "ulysses_anything", "ring", "ring_anything", "unified" ("none" for one rank).
std::string mode_name(const ContextParallelConfig& config);
// The same, "tp", or "tp+ring" and so on.
std::string mode_name(const ParallelConfig& config);

}  // namespace shardproof
