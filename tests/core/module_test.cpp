// The module tree: paths, lookup, parameters, checked calls, observers and the linear layer.
// The tree is that of the small test model, which is deep enough for every kind of path.
#include "core/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "reference/eigen_device.h"
#include "tests/support/host_array.h"
#include "tests/support/small_model.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

std::vector<std::string> paths(Module& root) {
  std::vector<std::string> result;
  root.for_each_module([&](Module& module) { result.push_back(module.path()); });
  return result;
}

TEST(Module, ListsItsTreeParentsFirstInOrderOfDeclaration) {
  SmallModel model({.layers = 1});
  EXPECT_THAT(
      paths(model),
      testing::ElementsAre("", "x_embedder", "text_embedder", "context_embedder", "blocks", "blocks.0", "blocks.0.attn",
                           "blocks.0.attn.to_q", "blocks.0.attn.to_k", "blocks.0.attn.to_v", "blocks.0.attn.to_out",
                           "blocks.0.cross_attn", "blocks.0.cross_attn.to_q", "blocks.0.cross_attn.to_k",
                           "blocks.0.cross_attn.to_v", "blocks.0.cross_attn.to_out", "blocks.0.ff", "proj_out"));
}

TEST(Module, FindsModulesByPath) {
  SmallModel model({.layers = 2});
  Module* to_k = model.find_module("blocks.1.attn.to_k");
  ASSERT_NE(to_k, nullptr);
  EXPECT_EQ(to_k->path(), "blocks.1.attn.to_k");
  EXPECT_EQ(to_k->name().text(), "to_k");
  EXPECT_EQ(to_k->parent(), model.find_module("blocks.1.attn"));
  EXPECT_EQ(to_k->class_name(), "Linear");
  EXPECT_EQ(model.find_module(""), &model);
  EXPECT_EQ(model.find_module("blocks.2"), nullptr);
  EXPECT_EQ(model.find_module("blocks.1.attn.to_k.deeper"), nullptr);
  EXPECT_EQ(model.find_child("blocks.1"), nullptr);
  EXPECT_TRUE(model.find_child("blocks")->is_list());
  EXPECT_FALSE(to_k->is_list());
}

TEST(Module, ListsParametersByPathWithTheirDeclaredShapes) {
  Linear linear(3, 2);
  std::vector<std::string> found;
  for_each_parameter(linear, [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    EXPECT_FALSE(parameter.tensor->has_storage());
    found.push_back(path + " " + parameter.tensor->shape().text());
  });
  EXPECT_THAT(found, testing::ElementsAre("weight [2, 3]", "bias [2]"));
  Linear without(3, 2, Linear::Bias::absent);
  EXPECT_EQ(without.parameters().size(), 1U);
}

TEST(Module, AssignsParametersByNameAndRefusesOthers) {
  const auto device = make_reference_device(kFloat64);
  Linear linear(2, 1);
  const auto weight = std::make_shared<const Tensor>(ops::full(*device, {1, 2}, kFloat64, 2.0));
  linear.assign_parameter("weight", weight);
  EXPECT_EQ(linear.parameters()[0].tensor, weight);
  EXPECT_EQ(thrown_by([&] { linear.assign_parameter("scale", weight); }),
            thrown(ErrorKind::state_error, "module '' (Linear) has no parameter 'scale'"));
}

TEST(Module, RefusesAnArgumentThatForwardDoesNotHave) {
  Linear linear(2, 1);
  EXPECT_EQ(thrown_by([&] { linear.call({{"input", Tensor()}}); }),
            thrown(ErrorKind::state_error, "module '' (Linear) has no argument 'input'"));
  EXPECT_EQ(thrown_by([&] { linear.call({}); }), thrown(ErrorKind::state_error, "argument 'hidden_states' is missing"));
}

TEST(ModuleList, NamesItsElementsByNumberAndCannotBeCalled) {
  ModuleList list;
  list.append<Linear>(2, 1);
  list.append<Linear>(2, 1);
  EXPECT_NE(list.find_child("1"), nullptr);
  EXPECT_EQ(list.find_child("2"), nullptr);
  EXPECT_EQ(thrown_by([&] { list.call({}); }),
            thrown(ErrorKind::state_error, "module list '' cannot be called; call its elements"));
}

class TwinsModule final : public Module {
 public:
  TwinsModule() : Module("TwinsModule") {
    add_child<ModuleList>("child");
    add_child<ModuleList>("child");
  }
  std::span<const ArgumentSpec> forward_arguments() const override { return {}; }
  Outputs forward(Arguments&) override { return {}; }
};

TEST(Module, RefusesTwoChildrenOfOneName) {
  EXPECT_EQ(thrown_by([] { TwinsModule(); }),
            thrown(ErrorKind::internal_error, "module TwinsModule has two children named 'child'"));
}

TEST(Linear, ComputesItsFormula) {
  const auto device = make_reference_device(kFloat64);
  Linear linear(2, 3);
  const std::vector<double> weight{1, 2, 3, 4, 5, 6}, bias{10, 20, 30}, x{1, -1, 2, 0.5};
  linear.assign_parameter("weight",
                          std::make_shared<const Tensor>(ops::from_doubles(*device, weight, {3, 2}, kFloat64)));
  linear.assign_parameter("bias", std::make_shared<const Tensor>(ops::from_doubles(*device, bias, {3}, kFloat64)));
  const Tensor y = linear(ops::from_doubles(*device, x, {1, 2, 2}, kFloat64));
  EXPECT_EQ(y.shape(), (Shape{1, 2, 3}));
  EXPECT_THAT(ops::to_doubles(y), testing::ElementsAre(9, 19, 29, 13, 28, 43));
}

TEST(Linear, NamesItselfWhereItsInputDoesNotFit) {
  const auto device = make_reference_device(kFloat64);
  ModuleList list;
  Module& linear = list.append<Linear>(2, 3);
  linear.assign_parameter("weight", std::make_shared<const Tensor>(ops::zeros(*device, {3, 2}, kFloat64)));
  linear.assign_parameter("bias", std::make_shared<const Tensor>(ops::zeros(*device, {3}, kFloat64)));
  const auto refusal = [&](const Shape& shape) {
    return test::thrown_by([&] { dynamic_cast<Linear&>(linear)(ops::zeros(*device, shape, kFloat64)); })->message;
  };
  EXPECT_EQ(refusal({1, 4}), "layer '0' with weight [3, 2] expects rows of 2, got float64 [1, 4]");
  EXPECT_EQ(refusal({}), "layer '0' with weight [3, 2] expects rows of 2, got float64 []");
}

TEST(Linear, ConvertsWeightsOfAnotherTypeWhenItUsesThemAndDropsTheCopies) {
  const auto device = make_reference_device(kFloat64);
  BlockPool& pool = dynamic_cast<HostDevice&>(*device).pool();
  const std::int64_t size = 64;
  const std::vector<double> values(static_cast<std::size_t>(size * size), 0.1);
  const auto weight =
      std::make_shared<const Tensor>(ops::cast(ops::from_doubles(*device, values, {size, size}, kFloat64), kFloat32));
  Linear first(size, size, Linear::Bias::absent), second(size, size, Linear::Bias::absent);
  first.assign_parameter("weight", weight, kFloat64);
  second.assign_parameter("weight", weight, kFloat64);
  EXPECT_EQ(first.parameters()[0].tensor, weight);
  const Tensor x = ops::full(*device, {1, size}, kFloat64, 1.0);
  const double expected = 64.0 * static_cast<double>(0.1F);
  EXPECT_THAT(ops::to_doubles(first(x)), testing::Each(testing::DoubleNear(expected, 1e-13)));
  const std::int64_t blocks = pool.system_allocations();
  EXPECT_THAT(ops::to_doubles(second(x)), testing::Each(testing::DoubleNear(expected, 1e-13)));
  EXPECT_EQ(pool.system_allocations(), blocks) << "a converted weight was kept";
}

class RecordingObserver final : public ModuleObserver {
 public:
  void on_outputs(const Module& module, const Outputs& outputs) override {
    seen.push_back(module.path() + " " + std::to_string(outputs.tensors.size()));
  }
  std::vector<std::string> seen;
};

TEST(ModuleObserver, SeesTheOutputsOfEveryCallChildrenFirst) {
  const auto device = make_reference_device(kFloat64);
  HostDevice host;
  const SmallModelWeights weights({.layers = 1}, *device, kFloat64, 1);
  const std::unique_ptr<SmallModel> model = weights.make_model();
  const Arguments inputs = small_model_inputs({}, *device, host, kFloat64, 1);
  RecordingObserver observer;
  model->set_observer(&observer);
  const Tensor watched = model->call(inputs).tensors.front();
  EXPECT_THAT(observer.seen,
              testing::ElementsAre("x_embedder 1", "text_embedder 1", "context_embedder 1", "blocks.0.attn.to_q 1",
                                   "blocks.0.attn.to_k 1", "blocks.0.attn.to_v 1", "blocks.0.attn.to_out 1",
                                   "blocks.0.attn 1", "blocks.0.cross_attn.to_q 1", "blocks.0.cross_attn.to_k 1",
                                   "blocks.0.cross_attn.to_v 1", "blocks.0.cross_attn.to_out 1",
                                   "blocks.0.cross_attn 1", "blocks.0.ff 1", "blocks.0 2", "proj_out 1", " 1"));
  model->set_observer(nullptr);
  observer.seen.clear();
  EXPECT_TRUE(bitwise_equal(model->call(inputs).tensors.front(), watched));
  EXPECT_THAT(observer.seen, testing::IsEmpty());
}

}  // namespace
}  // namespace shardproof::test
