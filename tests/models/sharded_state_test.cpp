// Weights of a tensor-parallel rank, read slice by slice: only the rank's bytes are touched, the slices are those that
// the ordinary path places, and gathered they are the file again.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/weight_files.h"
#include "models/export_directory.h"
#include "models/model_type.h"
#include "models/state.h"
#include "parallel/tensor_parallel.h"
#include "reference/eigen_device.h"
#include "tests/support/host_array.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

class ShardedStateTest : public testing::TestWithParam<std::string> {
 protected:
  std::string folder = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/goldens/" + GetParam();
  ExportDirectory directory{folder};
  const ModelType& model = directory.model();
  std::unique_ptr<Device> device = make_reference_device(kFloat32);
  ModelContext context{device.get(), kFloat32, TablePrecision::float32};
  TensorParallelPlan plan = *model.plans(directory.config()).default_tp;

  std::unique_ptr<Module> tree() const { return model.create(directory.config(), context); }
};

INSTANTIATE_TEST_SUITE_P(Goldens, ShardedStateTest, testing::Values("flux/tiny", "flux2/uneven", "qwenimage21/tiny"),
                         [](const auto& name) {
                           std::string word = name.param;
                           for (char& c : word) c = c == '/' ? '_' : c;
                           return word;
                         });

TEST_P(ShardedStateTest, ReadsTheSlicesOfOneRankAndNoOtherBytes) {
  const auto declared = tree();
  const std::vector<ShardSpec> specs = resolve_tp_shard_specs(*declared, plan, 2);
  std::vector<ModelState> ranks;
  for (const int rank : {0, 1}) {
    const WeightFiles files(folder);
    ranks.push_back(load_sharded_state(*declared, files, context, specs, rank, 2));
    std::size_t expected = 0;
    for (const auto& tensor : ranks.back().tensors) expected += tensor->bytes();
    EXPECT_EQ(files.bytes_read(), expected);
  }
  const ModelState whole = load_state(*declared, WeightFiles(folder), context);
  std::size_t sharded = 0;
  for (const ShardSpec& spec : specs) {
    const auto at = static_cast<std::size_t>(std::find(whole.names.begin(), whole.names.end(), spec.parameter) -
                                             whole.names.begin());
    ASSERT_LT(at, whole.names.size()) << spec.parameter;
    const std::vector<Tensor> shards{*ranks[0].tensors[at], *ranks[1].tensors[at]};
    EXPECT_TRUE(bitwise_equal(joined_shards(shards, spec), *whole.tensors[at])) << spec.parameter;
    if (!spec.dim) continue;
    EXPECT_FALSE(bitwise_equal(shards[0], shards[1])) << spec.parameter << ": both ranks have the same slice";
    EXPECT_EQ(shards[0].numel() * 2, whole.tensors[at]->numel());
    ++sharded;
  }
  EXPECT_GT(sharded, 10U);
}

TEST_P(ShardedStateTest, GivesTheModelThatTheOrdinaryPathGives) {
  const auto declared = tree();
  const std::vector<ShardSpec> specs = resolve_tp_shard_specs(*declared, plan, 2);
  const ModelState whole = load_state(*declared, WeightFiles(folder), context);
  const auto equal = rank_results(2, [&](Communicator& world) {
    const auto state =
        std::make_shared<const TensorParallelState>(world, Mesh({"tp"}, {2}), TensorParallelConfig{.tp_degree = 2});
    const auto ordinary = tree(), streamed = tree();
    assign_state(*ordinary, whole);
    apply_tensor_parallel(*ordinary, state, plan);
    assign_sharded_state(*streamed,
                         load_sharded_state(*streamed, WeightFiles(folder), context, specs, world.rank(), 2));
    apply_tensor_parallel(*streamed, state, plan, WeightsAlreadySharded::yes);
    std::vector<Tensor> of_ordinary;
    for_each_parameter(*ordinary, [&](const std::string&, Module&, const Module::Parameter& parameter) {
      of_ordinary.push_back(*parameter.tensor);
    });
    std::size_t next = 0;
    bool all = true;
    for_each_parameter(*streamed, [&](const std::string&, Module&, const Module::Parameter& parameter) {
      all = all && bitwise_equal(ops::contiguous(of_ordinary[next++]), *parameter.tensor);
    });
    const auto gathered = gather_tp_state_dict(*streamed, *state);
    for (std::size_t i = 0; i < gathered.size(); ++i) all = all && bitwise_equal(gathered[i].second, *whole.tensors[i]);
    return all && gathered.size() == whole.tensors.size();
  });
  EXPECT_THAT(equal, testing::Each(true));
}

TEST_P(ShardedStateTest, IsNotTakenForWholeWeightsNorTheOtherWayRound) {
  const auto declared = tree();
  const std::vector<ShardSpec> specs = resolve_tp_shard_specs(*declared, plan, 2);
  const ModelState whole = load_state(*declared, WeightFiles(folder), context);
  const auto message_of = [&](bool shards, WeightsAlreadySharded said) {
    return thrown_by([&] {
             run_ranks({.world_size = 2}, [&](Communicator& world) {
               const auto state = std::make_shared<const TensorParallelState>(world, Mesh({"tp"}, {2}),
                                                                              TensorParallelConfig{.tp_degree = 2});
               const auto model_tree = tree();
               if (shards) {
                 assign_sharded_state(*model_tree, load_sharded_state(*model_tree, WeightFiles(folder), context, specs,
                                                                      world.rank(), 2));
               } else {
                 assign_state(*model_tree, whole);
               }
               apply_tensor_parallel(*model_tree, state, plan, said);
             });
           })
        ->message;
  };
  EXPECT_THAT(message_of(true, WeightsAlreadySharded::no), testing::HasSubstr("the whole of"));
  EXPECT_THAT(message_of(false, WeightsAlreadySharded::yes), testing::HasSubstr("this rank's shard of"));
}

}  // namespace
}  // namespace shardproof::test
