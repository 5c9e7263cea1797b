// Work of devices: which operation it belongs to, how much of a communication is exposed, and that files and profiles
// have it.
#include "reports/device_time.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "reports/chrome_trace.h"
#include "reports/profile.h"
#include "reports/trace_diff.h"
#include "tests/reports/sample_traces.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Places in the sample trace.
constexpr std::int64_t kExchange = 2, kAttention = 3;

DeviceWork work(int rank, std::int64_t event, std::int64_t name, std::int64_t begin_us, std::int64_t end_us) {
  return {.rank = rank,
          .event = event,
          .name = name,
          .stream = name == 0 ? 7 : 13,
          .begin_ns = begin_us * 1000,
          .end_ns = end_us * 1000};
}

// Attention runs from 30 to 60 and 65 to 70, the exchange from 50 to 80.
DeviceWorkList sample_list() {
  return {.names = {"void attention<float>(\"x\")", "ncclDevKernel_SendRecv", "copy on the device"},
          .work = {work(0, kAttention, 0, 30, 60), work(0, kExchange, 1, 50, 80), work(0, kAttention, 0, 65, 70)}};
}

TEST(TimeSpans, CountEveryMomentOnce) {
  const TimeSpans spans({{10, 20}, {50, 60}, {15, 30}, {30, 31}, {52, 55}});
  EXPECT_EQ(spans.spans().size(), 2U);
  EXPECT_EQ(spans.length_ns(), 31);
  EXPECT_EQ(spans.covered_ns({0, 100}), 31);
  EXPECT_EQ(spans.covered_ns({0, 10}), 0);
  EXPECT_EQ(spans.covered_ns({20, 55}), 16);
  EXPECT_EQ(spans.covered_ns({40, 45}), 0);
  EXPECT_EQ(spans.covered_ns({60, 70}), 0);
  EXPECT_EQ(TimeSpans({}).length_ns(), 0);
  EXPECT_EQ(TimeSpans({}).covered_ns({1, 2}), 0);
}

TEST(DeviceWork, BelongsToTheRankThatLaunchedIt) {
  DeviceWorkList list = sample_list();
  list.work.push_back(work(1, kAttention, 0, 31, 32));
  list.work.push_back(work(-1, -1, 2, 33, 34));
  list.work.push_back(work(-1, -1, 2, 130, 134));  // after the step
  list.lost = 2;
  RankTrace alone = sample_rank(0), shared = sample_rank(1);
  add_device_work(alone, list, true);
  add_device_work(shared, list, false);
  EXPECT_EQ(alone.device_work.size(), 4U);
  EXPECT_EQ(shared.device_work.size(), 1U);
  EXPECT_EQ(alone.device_work_lost, 2);
  EXPECT_EQ(alone.device_work.back().event, -1);
  EXPECT_FALSE(is_communication(alone, alone.device_work.back()));
}

TEST(DeviceWork, OfUnknownOriginIsOfTheCommunicationThatRanThen) {
  RankTrace trace = sample_rank(0);
  trace.events.push_back(trace.events[kExchange]);
  trace.events[kExchange].device_begin_ns = 45'000;
  trace.events[kExchange].device_end_ns = 85'000;
  trace.events.back().device_begin_ns = 48'000;
  trace.events.back().device_end_ns = 60'000;
  DeviceWorkList list = sample_list();
  list.work = {work(-1, -1, 1, 46, 47), work(-1, -1, 1, 50, 56), work(-1, -1, 1, 61, 84), work(-1, -1, 1, 86, 99)};
  add_device_work(trace, list, true);
  std::vector<std::int64_t> events;
  for (const TraceDeviceWork& done : trace.device_work) {
    events.push_back(done.event);
    EXPECT_TRUE(is_communication(trace, done));  // the last by its name
  }
  EXPECT_THAT(events, ElementsAre(kExchange, 4, kExchange, -1));
}

TEST(DeviceTime, IsExposedWhereNothingElseRuns) {
  RankTrace trace = sample_rank(0);
  add_device_work(trace, sample_list(), true);
  const DeviceTime time(trace);
  EXPECT_EQ(time.steps_ns(), 50'000);
  EXPECT_EQ(time.idle_ns(), 0);
  EXPECT_EQ(time.exposed_ns(), 15'000);  // 60 to 65 and 70 to 80
  EXPECT_EQ(time.of_event_ns(kExchange), 30'000);
  EXPECT_EQ(time.exposed_of_event_ns(kExchange), 15'000);
  EXPECT_EQ(time.of_event_ns(kAttention), 35'000);
  EXPECT_EQ(time.exposed_of_event_ns(kAttention), 0);
}

TEST(DeviceTime, IsIdleBetweenWork) {
  RankTrace trace = sample_rank(0);
  DeviceWorkList list = sample_list();
  list.work = {work(0, kAttention, 0, 30, 40), work(0, kExchange, 1, 60, 80)};
  add_device_work(trace, list, true);
  EXPECT_EQ(DeviceTime(trace).idle_ns(), 20'000);
  EXPECT_EQ(DeviceTime(trace).exposed_ns(), 20'000);
}

RunTrace watched_trace() {
  RunTrace trace = sample_trace();
  for (RankTrace& rank : trace.ranks) {
    DeviceWorkList list = sample_list();
    list.work.push_back({.kind = DeviceWorkKind::copy,
                         .rank = 0,
                         .event = kExchange,
                         .name = 2,
                         .device = 1,
                         .stream = 4'000'000'000,
                         .begin_ns = 81'500,
                         .end_ns = 81'750,
                         .bytes = 192});
    for (DeviceWork& piece : list.work) piece.rank = rank.rank;
    list.lost = rank.rank;
    add_device_work(rank, list, true);
  }
  return trace;
}

std::vector<std::int64_t> numbers_of(const RankTrace& trace) {
  std::vector<std::int64_t> numbers;
  for (const TraceDeviceWork& work : trace.device_work) {
    numbers.insert(numbers.end(), {work.kind, work.event, work.device, work.stream, work.begin_ns, work.end_ns});
    numbers.push_back(work.bytes);
  }
  return numbers;
}

TEST(DeviceWork, IsWhatItWasAfterTheWireAndTheFile) {
  const RunTrace trace = watched_trace();
  const RunTrace read = trace_from_json(parse_json(chrome_text(trace), "t.json"));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const RankTrace& other : {unpacked(packed(trace.ranks[rank])), read.ranks[rank]}) {
      EXPECT_EQ(numbers_of(other), numbers_of(trace.ranks[rank]));
      EXPECT_EQ(other.device_work_lost, static_cast<std::int64_t>(rank));
      EXPECT_EQ(other.text(other.device_work[1].name), "ncclDevKernel_SendRecv");
    }
  }
  RankTrace moved = trace.ranks[1];
  correct_clock(moved, {.offset_ns = -500, .residual_ns = 3});
  EXPECT_EQ(moved.device_work[0].begin_ns, 29'500);
  EXPECT_EQ(moved.device_work[0].end_ns, 59'500);
}

TEST(DeviceWork, HasATrackForEachStreamAndArrowsFromWhatLaunchedIt) {
  const std::string text = chrome_text(watched_trace());
  EXPECT_THAT(text, AllOf(HasSubstr(R"("name":"GPU 0 stream 7")"), HasSubstr(R"("name":"GPU 0 stream 13")"),
                          HasSubstr(R"("name":"GPU 1 stream 4000000000")"), HasSubstr(R"("cat":"kernel")"),
                          HasSubstr(R"("of":"world/ring#1 call 1 exchange","of_n":2)")));
  std::size_t arrows = 0;
  const Json json = parse_json(text, "t.json");
  for (const Json& event : json.at("traceEvents").items()) {
    const Json* const category = event.find("cat");
    if (category != nullptr && category->as_string() == "launch") ++arrows;
  }
  EXPECT_EQ(arrows, 16U);
}

// A reader takes so many values of a file, which may be as long as it takes bytes: no event has more of them for its
// length than a file of that length may have.
TEST(DeviceWork, HasNoEventOfMoreValuesThanAFileMayHave) {
  const std::function<std::size_t(const Json&)> values_in = [&](const Json& json) {
    std::size_t count = 1;
    if (json.is_array()) {
      for (const Json& item : json.items()) count += values_in(item);
    } else if (json.is_object()) {
      for (const JsonMember& member : json.members()) count += values_in(member.value);
    }
    return count;
  };
  const Json json = parse_json(chrome_text(watched_trace()), "t.json");
  for (const Json& event : json.at("traceEvents").items()) {
    const std::string line = event.dump();
    EXPECT_LE(values_in(event) * (kMostTraceBytes / kMostTraceValues), line.size()) << line;
  }
}

TEST(DeviceWork, OfAFileMustBelongToAnOperation) {
  for (const auto& [from, to] : {std::pair("\"of_n\":2", "\"of_n\":1"), std::pair("\"of_n\":2", "\"of_n\":77"),
                                 std::pair("\"of_n\":2", "\"of_n\":-1"), std::pair("\"of_n\":2", "\"of_n\":\"2\"")}) {
    std::string text = chrome_text(watched_trace());
    text.replace(text.find(from), std::string(from).size(), to);
    const auto error = thrown_by([&] { (void)trace_from_json(parse_json(text, "t.json")); });
    ASSERT_TRUE(error) << to;
    EXPECT_EQ(error->kind, ErrorKind::file_error);
    EXPECT_THAT(error->message, HasSubstr("of_n"));
  }
}

TEST(ProfileOfADevice, HasItsTimesInAllColumns) {
  const Profile profile = profile_of(watched_trace());
  EXPECT_TRUE(profile.is_on_device);
  ASSERT_EQ(profile.rows.size(), 2U);
  // 51.75 us from the first work to the end of the copy, on each rank.
  EXPECT_EQ(profile.rows[0].operation, "attention");
  EXPECT_DOUBLE_EQ(profile.rows[0].share, 35.0 / 51.75);
  EXPECT_DOUBLE_EQ(profile.rows[0].p50_us, 35.0);
  EXPECT_EQ(profile.rows[1].operation, "exchange");
  EXPECT_DOUBLE_EQ(profile.rows[1].exposed_us, 2 * 15.25);
  EXPECT_DOUBLE_EQ(profile.exposed_share, 15.25 / 51.75);
  EXPECT_DOUBLE_EQ(profile.unaccounted_share, 1.5 / 51.75);
  ASSERT_EQ(profile.kernels.size(), 3U);
  EXPECT_EQ(profile.kernels[0].count, 4);
  EXPECT_EQ(profile.kernels[2].kind, "copy");
  EXPECT_EQ(profile.device_work_lost, 1);
  const std::string text = profile_text(profile, TextTable::Colour::off);
  EXPECT_THAT(text, AllOf(HasSubstr("exposed communication 29.5 %, idle 2.9 % of the time of the devices"),
                          HasSubstr("ncclDevKernel_SendRecv"), HasSubstr("1 pieces of the devices' work are missing")));
  const Json json = profile_json(profile);
  EXPECT_EQ(json.at("times_of").as_string(), "device");
  EXPECT_EQ(json.at("device_work").size(), 3U);
}

// A computation for which the device has nothing to do has no speed, whatever its bytes are.
TEST(ProfileOfADevice, HasNoSpeedWhereThereIsNoTime) {
  RunTrace trace = watched_trace();
  for (RankTrace& rank : trace.ranks) {
    TraceEvent event = rank.events[kAttention];
    event.operation = static_cast<std::int64_t>(rank.texts.size());
    rank.texts.emplace_back("view");
    rank.events.push_back(event);
  }
  const Profile profile = profile_of(trace);
  ASSERT_EQ(profile.rows.size(), 3U);
  EXPECT_EQ(profile.rows[2].operation, "view");
  EXPECT_FALSE(profile.rows[2].algorithm_gb_s);
  const std::string text = profile_text(profile, TextTable::Colour::off);
  EXPECT_THAT(text, testing::ContainsRegex("view +- +2 +1.4 KiB +0.0 +0.0 +- +- +- +0.0 %"));
  const Json json = profile_json(profile);
  EXPECT_TRUE(json.at("operations").at(std::size_t{2}).at("algorithm_bandwidth_gb_s").is_null());
}

TEST(ProfileOfADevice, SaysThatAllOfItsWorkIsMissing) {
  RunTrace trace = watched_trace();
  for (RankTrace& rank : trace.ranks) rank.device_work.clear();
  EXPECT_THAT(profile_text(profile_of(trace), TextTable::Colour::off),
              HasSubstr("pieces of the devices' work are missing"));
}

// Ranks that compute on the processor and communicate between GPUs: only the host knows all.
TEST(ProfileOfADevice, IsOneOfTheHostWhereComputationsAreNotOnTheDevice) {
  RunTrace trace = watched_trace();
  for (RankTrace& rank : trace.ranks) {
    std::erase_if(rank.device_work, [](const TraceDeviceWork& piece) { return piece.event == kAttention; });
  }
  const Profile profile = profile_of(trace);
  EXPECT_FALSE(profile.is_on_device);
  EXPECT_EQ(profile.kernels.size(), 2U);
  RunTrace unwatched = trace;
  for (RankTrace& rank : unwatched.ranks) rank.device_work.clear();
  EXPECT_DOUBLE_EQ(profile.exposed_share, profile_of(unwatched).exposed_share);
  EXPECT_THAT(profile_text(profile, TextTable::Colour::off),
              AllOf(HasSubstr("between operations"), HasSubstr("ncclDevKernel_SendRecv"), Not(HasSubstr("idle"))));
}

}  // namespace
}  // namespace shardproof::test
