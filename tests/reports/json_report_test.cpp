// Field names, order and types of the JSON that users' programs read.
// The names are those that the architecture fixes; a change here breaks readers.
#include "reports/json_report.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/reports/sample_reports.h"

namespace shardproof {
namespace {

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const JsonMember& member : json.members()) keys.push_back(member.key);
  return keys;
}

using Keys = std::vector<std::string>;

TEST(JsonReport, HasTheTopLevelOfTheContract) {
  const Json json = json_report(test::verify_report());
  EXPECT_EQ(keys_of(json), (Keys{"command", "version", "features", "model", "results", "summary", "hypothesis"}));
  EXPECT_EQ(json.at("command").as_string(), "verify");
  EXPECT_EQ(json.at("version").as_string(), "1.2.3");
  EXPECT_EQ(json.at("features").dump(), R"(["device:cpu","tier:rounding"])");
  EXPECT_EQ(json.at("model").as_string(), "FluxTransformer2DModel");
  EXPECT_EQ(json.at("results").size(), 5U);
  EXPECT_EQ(json.at("summary").dump(),
            R"({"EXACT":0,"ROUNDING-EQUIVALENT":1,"DIFFERENT":0,"REFUSED":4,"NOT CHECKED":0})");
}

TEST(JsonReport, WritesAVerificationWithTheFieldsOfTheContract) {
  EXPECT_EQ(json_report(test::verify_report()).at("results").at(std::size_t{0}).dump(2), R"({
  "case": "base",
  "mode": "ring",
  "mesh": "ring=2,ulysses=1",
  "dtype": "float64",
  "device": "reference",
  "tier": "rounding",
  "rotate_method": "allgather",
  "convert_to_fp32": true,
  "seed": 7,
  "schedule_seed": 8,
  "tokens_per_rank": [9, 8],
  "verdict": "ROUNDING-EQUIVALENT",
  "reason": "",
  "figure": 6.8125e-16,
  "max_abs": 2.5e-15,
  "worst": {
    "rank": 1,
    "index": [0, 12, 3]
  },
  "bytes_sent_per_rank": 49408,
  "collectives": 5,
  "skipped_entries": [
    {
      "module": "",
      "argument": "timestep",
      "reason": "1 dimension, plan expects 2"
    }
  ],
  "diagnosis": [],
  "locus": null,
  "movements_checked": 0,
  "bitwise_checked": 0,
  "modules": null,
  "extremes_checked": 0,
  "also_passed": "",
  "not_checked": [],
  "repeat": null,
  "seconds": 0.0123
})");
}

TEST(JsonReport, WritesTheFirstWrongValue) {
  VerificationResult result;
  result.locus = Locus{.module = "blocks.0",
                       .class_name = "Block",
                       .call = 1,
                       .point = "output",
                       .value = "0",
                       .origin = "blocks.0.attn",
                       .compared = 7,
                       .ranks = {{2, "entries 4 to 5 of 6 along axis 1", "every element", {0, 1}, "1.5", "2.5", ""}}};
  Report report;
  report.command = "verify";
  report.verifications.push_back(result);
  EXPECT_EQ(json_report(report).at("results").at(std::size_t{0}).at("locus").dump(0),
            "{\"module\":\"blocks.0\",\"class\":\"Block\",\"call\":1,\"point\":\"output\",\"value\":\"0\","
            "\"origin\":\"blocks.0.attn\",\"compared\":7,\"ranks\":[{\"rank\":2,"
            "\"layout\":\"entries 4 to 5 of 6 along axis 1\",\"extent\":\"every element\",\"index\":[0,1],"
            "\"actual\":\"1.5\",\"expected\":\"2.5\",\"looks_like\":null}]}");
}

TEST(JsonReport, WritesWhatWasShrunk) {
  Report report;
  report.command = "verify";
  EXPECT_EQ(json_report(report).find("shrunk"), nullptr);
  report.shrunk = ShrunkResult{.tried = 12, .seconds = 0.5, .was_cut_off = true};
  EXPECT_EQ(json_report(report).at("shrunk").dump(0),
            "{\"configuration\":null,\"result\":null,\"test\":null,\"tried\":12,\"was_cut_off\":true,\"seconds\":0.5}");
  report.shrunk->configuration = "text=1; ring";
  report.shrunk->result.repeat = "shardproof verify flux";
  report.shrunk->test = "TEST";
  const Json json = json_report(report);
  EXPECT_EQ(json.at("shrunk").at("configuration").as_string(), "text=1; ring");
  EXPECT_EQ(json.at("shrunk").at("result").at("repeat").as_string(), "shardproof verify flux");
  EXPECT_EQ(json.at("shrunk").at("test").as_string(), "TEST");
}

TEST(JsonReport, WritesTheHypothesisOfVerify) {
  Report report;
  report.command = "plan";
  EXPECT_EQ(json_report(report).find("hypothesis"), nullptr);
  report.command = "verify";
  EXPECT_TRUE(json_report(report).at("hypothesis").is_null());
  report.hypothesis = test::hypothesis();
  EXPECT_EQ(
      json_report(report).at("hypothesis").dump(0),
      R"({"mistakes":[{"name":"CHUNK_LOST","what":"a chunk is lost"},{"name":"CHUNK_TWICE","what":"one is twice"}],)"
      R"("others":0,"model":"FluxTransformer2DModel","equal":3,"shown":4,"configurations":14})");
}

TEST(JsonReport, WritesTheWorstModuleAndTheNext) {
  Report report = test::verify_report();
  report.verifications[0].modules = test::module_ratios();
  report.verifications[0].extremes_checked = 7;
  report.verifications[0].also_passed = "exact arithmetic";
  const Json result = json_report(report).at("results").at(std::size_t{0});
  EXPECT_EQ(result.at("modules").dump(2), R"({
  "worst": {
    "module": "blocks.0.attn",
    "class": "Attention",
    "call": 2,
    "value": "output 0",
    "rank": 1,
    "index": [0, 4, 3],
    "ratio": 1.75
  },
  "runner_up": {
    "module": "",
    "class": "Model",
    "call": 1,
    "value": "argument 'temb'",
    "rank": 0,
    "index": [2],
    "ratio": 1.5
  },
  "count": 12,
  "compared": 30,
  "not_comparable": 1
})");
  EXPECT_EQ(result.at("extremes_checked").as_int(), 7);
  EXPECT_EQ(result.at("also_passed").as_string(), "exact arithmetic");
  report.verifications[0].modules->runner_up.reset();
  EXPECT_TRUE(json_report(report).at("results").at(std::size_t{0}).at("modules").at("runner_up").is_null());
}

TEST(JsonReport, WritesWhatDoesNotExistAsNull) {
  const Json result = json_report(test::verify_report()).at("results").at(std::size_t{1});
  EXPECT_TRUE(result.at("figure").is_null());
  EXPECT_TRUE(result.at("max_abs").is_null());
  EXPECT_TRUE(result.at("worst").is_null());
  EXPECT_EQ(result.at("tokens_per_rank").dump(), "[]");
  EXPECT_EQ(result.at("skipped_entries").dump(), "[]");
  EXPECT_EQ(result.at("reason").as_string(), "axis 1 has 16 entries, which 3 ranks cannot divide equally");
}

TEST(JsonReport, KeepsWholeFiguresNumbersAndSpellsInfinity) {
  Report report = test::verify_report();
  report.verifications[0].figure = 0.0;
  EXPECT_TRUE(parse_json(json_report(report).dump(), "x").at("results").at(std::size_t{0}).at("figure").is_double());
  report.verifications[0].figure = std::numeric_limits<double>::infinity();
  EXPECT_EQ(json_report(report).at("results").at(std::size_t{0}).dump().find(R"("figure":"inf")") != std::string::npos,
            true);
}

TEST(JsonReport, WritesAComparisonOfTheOracle) {
  const Json json = json_report(test::oracle_report());
  const Keys keys{"source",    "model",        "case",   "comparison",          "verdict", "error",
                  "tolerance", "first_module", "reason", "without_counterpart", "seconds"};
  for (const Json& result : json.at("results").items()) EXPECT_EQ(keys_of(result), keys);
  EXPECT_EQ(json.at("results").at(std::size_t{1}).dump(),
            R"({"source":"exports/tiny","model":"FluxTransformer2DModel","case":"base",)"
            R"("comparison":"float64 along the trace","verdict":"DISAGREES","error":0.5,"tolerance":2e-05,)"
            R"("first_module":"0012:proj_out#0","reason":"8 of 9 entries compared",)"
            R"("without_counterpart":["0003:pos_embed#1"],"seconds":0.25})");
  EXPECT_TRUE(json.at("results").at(std::size_t{2}).at("error").is_null());
  EXPECT_TRUE(json.at("results").at(std::size_t{2}).at("tolerance").is_null());
  EXPECT_TRUE(json.at("results").at(std::size_t{0}).at("first_module").is_null());
  EXPECT_EQ(json.at("summary").dump(), R"({"AGREES":1,"DISAGREES":1,"NOT CHECKED":1})");
}

TEST(JsonReport, WritesTheLinesOfAPlan) {
  const Json json = json_report(test::plan_report());
  EXPECT_EQ(json.at("results").at(std::size_t{0}).dump(),
            R"({"case":"base","mode":"ring_anything","mesh":"ring=2,ulysses=1","module":"",)"
            R"("argument":"hidden_states","action":"split","axis":1,"total":17,"per_rank":[9,8],"reason":""})");
  EXPECT_EQ(json.at("results").at(std::size_t{2}).dump(),
            R"({"case":"base","mode":"ring_anything","mesh":"ring=2,ulysses=1","module":"",)"
            R"("argument":"timestep","action":"skipped","axis":null,"total":null,"per_rank":[],)"
            R"("reason":"1 dimension, plan expects 2"})");
  EXPECT_EQ(json.at("summary").dump(),
            R"({"split":1,"gather":1,"colwise":0,"rowwise":0,"packed_colwise":0,"packed_rowwise":0,)"
            R"("replicated_input_rowwise":0,"whole":0,"skipped":1,"refused":0,"failed":0})");
}

}  // namespace
}  // namespace shardproof
