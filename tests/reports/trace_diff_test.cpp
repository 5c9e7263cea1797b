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

// Two ranks that have made five calls, the fourth of them as given, and the first rank's records against the second's.
class FlightRecordDiff : public TraceDiffFiles {
 protected:
  // Of rank `rank`, with its fourth call changed by replacements in its text.
  using Changes = std::vector<std::pair<std::string, std::string>>;
  static std::string changed_text(int rank, const Changes& changes) {
    std::string text = flight_record_text(rank, 5);
    std::size_t at = text.find(R"({"sequence":4)");
    const std::size_t behind = text.find(R"({"sequence":5)");
    std::string call = text.substr(at, behind - at);
    for (const auto& [from, to] : changes) call.replace(call.find(from), from.size(), to);
    return text.replace(at, behind - at, call);
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  }
  static Changes exchange(int to, int from, int sent = 3, int received = 3) {
    return {{"barrier", "exchange"},
            {R"("to":-1)", R"("to":)" + std::to_string(to)},
            {R"("from":-1)", R"("from":)" + std::to_string(from)},
            {R"("rows_sent":0)", R"("rows_sent":)" + std::to_string(sent)},
            {R"("rows_received":0)", R"("rows_received":)" + std::to_string(received)}};
  }
  static Changes rows(const std::string& operation, const std::string& send, const std::string& receive) {
    return {{"barrier", operation},
            {R"("send_rows":[])", R"("send_rows":)" + send},
            {R"("receive_rows":[])", R"("receive_rows":)" + receive},
            {R"("rows_sent":0)", R"("rows_sent":1)"}};
  }
  static Changes rooted(const std::string& operation, int root, int received, const std::string& send = "[]") {
    return {{"barrier", operation},
            {R"("root":-1)", R"("root":)" + std::to_string(root)},
            {R"("rows_received":0)", R"("rows_received":)" + std::to_string(received)},
            {R"("rows_sent":0)", R"("rows_sent":3)"},
            {R"("send_rows":[])", R"("send_rows":)" + send}};
  }
  std::vector<std::string> differences(const std::string& first, const std::string& second) {
    const std::vector files{put_file("r.0", first), put_file("r.1", second)};
    return texts_of(compare_trace_files(files));
  }
  std::vector<std::string> differences(const Changes& first, const Changes& second) {
    return differences(changed_text(0, first), changed_text(1, second));
  }
  static auto call_4(const std::string& problem) {
    return ElementsAre(HasSubstr("call 4 of group world/ring#1 " + problem));
  }
};

TEST_F(FlightRecordDiff, IsEmptyForCallsThatFitEachOther) {
  EXPECT_THAT(differences(exchange(1, 1, 3, 4), exchange(0, 0, 4, 3)), IsEmpty());
  EXPECT_THAT(differences(exchange(1, -1), exchange(-1, 0)), IsEmpty());
  EXPECT_THAT(differences(rows("all_to_all", "[1, 2]", "[1, 4]"), rows("all_to_all", "[4, 3]", "[2, 3]")), IsEmpty());
  EXPECT_THAT(differences(rows("all_gather", "[]", "[1, 1]"), rows("all_gather", "[]", "[1, 1]")), IsEmpty());
  EXPECT_THAT(differences(rooted("scatter", 0, 2, "[2, 1]"), rooted("scatter", 0, 1)), IsEmpty());
  EXPECT_THAT(differences(rooted("broadcast", 1, 3), rooted("broadcast", 1, 3)), IsEmpty());
}

TEST_F(FlightRecordDiff, FindsRootAndSumThatDiffer) {
  EXPECT_THAT(differences(rooted("broadcast", 0, 3), rooted("broadcast", 1, 3)), call_4("is broadcast 'rows'"));
  EXPECT_THAT(differences(Changes{}, {{R"("is_sum":false)", R"("is_sum":true)"}}),
              call_4("is barrier 'rows' among ranks 0, 1 on rank 0, but barrier 'rows' (sum) among"));
}

TEST_F(FlightRecordDiff, FindsPeersThatDoNotFit) {
  EXPECT_THAT(differences(exchange(1, 1), exchange(1, 0)),
              call_4("does not fit: rank 0 receives from rank 1, which sends to rank 1; it is exchange"));
  EXPECT_THAT(differences(exchange(1, 1), exchange(0, -1)),
              call_4("does not fit: rank 0 sends to rank 1, which receives from nobody"));
  EXPECT_THAT(differences(exchange(-1, -1), exchange(2, -1)), call_4("does not fit: rank 1 sends to member 2 of 2"));
  EXPECT_THAT(differences(exchange(-1, -1), exchange(1, -1)),
              call_4("does not fit: rank 1 sends to rank 1, which receives from nobody"));
}

TEST_F(FlightRecordDiff, FindsRowsThatDoNotFit) {
  EXPECT_THAT(differences(exchange(1, 1, 3, 4), exchange(0, 0, 4, 2)),
              call_4("does not fit: rank 0 sends 3 rows to rank 1, which receives 2"));
  EXPECT_THAT(differences(rows("all_to_all", "[1, 2]", "[1, 4]"), rows("all_to_all", "[5, 3]", "[2, 3]")),
              call_4("does not fit: rank 1 sends 5 rows to rank 0, which receives 4"));
  EXPECT_THAT(differences(rows("all_to_all", "[1]", "[1, 4]"), rows("all_to_all", "[4, 3]", "[2, 3]")),
              call_4("does not fit: rank 0 has 1 entries of send_rows for 2 members"));
  EXPECT_THAT(differences(rows("all_gather", "[]", "[1, 1]"), rows("all_gather", "[]", "[1, 2]")),
              call_4("does not fit: rank 0 gathers rows [1, 1], rank 1 rows [1, 2]"));
  EXPECT_THAT(differences(rooted("scatter", 0, 2, "[2, 1]"), rooted("scatter", 0, 2)),
              call_4("does not fit: rank 0 sends 1 rows to rank 1, which receives 2"));
  EXPECT_THAT(differences(rooted("broadcast", 1, 2), rooted("broadcast", 1, 3)),
              call_4("does not fit: rank 1 sends 3 rows to rank 0, which receives 2"));
}

// What a full recorder drops is the oldest that is complete: the fourth call is not gone while the third is there.
TEST_F(FlightRecordDiff, FindsACallThatIsMissingBetweenOthers) {
  const auto without = [](int rank, int first, int last) {
    std::string text = flight_record_text(rank, 5);
    const std::size_t at = text.find(R"({"sequence":)" + std::to_string(first));
    return text.erase(at, text.find(R"({"sequence":)" + std::to_string(last + 1)) - at);
  };
  EXPECT_THAT(differences(flight_record_text(0, 5), without(1, 4, 4)),
              ElementsAre(HasSubstr("rank 1 did not make call 4 of group world/ring#1, which rank 0 made")));
  EXPECT_THAT(differences(without(0, 4, 4), flight_record_text(1, 5)),
              ElementsAre(HasSubstr("rank 0 did not make call 4 of group world/ring#1, which rank 1 made")));
  EXPECT_THAT(differences(flight_record_text(0, 5), without(1, 1, 3)), IsEmpty());  // no longer kept
}

TEST_F(FlightRecordDiff, FindsGroupsThatAreNotTheSame) {
  const std::string text = flight_record_text(0, 5);
  EXPECT_THAT(differences(text, replaced(flight_record_text(1, 5), "[0,1]", "[1,0]")),
              testing::Contains("group world/ring#1 has ranks 0, 1 on rank 0, but ranks 1, 0 on rank 1"));
  EXPECT_THAT(differences(text, replaced(flight_record_text(1, 0), R"("world/ring#1","members":[0,1])",
                                         R"("world/own#1","members":[1])")),
              ElementsAre("rank 1 does not have group world/ring#1 of ranks 0, 1, which rank 0 has"));
  EXPECT_THAT(differences(text, replaced(flight_record_text(1, 5), R"("groups":[)",
                                         R"("groups":[{"group":"world/more#2","members":[0,1],"calls":0},)")),
              ElementsAre("rank 0 does not have group world/more#2 of ranks 0, 1, which rank 1 has"));
  EXPECT_THAT(differences(text, replaced(flight_record_text(1, 5), R"("groups":[)",
                                         R"("groups":[{"group":"world/more#2","members":[0],"calls":0},)")),
              testing::Contains("rank 1 has group world/more#2 of ranks 0, to which it does not belong"));
  EXPECT_THAT(file_error_of([&] { (void)differences(text, replaced(text, "[0,1]", "[0,0]")); }),
              HasSubstr("key 'groups[0].members[1]' must be a rank that the list does not have yet"));
}

TEST_F(FlightRecordDiff, FindsRunsOfOtherSizes) {
  const std::string larger = replaced(flight_record_text(1, 5), R"("world_size":2)", R"("world_size":3)");
  EXPECT_THAT(differences(flight_record_text(0, 5), larger),
              ElementsAre("rank 1 is of a run of 3 ranks, and rank 0 of one of 2"));
  const std::vector files{put_file("trace.json", chrome_text(sample_trace())), put_file("r.1", larger)};
  EXPECT_THAT(texts_of(compare_trace_files(files)),
              testing::Contains("rank 1 is of a run of 3 ranks, and the trace of one of 2"));
}

TEST_F(FlightRecordDiff, FindsACallInAGroupThatTheTraceDoesNotHave) {
  RunTrace trace = sample_trace();
  for (RankTrace& rank : trace.ranks) rank.events.erase(rank.events.begin() + 2);
  const std::vector files{put_file("trace.json", chrome_text(trace)), put_file("r.1", flight_record_text(1, 1))};
  EXPECT_THAT(texts_of(compare_trace_files(files)),
              ElementsAre("rank 1 made call 1 of group world/ring#1, which the trace does not have: barrier 'rows' "
                          "among ranks 0, 1"));
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
