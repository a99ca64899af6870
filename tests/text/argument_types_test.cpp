#include "text/argument_types.h"
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "support/json.h"

namespace calandra {
namespace {

using testing::StartsWith;

JsonTypes types_of(const char* parameters) {
  return ToolTypes(Json::array({{{"name", "f"}, {"parameters", json_of(parameters)}}})).types_of("f", "x");
}

TEST(ArgumentTypes, DeepToolsAreRefused) {
  EXPECT_THAT(error_of([] { ToolTypes types(nested_arrays(200'000)); }), StartsWith("tools: nested deeper"));
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

TEST(ArgumentTypes, ArgumentsThatShareLongSchemasEndSoon) {
  std::string schema = R"({"properties": {"first": {"$ref": "#/$defs/long"})", parts = R"({"type": "integer"})";
  for (int i = 0; i < 9'000; ++i) {
    schema += ", \"" + std::to_string(i) + R"(": {"$ref": "#/$defs/long"})";
    parts += ", {}";
  }
  schema += R"(}, "$defs": {"long": {"anyOf": [)" + parts + "]}}}";
  const Json tools = Json::array({{{"name", "f"}, {"parameters", parse_json(schema, "test")}}});
  const std::clock_t start = std::clock();
  const ToolTypes types(tools);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC,
            5.0);  // 0.2 s here; without a limit on all of them 10 s and more
  EXPECT_TRUE(types.types_of("f", "first").integer);
}

TEST(ArgumentTypes, LongPythonLiteralsTakeLinearTime) {
  std::string python = "{", json = "{";
  for (int i = 0; i < kMaxJsonKeys; ++i) {
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
