// Arguments of a module call: absent, none and given are three different things, and what has the wrong kind is named.
// Names and outputs, which travel with them, are tested here too.
#include "core/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/ops.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

const Name kX("x");
const Name kY("y");

TEST(Arguments, KeepTheOrderInWhichTheyWereGivenAndReplaceInPlace) {
  Arguments arguments{{kX, std::int64_t{1}}, {kY, 2.5}};
  arguments.set(kX, std::string("again"));
  arguments.set("z", true);
  ASSERT_EQ(arguments.entries().size(), 3U);
  EXPECT_EQ(arguments.entries()[0].first, kX);
  EXPECT_EQ(std::get<std::string>(arguments.entries()[0].second), "again");
  EXPECT_EQ(arguments.entries()[2].first.text(), "z");
}

TEST(Arguments, TellAbsentFromNone) {
  const Arguments arguments{{kX, Value()}};
  ASSERT_NE(arguments.find(kX), nullptr);
  EXPECT_TRUE(is_none(*arguments.find(kX)));
  EXPECT_EQ(arguments.find(kY), nullptr);
  EXPECT_FALSE(arguments.optional_tensor(kX).defined());
  EXPECT_FALSE(arguments.optional_tensor(kY).defined());
  EXPECT_TRUE(arguments.tensor_list(kX).empty());
  EXPECT_TRUE(arguments.tensor_list(kY).empty());
  EXPECT_TRUE(arguments.flag(kX, true));
  EXPECT_FALSE(arguments.flag(kY, false));
}

TEST(Arguments, HandOutWhatTheyHold) {
  HostDevice device;
  const Tensor tensor = ops::full(device, {2}, kFloat64, 3.0);
  const Arguments arguments{{kX, tensor}, {kY, std::vector<Tensor>{tensor, tensor}}, {"f", false}};
  EXPECT_EQ(arguments.tensor(kX).storage(), tensor.storage());
  EXPECT_EQ(arguments.optional_tensor(kX).storage(), tensor.storage());
  EXPECT_EQ(arguments.tensor_list(kY).size(), 2U);
  EXPECT_FALSE(arguments.flag("f", true));
}

TEST(Arguments, RefuseAnotherKindThanExpectedByName) {
  const Arguments arguments{{kX, std::int64_t{1}}, {"none", Value()}};
  EXPECT_EQ(thrown_by([&] { arguments.tensor(kY); }), thrown(ErrorKind::state_error, "argument 'y' is missing"));
  EXPECT_EQ(thrown_by([&] { arguments.tensor("none"); }),
            thrown(ErrorKind::state_error, "argument 'none' must be a tensor, got none"));
  EXPECT_EQ(thrown_by([&] { arguments.optional_tensor(kX); }),
            thrown(ErrorKind::state_error, "argument 'x' must be a tensor, got an integer"));
  EXPECT_EQ(thrown_by([&] { arguments.tensor_list(kX); }),
            thrown(ErrorKind::state_error, "argument 'x' must be a list of tensors, got an integer"));
  EXPECT_EQ(thrown_by([&] { arguments.flag(kX, false); }),
            thrown(ErrorKind::state_error, "argument 'x' must be a bool, got an integer"));
}

TEST(Value, NamesEveryKind) {
  EXPECT_EQ(value_kind_name(Value()), "none");
  EXPECT_EQ(value_kind_name(Tensor()), "a tensor");
  EXPECT_EQ(value_kind_name(std::vector<Tensor>()), "a list of tensors");
  EXPECT_EQ(value_kind_name(true), "a bool");
  EXPECT_EQ(value_kind_name(std::int64_t{1}), "an integer");
  EXPECT_EQ(value_kind_name(1.0), "a number");
  EXPECT_EQ(value_kind_name(std::string()), "a string");
  EXPECT_EQ(value_kind_name(NestedNumbers{1.0}), "a list of numbers");
}

TEST(Outputs, OfOneTensorAreNoListAndOfAVectorAre) {
  EXPECT_FALSE(Outputs(Tensor()).is_list);
  EXPECT_TRUE(Outputs(std::vector<Tensor>(1)).is_list);
  EXPECT_TRUE(Outputs().tensors.empty());
}

TEST(Name, IsOneObjectForOneText) {
  EXPECT_EQ(Name("hidden_states"), Name(std::string("hidden_states")));
  EXPECT_EQ(&Name("hidden_states").text(), &Name("hidden_states").text());
  EXPECT_FALSE(Name("a") == Name("b"));
  EXPECT_TRUE(Name().empty());
}

}  // namespace
}  // namespace shardproof::test
