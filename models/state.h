// The weights of one model on one device in one type: loaded or drawn once, then assigned as shared handles to any
// number of trees (one a rank).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/module.h"
#include "core/weight_files.h"
#include "models/model_context.h"
#include "parallel/tensor_parallel_specs.h"

namespace shardproof {

// How the weights of a file are held.
enum class WeightForm : std::uint8_t {
  converted,  // once, to the type in which the model computes: for many runs, or many ranks that share them
  stored,  // as the file has them, memory of the file where possible; every module converts its own when it uses them
};

// Tensors in the tree order of the model that they were made for.
struct ModelState {
  std::vector<std::string> names;
  std::vector<std::shared_ptr<const Tensor>> tensors;
  DType dtype;  // in which the model sees them
};

// Reads every parameter of `declared`; the model sees it in the context's type. config_error listing all parameters
// that are missing, unknown or of another shape.
ModelState load_state(Module& declared, const WeightFiles& files, const ModelContext& context,
                      WeightForm form = WeightForm::converted);
// What rank `rank` of `degree` needs of the same files under tensor parallelism: of every parameter that `specs` shards
// only the rank's slices are read, everything else whole; converted after slicing. Shapes are compared with those of
// the whole model. For apply_tensor_parallel with WeightsAlreadySharded::yes. Source: parallelism specification 7.7.
ModelState load_sharded_state(Module& declared, const WeightFiles& files, const ModelContext& context,
                              std::span<const ShardSpec> specs, int rank, int degree);
// Hands the slices to a tree of the same model.
void assign_sharded_state(Module& tree, const ModelState& state);
// Draws every parameter by its kind from (seed, name, index), the same values in every type: linear weights normal with
// deviation 1/sqrt(inputs), biases and tables 0.5 normal, norm weights 1 + 0.3 normal (1.5 times that for queries and
// keys, so that attention is peaked): nothing is zero or symmetric, so that no fault hides.
ModelState random_state(Module& declared, std::uint64_t seed, const ModelContext& context);
// One parameter of these.
Tensor random_parameter(const std::string& path, const Shape& shape, std::uint64_t seed, Device& device, DType dtype);
// Hands the tensors to a tree of the same model.
void assign_state(Module& tree, const ModelState& state);

}  // namespace shardproof
