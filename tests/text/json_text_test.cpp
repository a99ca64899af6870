#include "text/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "text/argument_types.h"
#include "text/chat_template.h"

namespace calandra {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string brackets(int depth, const std::string& open = "[", const std::string& close = "]") {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

/// Made without recursion, as nlohmann's own parser does.
Json nested(int depth) { return Json::parse(brackets(depth)); }

TEST(JsonText, IsParsedAsDeepAs500) {
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

TEST(JsonText, ErrorsNameTheTextAndThePlaceInOneLine) {
  const std::string error = error_of([] { parse_json("{\"a\":\n \x01}", "file.json"); });
  EXPECT_THAT(error, AllOf(StartsWith("file.json: not JSON: line 2, column"), Not(HasSubstr("\n"))));
  EXPECT_THAT(error_of([] { parse_json("", "file.json"); }), StartsWith("file.json: not JSON: line 1"));
  EXPECT_FALSE(try_parse_json("{"));
}

TEST(JsonText, ParsedDataIsCheckedWithoutUsingUpTheStack) {
  check_nesting(nested(500), "x");
  check_nesting(Json(), "x");
  EXPECT_THAT(error_of([] { check_nesting(nested(501), "tools"); }), StartsWith("tools: nested deeper than 500"));
  EXPECT_THAT(error_of([] { check_nesting(nested(200'000), "tools"); }), StartsWith("tools: nested deeper than 500"));
}

TEST(JsonText, DeepRequestsAreRefused) {
  for (const ChatTemplate& format : {ChatTemplate::built_in(), ChatTemplate::from_source("{{ messages }}{{ x }}", "t")}) {
    const auto render = [&](const ChatRequest& request) { return error_of([&] { format.render(request); }); };
    ChatRequest deep_messages, deep_tools, deep_kwargs, deep_text, deep_arguments;
    deep_messages.messages = nested(200'000);
    deep_tools.tools = nested(200'000);
    deep_kwargs.template_kwargs["x"] = nested(200'000);
    EXPECT_THAT(render(deep_messages), StartsWith("messages: nested deeper"));
    EXPECT_THAT(render(deep_tools), StartsWith("tools: nested deeper"));
    EXPECT_THAT(render(deep_kwargs), StartsWith("chat_template_kwargs: nested deeper"));
    Json call = {{"function", {{"name", "f"}, {"arguments", brackets(200'000)}}}};
    deep_text.messages = Json::array({{{"role", "assistant"}, {"content", "x"}, {"tool_calls", Json::array({call})}}});
    EXPECT_THAT(render(deep_text), StartsWith("messages[0].tool_calls[0].arguments: nested deeper"));
    // As deep as is allowed by itself, but not inside of a request: an error, too.
    call["function"]["arguments"] = "{\"a\": " + brackets(499) + "}";
    deep_arguments.messages = Json::array({{{"role", "assistant"}, {"content", "x"}, {"tool_calls", Json::array({call})}}});
    render(deep_arguments);
  }
  EXPECT_THAT(error_of([] { ToolTypes types(nested(200'000)); }), StartsWith("tools: nested deeper"));
}

JsonTypes types_of(const char* parameters) {
  return ToolTypes(Json::array({{{"name", "f"}, {"parameters", Json::parse(parameters)}}})).types_of("f", "x");
}

TEST(ArgumentTypes, DeepValuesOfAModelAreText) {
  const std::string deep = brackets(200'000);
  EXPECT_EQ(typed_value(deep, {}), '"' + deep + '"');
  JsonTypes types;
  types.array = true;
  EXPECT_EQ(typed_value(deep, types), '"' + deep + '"');
  EXPECT_EQ(typed_value(brackets(500), types), brackets(500));
}

TEST(ArgumentTypes, SchemasThatReferToThemselvesEndSoon) {
  const JsonTypes types = types_of(R"({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {
      "a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"},
                      {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"},
                      {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
      "b": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}, {"$ref": "#/$defs/b"}, {"type": "null"}]}}})");
  EXPECT_TRUE(types.integer && types.null);
  EXPECT_FALSE(types.string || types.object || types.array);
  // A chain of references is followed as far as it goes.
  std::string chain = R"({"properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": {)";
  for (int i = 0; i < 1000; ++i) chain += "\"" + std::to_string(i) + R"(": {"$ref": "#/$defs/)" + std::to_string(i + 1) + "\"}, ";
  EXPECT_TRUE(types_of((chain + R"("1000": {"type": "array"}}})").c_str()).array);
}

TEST(ArgumentTypes, LongPythonLiteralsTakeLinearTime) {
  std::string python = "{", json = "{";
  for (int i = 0; i < 20'000; ++i) {
    python += (i ? ", '" : "'") + std::to_string(i) + "': None";
    json += (i ? ", \"" : "\"") + std::to_string(i) + "\": null";
  }
  JsonTypes types;
  types.object = true;
  const std::clock_t start = std::clock();
  EXPECT_EQ(typed_value(python + "}", types), json + "}");
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 3.0);  // some 0.05 s here
}

TEST(ArgumentTypes, IntegersOfAnyLengthKeepTheirDigits) {
  const std::string digits = "12345678901234567890123";
  JsonTypes integer, text_or_integer, object;
  integer.integer = text_or_integer.string = text_or_integer.integer = object.object = true;
  for (const JsonTypes& types : {integer, text_or_integer, JsonTypes()}) EXPECT_EQ(typed_value(digits, types), digits);
  EXPECT_EQ(typed_value("1.5", text_or_integer), "\"1.5\"");
  EXPECT_EQ(typed_value("{\"id\": " + digits + "}", object), "{\"id\": " + digits + "}");
  EXPECT_EQ(typed_value("{'id': -" + digits + "}", object), "{\"id\": -" + digits + "}");
}

}  // namespace
}  // namespace calandra
