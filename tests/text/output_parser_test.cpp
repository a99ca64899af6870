// Expected values come from an independent reading of whole texts (tools/oracles/chat/make_output_cases.py), from docs/model.md
// 8.3, and from the property that no cut of the text changes what comes out.

#include "text/output_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "support/json.h"

namespace calandra {
namespace {

using Kind = OutputEvent::Kind;

const Json& stored() {
  static const Json data = read_json(CALANDRA_SOURCE_DIR "/tests/data/chat/output_cases.json");
  return data;
}

const OutputFormat kLing = {true, true, true, {"<|role_end|>", "<|endoftext|>"}};

ParsedOutput parse(std::string_view text, ReasoningStart start = ReasoningStart::Off) {
  return parse_output(text, kLing, start, stored()["tools"]);
}

/// All events of the pieces, with neighbours of one kind put together.
std::vector<OutputEvent> events_of(const std::vector<std::string_view>& pieces, ReasoningStart start,
                                   const OutputFormat& format = kLing) {
  OutputParser parser(format, start, stored()["tools"]);
  std::vector<OutputEvent> all;
  const auto add = [&](std::vector<OutputEvent> events) {
    for (OutputEvent& event : events) {
      if (!all.empty() && all.back().kind == event.kind && all.back().index == event.index) {
        all.back().text += event.text;
      } else {
        all.push_back(std::move(event));
      }
    }
  };
  for (const auto piece : pieces) add(parser.push(piece));
  add(parser.finish());
  return all;
}

ReasoningStart start_of(const Json& test) { return test["start"] == "open" ? ReasoningStart::Open : ReasoningStart::Off; }

TEST(OutputParser, WholeTextsMeanWhatAnIndependentReaderSays) {
  ASSERT_EQ(stored()["cases"].size(), 600u);
  for (const Json& test : stored()["cases"]) {
    const ParsedOutput output = parse(test["text"].get<std::string>(), start_of(test));
    SCOPED_TRACE(dump_json(test));
    EXPECT_EQ(output.reasoning, test["reasoning"]);
    EXPECT_EQ(output.content, test["content"]);
    EXPECT_EQ(output.has_incomplete_call, test["incomplete"]);
    ASSERT_EQ(output.tool_calls.size(), test["calls"].size());
    for (std::size_t i = 0; i < output.tool_calls.size(); ++i) {
      EXPECT_EQ(output.tool_calls[i].name, test["calls"][i]["name"]);
      EXPECT_EQ(json_of(output.tool_calls[i].arguments), test["calls"][i]["arguments"]) << output.tool_calls[i].arguments;
    }
  }
}

// Every cut into two, and pieces of every size from 1 to 20, of every sixth text.
TEST(OutputParser, EveryCutOfTheTextGivesTheSameEvents) {
  const Json& cases = stored()["cases"];
  for (std::size_t number = 0; number < cases.size(); number += 6) {
    const Json& test = cases[number];
    const std::string text = test["text"];
    const std::string_view view = text;
    const auto whole = events_of({view}, start_of(test));
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      ASSERT_EQ(events_of({view.substr(0, cut), view.substr(cut)}, start_of(test)), whole) << cut << " of " << dump_json(test);
    }
    for (std::size_t size = 1; size <= 20; ++size) {
      std::vector<std::string_view> pieces;
      for (std::size_t i = 0; i < text.size(); i += size) pieces.push_back(view.substr(i, size));
      ASSERT_EQ(events_of(pieces, start_of(test)), whole) << size << " of " << dump_json(test);
    }
  }
}

TEST(OutputParser, AnyMixOfMarkersCutAnywhereGivesTheSameEvents) {
  const std::vector<std::string> parts = {"<think>",
                                          "</think>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "<arg_key>",
                                          "</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "<role>",
                                          "</role>",
                                          "<role>HUMAN</role>",
                                          "<|role_end|>",
                                          "\n",
                                          "\"",
                                          "\\n",
                                          "get_weather",
                                          "location",
                                          "days",
                                          "é",
                                          "<",
                                          "12",
                                          " ",
                                          "\x85",
                                          "<tool_",
                                          "</arg"};
  EXPECT_TRUE(rc::check("any mix of markers, cut anywhere", [&] {
    std::string text;
    for (const int part : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, static_cast<int>(parts.size())))) {
      text += parts[static_cast<std::size_t>(part)];
    }
    const auto start = *rc::gen::element(ReasoningStart::Off, ReasoningStart::Open, ReasoningStart::ModelMayOpen);
    std::vector<std::string_view> pieces;
    for (std::string_view rest = text; !rest.empty();) {
      const auto size = std::min(rest.size(), static_cast<std::size_t>(*rc::gen::inRange(1, 9)));
      pieces.push_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    const auto events = events_of({text}, start);
    RC_ASSERT(events_of(pieces, start) == events);
    ParsedOutput output;
    output.add(events);
    for (const ToolCall& call : output.tool_calls) {
      if (text.find('\x85') == std::string::npos) RC_ASSERT(json_of(call.arguments).is_object());
    }
  }));
}

TEST(OutputParser, ToolCallEndsReasoningThatWasNeverClosed) {
  const auto output = parse("I need the weather.\n<tool_call>now</tool_call>", ReasoningStart::Open);
  EXPECT_EQ(output.reasoning, "I need the weather.");
  EXPECT_EQ(output.content, "");
  EXPECT_EQ(output.tool_calls, (std::vector<ToolCall>{{"now", "{}"}}));
}

TEST(OutputParser, ToolCallEndsReasoningAlsoWhereNoToolsAreDeclared) {
  for (const std::size_t size : {100u, 1u, 3u}) {
    const std::string text = "reason\n<tool_call>f</tool_call>tail";
    OutputParser without(kLing, ReasoningStart::Open, nullptr), with(kLing, ReasoningStart::Open, stored()["tools"]);
    ParsedOutput plain, called;
    for (std::size_t i = 0; i < text.size(); i += size) {
      plain.add(without.push(std::string_view(text).substr(i, size)));
      called.add(with.push(std::string_view(text).substr(i, size)));
    }
    plain.add(without.finish());
    called.add(with.finish());
    EXPECT_EQ(plain.reasoning, "reason");
    EXPECT_EQ(plain.content, "ftail");
    EXPECT_TRUE(plain.tool_calls.empty());
    EXPECT_EQ(called.reasoning, "reason");
    EXPECT_EQ(called.content, "") << "what follows a call is dropped";
    EXPECT_EQ(called.tool_calls, (std::vector<ToolCall>{{"f", "{}"}}));
  }
}

TEST(OutputParser, ArgumentsWithoutSeparatorsAreApart) {
  const auto output = parse(
      "<tool_call>get_weather<arg_key>location</arg_key><arg_value>Rome</arg_value>"
      "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>");
  EXPECT_EQ(output.tool_calls, (std::vector<ToolCall>{{"get_weather", R"({"location": "Rome", "days": 3})"}}));
}

TEST(OutputParser, ProtocolMarkersNeverReachTheClient) {
  const auto plain = [](std::string_view text) { return parse_output(text, kLing, ReasoningStart::Off, nullptr); };
  EXPECT_EQ(plain("Hello</role> there").content, "Hello there");
  EXPECT_EQ(plain("a<arg_value>b</arg_value>c").content, "abc");
  EXPECT_EQ(plain("bye<|role_end|>").content, "bye");
  EXPECT_EQ(plain("bye<role>HUMAN</role>and then").content, "bye");
  const auto undeclared = plain("<tool_call>drop_table<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>");
  EXPECT_TRUE(undeclared.tool_calls.empty()) << "no tools were declared";
  EXPECT_EQ(undeclared.content, "drop_tablex1");
}

TEST(OutputParser, RoleElementsOfTheTextsOwnMarkupStay) {
  EXPECT_EQ(parse("<user><role>admin</role></user>").content, "<user><role>admin</role></user>");
}

TEST(OutputParser, MarkersThatTheTemplateDoesNotKnowAreText) {
  const std::string text = "<think>a</think><tool_call>now</tool_call></role><|role_end|>";
  const auto output = parse_output(text, OutputFormat::of_template("{{ messages }}"), ReasoningStart::Open, stored()["tools"]);
  EXPECT_EQ(output.content, text);
  EXPECT_EQ(output.reasoning, "");
  EXPECT_TRUE(output.tool_calls.empty());
}

TEST(OutputParser, ReasoningMayBeOpenedByTheModel) {
  const auto opened = parse("\n<think>\nhm\n</think>\n\nYes", ReasoningStart::ModelMayOpen);
  EXPECT_EQ(opened.reasoning, "hm");
  EXPECT_EQ(opened.content, "Yes");
  EXPECT_EQ(parse(" <thin ice>", ReasoningStart::ModelMayOpen).content, " <thin ice>");
}

TEST(OutputParser, OneStrayThinkIsDroppedAndASecondIsText) {
  EXPECT_EQ(parse("<think>a</think>b", ReasoningStart::Open).reasoning, "a");
  EXPECT_EQ(parse("<think><think>a</think>b", ReasoningStart::Open).reasoning, "<think>a");
}

TEST(OutputParser, StringsArriveWhileTheyAreWritten) {
  OutputParser parser(kLing, ReasoningStart::Off, stored()["tools"]);
  std::string arguments;
  const auto push = [&](std::string_view text) {
    for (const OutputEvent& event : parser.push(text)) {
      if (event.kind == Kind::ToolArguments) arguments += event.text;
    }
    return arguments;
  };
  EXPECT_EQ(push("<tool_call>get_weather\n<arg_key>location</arg_key><arg_value>New"), R"({"location": "New)");
  EXPECT_EQ(push(" York</arg_"), R"({"location": "New York)");
  EXPECT_EQ(push("value>"), R"({"location": "New York")");
  EXPECT_EQ(push("</tool_call>"), R"({"location": "New York"})");
}

TEST(OutputParser, TruncatedCallIsReportedAsIncompleteAndNotAsACall) {
  for (const std::string text : {"<tool_call>", "<tool_call>get_wea", "<tool_call>now\n",
                                 "<tool_call>get_weather<arg_key>location</arg_key><arg_value>Ro"}) {
    const auto output = parse("<tool_call>now</tool_call>" + text);
    EXPECT_EQ(output.tool_calls.size(), 1u) << text;
    EXPECT_TRUE(output.has_incomplete_call) << text;
  }
}

TEST(OutputParser, BytesThatAreNoUtf8PassThrough) {
  const auto output = parse(
      "a\x85 b<tool_call>get_weather<arg_key>location</arg_key><arg_value>x\xE2\x9C</arg_value>"
      "<arg_key>tags</arg_key><arg_value>[\"\xE2\"]</arg_value></tool_call>");
  EXPECT_EQ(output.content, "a\x85 b");
  EXPECT_EQ(output.tool_calls.at(0).arguments, "{\"location\": \"x\xE2\x9C\", \"tags\": \"[\\\"\xE2\\\"]\"}");
}

TEST(OutputParser, RepeatedKeyIsSentOnce) {
  const auto output =
      parse("<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></tool_call>");
  EXPECT_EQ(output.tool_calls.at(0).arguments, R"({"a": 1})");
}

TEST(OutputParser, ANewlineBeforeACallIsItsSeparator) {
  EXPECT_EQ(parse("Let me check\n<tool_call>now</tool_call>").content, "Let me check");
  EXPECT_EQ(parse("Let me check\n\n<tool_call>now</tool_call>").content, "Let me check\n");
  EXPECT_EQ(parse("no call\n").content, "no call\n");
}

TEST(OutputParser, EndedTellsThatNothingMoreCanCome) {
  OutputParser parser(kLing, ReasoningStart::Off, nullptr);
  parser.push("bye");
  EXPECT_FALSE(parser.ended());
  parser.push("<|role_end|>");
  EXPECT_TRUE(parser.ended());
  EXPECT_TRUE(parser.push("more").empty());
  EXPECT_TRUE(parser.finish().empty());
}

TEST(OutputParser, MegabyteArgumentsTakeLinearTime) {
  for (const char* key : {"location", "tags"}) {  // streamed, and kept until complete
    std::string text = std::string("<tool_call>get_weather<arg_key>") + key + "</arg_key><arg_value>[";
    while (text.size() < (1u << 20)) text += "\"<\\n\", ";
    text += "1]</arg_value></tool_call>";
    const std::clock_t start = std::clock();
    OutputParser parser(kLing, ReasoningStart::Off, stored()["tools"]);
    ParsedOutput output;
    for (std::size_t i = 0; i < text.size(); i += 5) output.add(parser.push(std::string_view(text).substr(i, 5)));
    output.add(parser.finish());
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_EQ(output.tool_calls.size(), 1u);
    EXPECT_GT(output.tool_calls[0].arguments.size(), 1'000'000u);
    // Some 0.05 s here; quadratic behaviour would take minutes. The bound leaves room for sanitizers and other load.
    EXPECT_LT(seconds, 5.0) << key;
  }
}

}  // namespace
}  // namespace calandra
