// The table of a profile: counts, percentiles, bandwidth, exposed communication and shares.
// The trace is made by hand, so that every number can be worked out.
#include "reports/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/chrome_trace.h"
#include "reports/trace.h"
#include "tests/core/files/test_files.h"
#include "tests/reports/sample_traces.h"

namespace shardproof::test {
namespace {

TEST(Profile, SumsWhatEachClassOfOperationTook) {
  const Profile profile = profile_of(sample_trace());
  EXPECT_EQ(profile.ranks, 2);
  EXPECT_EQ(profile.steps, 1);
  EXPECT_EQ(profile.step_p50_us, 100.0);
  ASSERT_EQ(profile.rows.size(), 2U);
  // Two ranks, 100 us each: attention 35 us, the exchange 2 us of posting and 20 us of waiting.
  const ProfileRow& attention = profile.rows[0];
  EXPECT_EQ(attention.operation, "attention");
  EXPECT_EQ(attention.calls, 2);
  EXPECT_EQ(attention.bytes, 1400);
  EXPECT_EQ(attention.p50_us, 35.0);
  EXPECT_DOUBLE_EQ(attention.share, 0.35);
  const ProfileRow& exchange = profile.rows[1];
  EXPECT_EQ(exchange.group, "world/ring#1");
  EXPECT_EQ(exchange.p95_us, 70.0);
  EXPECT_DOUBLE_EQ(exchange.algorithm_gb_s.value_or(0.0), 192.0 / 70'000.0);
  EXPECT_DOUBLE_EQ(exchange.exposed_us, 40.0);
  EXPECT_DOUBLE_EQ(exchange.share, 0.22);
  EXPECT_DOUBLE_EQ(profile.exposed_share, 0.2);
  EXPECT_DOUBLE_EQ(profile.unaccounted_share, 1.0 - 0.35 - 0.22);
}

TEST(Profile, TakesPercentilesByNearestRank) {
  RunTrace trace = sample_trace();
  trace.ranks.resize(1);
  std::vector<TraceEvent>& events = trace.ranks[0].events;
  for (int i = 1; i < 20; ++i) {
    TraceEvent event = events[3];
    event.end_ns = event.begin_ns + i * 1'000;  // 1 .. 19 us, and the 35 us that are there
    events.push_back(event);
  }
  const Profile profile = profile_of(trace);
  EXPECT_EQ(profile.rows[0].calls, 20);
  EXPECT_EQ(profile.rows[0].p50_us, 10.0);
  EXPECT_EQ(profile.rows[0].p95_us, 19.0);
}

TEST(Profile, IsPrintedAsATable) {
  EXPECT_EQ(profile_text(profile_of(sample_trace()), TextTable::Colour::off),
            "profile 1 step on 2 ranks: p50 0.100 ms, p95 0.100 ms a step\n\n"
            "operation  group         calls    bytes  p50 us  p95 us     GB/s  bus GB/s  exposed us   share\n"
            "attention  -                 2  1.4 KiB    35.0    35.0     0.02         -           -  35.0 %\n"
            "exchange   world/ring#1      2    384 B    70.0    70.0  0.00274   0.00274        40.0  22.0 %\n"
            "\nexposed communication 20.0 %, between operations 43.0 % of the time of all steps\n");
}

TEST(Profile, IsJsonForPrograms) {
  const Json json = profile_json(profile_of(sample_trace()));
  EXPECT_EQ(json.at("about").at("case").as_string(), "base");
  EXPECT_EQ(json.at("steps").as_int(), 1);
  const Json& exchange = json.at("operations").at(std::size_t{1});
  EXPECT_EQ(exchange.at("group").as_string(), "world/ring#1");
  EXPECT_EQ(exchange.at("exposed_us").as_double(), 40.0);
  EXPECT_TRUE(json.at("operations").at(std::size_t{0}).at("bus_bandwidth_gb_s").is_null());
}

TEST(Profile, RefusesATraceWithoutSteps) {
  RunTrace trace = sample_trace();
  for (RankTrace& rank : trace.ranks) rank.events.erase(rank.events.begin());
  const RunTrace read = trace_from_json(parse_json(chrome_text(trace), "trace.json"));
  EXPECT_THAT(file_error_of([&] { (void)profile_of(read); }),
              testing::StartsWith("trace.json: key 'traceEvents' holds no steps to summarise; expected an event"));
}

}  // namespace
}  // namespace shardproof::test
