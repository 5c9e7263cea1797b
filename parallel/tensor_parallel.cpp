#include "parallel/tensor_parallel.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/checksum.h"
#include "core/collectives.h"
#include "core/error.h"
#include "core/ops.h"

namespace shardproof {
namespace {

constexpr std::string_view kHook = "tp---";

// Remembers how a layer was sharded, for gathering its weights again; the layer's forward stays as it is.
class TensorParallelHook : public Hook {
 public:
  TensorParallelHook(std::shared_ptr<const TensorParallelState> state, PlannedLayer planned)
      : state_(std::move(state)), planned_(std::move(planned)) {}
  std::string_view class_name() const override { return "TensorParallelColwiseHook"; }
  const PlannedLayer& planned() const { return planned_; }

 protected:
  const TensorParallelState& state() const { return *state_; }

 private:
  std::shared_ptr<const TensorParallelState> state_;
  PlannedLayer planned_;
};

// y = sum over ranks (x_r W_r^T) + b: the partial results are added in rank order, then the bias once.
class TensorParallelRowwiseHook final : public TensorParallelHook {
 public:
  using TensorParallelHook::TensorParallelHook;
  std::string_view class_name() const override { return "TensorParallelRowwiseHook"; }
  bool replaces_forward() const override { return true; }

  Outputs new_forward(Module&, Arguments& arguments) override {
    static const Name kHiddenStates("hidden_states");
    const Linear& layer = *planned().layer;
    Tensor x = arguments.tensor(kHiddenStates);
    const std::int64_t local = layer.parameters()[0].tensor->size(1);
    if (planned().style == TensorParallelStyle::replicated_input_rowwise) {
      SHARDPROOF_CHECK(x.size(-1) == local * state().degree(), shape_error,
                       "layer '{}' (replicated_input_rowwise over {} ranks) expects [.., {}], got {}", layer.path(),
                       state().degree(), local * state().degree(), x.text());
      x = x.narrow(-1, state().rank() * local, local);
    }
    SHARDPROOF_CHECK(x.size(-1) == local, shape_error,
                     "layer '{}' ({} over {} ranks) expects its {} local columns, got {}: what feeds it must be "
                     "divided over the ranks, as the output of colwise layers is",
                     layer.path(), style_name(planned().style), state().degree(), local, x.text());
    const Tensor sum = collectives::all_reduce(state().group(), layer.product(x), "tp: sum of partial results").wait();
    const Tensor bias = layer.bias();
    return Outputs(bias.defined() ? ops::add(sum, bias) : sum);
  }
};

bool is_rowwise(TensorParallelStyle style) {
  return style != TensorParallelStyle::colwise && style != TensorParallelStyle::packed_colwise;
}

// The parameters of a planned layer with their shards: weight, then bias if there is one.
template <class Visit>
void for_each_shard(const PlannedLayer& planned, const Visit& visit) {
  visit(planned.layer->parameters()[0], planned.weight);
  if (planned.bias) visit(planned.layer->parameters()[1], *planned.bias);
}

void check_has_no_tensor_parallelism(Module& root) {
  SHARDPROOF_CHECK(!tensor_parallel_is_applied(root), state_error,
                   "tensor parallelism is applied to this {} already; it cannot be applied twice", root.class_name());
}

// Every planned parameter must have its whole shape before sharding, and its local shape where it is sharded already.
void check_shapes(const std::vector<PlannedLayer>& layers, int degree, WeightsAlreadySharded sharded) {
  for (const PlannedLayer& planned : layers) {
    for_each_shard(planned, [&](const Module::Parameter& parameter, const ShardSpec& spec) {
      const Linear& layer = *planned.layer;
      const bool is_weight = &parameter == &layer.parameters()[0];
      const Shape full = is_weight ? Shape{layer.out_features(), layer.in_features()} : Shape{layer.out_features()};
      const Shape expected = sharded == WeightsAlreadySharded::yes ? local_shape(full, spec, degree) : full;
      SHARDPROOF_CHECK(parameter.tensor->shape() == expected, state_error,
                       "parameter '{}' is {}; expected {}, {} of {}", spec.parameter, parameter.tensor->shape().text(),
                       expected.text(), sharded == WeightsAlreadySharded::yes ? "this rank's shard" : "the whole",
                       full.text());
    });
  }
}

// Numbers that all ranks of the group must agree about, gathered and compared with rank 0's.
void check_ranks_agree(const std::vector<PlannedLayer>& layers, const TensorParallelState& state) {
  std::vector<std::int64_t> hashes;
  std::vector<std::string_view> names;
  for (const PlannedLayer& planned : layers) {
    for_each_shard(planned, [&](const Module::Parameter& parameter, const ShardSpec& spec) {
      hashes.push_back(static_cast<std::int64_t>(checksum_of(ops::contiguous(*parameter.tensor))));
      names.push_back(spec.parameter);
    });
  }
  const std::vector<std::int64_t> all =
      collectives::all_gather_numbers(state.group(), hashes, "tp: hashes of the weights");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t parameter = i % hashes.size();
    SHARDPROOF_CHECK(all[i] == all[parameter], state_error,
                     "parameter '{}' differs between ranks 0 and {} of the tensor-parallel group; device type '{}' "
                     "slices each rank's own weights, so they must be equal",
                     names[parameter], i / hashes.size(), state.device_type());
  }
}

// Rank 0's parameter, of which this rank receives its slice.
Tensor scattered(const Tensor& full, const ShardSpec& spec, const TensorParallelState& state) {
  Communicator& group = state.group();
  if (!spec.dim) return collectives::broadcast(group, full, 0, "tp: whole parameter").wait();
  const Shape local = local_shape(full.shape(), spec, state.degree());
  Shape no_rows = local;
  no_rows[0] = 0;
  Tensor rows = full.device().empty(no_rows, full.dtype());
  if (state.rank() == 0) {
    std::vector<Tensor> slices;
    for (int rank = 0; rank < state.degree(); ++rank) slices.push_back(local_shard(full, spec, rank, state.degree()));
    rows = ops::concat(slices, 0);
  }
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(state.degree()), local[0]);
  return collectives::scatter(group, rows, counts, 0, "tp: slices of a parameter").wait();
}

// The layer's hook; null if it was not planned.
const TensorParallelHook* hook_of(Module& module) {
  if (!module.has_hooks()) return nullptr;
  for (const std::string& name : module.hooks().names()) {
    if (name.starts_with(kHook)) return static_cast<const TensorParallelHook*>(module.hooks().find(name));
  }
  return nullptr;
}

// How a parameter was sharded; null if it was not planned.
const ShardSpec* shard_of(Module& module, const Module::Parameter& parameter) {
  const TensorParallelHook* hook = hook_of(module);
  if (hook == nullptr) return nullptr;
  const ShardSpec* found = nullptr;
  for_each_shard(hook->planned(), [&](const Module::Parameter& other, const ShardSpec& spec) {
    if (other.name == parameter.name) found = &spec;
  });
  return found;
}

void place_weights(const std::vector<PlannedLayer>& layers, const TensorParallelState& state) {
  const bool scatters = weight_placement(state.device_type()) == WeightPlacement::scattered;
  if (!scatters) check_ranks_agree(layers, state);
  for (const PlannedLayer& planned : layers) {
    for_each_shard(planned, [&](const Module::Parameter& parameter, const ShardSpec& spec) {
      const Tensor& full = *parameter.tensor;
      if (!scatters && !spec.dim) return;
      Tensor local = scatters ? scattered(full, spec, state) : local_shard(full, spec, state.rank(), state.degree());
      planned.layer->assign_parameter(parameter.name, std::make_shared<const Tensor>(std::move(local)),
                                      parameter.used_as);
    });
  }
}

}  // namespace

TensorParallelState::TensorParallelState(Communicator& world, const Mesh& mesh, const TensorParallelConfig& config)
    : device_type_(config.device_type) {
  weight_placement(device_type_);
  SHARDPROOF_REFUSE_UNLESS(mesh.size() == world.size(), config_error,
                           "the mesh '{}' has {} ranks, but {} take part; they must be equal", mesh.text(), mesh.size(),
                           world.size());
  std::vector<std::string_view> dimensions;
  for (const std::string& name : mesh.names()) {
    if (!mesh.has("tp") || name == "tp") dimensions.emplace_back(name);
  }
  group_ = split_along(world, mesh, dimensions, "tp");
}

WeightPlacement weight_placement(const std::string& device_type) {
  for (const std::string_view known : {"cuda", "xpu", "cpu"}) {
    if (device_type == known) return WeightPlacement::scattered;
  }
  for (const std::string_view known : {"neuron", "tpu", "sim"}) {
    if (device_type == known) return WeightPlacement::sliced;
  }
  throw Refusal(
      ErrorKind::config_error,
      fmt::format("device_type is '{}'; tensor parallelism is offered for cuda, neuron, tpu, xpu, cpu and sim",
                  device_type));
}

void apply_tensor_parallel(Module& root, std::shared_ptr<const TensorParallelState> state,
                           const TensorParallelPlan& tp_plan, WeightsAlreadySharded sharded) {
  check_has_no_tensor_parallelism(root);
  std::vector<Problem> problems;
  const bool are_shards = sharded == WeightsAlreadySharded::yes;
  const std::vector<PlannedLayer> layers = planned_layers(root, tp_plan, state->degree(), problems);
  throw_problems(problems);
  check_shapes(layers, state->degree(), sharded);
  if (!are_shards) place_weights(layers, *state);
  for (const PlannedLayer& planned : layers) {
    std::unique_ptr<Hook> hook;
    if (is_rowwise(planned.style)) {
      hook = std::make_unique<TensorParallelRowwiseHook>(state, planned);
    } else {
      hook = std::make_unique<TensorParallelHook>(state, planned);
    }
    planned.layer->hooks().register_hook(fmt::format("{}{}", kHook, style_name(planned.style)), std::move(hook));
  }
}

bool tensor_parallel_is_applied(Module& root) {
  bool applied = false;
  root.for_each_module([&](Module& module) { applied = applied || hook_of(module) != nullptr; });
  return applied;
}

std::vector<AppliedShard> applied_shards(Module& root) {
  std::vector<AppliedShard> shards;
  root.for_each_module([&](Module& module) {
    const TensorParallelHook* hook = hook_of(module);
    if (hook == nullptr) return;
    for_each_shard(hook->planned(), [&](const Module::Parameter& parameter, const ShardSpec& spec) {
      AppliedShard shard{spec.parameter, hook->planned().style, spec.dim, parameter.tensor->numel(), 0};
      if (spec.dim) shard.total = std::accumulate(spec.blocks.begin(), spec.blocks.end(), std::int64_t{0});
      shard.local = spec.dim ? parameter.tensor->size(*spec.dim) : shard.total;
      shards.push_back(std::move(shard));
    });
  });
  return shards;
}

std::vector<std::pair<std::string, Tensor>> gather_tp_state_dict(Module& root, const TensorParallelState& state) {
  SHARDPROOF_CHECK(tensor_parallel_is_applied(root), state_error,
                   "tensor parallelism is not applied to this {}; its weights are whole", root.class_name());
  std::vector<std::pair<std::string, Tensor>> gathered;
  for_each_parameter(root, [&](const std::string& path, Module& module, const Module::Parameter& parameter) {
    const ShardSpec* spec = shard_of(module, parameter);
    if (spec == nullptr || !spec->dim) {
      gathered.emplace_back(path, *parameter.tensor);
      return;
    }
    const Gathered all(collectives::all_gather(state.group(), ops::contiguous(*parameter.tensor), "tp: shards").wait(),
                       std::vector<std::int64_t>(static_cast<std::size_t>(state.degree()), parameter.tensor->size(0)),
                       0);
    std::vector<Tensor> shards;
    for (int rank = 0; rank < state.degree(); ++rank) shards.push_back(all.piece(rank));
    gathered.emplace_back(path, joined_shards(shards, *spec));
  });
  return gathered;
}

}  // namespace shardproof
