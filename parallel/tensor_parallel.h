// Switching tensor parallelism on for a model: every planned linear layer keeps the rank's slice of its weight, and
// rowwise layers add their partial results over the ranks before their bias. Source: parallelism specification 7.1,
// 7.5, 7.8, 8.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/module.h"
#include "parallel/config.h"
#include "parallel/plan.h"
#include "parallel/tensor_parallel_specs.h"

namespace shardproof {

// What one rank knows about tensor parallelism once it is set up: its group and its place in it.
class TensorParallelState {
 public:
  // Collective over `world`, whose mesh is `mesh`: the group runs along the dimension "tp", or along all dimensions
  // where there is none of that name. config_error if mesh and number of ranks differ, or for an unknown device_type.
  // `world` must outlive the state.
  TensorParallelState(Communicator& world, const Mesh& mesh, const TensorParallelConfig& config);

  int degree() const { return group_->size(); }
  int rank() const { return group_->rank(); }
  Communicator& group() const { return *group_; }
  const std::string& device_type() const { return device_type_; }

 private:
  std::unique_ptr<Communicator> group_;
  std::string device_type_;
};

// How weights get to their ranks, by device type as diffusers has it.
enum class WeightPlacement : std::uint8_t {
  scattered,  // "cuda", "xpu", "cpu": rank 0's weights are authoritative; slices are scattered, whole parameters
              // broadcast
  sliced,     // "neuron", "tpu", "sim": every rank cuts its slice from its own host weights, without a copy where the
              // slice is one block; ranks whose weights differ are a state_error
};
// config_error listing the types, for one that is not among them.
WeightPlacement weight_placement(const std::string& device_type);

enum class WeightsAlreadySharded : std::uint8_t { no, yes };

// Collective over the state's group. Resolves the plan and checks every layer before anything is changed, places the
// weights (with WeightsAlreadySharded::yes it checks instead that every planned parameter has its local shape), and
// registers a hook "tp---{style}" at every planned layer.
// Errors: state_error (applied already; a planned parameter that is not the shard that it should be, named), plan_error
// and shape_error (all problems of the plan in one error), state_error naming the parameter in which ranks differ.
void apply_tensor_parallel(Module& root, std::shared_ptr<const TensorParallelState> state,
                           const TensorParallelPlan& tp_plan,
                           WeightsAlreadySharded sharded = WeightsAlreadySharded::no);
bool tensor_parallel_is_applied(Module& root);

// What was done to one parameter of a planned layer: `local` of `total` entries along `dim` are here, or all of them
// where dim is none.
struct AppliedShard {
  std::string parameter;
  TensorParallelStyle style = TensorParallelStyle::colwise;
  std::optional<int> dim;
  std::int64_t total = 0;
  std::int64_t local = 0;
};
// In tree order; empty if tensor parallelism is not applied.
std::vector<AppliedShard> applied_shards(Module& root);

// Collective over the state's group: every parameter of the tree at its full size, in tree order, with packed blocks in
// their original order; bit for bit what it was before sharding. state_error if tensor parallelism is not applied.
std::vector<std::pair<std::string, Tensor>> gather_tp_state_dict(Module& root, const TensorParallelState& state);

}  // namespace shardproof
