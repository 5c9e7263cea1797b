// Trace files: what a viewer finds in them, that reading gives back what was written, and what is said of a file that
// is none.
#include "reports/chrome_trace.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/profile.h"
#include "tests/core/files/test_files.h"
#include "tests/reports/sample_traces.h"

namespace shardproof::test {
namespace {

using testing::HasSubstr;

Json parsed(const std::string& text) { return parse_json(text, "trace.json"); }

// The events of a phase, "" for any category.
std::vector<const Json*> events_of(const Json& json, const std::string& phase, const std::string& category) {
  std::vector<const Json*> found;
  for (const Json& event : json.at("traceEvents").items()) {
    const Json* const of = event.find("cat");
    if (event.at("ph").as_string() != phase) continue;
    if (category.empty() || (of != nullptr && of->as_string() == category)) found.push_back(&event);
  }
  return found;
}

TEST(ChromeTrace, HasAProcessForEachRankAndATrackForEachKind) {
  const Json json = parsed(chrome_text(sample_trace()));
  std::vector<std::string> names;
  for (const Json* const event : events_of(json, "M", "")) {
    if (event->at("name").as_string().ends_with("_name")) {
      names.push_back(event->at("pid").dump() + " " + event->at("args").at("name").as_string());
    }
  }
  EXPECT_THAT(names, testing::ElementsAre("0 rank 0", "0 computation", "0 communication", "1 rank 1", "1 computation",
                                          "1 communication"));
}

TEST(ChromeTrace, ShowsTheSpanTheWaitAndTheSpeedOfACommunication) {
  const Json json = parsed(chrome_text(sample_trace()));
  const Json& span = *events_of(json, "X", "communication").front();
  EXPECT_EQ(span.at("ts").as_double(), 10.0);
  EXPECT_EQ(span.at("dur").as_double(), 70.0);
  const Json& arguments = span.at("args");
  EXPECT_EQ(arguments.at("id").as_string(), "world/ring#1 call 1 exchange");
  EXPECT_EQ(arguments.at("send_bytes").as_int(), 192);
  EXPECT_EQ(arguments.at("exposed_us").as_double(), 20.0);
  EXPECT_NEAR(arguments.at("algorithm_bandwidth_gb_s").as_double(), 192.0 / 70'000.0, 1e-6);
  EXPECT_NEAR(arguments.at("bus_bandwidth_gb_s").as_double(), 192.0 / 70'000.0, 1e-6);
  const Json& wait = *events_of(json, "X", "wait").front();
  EXPECT_EQ(wait.at("ts").as_double(), 60.0);
  EXPECT_EQ(wait.at("dur").as_double(), 20.0);
  EXPECT_EQ(wait.at("tid").as_int(), events_of(json, "X", "computation").front()->at("tid").as_int());
  EXPECT_NE(wait.at("tid").as_int(), span.at("tid").as_int());
}

TEST(ChromeTrace, PutsSpansThatOverlapOnTracksOfTheirOwn) {
  RunTrace trace = sample_trace();
  TraceEvent other = trace.ranks[0].events[2];
  other.call = 2;
  other.begin_ns += 1'000;
  other.end_ns += 1'000;
  trace.ranks[0].events.push_back(other);
  const Json json = parsed(chrome_text(trace));
  const auto spans = events_of(json, "X", "communication");
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_NE(spans[0]->at("tid").as_int(), spans[1]->at("tid").as_int());
}

TEST(ChromeTrace, DrawsAnArrowFromWhoSendsToWhoReceives) {
  const Json json = parsed(chrome_text(sample_trace()));
  const auto starts = events_of(json, "s", "call"), ends = events_of(json, "f", "call");
  ASSERT_EQ(starts.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(starts[i]->at("id").as_int(), ends[i]->at("id").as_int());
    EXPECT_NE(starts[i]->at("pid").as_int(), ends[i]->at("pid").as_int());
    EXPECT_LE(starts[i]->at("ts").as_double(), ends[i]->at("ts").as_double());
    EXPECT_EQ(ends[i]->at("bp").as_string(), "e");
  }
}

// Where a viewer cuts every number to whole nanoseconds: that which has three digits may be a little less in binary.
std::int64_t cut(double microseconds) { return static_cast<std::int64_t>(microseconds * 1000.0); }

// Every end of an arrow lies in a span of its track, before the end of that; the second not before the first.
int arrows_in(const RunTrace& trace) {
  const Json json = parsed(chrome_text(trace));
  const auto spans = events_of(json, "X", "communication"), starts = events_of(json, "s", "call"),
             ends = events_of(json, "f", "call");
  const auto is_in_a_span = [&](const Json& end) {
    const std::int64_t time = cut(end.at("ts").as_double());
    return std::ranges::any_of(spans, [&](const Json* const span) {
      const std::int64_t begin = cut(span->at("ts").as_double());
      return span->at("pid").as_int() == end.at("pid").as_int() && span->at("tid").as_int() == end.at("tid").as_int() &&
             begin <= time && time < begin + cut(span->at("dur").as_double());
    });
  };
  EXPECT_EQ(starts.size(), ends.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    EXPECT_TRUE(is_in_a_span(*starts[i])) << starts[i]->dump();
    EXPECT_TRUE(is_in_a_span(*ends[i])) << ends[i]->dump();
    EXPECT_LE(starts[i]->at("ts").as_double(), ends[i]->at("ts").as_double());
  }
  return static_cast<int>(starts.size());
}

// The clocks of two ranks are known to some microseconds only, and spans have any length.
TEST(ChromeTrace, HasBothEndsOfAnArrowInTheirSpansWhateverTheClocksSay) {
  int drawn = 0;
  for (const std::int64_t length : {0, 1, 2, 3, 5, 57, 1'001, 20'003}) {
    for (const std::int64_t apart : {-30'000, -20'003, -1'001, -58, -2, 0, 1, 3, 57, 999, 20'001, 30'000}) {
      RunTrace trace = sample_trace();
      for (RankTrace& rank : trace.ranks) {
        for (TraceEvent& event : rank.events) {
          if (!event.is(EventKind::communication)) continue;
          event.begin_ns = 1'234'567'891 + (rank.rank == 1 ? apart : 0);
          event.wait_begin_ns = event.post_end_ns = event.begin_ns;
          event.end_ns = event.begin_ns + length;
        }
      }
      drawn += arrows_in(trace);
    }
  }
  EXPECT_GT(drawn, 50);
  EXPECT_EQ(arrows_in(sample_trace()), 2);
}

TEST(ChromeTrace, KeepsHowFarClocksWereApart) {
  const Json json = parsed(chrome_text(sample_trace()));
  const Json& rank = json.at("otherData").at("ranks").at(std::size_t{1});
  EXPECT_EQ(rank.at("clock_offset_ns").as_int(), 40);
  EXPECT_EQ(rank.at("clock_residual_ns").as_int(), 7);
}

TEST(ChromeTrace, IsReadAsItWasWritten) {
  RunTrace trace = sample_trace();
  trace.ranks[1].events[2].device_begin_ns = 15'001;
  trace.ranks[1].events[2].device_end_ns = 40'002;
  trace.ranks[1].events[2].is_sum = 1;
  const std::string text = chrome_text(trace);
  const RunTrace back = trace_from_json(parsed(text));
  EXPECT_EQ(chrome_text(back), text);
  EXPECT_EQ(back.about_of("model"), "FluxTransformer2DModel");
  EXPECT_EQ(back.about_of("nothing"), "");
  EXPECT_EQ(back.steps(), 1);
}

TEST(ChromeTrace, KeepsAnOperationThatNeverEnded) {
  RunTrace trace = sample_trace();
  trace.ranks[0].events[2].end_ns = -1;
  const RunTrace back = trace_from_json(parsed(chrome_text(trace)));
  EXPECT_EQ(back.ranks[0].events[2].end_ns, -1);
  EXPECT_EQ(back.ranks[0].events[2].exposed_ns(), 0);
}

TEST(ChromeTrace, SaysWhatIsWrongWithAFile) {
  const std::string text = chrome_text(sample_trace());
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    if (at == std::string::npos) return from + " is not there";
    changed.replace(at, from.size(), to);
    return file_error_of([&] { (void)trace_from_json(parsed(changed)); });
  };
  EXPECT_THAT(refusal(R"("format_version":1)", R"("format_version":2)"),
              HasSubstr("trace.json: key 'otherData.format_version' must be 1, got 2"));
  EXPECT_THAT(refusal(R"("group":"world/ring#1","call")", R"("group":"elsewhere","call")"),
              HasSubstr("must be a group that the file lists for the rank"));
  EXPECT_THAT(refusal(R"("rank":1)", R"("rank":0)"), HasSubstr("must be ascending ranks"));
  EXPECT_THAT(refusal(R"("send_bytes":192)", R"("send_bytes":-1)"), HasSubstr("send_bytes"));
  EXPECT_THAT(refusal(R"("to":1)", R"("to":2)"), HasSubstr("'traceEvents["));
  EXPECT_THAT(refusal(R"("members":[0,1])", R"("members":[])"), HasSubstr("must be a list of at least one rank"));
  EXPECT_THAT(refusal(R"("members":[0,1])", R"("members":[0,0])"), HasSubstr("must be a rank that the list does not"));
  EXPECT_THAT(refusal(R"("members":[0,1])", R"("members":[0,2])"),
              HasSubstr("key 'otherData.ranks[0].groups[0].members[1]' must be a rank that the file lists, got 2"));
  EXPECT_THAT(refusal(R"("pid":0,"tid":1,"ts":0.000)", R"("pid":2,"tid":1,"ts":0.000)"),
              HasSubstr("pid' must be a rank that the file lists, got 2"));
  EXPECT_FALSE(is_trace_json(parsed(R"({"otherData":{"format":"another"}})")));
  EXPECT_FALSE(is_trace_json(parsed("[]")));
}

TEST(ChromeTrace, RefusesTimesThatCannotBe) {
  const auto refusal = [](auto change) {
    RunTrace trace = sample_trace();
    trace.ranks[0].events[2].device_begin_ns = 15'000;
    trace.ranks[0].events[2].device_end_ns = 40'000;
    change(trace.ranks[0].events[2]);
    return file_error_of([&] { (void)trace_from_json(parsed(chrome_text(trace))); });
  };
  const std::string post = refusal([](TraceEvent& event) { event.post_end_ns = 9'000; });
  EXPECT_THAT(post, testing::StartsWith("trace.json: key 'traceEvents["));
  EXPECT_THAT(post, HasSubstr("post_end_us' must be a time that is not before the beginning of the event, ts, got 9"));
  EXPECT_THAT(refusal([](TraceEvent& event) { event.wait_begin_ns = 9'000; }),
              HasSubstr("wait_begin_us' must be a time that is not before the beginning of the event, ts, got 9"));
  EXPECT_THAT(refusal([](TraceEvent& event) { event.end_ns = 59'000; }),
              HasSubstr("wait_end_us' must be a time that is not before wait_begin_us and the beginning, ts, got 59"));
  EXPECT_THAT(refusal([](TraceEvent& event) { event.device_end_ns = 14'000; }),
              HasSubstr("device_end_us' must be a time that is not before device_begin_us, got 14"));
}

TEST(ChromeTrace, FindsEachOfManyRanksAndGroups) {
  RunTrace trace;
  for (int number = 0; number < 300; ++number) {
    RankTrace rank = sample_rank(0);
    rank.rank = 2 * number;
    rank.groups = {{.key = "world/first#1", .members = {0}}, {.key = "world/own#2", .members = {rank.rank, 0}}};
    if (number == 0) rank.groups[1].members = {0, 2};
    rank.events[2].group = number % 2;
    rank.events[2].to = rank.events[2].from = 0;
    trace.ranks.push_back(std::move(rank));
  }
  const RunTrace back = trace_from_json(parsed(chrome_text(trace)));
  ASSERT_EQ(back.ranks.size(), 300U);
  for (std::size_t i = 0; i < back.ranks.size(); ++i) {
    EXPECT_EQ(back.ranks[i].rank, static_cast<int>(2 * i));
    EXPECT_EQ(back.ranks[i].events.size(), 4U);
    EXPECT_EQ(back.ranks[i].events[2].group, static_cast<std::int64_t>(i % 2));
    EXPECT_EQ(back.ranks[i].group_of(back.ranks[i].events[2]).members, trace.ranks[i].groups[i % 2].members);
  }
}

}  // namespace
}  // namespace shardproof::test
