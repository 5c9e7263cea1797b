// JSON: what is read is what was written, and what is refused is refused with file, place, value and expectation. The
// wording of syntax errors is the parser's and is not compared; their place is.
#include "core/json.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/random.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::file_error_of;
using test::message_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json parse(std::string_view text) { return parse_json(text, "config.json"); }

std::string refusal_of(std::string_view text, const JsonLimits& limits = {}) {
  return file_error_of([&] { parse_json(text, "config.json", limits); });
}

TEST(Json, KeepsOrderKindsAndValues) {
  const Json json = parse(R"({"z": [null, true, false, -7, 2.0, "text"], "a": {}, "m": []})");
  ASSERT_EQ(json.members().size(), 3U);
  EXPECT_EQ(json.members()[0].key, "z");
  EXPECT_EQ(json.members()[1].key, "a");
  EXPECT_EQ(json.members()[2].key, "m");
  const Json& list = json.at("z");
  EXPECT_TRUE(list.at(std::size_t{0}).is_null());
  EXPECT_TRUE(list.at(1).as_bool());
  EXPECT_FALSE(list.at(2).as_bool());
  EXPECT_TRUE(list.at(3).is_integer());
  EXPECT_EQ(list.at(3).as_int(), -7);
  EXPECT_EQ(list.at(3).as_double(), -7.0);
  EXPECT_TRUE(list.at(4).is_double());
  EXPECT_EQ(list.at(4).as_double(), 2.0);
  EXPECT_EQ(list.at(5).as_string(), "text");
  EXPECT_EQ(json.at("a").size(), 0U);
  EXPECT_EQ(json.find("b"), nullptr);
  EXPECT_EQ(json.dump(), R"({"z":[null,true,false,-7,2.0,"text"],"a":{},"m":[]})");
}

TEST(Json, WritesALinePerMemberWhenIndented) {
  const Json json =
      Json::object({{"a", 1}, {"b", Json::array({1, 2})}, {"c", Json::array({Json::array({1}), Json::object()})}});
  EXPECT_EQ(json.dump(1), "{\n \"a\": 1,\n \"b\": [1, 2],\n \"c\": [\n  [1],\n  {}\n ]\n}");
  EXPECT_EQ(json.dump(2), "{\n  \"a\": 1,\n  \"b\": [1, 2],\n  \"c\": [\n    [1],\n    {}\n  ]\n}");
  EXPECT_EQ(parse(json.dump(1)), json);
  EXPECT_EQ(parse(json.dump(2)), json);
  EXPECT_EQ(parse(json.dump()), json);
}

TEST(Json, WritesDoublesThatReadBackBitForBit) {
  const RandomStream random(1, "doubles");
  int checked = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const double value = std::bit_cast<double>(random.bits(i));
    if (!std::isfinite(value)) continue;
    const Json back = parse(Json(value).dump());
    ASSERT_TRUE(back.is_double()) << Json(value).dump();
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back.as_double()), random.bits(i)) << Json(value).dump();
    ++checked;
  }
  EXPECT_GT(checked, 19'900);  // one in 2048 patterns is not finite
  EXPECT_EQ(Json(0.1).dump(), "0.1");
  EXPECT_EQ(Json(100.0).dump(), "100.0");
  EXPECT_EQ(Json(1e300).dump(), "1e+300");
  EXPECT_EQ(Json(-0.0).dump(), "-0.0");
  EXPECT_EQ(Json(5e-324).dump(), "5e-324");
}

TEST(Json, WritesNumbersThatJsonLacksAsStrings) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Json json = Json::array({std::nan(""), infinity, -infinity});
  EXPECT_EQ(json.dump(), R"(["nan","inf","-inf"])");
}

TEST(Json, KeepsIntegersToTheEndsOfTheirRange) {
  const Json json = parse("[9223372036854775807, -9223372036854775808]");
  EXPECT_EQ(json.at(std::size_t{0}).as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(json.at(1).as_int(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json.dump(), "[9223372036854775807,-9223372036854775808]");
  EXPECT_THAT(message_of(ErrorKind::internal_error, [] { Json(std::numeric_limits<std::uint64_t>::max()); }),
              HasSubstr("must fit signed 64 bits"));
}

TEST(Json, EscapesWhatStringsMayNotHold) {
  const std::string text("q\" b\\ n\n t\t z\0 d\x7F é", 20);
  const std::string dumped = Json(text).dump();
  EXPECT_EQ(dumped, "\"q\\\" b\\\\ n\\n t\\t z\\u0000 d\\u007f é\"");
  EXPECT_EQ(parse(dumped).as_string(), text);
  EXPECT_EQ(Json("a\xFF\xC3").dump(), "\"a\\ufffd\\ufffd\"");
  EXPECT_EQ(parse(R"("\u00e9\ud83d\ude00")").as_string(), "é😀");
}

TEST(Json, RefusesTextThatIsNotJsonAndSaysWhere) {
  EXPECT_THAT(refusal_of(""), StartsWith("config.json: not valid JSON at byte 0 (line 1, column 1): "));
  EXPECT_THAT(refusal_of("{\n \"a\": tru}"),
              StartsWith("config.json: not valid JSON at byte 11 (line 2, column 10): "));
  EXPECT_THAT(refusal_of("{} x"), HasSubstr("at byte 3"));
  EXPECT_THAT(refusal_of("[1,]"), HasSubstr("at byte 3"));
  EXPECT_THAT(refusal_of("[01]"), HasSubstr("at byte 2"));
  for (const char* text :
       {"nan", "[1", "{\"a\"}", "{'a':1}", "[1 2]", "// x\n1", "\"\\x\"", "\"a\nb\"", "[NaN]", "+1"}) {
    EXPECT_THAT(refusal_of(text), StartsWith("config.json: not valid JSON at byte ")) << text;
  }
}

TEST(Json, RefusesEveryBeginningOfADocument) {
  const std::string text = R"({"a": [1, -2.5e3, "x\u00e9", {"b": null, "c": [true, false]}]})";
  EXPECT_EQ(parse(text).size(), 1U);
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THAT(refusal_of(text.substr(0, length)), StartsWith("config.json: not valid JSON at byte ")) << length;
  }
}

TEST(Json, RefusesTextBehindANulByte) {
  EXPECT_EQ(refusal_of(std::string_view("{}\0{}", 5)), "config.json: not valid JSON at byte 2: a NUL byte");
}

TEST(Json, RefusesInvalidUtf8) {
  for (const char* text : {"\"\xFF\"", "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\\ud800\""}) {
    EXPECT_THAT(refusal_of(text), StartsWith("config.json: not valid JSON at byte "));
  }
}

TEST(Json, RefusesADuplicateKeyAtAnyDepth) {
  EXPECT_EQ(refusal_of(R"({"a": 1, "b": 2, "a": 3})"), "config.json: key 'a' stands twice");
  EXPECT_EQ(refusal_of(R"({"k": {"z": [0, {"q": 1, "q": 1}]}})"), "config.json: key 'k.z[1].q' stands twice");
  EXPECT_EQ(refusal_of(R"({"a": 1, "\u0061": 1})"), "config.json: key 'a' stands twice");
  EXPECT_EQ(parse(R"({"a": {"a": 1}, "b": {"a": 1}})").size(), 2U);
}

TEST(Json, RefusesNumbersOutOfRange) {
  EXPECT_EQ(refusal_of(R"({"n": 9223372036854775808})"),
            "config.json: key 'n': integer 9223372036854775808 does not fit 64 bits");
  EXPECT_EQ(refusal_of("[1, -9223372036854775809]"),
            "config.json: key '[1]': integer -9223372036854775809 does not fit 64 bits");
  EXPECT_EQ(refusal_of("100000000000000000000000"),
            "config.json: the top level: integer 100000000000000000000000 does not fit 64 bits");
  EXPECT_THAT(refusal_of("[1e999]"), HasSubstr("number overflow"));
  EXPECT_EQ(parse("1e-999").as_double(), 0.0);  // the nearest double
}

TEST(Json, RefusesToNestTooDeeply) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_TRUE(parse(nested(64)).is_array());
  EXPECT_EQ(refusal_of(nested(65)), "config.json: JSON nested deeper than 64 levels");
  EXPECT_EQ(refusal_of(std::string(1'000'000, '[')), "config.json: JSON nested deeper than 64 levels");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(refusal_of(objects), "config.json: JSON nested deeper than 64 levels");
}

TEST(Json, RefusesMoreThanItsLimits) {
  JsonLimits limits;
  limits.max_values = 3;
  EXPECT_EQ(parse_json("[1,2]", "x", limits).size(), 2U);
  EXPECT_EQ(refusal_of("[1,2,3]", limits), "config.json: more than 3 JSON values, the most that is read");
  limits.max_bytes = 5;
  EXPECT_EQ(refusal_of("[1,2] ", limits), "config.json: 6 bytes of JSON; at most 5 are read");
}

TEST(Json, NamesKeyExpectationAndValueOfAWrongEntry) {
  const Json json = parse(R"({"a": {"b": [1, "x", [true]]}, "layers": "x", "null": null})");
  const Json& list = json.at("a").at("b");
  EXPECT_EQ(file_error_of([&] { json.at("layers").as_int(1); }),
            "config.json: key 'layers' must be an integer >= 1, got \"x\"");
  EXPECT_EQ(file_error_of([&] { list.at(std::size_t{0}).as_int(2, 5); }),
            "config.json: key 'a.b[0]' must be an integer from 2 to 5, got 1");
  EXPECT_EQ(file_error_of([&] { list.at(std::size_t{0}).as_int(std::numeric_limits<std::int64_t>::min(), 0); }),
            "config.json: key 'a.b[0]' must be an integer <= 0, got 1");
  EXPECT_EQ(file_error_of([&] { list.at(2).at(std::size_t{0}).as_int(); }),
            "config.json: key 'a.b[2][0]' must be an integer, got true");
  EXPECT_EQ(file_error_of([&] { list.at(2).as_double(); }), "config.json: key 'a.b[2]' must be a number, got [true]");
  EXPECT_EQ(file_error_of([&] { list.at(1).as_bool(); }), "config.json: key 'a.b[1]' must be true or false, got \"x\"");
  EXPECT_EQ(file_error_of([&] { json.at("null").as_string(); }), "config.json: key 'null' must be a string, got null");
  EXPECT_EQ(file_error_of([&] { json.at("a").items(); }),
            "config.json: key 'a' must be a list, got {\"b\":[1,\"x\",[true]]}");
  EXPECT_EQ(file_error_of([&] { list.at("c"); }), "config.json: key 'a.b' must be an object, got [1,\"x\",[true]]");
  EXPECT_EQ(file_error_of([&] { json.at("layers").size(); }),
            "config.json: key 'layers' must be a list or an object, got \"x\"");
  EXPECT_EQ(file_error_of([&] { json.at("a").at("c"); }), "config.json: key 'a.c' is missing");
  EXPECT_EQ(file_error_of([&] { json.at("z"); }), "config.json: key 'z' is missing");
  EXPECT_EQ(file_error_of([&] { list.at(3); }), "config.json: key 'a.b' has 3 entries; entry 3 was asked for");
  EXPECT_EQ(file_error_of([&] { json.check_keys({"a", "layers"}); }),
            "config.json: key 'null' is not known here; known: a, layers");
  EXPECT_THAT(file_error_of([&] { json.as_int(); }),
              StartsWith("config.json: the top level must be an integer, got {"));
  const Json unnamed = parse_json(R"({"": {"": 1}, "x": [[]]})", "config.json");
  EXPECT_EQ(file_error_of([&] { unnamed.at("").as_int(); }), "config.json: key '' must be an integer, got {\"\":1}");
  EXPECT_EQ(file_error_of([&] { unnamed.check_keys({"x"}); }), "config.json: key '' is not known here; known: x");
  EXPECT_EQ(file_error_of([] { Json(1.0).as_int(); }), "JSON value must be an integer, got 1.0");
  EXPECT_EQ(file_error_of([] { Json::object().at("k"); }), "JSON value: key 'k' is missing");
}

TEST(Json, KeepsThePlaceOfAValueThatIsCopied) {
  Json copy;
  {
    const Json json = parse(R"({"a": [5]})");
    copy = json.at("a").at(std::size_t{0});
  }
  EXPECT_EQ(copy.where(), "config.json: key 'a[0]'");
}

TEST(Json, ShortensAndEscapesValuesInMessages) {
  const Json json = parse("\"" + std::string(500, 'x') + "\"");
  EXPECT_EQ(file_error_of([&] { json.as_int(); }),
            "config.json: the top level must be an integer, got \"" + std::string(79, 'x') + "...");
  EXPECT_EQ(file_error_of([&] { parse("{\"a\\nb\": 1}").at("a\nb").as_bool(); }),
            "config.json: key 'a\\x0ab' must be true or false, got 1");
}

TEST(Json, BuildsObjectsAndLists) {
  Json json = Json::object();
  json.set("a", 1).set("b", Json::array().append("x").append(nullptr)).set("a", 2);
  EXPECT_EQ(json.dump(), R"({"a":2,"b":["x",null]})");
  EXPECT_NE(json, Json::object());
  EXPECT_NE(Json(1), Json(1.0));
  EXPECT_THAT(message_of(ErrorKind::internal_error, [] { Json(1).set("a", 1); }), HasSubstr("not an object"));
  EXPECT_THAT(message_of(ErrorKind::internal_error, [] { Json(1).append(1); }), HasSubstr("not a list"));
}

TEST(Json, ReadsFilesAndNamesThem) {
  const test::TemporaryFolder folder;
  test::put(folder / "good.json", "\xEF\xBB\xBF{\"a\": 1}\n");
  EXPECT_EQ(read_json_file(folder / "good.json").at("a").as_int(), 1);
  test::put(folder / "bad.json", "{\"a\": }");
  EXPECT_THAT(file_error_of([&] { read_json_file(folder / "bad.json"); }),
              StartsWith((folder / "bad.json").string() + ": not valid JSON at byte 6"));
  EXPECT_THAT(file_error_of([&] { read_json_file(folder / "none.json"); }),
              StartsWith("cannot open '" + (folder / "none.json").string() + "': No such file"));
}

}  // namespace
}  // namespace shardproof
