// JSON Schema: which documents a grammar takes, against verdicts of validators that were stored (tools/oracles/grammar).

#include "base/error.h"
#include "base/json.h"
#include "support/golden.h"
#include "text/grammar_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <map>
#include <regex>

namespace calandra {
namespace {

using testing::HasSubstr;

std::string schema_error(std::string_view schema) {
  return error_of([&] { grammar_of_schema(schema); });
}

/// As Python's json.dumps writes it: spaces after commas and colons.
std::string spaced(const Json& json) {
  if (json.is_primitive()) return dump_json(json);
  std::string text = json.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) text += ", ";
    first = false;
    if (json.is_object()) text += dump_json(Json(key)) + ": ";
    text += spaced(value);
  }
  return text + (json.is_object() ? "}" : "]");
}

TEST(GrammarSchema, TakesWhatAjvAcceptsAndNothingElse) {
  std::size_t num_accepted = 0;
  for (const Json& of : grammar_cases().at("schemas")) {
    SCOPED_TRACE(of.at("name").get<std::string>());
    const auto grammar = grammar_of_schema(dump_json(of.at("schema")));
    for (const Json& text : of.at("accepted")) {
      EXPECT_TRUE(accepts(grammar, text.get<std::string>())) << text;
      ++num_accepted;
    }
    for (const Json& text : of.at("rejected")) EXPECT_FALSE(accepts(grammar, text.get<std::string>())) << text;
  }
  EXPECT_GT(num_accepted, 500u);
}

TEST(GrammarSchema, TakesWhatSerialisersWrite) {
  for (const Json& of : grammar_cases().at("schemas")) {
    SCOPED_TRACE(of.at("name").get<std::string>());
    const auto grammar = grammar_of_schema(dump_json(of.at("schema")));
    for (const Json& text : of.at("accepted")) {
      const Json document = parse_json(text.get<std::string>(), "test");
      for (const std::string& form : {dump_json(document), dump_json(document, 2), dump_json(document, 4), document.dump(1, '\t'),
                                      document.dump(-1, ' ', true), document.dump(2, ' ', true), spaced(document)}) {
        EXPECT_TRUE(accepts(grammar, form)) << form;
      }
    }
  }
}

TEST(GrammarSchema, ChecksTheFormatsAsAjvDoes) {
  for (const Json& of : grammar_cases().at("formats")) {
    SCOPED_TRACE(dump_json(of.at("format")));
    const auto grammar = grammar_of_schema(dump_json(Json({{"type", "string"}, {"format", of.at("format")}})));
    for (const Json& text : of.at("accepted")) EXPECT_TRUE(accepts(grammar, dump_json(text))) << text;
    for (const Json& text : of.at("rejected")) EXPECT_FALSE(accepts(grammar, dump_json(text))) << text;
  }
}

TEST(GrammarSchema, AgreesWithTheTestSuiteOrRefuses) {
  // Not as the suite has it, each said in docs/grammar.md: oneOf is anyOf, 1.0 is no integer, keywords beside $ref count.
  const auto is_known = [](const Json& group, const Json& test) {
    static const std::regex whole("-?[0-9]+\\.0");
    if (group.at("description") == "ref overrides any sibling keywords") return true;
    return (group.at("file") == "oneOf" && !test.at("valid").get<bool>()) ||
           (test.at("valid").get<bool>() && std::regex_search(dump_json(test.at("data")), whole));
  };
  std::map<std::string, int> compiled, refused;
  for (const Json& group : read_json(grammar_data() / "suite.json")) {
    const std::string file = group.at("file");
    SCOPED_TRACE(file + ": " + group.at("description").get<std::string>());
    std::shared_ptr<const Grammar> grammar;
    const std::string error = error_of([&] { grammar = grammar_of_schema(dump_json(group.at("schema"))); });
    if (error.find("no value fits") != std::string::npos) {
      for (const Json& test : group.at("tests")) EXPECT_FALSE(test.at("valid").get<bool>());
      ++compiled[file];
      continue;
    }
    if (grammar == nullptr) {
      EXPECT_THAT(error, HasSubstr("#"));
      ++refused[file];
      continue;
    }
    ++compiled[file];
    for (const Json& test : group.at("tests")) {
      if (is_known(group, test)) continue;
      EXPECT_EQ(accepts(grammar, dump_json(test.at("data"))), test.at("valid").get<bool>())
          << test.at("description") << ": " << dump_json(test.at("data")) << " " << dump_json(group.at("schema"));
    }
  }
  for (const char* const file : {"additionalItems",
                                 "additionalProperties",
                                 "allOf",
                                 "anyOf",
                                 "boolean_schema",
                                 "const",
                                 "default",
                                 "enum",
                                 "exclusiveMaximum",
                                 "exclusiveMinimum",
                                 "items",
                                 "maxItems",
                                 "maxLength",
                                 "maxProperties",
                                 "maximum",
                                 "minItems",
                                 "minLength",
                                 "minProperties",
                                 "minimum",
                                 "oneOf",
                                 "pattern",
                                 "properties",
                                 "required",
                                 "type"}) {
    EXPECT_GT(compiled[file], 0) << file;
  }
  for (const char* const file : {"contains", "dependencies", "if-then-else", "not", "patternProperties", "propertyNames"}) {
    EXPECT_EQ(compiled[file], 0) << file;
    EXPECT_GT(refused[file], 0) << file;
  }
  int num_refused = 0;
  for (const auto& [file, count] : refused) {
    num_refused += count;
    if (long_tests()) std::printf("refused in %s: %d\n", file.c_str(), count);
  }
  EXPECT_LE(num_refused, 60);
}

/// What JSON.stringify of JavaScript, json.dumps of Python and nlohmann's dump() write for them.
TEST(GrammarSchema, LiteralNumbersAreWrittenAsSerialisersDo) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {"1e-5", {"0.00001", "1e-05"}},
      {"1.25e-6", {"0.00000125", "1.25e-06"}},
      {"-1e-7", {"-1e-7", "-1e-07"}},
      {"0.0001", {"0.0001"}},
      {"2.0", {"2", "2.0"}},
      {"-1.5e16", {"-15000000000000000", "-1.5e+16"}},
      {"1.2345678901234567e20", {"123456789012345670000", "1.2345678901234567e+20"}},
      {"1e21", {"1e+21"}},
  };
  for (const auto& [number, texts] : cases) {
    const auto grammar = grammar_of_schema(R"({"const": )" + std::string(number) + "}");
    for (const char* const text : texts) EXPECT_TRUE(accepts(grammar, text)) << text;
    EXPECT_FALSE(accepts(grammar, "1e-6"));
  }
}

TEST(GrammarSchema, ObjectsAreOneWhateverTheOrderOfTheirKeys) {
  const auto grammar = grammar_of_schema(
      R"({"allOf": [{"enum": [[{"a": 1, "b": 2}], [{"a": 1}], [{"a": 1, "c": 2}]]}, {"const": [{"b": 2, "a": 1}]}]})");
  EXPECT_TRUE(accepts(grammar, R"([{"a":1,"b":2}])"));
  EXPECT_TRUE(accepts(grammar, R"([{"b":2,"a":1}])"));
  EXPECT_FALSE(accepts(grammar, R"([{"a":1}])"));
  EXPECT_FALSE(accepts(grammar, R"([{"a":1,"c":2}])"));
}

TEST(GrammarSchema, TakesPropertiesInAnyOrderAndOnce) {
  const auto grammar =
      grammar_of_schema(R"({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "type": "object"})");
  EXPECT_TRUE(accepts(grammar, R"({"a":1,"b":2})"));
  EXPECT_TRUE(accepts(grammar, R"({"b":2,"a":1})"));
  EXPECT_TRUE(accepts(grammar, R"({"b":2,"c":[{"a":1},{"a":2}],"a":1})"));
  for (const char* const repeated :
       {R"({"a":1,"a":1})", R"({"c":1,"c":2})", R"({"c":1,"\u0063":2})", R"({"\u0061":1,"a":2})", R"({"é":1,"\u00e9":1})",
        R"({"":1,"":1})", R"({"😀":1,"\ud83d\ude00":1})", R"({"x":{"a":1},"a":1,"x":1})"}) {
    EXPECT_FALSE(accepts(grammar, repeated)) << repeated;
  }
  EXPECT_FALSE(accepts(grammar, R"({"\u0061":"not an integer"})"));
}

TEST(GrammarSchema, StringsAreUtf8OrEscapes) {
  const auto grammar = grammar_of_schema(R"({"type": "string", "maxLength": 2})");
  for (const char* const text : {R"("é")", R"("\u00e9")", R"("\u00E9\n")", R"("😀😀")", R"("\ud83d\ude00\uD83D\uDE00")",
                                 R"("\/\"")", "\"\x7F\"", R"("\u0000")"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* const text :
       {"\"\n\"", "\"\x1F\"", R"("\x41")", R"("\u12")", R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", R"("\ud83d\u0041")",
        "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\x80\"", "\"\xE2\x82\"", R"("abc")", R"("😀\u00e9a")"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(GrammarSchema, BlanksAreThoseOfSerialisersAndBounded) {
  const auto grammar = Grammar::any_json_object(byte_vocabulary());
  EXPECT_TRUE(accepts(grammar, "{\n\t\"a\": [\r\n  1,\n  2\n  ]\n}"));
  for (const std::string& text :
       {std::string(" {}"), std::string("{} "), std::string("{  }"), std::string("{\n\n}"), "{\n" + std::string(65, ' ') + "}",
        std::string("{\"a\" :1}"), std::string("{\"a\":1 ,\"b\":1}"), std::string("{\r}")}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
  EXPECT_TRUE(accepts(grammar, "{\n" + std::string(64, ' ') + "}"));
}

TEST(GrammarSchema, RefusesByPointerAndKeyword) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type": "object", "properties": {"a/b": {"not": {}}}})", "schema: #/properties/a~1b: keyword 'not' is not supported"},
      {R"({"items": {"type": "array", "contains": {}}})", "schema: #/items: keyword 'contains' is not supported"},
      {R"({"uniqueItems": true})", "schema: #: keyword 'uniqueItems' is not supported"},
      {R"({"$defs": {"x": {"if": {}}}, "$ref": "#/$defs/x"})", "schema: #/$defs/x: keyword 'if' is not supported"},
      {R"({"type": "string", "format": "iri"})", "schema: #/format: found 'iri', expected one of date"},
      {R"({"type": "strin"})", "schema: #: keyword 'type' found \"strin\", which is no type"},
      {R"({"minLength": -1})", "schema: #: keyword 'minLength' expected a whole number"},
      {R"({"multipleOf": 0.01})", "schema: #: keyword 'multipleOf' is supported for integers from 1"},
      {R"({"$ref": "http://example.com/a.json"})",
       "schema: #: keyword '$ref' found 'http://example.com/a.json', expected a place"},
      {R"({"$ref": "#/$defs/x"})", "schema: #: keyword '$ref' there is no #/$defs/x"},
      {R"({"$ref": "#"})", "schema: #: refers to itself without a member between"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "schema: #: refers to itself without a member between"},
      {R"({"pattern": "(?=a)b"})", "schema: #/pattern: pattern at character 2: (? is not supported"},
      {R"({"pattern": "a\\b"})", "schema: #/pattern: pattern at character 4: \\b is not supported"},
      {R"({"pattern": "(a)\\1"})", "schema: #/pattern: pattern at character 6: \\1 is not supported"},
      {R"({"properties": {"a": 3}})", "schema: #/properties/a: found number, expected a schema"},
      {R"([1])", "schema: #: found array, expected a schema"},
      {R"({"a)", "schema: not JSON"},
      {R"({"frobnicate": 1})", "schema: #: keyword 'frobnicate' is not supported"},
      {R"(false)", "schema: #: no value fits this schema"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "schema: #: no value fits this schema"},
      {R"({"type": "integer", "minimum": 3.5, "maximum": 3.9})", "schema: #: no value fits this schema"},
      {R"({"type": "string", "pattern": "^a{3}$", "maxLength": 2})", "schema: #: no value fits this schema"},
      {R"({"type": "array", "items": false, "minItems": 1})", "schema: #: no value fits this schema"},
      {R"({"enum": ["ab", 7], "type": "string", "maxLength": 1})", "schema: #: no value fits this schema"},
  };
  for (const auto& [schema, error] : cases) EXPECT_THAT(schema_error(schema), HasSubstr(error)) << schema;
}

TEST(GrammarSchema, AnnotationsChangeNothing) {
  const auto grammar = grammar_of_schema(
      R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "x", "$comment": "c", "title": "t", "description": "d",
      "default": 1, "examples": [2], "deprecated": true, "readOnly": true, "writeOnly": false, "x-order": 1, "type": "null"})");
  EXPECT_TRUE(accepts(grammar, "null"));
  EXPECT_FALSE(accepts(grammar, "1"));
}

TEST(GrammarSchema, HostileSchemasEndSoon) {
  const auto repeat = [](const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  std::vector<std::string> schemas = {
      repeat(R"({"items":)", 400) + "true" + repeat("}", 400),
      repeat(R"({"items":)", 100'000) + "true" + repeat("}", 100'000),
      R"({"type": "string", "pattern": "^(((a{1,99}){1,99}){1,99}){1,99}$"})",
      R"({"type": "string", "pattern": "a.{500}b", "maxLength": 2000})",
      R"({"type": "string", "pattern": "(a|b)*a(a|b){30}"})",
      R"({"type": "string", "pattern": ")" + repeat("(", 500) + R"("})",
      R"({"type": "string", "pattern": ")" + repeat("(a?)", 3000) + R"("})",
      R"({"type": "array", "minItems": 4000000000})",
      R"({"type": "number", "minimum": 1e-300, "maximum": 1e300})",
      R"({"type": "number", "minimum": -1e308, "maximum": 1e-308, "multipleOf": 997})",
  };
  // Products of alternatives, chains and webs of references.
  const std::string two = R"({"anyOf":[{"properties":{"a":{"maximum":1}}},{"properties":{"a":{"minimum":2}}}]})";
  schemas.push_back(R"({"allOf":[)" + repeat(two + ",", 40) + two + "]}");
  std::string chain = R"({"$ref":"#/$defs/0","$defs":{)", web = chain, same = R"({"allOf":[true)";
  for (int i = 0; i < 3000; ++i) {
    const std::string next = "\"#/$defs/" + std::to_string(i + 1) + "\"";
    chain += "\"" + std::to_string(i) + R"(":{"$ref":)" + next + "},";
    web += "\"" + std::to_string(i) + R"(":{"allOf":[{"$ref":)" + next + R"(},{"$ref":)" + next + "}]},";
    same += R"(,{"type":"object","properties":{"p)" + std::to_string(i) + R"(":{"$ref":"#"}}})";
  }
  schemas.push_back(chain + R"("3000":{}}})");
  schemas.push_back(web + R"("3000":{}}})");
  schemas.push_back(same + "]}");
  std::string wide = R"({"type":"object","properties":{)", literals = R"({"enum":[0)";
  for (int i = 0; i < 20'000; ++i) {
    wide += (i > 0 ? ",\"" : "\"") + std::to_string(i * 7919) + R"(":{"minimum":)" + std::to_string(i) + "}";
    literals += ",\"" + std::to_string(i * 7919) + "\"";
  }
  schemas.push_back(wide + "}}");
  // Much for few bytes: sets of characters, and whatever has a name or a pattern in each of its copies.
  schemas.push_back(R"({"pattern":")" + repeat(R"(\\p{L})", 150'000) + R"("})");
  schemas.push_back(R"({"pattern":"[)" + repeat(R"(\\p{L})", 150'000) + R"(]"})");
  const std::string name = repeat("n", 400'000), thousands = R"([true)" + repeat(",true", 100'000) + "]";
  schemas.push_back(R"({"properties":{")" + name + R"(":{"allOf":)" + thousands + "}}}");
  schemas.push_back(R"({"pattern":")" + name + R"(","anyOf":[true)" + repeat(",true", 1'999) + "]}");
  schemas.push_back(R"({"required":[")" + name + R"("],"anyOf":[true)" + repeat(",true", 1'999) + "]}");
  schemas.push_back(literals + "]}");
  for (const std::string& schema : schemas) {
    const std::clock_t start = std::clock();
    const std::string error = error_of([&] { grammar_of_schema(schema); });
    const double taken = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(taken, 20) << schema.substr(0, 100) << " " << error;  // seconds of a processor; sanitizers included
    EXPECT_LT(error.size(), 1000u);
    if (long_tests()) {
      std::printf("%6.3f s  %.60s  %.100s\n", taken, schema.c_str(), error.c_str());
    }
  }
}

}  // namespace
}  // namespace calandra
