// What a rank's recorder keeps: operations under names that depend on nothing but what the rank does, steps, waits, and
// nothing at all where there is no recorder.
#include "core/operation_recorder.h"

#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "core/ops.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"
#include "tests/support/small_model.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;

std::vector<std::string> operations_of(const OperationRecorder& recorder) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < recorder.event_count(); ++i) {
    const RecordedEvent& event = recorder.event(i);
    const bool has_place = event.kind == EventKind::module;
    names.push_back(fmt::format("{} {}", has_place ? recorder.path(event.place) : "", event.operation));
  }
  return names;
}

class OperationRecorderTest : public testing::Test {
 protected:
  Tensor tensor(std::vector<double> values) {
    const Shape shape{static_cast<std::int64_t>(values.size())};
    return ops::from_doubles(*device, values, shape, kFloat64);
  }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(OperationRecorderTest, IsOfTheStepAlone) {
  OperationRecorder recorder;
  const Tensor x = tensor({1, 2});
  ops::add(x, x);
  {
    const RecordedStep step(&recorder);
    ops::silu(x);
  }
  ops::add(x, x);
  EXPECT_THAT(operations_of(recorder), ElementsAre(" step", " silu"));
  EXPECT_EQ(OperationRecorder::current(), nullptr);
  const RecordedEvent& event = recorder.event(1);
  EXPECT_EQ(event.dtype, kFloat64);
  EXPECT_EQ(event.shape, (Shape{2}));
  EXPECT_EQ(event.bytes, 32);  // read and written
  EXPECT_GE(event.begin_ns, recorder.event(0).begin_ns);
  EXPECT_GE(event.end_ns, event.begin_ns);
  EXPECT_GE(recorder.event(0).end_ns, event.end_ns);
}

TEST_F(OperationRecorderTest, CountsTheOutermostOfComputationsInEachOther) {
  OperationRecorder recorder;
  const Tensor x = tensor({1, 2, 3, 4}).view({2, 2}).permute(std::array{1, 0});
  {
    const RecordedStep step(&recorder);
    ops::linear(x, x, {});  // the device copies both, whose columns are strided
  }
  EXPECT_THAT(operations_of(recorder), ElementsAre(" step", " matmul"));
}

TEST_F(OperationRecorderTest, NamesTheModuleInWhoseCallAnOperationHappens) {
  OperationRecorder recorder;
  Linear linear(2, 2);
  const auto weight = std::make_shared<const Tensor>(tensor({1, 2, 3, 4}).view({2, 2}));
  linear.assign_parameter("weight", weight);
  linear.assign_parameter("bias", std::make_shared<const Tensor>(tensor({1, 1})));
  const Tensor x = tensor({1, 2});
  {
    const RecordedStep step(&recorder);
    linear(x);
    linear.call({{"hidden_states", x}});
    ops::silu(x);
  }
  EXPECT_THAT(operations_of(recorder), ElementsAre(" step", " Linear", " matmul", " Linear", " matmul", " silu"));
  EXPECT_EQ(recorder.event(1).call, 1);
  EXPECT_EQ(recorder.event(3).call, 2);
  EXPECT_EQ(recorder.event(2).scope, 1);
  EXPECT_EQ(recorder.event(4).scope, 3);
  EXPECT_EQ(recorder.event(5).scope, -1);
}

TEST_F(OperationRecorderTest, CountsCallsAnewInEveryStep) {
  OperationRecorder recorder;
  for (int step = 0; step < 2; ++step) {
    run_ranks({.world_size = 1}, [&](Communicator& world) {
      const RecordedStep recorded(&recorder);
      collectives::barrier(world, "first");
      collectives::barrier(world, "second");
    });
  }
  ASSERT_EQ(recorder.event_count(), 6U);
  EXPECT_EQ(recorder.event(2).call, 2);
  EXPECT_EQ(recorder.event(2).step, 0);
  EXPECT_EQ(recorder.event(4).call, 1);
  EXPECT_EQ(recorder.event(4).step, 1);
  EXPECT_EQ(recorder.movement_of(recorder.event(4)).purpose, "first");
}

TEST_F(OperationRecorderTest, BelongsToItsRankWhereverTheSchedulerSwitches) {
  for (const int workers : {1, 3}) {
    std::vector<OperationRecorder> recorders(4);
    run_ranks({.world_size = 4, .schedule_seed = 7, .workers = workers}, [&](Communicator& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      const RecordedStep step(&recorders[rank]);
      const std::vector<std::int64_t> counts(4, 1);
      const Tensor rows = tensor(std::vector<double>(rank + 1, 1.0)).view({1, static_cast<std::int64_t>(rank) + 1});
      // As many as the rank has, between waits in which the others run.
      for (int i = 0; i <= world.rank(); ++i) ops::silu(rows);
      collectives::barrier(world, "switch");
      for (int i = 0; i <= world.rank(); ++i) ops::gelu(rows);
    });
    for (std::size_t rank = 0; rank < recorders.size(); ++rank) {
      std::vector<std::string> expected{" step"};
      expected.insert(expected.end(), rank + 1, " silu");
      expected.emplace_back(" barrier");
      expected.insert(expected.end(), rank + 1, " gelu");
      EXPECT_EQ(operations_of(recorders[rank]), expected);
    }
  }
}

TEST_F(OperationRecorderTest, KeepsPostAndWaitApart) {
  std::vector<OperationRecorder> recorders(2);
  run_ranks({.world_size = 2}, [&](Communicator& world) {
    const RecordedStep step(&recorders[static_cast<std::size_t>(world.rank())]);
    const std::vector<std::int64_t> counts{1, 1};
    const std::unique_ptr<Communicator> pair = world.split(0, world.rank(), "pair");
    Pending<Tensor> coming = collectives::all_to_all(*pair, tensor({1, 2}), counts, counts, "test");
    ops::silu(tensor({1, 2}));
    coming.wait();
  });
  const OperationRecorder& recorder = recorders.front();
  ASSERT_THAT(operations_of(recorder), ElementsAre(" step", " all_to_all", " silu"));
  const RecordedEvent& posted = recorder.event(1);
  const RecordedEvent& computed = recorder.event(2);
  EXPECT_EQ(recorder.groups().front().key, "world/pair#1");
  EXPECT_THAT(recorder.groups().front().members, ElementsAre(0, 1));
  EXPECT_EQ(posted.call, 1);
  const RecordedMovement& movement = recorder.movement_of(posted);
  EXPECT_EQ(movement.group_call, 1);
  EXPECT_EQ(movement.send_rows, 2);
  EXPECT_EQ(movement.receive_bytes, 16);
  EXPECT_LE(movement.post_end_ns, computed.begin_ns);
  EXPECT_GE(movement.wait_begin_ns, computed.end_ns);
  EXPECT_GE(posted.end_ns, movement.wait_begin_ns);
}

TEST(CommunicatorKey, NumbersTheSplitsOfTheParent) {
  const auto keys = rank_results(2, [&](Communicator& world) {
    const std::unique_ptr<Communicator> first = world.split(0, world.rank(), "pair");
    const std::unique_ptr<Communicator> alone = world.split(world.rank(), 0, "pair");
    const std::unique_ptr<Communicator> below = first->split(0, 0, "below");
    return fmt::format("{} {} {} {}", first->name(), first->key(), alone->key(), below->key());
  });
  EXPECT_THAT(keys, testing::Each("world/pair world/pair#1 world/pair#2 world/pair#1/below#1"));
}

class CountingSink final : public RangeSink {
 public:
  void push(std::string_view name, std::int64_t event) override {
    names.emplace_back(name);
    events.push_back(event);
  }
  void pop() override { ++pops; }
  std::vector<std::string> names;
  std::vector<std::int64_t> events;
  int pops = 0;
};

TEST_F(OperationRecorderTest, TellsASinkAlsoWhereItKeepsNothing) {
  CountingSink sink;
  OperationRecorder recorder(OperationRecorder::Keep::nothing, &sink);
  run_ranks({.world_size = 1}, [&](Communicator& world) {
    const RecordedStep step(&recorder);
    collectives::barrier(world, "test");
    ops::silu(tensor({1}));
  });
  EXPECT_EQ(recorder.event_count(), 0U);
  EXPECT_THAT(sink.names, ElementsAre("step", "barrier", "wait", "silu"));
  EXPECT_THAT(sink.events, testing::Each(-1));
  EXPECT_EQ(sink.pops, 4);
}

TEST_F(OperationRecorderTest, TellsASinkInWhichEventSomethingIsLaunched) {
  CountingSink sink;
  OperationRecorder recorder(OperationRecorder::Keep::events, &sink);
  run_ranks({.world_size = 1}, [&](Communicator& world) {
    const RecordedStep step(&recorder);
    collectives::barrier(world, "test");
    ops::silu(tensor({1}));
  });
  EXPECT_THAT(sink.names, ElementsAre("step", "barrier", "wait", "silu"));
  EXPECT_THAT(sink.events, ElementsAre(-1, 1, -1, 2));
  EXPECT_EQ(recorder.event(1).operation, "barrier");
  EXPECT_EQ(recorder.event(2).operation, "silu");
}

}  // namespace
}  // namespace shardproof::test
