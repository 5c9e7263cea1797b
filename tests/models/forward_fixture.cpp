#include "tests/models/forward_fixture.h"

#include "core/ops.h"
#include "models/state.h"
#include "parallel/plan_json.h"
#include "reference/eigen_device.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

// The tensor with its first element changed.
Tensor changed(const Tensor& tensor) {
  std::vector<double> values = ops::to_doubles(tensor);
  double& first = values.front();
  if (tensor.dtype() == kBool) {
    first = 1.0 - first;
  } else if (tensor.dtype() == kInt64) {
    first = first == 0.0 ? 1.0 : first - 1.0;  // another index that exists where this one does
  } else {
    first += 0.25;
  }
  return ops::from_doubles(tensor.device(), values, tensor.shape(), tensor.dtype());
}

}  // namespace

ModelUnderTest::ModelUnderTest(std::string_view name) : ModelUnderTest(name, find_model_type(name).hostile_config()) {}

ModelUnderTest::ModelUnderTest(std::string_view name, const Json& config)
    : device_(make_reference_device(kFloat64)),
      context_{device_.get(), kFloat64, TablePrecision::float64},
      type_(find_model_type(name)),
      tree_(type_.create(config, context_)) {
  assign_state(*tree_, random_state(*tree_, 1, context_));
  cases_ = type_.hostile_cases(1, host_);
}

Arguments ModelUnderTest::prepared(std::size_t index) {
  return prepared_arguments(*tree_, cases_.at(index).arguments, context_, host_);
}

std::vector<double> ModelUnderTest::result_of(const Arguments& arguments) {
  return ops::to_doubles(tree_->call(arguments).tensors.front());
}

std::string ModelUnderTest::refusal_with(Name name, Value value) {
  Arguments arguments = prepared();
  arguments.set(name, std::move(value));
  const auto error = thrown_by([&] { tree_->call(arguments); });
  return error ? error->message : "accepted";
}

Tensor ModelUnderTest::host_zeros(const Shape& shape) { return ops::zeros(host_, shape, kFloat64); }
Tensor ModelUnderTest::device_zeros(const Shape& shape) { return ops::zeros(*device_, shape, kFloat64); }

void ForwardFixture::expect_every_argument_matters(std::size_t index) {
  const Arguments arguments = prepared(index);
  const std::vector<double> before = result_of(arguments);
  for (const auto& [name, value] : arguments.entries()) {
    Arguments other = arguments;
    if (const auto* tensor = std::get_if<Tensor>(&value)) {
      other.set(name, changed(*tensor));
    } else if (const auto* list = std::get_if<std::vector<Tensor>>(&value)) {
      std::vector<Tensor> tensors = *list;
      tensors.back() = changed(tensors.back());
      other.set(name, tensors);
    } else {
      continue;
    }
    EXPECT_NE(result_of(other), before) << name.text();
  }
}

void expect_shipped_plans_as_recorded(std::string_view model) {
  const Json plans = read_json_file(std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/plans.json");
  const ModelType& type = find_model_type(model);
  const Json& recorded = plans.at(type.class_name);
  const ModelPlans ours = type.plans(type.hostile_config());
  const Json* cp = recorded.find("cp");
  const Json* tp = recorded.find("tp");
  ASSERT_EQ(ours.shipped_cp.has_value(), cp != nullptr);
  ASSERT_EQ(ours.shipped_tp.has_value(), tp != nullptr);
  if (cp != nullptr) {
    EXPECT_EQ(*ours.shipped_cp, context_parallel_plan_from_json(*cp));
  }
  if (tp != nullptr) {
    EXPECT_EQ(*ours.shipped_tp, tensor_parallel_plan_from_json(*tp));
  }
}

}  // namespace shardproof::test
