#include "base/json.h"

#include "support/golden.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Json, IsParsedAsDeepAs500) {
  EXPECT_EQ(parse_json(" {\"a\": [1, \"]}[\\\"[\"]} ", "x")["a"][1], "]}[\"[");
  EXPECT_TRUE(parse_json(brackets(500), "x").is_array());
  EXPECT_TRUE(try_parse_json(brackets(500, "{\"[\":", "}")).has_value());
  const auto parse = [](std::string text) { return error_of([&] { parse_json(text, "file.json"); }); };
  EXPECT_THAT(parse(brackets(501)), StartsWith("file.json: nested deeper than 500"));
  EXPECT_THAT(parse(brackets(200'000)), StartsWith("file.json: nested deeper than 500"));
  EXPECT_THAT(parse(std::string(1'000'000, '[')), StartsWith("file.json: nested deeper than 500"));
  EXPECT_THAT(parse(brackets(300'000, "{\"a\":[", "]}")), StartsWith("file.json: nested deeper than 500"));
  EXPECT_FALSE(try_parse_json(brackets(501)));
  EXPECT_FALSE(is_json(brackets(501)));
  EXPECT_TRUE(is_json(brackets(500)));
}

TEST(Json, ErrorsNameTheTextAndThePlaceInOneLine) {
  const std::string error = error_of([] { parse_json("{\"a\":\n \x01}", "file.json"); });
  EXPECT_THAT(error, AllOf(StartsWith("file.json: not JSON: line 2, column"), Not(HasSubstr("\n"))));
  EXPECT_THAT(error_of([] { parse_json("", "file.json"); }), StartsWith("file.json: not JSON: line 1"));
  EXPECT_FALSE(try_parse_json("{"));
}

TEST(Json, ParsedDataIsCheckedWithoutUsingUpTheStack) {
  check_nesting(nested_arrays(500), "x");
  check_nesting(Json(), "x");
  EXPECT_THAT(error_of([] { check_nesting(nested_arrays(501), "tools"); }), StartsWith("tools: nested deeper than 500"));
  EXPECT_THAT(error_of([] { check_nesting(nested_arrays(200'000), "tools"); }), StartsWith("tools: nested deeper than 500"));
}

TEST(Json, AKeyThatStandsTwiceIsRefusedWhereItCounts) {
  const auto parse = [](const std::string& text) { return error_of([&] { parse_json_with_unique_keys(text, "file.json", 4); }); };
  EXPECT_EQ(parse(R"({"a": {"a": [{"b": 1}, {"b": 2}]}})"), "");  // each in an object of its own
  EXPECT_EQ(parse(R"({"a": 1, "b": {"c": 2, "c": 3}})"), "file.json: c: found twice, expected once");
  EXPECT_EQ(parse(R"({"a": 1, "\u0061": 2})"), "file.json: a: found twice, expected once");
  EXPECT_EQ(parse(R"({"a": 1, "b": [{"c": 2, "d": 3, "e": 4}]})"), "file.json: found more than 4 keys");
  EXPECT_THAT(parse(R"({"a": 1, "a")"), StartsWith("file.json: a: found twice"));
  EXPECT_THAT(parse("{\"a\":\n tru}"), StartsWith("file.json: not JSON: line 2, column 5"));
  EXPECT_EQ(parse(brackets(200'000)), "");
  EXPECT_EQ(parse_json_with_unique_keys(R"({"b": [1, -2.5, null], "a": ""})", "x", 4),
            json_of(R"({"b": [1, -2.5, null], "a": ""})"));
  EXPECT_EQ(json_of(R"({"a": 1, "a": 2})"), Json({{"a", 2}}));  // elsewhere the last one counts
}

TEST(Json, AnOutlineIsTheOutermostValueAlone) {
  EXPECT_EQ(try_parse_json_outline(R"({"a": [1, 2]})").value(), Json::object());
  EXPECT_EQ(try_parse_json_outline(" [1, {\"a\": 2}]").value(), Json::array());
  for (const char* scalar : {"\"text\"", "-3", "2.5", "true", "null"}) {
    EXPECT_EQ(try_parse_json_outline(scalar).value(), json_of(scalar)) << scalar;
  }
  for (const std::string& text : {std::string("{\"a\": }"), std::string("[1"), std::string(), brackets(501)})
    EXPECT_FALSE(try_parse_json_outline(text)) << text.substr(0, 20);
}

TEST(Json, IsPrintedAsPythonPrintsIt) {
  // json.dumps(value, separators=(",", ":"), ensure_ascii=False), then with indent=2 and the usual separators
  const Json value = json_of(R"({"b":[1,-2.5,true,null,{}],"a":"\"\\\/\b\f\n\r\t\u001f é€😀","c":[]})");
  EXPECT_EQ(dump_json(value), R"({"b":[1,-2.5,true,null,{}],"a":"\"\\/\b\f\n\r\t\u001f é€😀","c":[]})");
  EXPECT_EQ(dump_json(json_of(R"({"a": [1, 2], "b": {"c": 3}})"), 2),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {\n    \"c\": 3\n  }\n}");
}

TEST(Json, BytesThatAreNoTextArePrintedAsReplacementCharacters) {
  EXPECT_EQ(dump_json(Json("a\xFFz")), "\"a\uFFFDz\"");
  EXPECT_EQ(dump_json(Json({{"k\xC3", "\xE2\x82"}})), "{\"k\uFFFD\":\"\uFFFD\"}");
  EXPECT_TRUE(is_json(dump_json(Json("\xF0\x9F\x98 \xC0\x80"))));
}

TEST(Json, SpaceAtTheEndsIsTrimmed) {
  EXPECT_EQ(trim_json_space(" \t\r\n a b\f \n"), "a b\f");
  EXPECT_EQ(trim_json_space(" \n"), "");
}

TEST(Json, AnObjectOfTooManyKeysIsRefusedBeforeItTakesTime) {
  const auto object = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":{}";
    return text + "}";
  };
  EXPECT_EQ(parse_json(object(kMaxJsonKeys), "it").size(), static_cast<std::size_t>(kMaxJsonKeys));
  EXPECT_EQ(error_of([&] { parse_json("[" + object(1'000'000) + "]", "it"); }),
            "it: an object of 1000000 keys, expected at most 10000");
  EXPECT_FALSE(try_parse_json(object(kMaxJsonKeys + 1)).has_value());
  // Many small ones, and colons in texts, are none.
  std::string many = "[";
  for (int i = 0; i < 20'000; ++i) many += R"({"a":":::"},)";
  EXPECT_EQ(parse_json(many + "0]", "it").size(), 20'001u);
}

}  // namespace
}  // namespace calandra
