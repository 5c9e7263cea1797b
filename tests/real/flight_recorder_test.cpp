// The record of what a rank posted: what is kept, how states follow each other, and what others read of it.
// The JSON is what tools read after a run has hung, so its keys are part of the interface.
#include "real/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request barrier(std::string_view purpose) {
  Request request;
  request.operation = Operation::barrier;
  request.purpose = purpose;
  return request;
}

TEST(FlightRecorder, NumbersCallsOfEachGroupAndOfTheRank) {
  FlightRecorder recorder(1, 4);
  recorder.add_group("world", std::vector<int>{0, 1, 2, 3});
  recorder.add_group("world/pair#1", std::vector<int>{1, 3});
  EXPECT_EQ(recorder.post("world", barrier("first")), 1);
  EXPECT_EQ(recorder.post("world/pair#1", barrier("second")), 2);
  EXPECT_EQ(recorder.post("world", barrier("third")), 3);
  EXPECT_EQ(recorder.entry(2).call, 1);
  EXPECT_EQ(recorder.entry(3).call, 2);
  EXPECT_EQ(recorder.entry(3).purpose, "third");
}

TEST(FlightRecorder, KeepsTheTimesAtWhichStatesChange) {
  FlightRecorder recorder(0, 1);
  recorder.add_group("world", std::vector<int>{0});
  const std::int64_t sequence = recorder.post("world", barrier("timed"));
  EXPECT_GT(recorder.entry(sequence).posted_us, 0);
  EXPECT_EQ(recorder.entry(sequence).started_us, 0);
  recorder.set_state(sequence, FlightState::running);
  EXPECT_GE(recorder.entry(sequence).started_us, recorder.entry(sequence).posted_us);
  recorder.set_state(sequence, FlightState::complete);
  EXPECT_GE(recorder.entry(sequence).ended_us, recorder.entry(sequence).started_us);
  // What has ended stays so.
  recorder.set_state(sequence, FlightState::failed);
  EXPECT_EQ(recorder.entry(sequence).state, FlightState::complete);
}

TEST(FlightRecorder, ForgetsTheOldestThatIsCompleteWhenItIsFull) {
  FlightRecorder recorder(0, 1, 3);
  recorder.add_group("world", std::vector<int>{0});
  for (int i = 0; i < 3; ++i) recorder.post("world", barrier("kept"));
  recorder.set_state(2, FlightState::complete);
  recorder.post("world", barrier("kept"));
  recorder.post("world", barrier("kept"));  // nothing is complete: all are kept
  std::vector<std::int64_t> kept;
  for (const FlightEntry& entry : recorder.entries()) kept.push_back(entry.sequence);
  EXPECT_THAT(kept, ElementsAre(1, 3, 4, 5));
  const auto error = test::thrown_by([&] { (void)recorder.entry(2); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("flight recorder: operation 2 is not kept"));
}

TEST(FlightRecorder, RefusesAGroupThatWasNotAdded) {
  FlightRecorder recorder(0, 1);
  const auto error = test::thrown_by([&] { recorder.post("nowhere", barrier("lost")); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("group 'nowhere' was never added"));
}

TEST(FlightRecorder, TellsOthersTheLastCallOfEachGroup) {
  FlightRecorder recorder(0, 2);
  recorder.add_group("world", std::vector<int>{0, 1});
  recorder.add_group("world/pair#1", std::vector<int>{0, 1});
  recorder.post("world", barrier("first"));
  recorder.post("world", barrier("second"));
  const std::string progress = recorder.progress();
  EXPECT_EQ(progress_in(progress, "world").call, 2);
  EXPECT_EQ(progress_in(progress, "world").text, "barrier 'second'");
  EXPECT_EQ(progress_in(progress, "world/pair#1").call, 0);
  EXPECT_EQ(progress_in(progress, "world/other").call, 0);
  EXPECT_EQ(progress_in("", "world").call, 0);
  EXPECT_EQ(progress_in("no tabs\nworld\tx", "world").call, 0);
}

TEST(FlightRecorder, WritesWhatAToolNeedsToJoinRanks) {
  HostDevice device;
  FlightRecorder recorder(1, 2);
  recorder.add_group("world", std::vector<int>{0, 1});
  Request request;
  request.operation = Operation::all_gather;
  request.purpose = "rows";
  request.dtype = kFloat32;
  request.row_shape = Shape{3};
  request.send = device.empty({2, 3}, kFloat32);
  request.receive = device.empty({5, 3}, kFloat32);
  request.receive_rows = {3, 2};
  recorder.post("world", request);
  recorder.fail_open();
  const Json json = recorder.record("too late", std::vector<LateRank>{{.rank = 0, .reason = "sleeps"}});
  EXPECT_EQ(json.at("format").as_string(), "shardproof flight record");
  EXPECT_EQ(json.at("reason").as_string(), "too late");
  EXPECT_EQ(json.at("late").dump(), R"([{"rank":0,"reason":"sleeps"}])");
  EXPECT_EQ(json.at("groups").dump(), R"([{"group":"world","members":[0,1],"calls":1}])");
  const Json& operation = json.at("operations").at(std::size_t{0});
  EXPECT_EQ(operation.at("operation").as_string(), "all_gather");
  EXPECT_EQ(operation.at("dtype").as_string(), "float32");
  EXPECT_EQ(operation.at("receive_rows").dump(), "[3,2]");
  EXPECT_EQ(operation.at("send_bytes").as_int(), 24);
  EXPECT_EQ(operation.at("receive_bytes").as_int(), 60);
  EXPECT_EQ(operation.at("state").as_string(), "failed");
  EXPECT_GT(operation.at("ended_us").as_int(), 0);
}

}  // namespace
}  // namespace shardproof
