#include "tests/zoo/layer_model.h"

#include <cmath>
#include <string>

#include "core/ops.h"
#include "core/random.h"
#include "models/layers.h"
#include "parallel/attention.h"

namespace shardproof::zoo {
namespace {

constexpr std::int64_t kHeadWidth = 4;

const Name kQueries("q");
const Name kKeys("k");
const Name kValues("v");
const Name kKeyMask("key_mask");        // bool [batch, keys], divided
const Name kGlobalMask("global_mask");  // [batch, heads, queries, all keys]; its queries are divided

class AttentionLayer final : public Module, public AttentionSlot {
 public:
  AttentionLayer() : Module("AttentionLayer") {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{kQueries, ArgumentKind::value},
                                              {kKeys, ArgumentKind::value},
                                              {kValues, ArgumentKind::value},
                                              {kKeyMask, ArgumentKind::mask},
                                              {kGlobalMask, ArgumentKind::mask}};
    return kArguments;
  }

  // -> out and log-sum-exp in one tensor [batch, queries, heads, head_dim + 1], since a plan gathers both alike.
  Outputs forward(Arguments& arguments) override {
    const Tensor q = split_heads(arguments.tensor(kQueries), kHeadWidth);
    const Tensor k = split_heads(arguments.tensor(kKeys), kHeadWidth);
    const Tensor v = split_heads(arguments.tensor(kValues), kHeadWidth);
    AttentionMask mask{.values = arguments.optional_tensor(kKeyMask)};
    if (const Tensor global = arguments.optional_tensor(kGlobalMask); global.defined()) {
      mask.values = global;
      mask.head_axis = HeadAxis::all;
      mask.query_axis = QueryAxis::local;
      mask.key_axis = KeyAxis::global;
    }
    const AttentionResult result = attention(q, k, v, mask, {.return_lse = true}, context_parallel());
    return Outputs(std::vector<Tensor>{join_heads(result.out), result.lse});
  }
};

ContextParallelPlan layer_plan() {
  const auto tokens = ContextParallelInput{.split_dim = 1, .expected_dims = 3};
  const auto keys = ContextParallelInput{.split_dim = 1, .expected_dims = 2};
  const auto queries = ContextParallelInput{.split_dim = 2, .expected_dims = 4};
  const auto gathered = ContextParallelOutput{.gather_dim = 1, .expected_dims = 3};
  return {
      {{"", SplitEntries{{"q", tokens}, {"k", tokens}, {"v", tokens}, {"key_mask", keys}, {"global_mask", queries}}},
       {"", GatherEntry(std::vector{gathered, gathered})}}};
}

enum class LayerMask : std::uint8_t { none, keys, first_chunk, global };

struct LayerSizes {
  std::int64_t queries, keys;
  double deviation = 2.0;  // of queries and keys
  std::int64_t heads = 5;
};

// The first third of the keys is lost to every item, or two keys in ten to each item its own.
bool is_kept(LayerMask mask, std::int64_t key, std::int64_t keys, double draw) {
  return mask == LayerMask::first_chunk ? key >= (keys + 2) / 3 : draw >= 0.3;
}

ModelCase layer_case(const std::string& name, std::uint64_t seed, Device& host, LayerSizes sizes, LayerMask mask,
                     std::int64_t batch = 2) {
  const std::int64_t width = sizes.heads * kHeadWidth;
  const auto draw = [&](const std::string& argument, std::int64_t tokens, double deviation) {
    return random_input(host, seed, name + "/" + argument, {batch, tokens, width}, deviation);
  };
  ModelCase result{name, {}, {"out", "lse"}};
  result.arguments.set(kQueries, draw("q", sizes.queries, sizes.deviation));
  result.arguments.set(kKeys, draw("k", sizes.keys, sizes.deviation));
  result.arguments.set(kValues, draw("v", sizes.keys, 1.0));
  const RandomStream random(seed, name + "/mask");
  std::vector<double> values;
  if (mask == LayerMask::keys || mask == LayerMask::first_chunk) {
    for (std::int64_t i = 0; i < batch * sizes.keys; ++i)
      values.push_back(is_kept(mask, i % sizes.keys, sizes.keys, random.uniform(static_cast<std::uint64_t>(i))) ? 1
                                                                                                                : 0);
    result.arguments.set(kKeyMask, ops::from_doubles(host, values, {batch, sizes.keys}, kBool));
  } else if (mask == LayerMask::global) {
    const Shape shape{batch, sizes.heads, sizes.queries, sizes.keys};
    for (std::int64_t i = 0; i < shape.numel(); ++i)
      values.push_back(random.uniform(static_cast<std::uint64_t>(i)) < 0.3 ? 0 : 1);
    result.arguments.set(kGlobalMask, ops::from_doubles(host, values, shape, kBool));
  }
  return result;
}

std::vector<ModelCase> layer_cases(std::uint64_t seed, Device& host) {
  return {
      layer_case("tokens_as_heads", seed, host, {10, 10}, LayerMask::none),  // five a rank, and five heads
      layer_case("other_length", seed, host, {7, 8}, LayerMask::none),
      layer_case("even_masked", seed, host, {12, 12}, LayerMask::keys),
      layer_case("uneven_masked", seed, host, {7, 13}, LayerMask::keys),
      layer_case("chunk_masked", seed, host, {12, 12}, LayerMask::first_chunk),
      layer_case("mask_of_all", seed, host, {12, 12}, LayerMask::global),
      layer_case("uneven_mask_of_all", seed, host, {7, 13}, LayerMask::global),
      layer_case("four_heads_masked", seed, host, {12, 12, 2.0, 4}, LayerMask::global),
      layer_case("large", seed, host, {12, 12, 20.0}, LayerMask::none),
  };
}

// As many keys as queries, or one more.
ModelCase layer_sized_case(const Json&, const ModelSize& size, std::uint64_t seed, Device& host) {
  const LayerMask mask = size.has("global_mask")  ? LayerMask::global
                         : size.has("shard_mask") ? LayerMask::first_chunk
                         : size.has("key_mask")   ? LayerMask::keys
                                                  : LayerMask::none;
  const std::int64_t keys = size.image + (size.has("more_keys") ? 1 : 0);
  return layer_case("sized", seed, host, {size.image, keys, 2.0, size.heads}, mask, size.batch);
}

bool has_other_length(const Arguments& arguments) {
  return arguments.tensor(kKeys).shape()[1] != arguments.tensor(kQueries).shape()[1];
}

}  // namespace

ModelType layer_model_type() {
  ModelType type;
  type.class_name = "AttentionLayer";
  type.short_name = "layer";
  type.create = [](const Json&, const ModelContext&) -> std::unique_ptr<Module> {
    return std::make_unique<AttentionLayer>();
  };
  type.plans = [](const Json&) { return ModelPlans{.default_cp = layer_plan()}; };
  type.hostile_config = [] { return Json::object(); };
  type.hostile_cases = layer_cases;
  type.sized_case = layer_sized_case;
  type.features = {feature_by_argument("key_mask", "key_mask"),
                   feature_by_argument("shard_mask", "key_mask"),
                   feature_by_argument("global_mask", "global_mask"),
                   {"more_keys", has_other_length}};
  return type;
}

}  // namespace shardproof::zoo
