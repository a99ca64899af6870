// Calls of tools: what may be written is what its reader takes for arguments that fit, and what a template writes may be written.

#include "base/error.h"
#include "base/json.h"
#include "support/golden.h"
#include "text/argument_types.h"
#include "text/chat_template.h"
#include "text/grammar_cases.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>

namespace calandra {
namespace {

using testing::HasSubstr;

constexpr const char* kWeather =
    R"({"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties": {
    "city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit", "\"quoted\""]},
    "days": {"type": "integer", "minimum": 1, "maximum": 14}, "precise": {"type": "boolean"},
    "code": {"type": "string", "pattern": "^[<>/a-z_]{2,14}$"}, "note": {"type": ["string", "null"], "maxLength": 20},
    "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}, "required": ["lat", "lon"],
              "additionalProperties": false},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}}})";
constexpr const char* kOpen = R"({"type": "object", "properties": {"id": {"type": "string", "minLength": 2}},
    "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "maxProperties": 3})";

CallRules rules_of(std::vector<std::pair<std::string, std::string>> tools, bool several = true) {
  CallRules rules;
  rules.several = several;
  for (auto& [name, parameters] : tools) rules.tools.push_back({name, parameters, true, "tools of " + name});
  return rules;
}

std::shared_ptr<const Grammar> grammar_of(const CallRules& rules) { return Grammar::from_calls(rules, bundled_vocabulary()); }

/// In a vocabulary without tokens for marks.
std::shared_ptr<const Grammar> spelled_grammar_of(const CallRules& rules) {
  return Grammar::from_calls(rules, byte_vocabulary());
}

Json tools_of(const CallRules& rules) {
  Json tools = Json::array();
  for (const CallRules::Tool& tool : rules.tools) {
    tools.push_back({{"type", "function"},
                     {"function", {{"name", tool.name}, {"parameters", parse_json(tool.parameters.value_or("{}"), "test")}}}});
  }
  return tools;
}

const ChatTemplate& bundled_template() {
  static const ChatTemplate loaded = ChatTemplate::load(source_path("models/austen-5m").string());
  return loaded;
}

ParsedOutput read(std::string_view text, const CallRules& rules) {
  return parse_output(text, bundled_template().output_format(), ReasoningStart::Off, tools_of(rules));
}

/// Token by token, as a tokenizer writes it: marks are tokens of their own.
bool takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarState state(grammar);
  TokenMask mask;
  for (const std::int32_t id : bundled_tokenizer().encode(text)) {
    state.allowed(mask);
    const bool may = mask.test(id);
    EXPECT_EQ(state.accept(id), may) << text;
    if (!may) return false;
  }
  return state.can_end();
}

std::string call(std::string_view name, const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = fmt::format("<tool_call>{}\n", name);
  for (const auto& [key, value] : arguments)
    text += fmt::format("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", key, value);
  return text + "</tool_call>";
}

TEST(GrammarCalls, EveryCallIsReadAsArgumentsThatFit) {
  const CallRules rules = rules_of({{"get_weather", kWeather}, {"get", kOpen}, {"now", R"({"type": "object"})"}});
  const auto grammar = grammar_of(rules);
  std::vector<Json> lines;
  std::map<std::string, int> num_calls;
  for (unsigned seed = 0; seed < (long_tests() ? 2000u : 150u); ++seed) {
    const std::string text = walk(grammar, seed, static_cast<int>(7 * seed % 60));
    SCOPED_TRACE(text);
    const ParsedOutput output = read(text, rules);
    EXPECT_FALSE(output.has_incomplete_call);
    EXPECT_EQ(output.content, "");
    ASSERT_FALSE(output.tool_calls.empty());
    for (const ToolCall& made : output.tool_calls) {
      ++num_calls[made.name];
      ASSERT_THAT(made.name, testing::AnyOf("get_weather", "get", "now"));
      const char* const schema = made.name == "get_weather" ? kWeather : made.name == "get" ? kOpen : R"({"maxProperties": 0})";
      lines.push_back({parse_json(schema, "test"), made.arguments});
    }
    // The pieces of a stream are the whole.
    OutputParser parser(bundled_template().output_format(), ReasoningStart::Off, tools_of(rules));
    ParsedOutput streamed;
    for (const char byte : text) streamed.add(parser.push(std::string_view(&byte, 1)));
    streamed.add(parser.finish());
    EXPECT_EQ(streamed.tool_calls, output.tool_calls);
    if (HasFailure()) return;
  }
  EXPECT_EQ(complaints(lines), "done\n");
  EXPECT_EQ(num_calls.size(), 3u);
}

TEST(GrammarCalls, TakeWhatTheTemplateWrites) {
  const CallRules rules = rules_of({{"get_weather", kWeather}, {"get", kOpen}});
  const auto grammar = grammar_of(rules);
  const auto written = [&](const char* name, const char* arguments) {
    ChatRequest chat;
    chat.messages = {
        {{"role", "user"}, {"content", "?"}},
        {{"role", "assistant"},
         {"content", ""},
         {"tool_calls", {{{"type", "function"}, {"function", {{"name", name}, {"arguments", parse_json(arguments, "test")}}}}}}}};
    chat.add_generation_prompt = false;
    const std::string text = bundled_template().render(chat).text;
    const std::size_t begin = text.find("<tool_call>");
    return text.substr(begin, text.rfind("</tool_call>") + 12 - begin);
  };
  for (const char* const arguments :
       {R"({"city": "Paris", "days": 3})", R"({"days": 14, "city": "12"})", R"({"city": "", "days": 1})",
        R"({"city": "<b>\n{\"a\": 1}</b> </arg_ \"é\"", "days": 2, "precise": false})",
        R"({"city": "\"Paris\", she said", "days": 2, "unit": "celsius"})", R"({"city": "a", "days": 1, "note": null})",
        R"({"city": "a", "days": 1, "note": "true love, no?"})",
        R"({"where": {"lon": -1.5, "lat": 2e-7}, "tags": ["a", "</thin>"], "city": "b", "days": 7})"}) {
    const std::string text = written("get_weather", arguments);
    EXPECT_TRUE(takes(grammar, text)) << text;
    EXPECT_TRUE(accepts(spelled_grammar_of(rules), text)) << text;
    EXPECT_EQ(parse_json(read(text, rules).tool_calls.at(0).arguments, "test"), parse_json(arguments, "test"));
  }
  for (const char* const arguments :
       {R"({"city": "Paris"})", R"({"days": 3})", R"({"city": "Paris", "days": 15})", R"({"city": "Paris", "days": "x"})",
        R"({"city": "a", "days": 1, "unit": "kelvin"})", R"({"city": "a", "days": 1, "more": 1})",
        R"({"city": "a", "days": 1, "note": "123456789012345678901"})", R"({"city": "a", "days": 1, "precise": null})",
        R"({"city": "a", "days": 1, "where": {"lat": 1}})", R"({"city": "a", "days": 1, "tags": ["a", 1]})",
        R"({"city": "a", "days": 1, "tags": "a"})", R"({"city": "a", "days": 1, "code": "A"})"}) {
    EXPECT_FALSE(takes(grammar, written("get_weather", arguments))) << arguments;
    EXPECT_FALSE(accepts(spelled_grammar_of(rules), written("get_weather", arguments))) << arguments;
  }
  EXPECT_TRUE(takes(grammar, written("get", R"({"id": "ab", "size": 7, "name": "Anne"})")));
  EXPECT_TRUE(takes(grammar, written("get", "{}")));
  EXPECT_FALSE(takes(grammar, written("get", R"({"id": "a"})")));
  EXPECT_FALSE(takes(grammar, written("get", R"({"size": true})")));
  EXPECT_FALSE(takes(grammar, written("get", R"({"a": 1, "b": 2, "c": 3, "d": 4})")));
  EXPECT_FALSE(takes(grammar, written("other", "{}")));
}

/// Documents that ajv accepts may be an argument, those that it does not may not.
TEST(GrammarCalls, ValuesAreThoseThatAjvAccepts) {
  std::size_t num_accepted = 0, num_rejected = 0;
  for (const Json& of : grammar_cases().at("schemas")) {
    const Json& schema = of.at("schema");
    if (dump_json(schema).find("\"$ref\"") != std::string::npos) continue;  // would point elsewhere
    SCOPED_TRACE(of.at("name").get<std::string>());
    const CallRules rules = rules_of({{"f", dump_json(Json{{"properties", {{"x", schema}}}, {"required", {"x"}}})}});
    const auto grammar = grammar_of(rules);
    const JsonTypes types = ToolTypes(tools_of(rules)).types_of("f", "x");
    for (const bool is_valid : {true, false}) {
      for (const Json& text : of.at(is_valid ? "accepted" : "rejected")) {
        std::string value = text.get<std::string>();
        const std::optional<Json> json = try_parse_json(value);
        // As a string it might be another value, or any text would do.
        if (types.string || !types.any_but_string()) {
          if (!types.only_string() || !json || !json->is_string()) continue;
          value = json->get<std::string>();
          if (value.starts_with('"') || value.find("</arg_value>") != std::string::npos) continue;
        }
        EXPECT_EQ(takes(grammar, call("f", {{"x", value}})), is_valid) << value;
        ++(is_valid ? num_accepted : num_rejected);
      }
    }
  }
  EXPECT_GT(num_accepted, 100u);
  EXPECT_GT(num_rejected, 100u);
}

TEST(GrammarCalls, MasksAreWhatAcceptTakes) {
  const CallRules rules = rules_of({{"get_weather", kWeather}, {"get", kOpen}});
  const auto grammar = grammar_of(rules);
  for (const std::string& text :
       {call("get_weather",
             {{"city", "a</arg_v</arg_valu"}, {"note", "nullify"}, {"tags", R"(["<", "</arg_value"])"}, {"days", "12"}}),
        call("get", {{"size", "12"}, {"id", "\"xy\""}, {"id2", "text"}}) + "\n" + call("get", {})}) {
    GrammarState state(grammar);
    for (const std::int32_t id : bundled_tokenizer().encode(text)) {
      expect_exact_mask(state, *bundled_vocabulary());
      ASSERT_TRUE(state.accept(id)) << text;
    }
    EXPECT_TRUE(state.can_end());
    if (HasFailure()) return;
  }
}

TEST(GrammarCalls, AValueNeverHoldsItsMark) {
  const auto grammar =
      spelled_grammar_of(rules_of({{"f", R"({"type": "object", "properties": {"s": {"type": "string"}, "j": {"type": "array"},
      "e": {"enum": ["</arg_value>", "</arg_value>b"], "type": "string"}}})"}}));
  const auto begins = [&](const std::string& value) {
    GrammarState state(grammar);
    return state.accept_text("<tool_call>f\n<arg_key>" + value);
  };
  EXPECT_TRUE(begins("s</arg_key><arg_value>a </arg_value>"));
  EXPECT_FALSE(begins("s</arg_key><arg_value>a </arg_value>b"));
  EXPECT_TRUE(begins("s</arg_key><arg_value><<</arg_value </arg_value>"));
  EXPECT_TRUE(begins(R"(j</arg_key><arg_value>["</arg_value")"));
  EXPECT_FALSE(begins(R"(j</arg_key><arg_value>["</arg_value>)"));
  EXPECT_TRUE(begins(R"(j</arg_key><arg_value>["</arg_value\u003e<\/arg_value>"]</arg_value>)"));
  EXPECT_FALSE(begins(R"(j</arg_key><arg_value>[{"</arg_value>)"));
  // What cannot stand as it is stands in quotes.
  EXPECT_FALSE(begins("e</arg_key><arg_value></arg_value>"));
  EXPECT_TRUE(begins(R"(e</arg_key><arg_value>"<\/arg_value>"</arg_value>)"));
}

TEST(GrammarCalls, AreOneOrMoreAndThenTheEnd) {
  const std::string one = call("now", {});
  const CallRules rules = rules_of({{"now", R"({"type": "object"})"}}),
                  single = rules_of({{"now", R"({"type": "object"})"}}, false);
  EXPECT_TRUE(takes(grammar_of(rules), one));
  EXPECT_TRUE(takes(grammar_of(rules), one + one + "\n" + one));
  EXPECT_TRUE(takes(grammar_of(rules), "<tool_call>now</tool_call>"));
  EXPECT_FALSE(takes(grammar_of(rules), ""));
  EXPECT_FALSE(takes(grammar_of(rules), one + " " + one));
  EXPECT_FALSE(takes(grammar_of(rules), one + "\n\n" + one));
  EXPECT_TRUE(takes(grammar_of(single), one));
  EXPECT_FALSE(takes(grammar_of(single), one + one));
}

TEST(GrammarCalls, ArgumentsWithoutASchemaAreTheModelsOwn) {
  CallRules rules = rules_of({{"now", R"({"type": "object"})"}});
  rules.tools.push_back({"any", std::nullopt, true, "tools of any"});
  rules.tools.push_back({"loose", R"({"not": {}})", false, "tools of loose"});
  for (const char* const name : {"any", "loose"}) {
    EXPECT_TRUE(takes(grammar_of(rules), call(name, {{"x", "1"}, {"x", "}"}})));
    EXPECT_TRUE(takes(grammar_of(rules), fmt::format("<tool_call>{}\nno marks</tool_call>\n{}", name, call("now", {}))));
  }
  EXPECT_FALSE(takes(grammar_of(rules), call("now", {{"x", "1"}})));
}

TEST(GrammarCalls, ManyHostileToolsEndSoon) {
  for (const bool must_fit : {false, true}) {
    CallRules rules;
    for (int i = 0; i < 400; ++i) {
      const std::string pattern = fmt::format("(a|b)*a(a|b){{{}}}", 20 + i % 60);
      rules.tools.push_back({fmt::format("f{}", i),
                             fmt::format(R"({{"properties":{{"x":{{"type":"string","pattern":"{}"}}}}}})", pattern), must_fit,
                             "tools"});
    }
    const std::clock_t start = std::clock();
    const std::string error = error_of([&] { spelled_grammar_of(rules); });
    EXPECT_EQ(error.empty(), !must_fit) << error;
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20);  // seconds of a processor; sanitizers included
  }
}

TEST(GrammarCalls, ManyToolsAreNotTooMuch) {
  CallRules rules;
  for (int i = 0; i < 128; ++i) {
    std::string schema = kWeather;
    schema.replace(schema.find("14"), 2, std::to_string(14 + i));
    rules.tools.push_back({fmt::format("get_weather_{}", i), schema, i % 2 == 0, "tools"});
  }
  const auto grammar = grammar_of(rules);
  EXPECT_TRUE(takes(grammar, call("get_weather_7", {{"city", "a"}, {"days", "21"}})));
  EXPECT_FALSE(takes(grammar, call("get_weather_7", {{"city", "a"}, {"days", "22"}})));
}

/// `any</arg_value>`, `any <b` and the like are no tools.
TEST(GrammarCalls, ToolsWithoutASchemaAreCalledByTheirNames) {
  CallRules rules;
  for (const char* const name : {"any", "anything"}) rules.tools.push_back({name, std::nullopt, true, "tools"});
  const auto grammar = grammar_of(rules);
  for (const char* const after : {"\n</arg_value>", "<arg_key>a</arg_key><arg_value>1</arg_value>", ""})
    EXPECT_TRUE(takes(grammar, fmt::format("<tool_call>any{}</tool_call>", after))) << after;
  for (const char* const after : {"</arg_value>", "</arg_value>\n", "<b\n", "</arg_key>", "<arg_value>1</arg_value>"})
    EXPECT_FALSE(takes(grammar, fmt::format("<tool_call>any{}</tool_call>", after))) << after;
  for (unsigned seed = 0; seed < 50; ++seed) {
    const std::string text = walk(grammar, seed, static_cast<int>(7 * seed % 60));
    for (const ToolCall& made : read(text, rules).tool_calls) EXPECT_THAT(made.name, testing::AnyOf("any", "anything")) << text;
  }
}

TEST(GrammarCalls, ErrorsNameTheToolAndThePlace) {
  const auto error = [](const char* name, const char* parameters) {
    return error_of([&] { grammar_of(rules_of({{"ok", "{}"}, {name, parameters}})); });
  };
  EXPECT_THAT(error("f", R"({"properties": {"a": {"not": {}}}})"),
              HasSubstr("tools of f: #/properties/a: keyword 'not' is not supported"));
  EXPECT_THAT(error("f", R"({"type": "array"})"), HasSubstr("tools of f: #: no object fits this schema"));
  EXPECT_THAT(error("f", R"({"properties": {"a": false}, "required": ["a"]})"),
              HasSubstr("tools of f: #: no object fits this schema"));
  EXPECT_THAT(error("f", R"({"properties": {"a b": {}}})"), HasSubstr("'a b' cannot be written as the name of an argument"));
  EXPECT_THAT(error("a<b", "{}"), HasSubstr("tools of a<b: 'a<b' cannot be written as the name of a call"));
  EXPECT_THAT(error("ok", "{}"), HasSubstr("there are two tools 'ok'"));
}

TEST(GrammarCalls, MarksAreOfNoOtherGrammar) {
  GrammarState state(grammar_of_ebnf(R"(root ::= "<tool_call>" [a-z]*)", bundled_vocabulary()));
  TokenMask mask;
  state.allowed(mask);
  const std::int32_t id = bundled_tokenizer().id_of("<tool_call>").value();
  EXPECT_FALSE(mask.test(id));
  EXPECT_FALSE(state.accept(id));
  EXPECT_TRUE(state.accept_text("<tool_call>"));
}

}  // namespace
}  // namespace calandra
