// Where two runs part: traces against traces, flight records among themselves and against a trace, and files that are
// neither.
#include "reports/trace_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/chrome_trace.h"
#include "tests/core/files/test_files.h"
#include "tests/reports/sample_traces.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(TraceDiff, IsEmptyForEqualTraces) {
  const TraceComparison comparison = compare_traces(sample_trace(), sample_trace());
  EXPECT_THAT(comparison.divergences, IsEmpty());
  EXPECT_EQ(comparison.ranks, 2);
  EXPECT_EQ(comparison.compared, 4);
  EXPECT_EQ(comparison_text(comparison, 100), "Equal: 4 operations of 2 ranks compared.\n");
}

TEST(TraceDiff, NamesACallThatIsMissingOnOneRank) {
  RunTrace second = sample_trace();
  second.ranks[1].events.erase(second.ranks[1].events.begin() + 2);
  const TraceComparison comparison = compare_traces(sample_trace(), second);
  ASSERT_EQ(comparison.divergences.size(), 1U);
  const Divergence& divergence = comparison.divergences.front();
  EXPECT_EQ(divergence.rank, 1);
  EXPECT_EQ(divergence.kind, "missing");
  EXPECT_EQ(divergence.position, 0);
  ASSERT_TRUE(divergence.first);
  EXPECT_EQ(divergence.first->id, "world/ring#1 call 1 exchange");
  EXPECT_THAT(
      divergence.text,
      HasSubstr("rank 1, step 0, operation 1: the second does not make 'world/ring#1 call 1 exchange': exchange "
                "'ring: keys' float64 rows of [2, 4], sends 3 rows (192 B), receives 3 rows (192 B), to 0, from "
                "0 among ranks 0, 1; it goes on with 'blocks.0.attn call 1 attention 1'"));
  const TraceComparison reversed = compare_traces(second, sample_trace());
  EXPECT_EQ(reversed.divergences.front().kind, "extra");
}

TEST(TraceDiff, NamesACallThatDiffersInOneField) {
  const auto text_of = [](auto change) {
    RunTrace second = sample_trace();
    change(second.ranks[0]);
    const TraceComparison comparison = compare_traces(sample_trace(), second);
    return comparison.divergences.empty() ? "equal" : comparison.divergences.front().kind;
  };
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.events[2].send_rows = 2; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.events[2].receive_bytes = 100; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.texts[4] = "ring: values"; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.texts[5] = "float32"; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.texts[6] = "[2, 5]"; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.groups[0].key = "world/ring#2"; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.groups[0].members = {0, 2}; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.groups[0].members = {1, 0}; }), "different");
  EXPECT_EQ(text_of([](RankTrace& rank) { rank.events[3].end_ns += 5'000; }), "equal");  // times are no difference
}

TEST(TraceDiff, SaysThatARankIsNotThereAndThatOneEndedEarly) {
  RunTrace second = sample_trace();
  second.ranks[0].events.pop_back();
  second.ranks.pop_back();
  const TraceComparison comparison = compare_traces(sample_trace(), second);
  ASSERT_EQ(comparison.divergences.size(), 2U);
  EXPECT_THAT(comparison.divergences[0].text, HasSubstr("; it has ended"));
  EXPECT_EQ(comparison.divergences[1].text, "rank 1 is not in the second file");
}

TEST(TraceDiff, ComparesTheStepsThatBothHaveAndSaysSo) {
  RunTrace second = sample_trace();
  for (RankTrace& rank : second.ranks) {
    TraceEvent later = rank.events[3];
    later.step = 1;
    rank.events.push_back(later);
  }
  const TraceComparison comparison = compare_traces(sample_trace(), second);
  EXPECT_THAT(comparison.divergences, IsEmpty());
  EXPECT_THAT(comparison.notes, ElementsAre("the first file has 1 steps, the second 2; compared are the first 1"));
}

TEST(TraceDiff, NotesSettingsThatDifferAlsoInEqualTraces) {
  RunTrace second = sample_trace();
  second.about = {{"model", "FluxTransformer2DModel"}, {"case", "uneven"}, {"mode", "ring"}, {"backend", "mpi"}};
  const TraceComparison comparison = compare_traces(sample_trace(), second);
  EXPECT_THAT(comparison.divergences, IsEmpty());
  EXPECT_THAT(comparison.notes, ElementsAre("case is 'base' in the first file and 'uneven' in the second",
                                            "mode is '' in the first file and 'ring' in the second"));
}

class TraceDiffFiles : public testing::Test {
 protected:
  std::filesystem::path put_file(std::string_view name, std::string_view text) {
    put(folder / name, text);
    return folder / name;
  }
  std::vector<std::string> texts_of(const TraceComparison& comparison) {
    std::vector<std::string> texts;
    for (const Divergence& divergence : comparison.divergences) texts.push_back(divergence.text);
    return texts;
  }
  TemporaryFolder folder;
};

TEST_F(TraceDiffFiles, SaysWhichRankDidNotMakeWhichCall) {
  const std::vector files{put_file("r.0", flight_record_text(0, 5)), put_file("r.1", flight_record_text(1, 3))};
  const TraceComparison comparison = compare_trace_files(files);
  EXPECT_THAT(texts_of(comparison), ElementsAre("rank 1 did not make call 4 of group world/ring#1, which rank 0 made: "
                                                "barrier 'rows' among ranks 0, 1"));
  EXPECT_THAT(comparison.notes,
              ElementsAre("rank 0 was in call 5 of group world/ring#1 (failed): barrier 'rows' among ranks 0, 1",
                          "rank 1 was in call 3 of group world/ring#1 (failed): barrier 'rows' among ranks 0, 1"));
}

TEST_F(TraceDiffFiles, SaysWhereRecordsDisagree) {
  const std::vector files{put_file("r.0", flight_record_text(0, 5)), put_file("r.1", flight_record_text(1, 5, "mask"))};
  EXPECT_THAT(
      texts_of(compare_trace_files(files)),
      ElementsAre("call 5 of group world/ring#1 is barrier 'rows' among ranks 0, 1 on rank 0, but barrier 'mask' "
                  "among ranks 0, 1 on rank 1"));
}

// The trace's only call in the group is the fourth since the group was made.
TEST_F(TraceDiffFiles, ComparesARecordWithWhatTheRankShouldHaveDone) {
  const auto trace = put_file("trace.json", chrome_text(sample_trace()));
  const std::vector early{put_file("r.1", flight_record_text(1, 3)), trace};
  EXPECT_THAT(texts_of(compare_trace_files(early)),
              ElementsAre(HasSubstr("rank 1 did not make call 4 of group world/ring#1, which the trace has as "
                                    "'world/ring#1 call 1 exchange': exchange 'ring: keys' float64 rows of [2, 4]")));
  const std::vector other{trace, put_file("r.1", flight_record_text(1, 4))};
  EXPECT_THAT(texts_of(compare_trace_files(other)),
              ElementsAre(HasSubstr(
                  "rank 1 made call 4 of group world/ring#1 as barrier 'rows' among ranks 0, 1; in the trace it is")));
}

TEST_F(TraceDiffFiles, RefusesFilesThatCannotBeCompared) {
  const auto trace = put_file("trace.json", chrome_text(sample_trace()));
  const auto record = put_file("r.0", flight_record_text(0, 2));
  const auto refusal = [&](ErrorKind kind, std::vector<std::filesystem::path> files) {
    return message_of(kind, [&] { (void)compare_trace_files(files); });
  };
  EXPECT_THAT(refusal(ErrorKind::usage_error, {trace}), HasSubstr("1 trace and 0 flight records were given"));
  EXPECT_THAT(refusal(ErrorKind::usage_error, {trace, trace, record}),
              HasSubstr("expected two traces, or flight records"));
  EXPECT_THAT(refusal(ErrorKind::usage_error, {record, put_file("again", flight_record_text(0, 2))}),
              HasSubstr("are both of rank 0; expected one record a rank"));
  EXPECT_THAT(
      refusal(ErrorKind::file_error, {trace, put_file("other.json", "{}")}),
      HasSubstr("other.json is neither a trace nor a flight record of shardproof; expected a file that run --trace or "
                "run --flight-record wrote"));
  EXPECT_THAT(refusal(ErrorKind::file_error, {trace, put_file("half.json", "{\"otherData\":")}),
              HasSubstr("half.json"));
  EXPECT_THAT(refusal(ErrorKind::file_error, {trace, folder / "nowhere"}), HasSubstr("nowhere"));
}

TEST_F(TraceDiffFiles, RefusesTracesWithNothingToCompare) {
  const auto trace = put_file("trace.json", chrome_text(sample_trace()));
  RunTrace changed = sample_trace();
  for (RankTrace& rank : changed.ranks) rank.events.resize(2);  // the step and a module call
  const auto idle = put_file("idle.json", chrome_text(changed));
  for (RankTrace& rank : changed.ranks) rank.events.clear();
  const auto empty = put_file("empty.json", chrome_text(changed));
  for (const std::vector<std::filesystem::path>& files :
       {std::vector{trace, empty}, {empty, trace}, {empty, empty}, {idle, trace}, {trace, idle}}) {
    EXPECT_THAT(message_of(ErrorKind::file_error, [&] { (void)compare_trace_files(files); }),
                testing::ContainsRegex("(empty|idle)\\.json: key 'traceEvents' holds no operations to compare"));
  }
  const std::vector records{put_file("r.0", flight_record_text(0, 0)), put_file("r.1", flight_record_text(1, 0))};
  EXPECT_THAT(message_of(ErrorKind::file_error, [&] { (void)compare_trace_files(records); }),
              HasSubstr("hold no operations to compare with each other"));
}

TEST_F(TraceDiffFiles, IsJsonForPrograms) {
  const std::vector files{put_file("r.0", flight_record_text(0, 5)), put_file("r.1", flight_record_text(1, 3))};
  const Json json = comparison_json(compare_trace_files(files));
  EXPECT_FALSE(json.at("equal").as_bool());
  const Json& divergence = json.at("divergences").at(std::size_t{0});
  EXPECT_EQ(divergence.at("rank").as_int(), 1);
  EXPECT_EQ(divergence.at("kind").as_string(), "missing");
  EXPECT_EQ(divergence.at("first").at("signature").as_string(), "barrier 'rows' among ranks 0, 1");
  EXPECT_TRUE(divergence.at("second").is_null());
}

}  // namespace
}  // namespace shardproof::test
