// A model with its hostile configuration, random weights and the first of its hostile cases on the reference device,
// for tests of what forward accepts; and the comparison of its plans with the recorded plan data.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/module.h"
#include "models/model_type.h"

namespace shardproof::test {

class ModelUnderTest {
 public:
  // With the hostile configuration, or another one.
  explicit ModelUnderTest(std::string_view name);
  ModelUnderTest(std::string_view name, const Json& config);

  const ModelType& type() const { return type_; }
  // The first hostile case, or the one at `index`, as the model takes it.
  Arguments prepared(std::size_t index = 0);
  // The elements of the first output.
  std::vector<double> result_of(const Arguments& arguments);
  // The message of the error that the first case meets with one argument replaced; "accepted" if none.
  std::string refusal_with(Name name, Value value);
  Tensor host_zeros(const Shape& shape);
  Tensor device_zeros(const Shape& shape);
  Module& tree() { return *tree_; }
  Device& device() { return *device_; }
  Device& host() { return host_; }

 private:
  HostDevice host_;
  std::unique_ptr<Device> device_;
  ModelContext context_;
  const ModelType& type_;
  std::unique_ptr<Module> tree_;
  std::vector<ModelCase> cases_;
};

class ForwardFixture : public ::testing::Test, protected ModelUnderTest {
 protected:
  explicit ForwardFixture(std::string_view name) : ModelUnderTest(name) {}
  // Changes the first element of every tensor, one argument after the other, and expects another result. Masks are
  // inverted there.
  void expect_every_argument_matters(std::size_t index = 0);
};

// The shipped plans equal those of tests/data/plans.json; a kind that is not there must not be in the model either.
void expect_shipped_plans_as_recorded(std::string_view model);

}  // namespace shardproof::test
