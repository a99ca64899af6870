// Expected prompts are the strings of the model's specification (docs/model.md 8.2), and the bundled checkpoint's own template.

#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "support/golden.h"
#include "support/json.h"

namespace calandra {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kModel = CALANDRA_SOURCE_DIR "/models/austen-5m";

/// The two implementations of Ling's format.
std::vector<ChatTemplate> ling_templates() { return {ChatTemplate::built_in(), ChatTemplate::load(kModel)}; }

Json user(const char* text) { return {{"role", "user"}, {"content", text}}; }
Json system_message(const char* text) { return {{"role", "system"}, {"content", text}}; }
Json assistant(const char* text) { return {{"role", "assistant"}, {"content", text}}; }
Json tool_call(const char* name, const Json& arguments) {
  return {{"id", "call_0"}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

ChatRequest request(std::initializer_list<Json> messages, std::optional<bool> thinking = std::nullopt) {
  ChatRequest result;
  result.messages = Json(std::vector<Json>(messages));
  result.thinking = thinking;
  return result;
}

void expect_text(const ChatRequest& chat, const std::string& expected) {
  for (const ChatTemplate& format : ling_templates()) EXPECT_EQ(format.render(chat).text, expected) << format.where();
}

std::string request_error(const ChatRequest& chat) {
  return error_of([&] { ChatTemplate::built_in().render(chat); });
}

constexpr const char* kOnHeader = "<role>SYSTEM</role>detailed thinking on<|role_end|>";
constexpr const char* kOffHeader = "<role>SYSTEM</role>detailed thinking off<|role_end|>";
constexpr const char* kOnPrompt = "<role>ASSISTANT</role>\n<think>";

TEST(ChatTemplate, RendersTheStringsOfTheSpecification) {
  const std::string hello = "<role>HUMAN</role>Hello<|role_end|>";
  expect_text(request({user("Hello")}, true), kOnHeader + hello + kOnPrompt);
  expect_text(request({user("Hello")}), kOnHeader + hello + kOnPrompt);
  expect_text(request({user("Hello")}, false), kOffHeader + hello + kOnPrompt + "</think>");
  expect_text(request({system_message("You are helpful."), user("Hello")}, true),
              "<role>SYSTEM</role>You are helpful.\ndetailed thinking on<|role_end|>" + hello + kOnPrompt);
  expect_text(request({user("Hi"), assistant("Hello there"), user("How are you?")}, true),
              std::string(kOnHeader) +
                  "<role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>\n<think></think>Hello there<|role_end|>"
                  "<role>HUMAN</role>How are you?<|role_end|><role>ASSISTANT</role>\n<think>");
  ChatRequest history = request({assistant("<think>hmm</think>\nAnswer")});
  history.add_generation_prompt = false;
  expect_text(history, std::string(kOnHeader) + "<role>ASSISTANT</role>\n<think>hmm</think>Answer<|role_end|>");
}

TEST(ChatTemplate, GenerationPromptFollowsTheFlagAgainstTheSystemText) {
  const std::string header = "<role>SYSTEM</role>Be brief.\ndetailed thinking off<|role_end|><role>HUMAN</role>Hello<|role_end|>";
  const ChatRequest chat = request({system_message("Be brief.\ndetailed thinking off"), user("Hello")}, true);
  expect_text(chat, header + kOnPrompt);
  for (const ChatTemplate& format : ling_templates()) {
    EXPECT_EQ(format.render(chat).reasoning_start, ReasoningStart::Open);
    EXPECT_EQ(format.render(request({system_message("detailed thinking on"), user("Hello")}, false)).reasoning_start,
              ReasoningStart::Off);
  }
}

TEST(ChatTemplate, RendersCallsAndResultsOfTheSpecification) {
  Json calling = {{"role", "assistant"},
                  {"content", nullptr},
                  {"tool_calls", Json::array({tool_call("get_weather", {{"location", "Tokyo"}, {"unit", "celsius"}})})}};
  const Json result = {{"role", "tool"}, {"tool_call_id", "call_0"}, {"content", "{\"temperature\":22}"}};
  ChatRequest chat = request({calling, result}, false);
  chat.add_generation_prompt = false;
  expect_text(
      chat,
      std::string(kOffHeader) +
          "<role>ASSISTANT</role>\n<think></think><tool_call>get_weather<arg_key>location</arg_key>\n<arg_value>Tokyo</arg_value>"
          "<arg_key>unit</arg_key>\n<arg_value>celsius</arg_value>\n</tool_call><|role_end|><role>OBSERVATION</role>\n"
          "<tool_response>\n{\"temperature\":22}\n</tool_response><|role_end|>");
  calling["content"] = "Let me check";
  calling["tool_calls"] = Json::array({tool_call("get_weather", "{\"days\": 3}")});  // arguments as text
  chat.messages = Json::array({calling});
  expect_text(chat, std::string(kOffHeader) +
                        "<role>ASSISTANT</role>\n<think></think>Let me check\n<tool_call>get_weather<arg_key>days</arg_key>\n"
                        "<arg_value>3</arg_value>\n</tool_call><|role_end|>");
}

TEST(ChatTemplate, ToolsStandInTheHeaderAsJsonWithKeysInOrder) {
  ChatRequest chat = request({system_message("Help."), user("Hi")});
  chat.tools =
      json_of(R"([{"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": {"z": 1, "a": 1.0}}}])");
  for (const ChatTemplate& format : ling_templates()) {
    const std::string text = format.render(chat).text;
    EXPECT_THAT(
        text, StartsWith("<role>SYSTEM</role>Help.\n# Tools\n\nYou may call one or more functions to assist with the user query."
                         "\n\nYou are provided"));
    EXPECT_THAT(text, HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"é <b>\", "
                                "\"parameters\": {\"z\": 1, \"a\": 1.0}}}\n</tools>\n\nIf none"));
    EXPECT_THAT(text, HasSubstr("...\n</tool_call>\ndetailed thinking on<|role_end|><role>HUMAN</role>"));
  }
}

// The conversations stored with python3-jinja2's rendering of the bundled template.
TEST(ChatTemplate, BuiltInFormatIsPythonsRenderingOfTheShippedTemplate) {
  int compared = 0;
  for (const Json& test : read_json(CALANDRA_SOURCE_DIR "/tests/data/chat/jinja_cases.json")) {
    if (test["template"] != "@bundled") continue;
    EXPECT_EQ(render_ling(test["context"]), test["output"]) << dump_json(test["context"]);
    ++compared;
  }
  EXPECT_EQ(compared, 60);
}

TEST(ChatTemplate, BuiltInFormatEqualsTheShippedTemplate) {
  const ChatTemplate built_in = ChatTemplate::built_in(), shipped = ChatTemplate::load(kModel);
  const std::vector<std::string> pieces = {"", "a", "\n", "<think>", "</think>", " ", "detailed thinking off", "\"", "é"};
  EXPECT_TRUE(rc::check("built-in equals shipped", [&] {
    const auto text = [&] {
      std::string out;
      for (const auto& piece : *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(pieces))) out += piece;
      return out;
    };
    ChatRequest chat;
    const int size = *rc::gen::inRange(0, 6);
    for (int i = 0; i < size; ++i) {
      Json message = {{"role", *rc::gen::element<std::string>("system", "user", "assistant", "tool")}, {"content", text()}};
      if (*rc::gen::arbitrary<bool>()) message["reasoning_content"] = text();
      if (*rc::gen::arbitrary<bool>())
        message["tool_calls"] = {tool_call("f", {{"a", text()}, {"b", {1, 2.5, nullptr}}}), tool_call("g", Json::object())};
      chat.messages.push_back(message);
    }
    if (*rc::gen::arbitrary<bool>()) chat.tools = Json::array({{{"name", "f"}}});
    if (*rc::gen::arbitrary<bool>()) chat.thinking = *rc::gen::arbitrary<bool>();
    chat.add_generation_prompt = *rc::gen::arbitrary<bool>();
    RC_ASSERT(built_in.render(chat).text == shipped.render(chat).text);
  }));
}

TEST(ChatTemplate, BothNamesOfTheSwitchWorkAndUnknownKeysAreReported) {
  const auto only_enable = ChatTemplate::from_source("{{ 'on' if enable_thinking else 'off' }}", "t");
  const auto only_thinking = ChatTemplate::from_source("{{ 'on' if thinking else 'off' }}", "t");
  for (const char* key : {"enable_thinking", "thinking"}) {
    for (const bool value : {true, false}) {
      ChatRequest chat = request({user("x")});
      chat.template_kwargs = {{key, value}, {"thinkign", true}};
      for (const ChatTemplate& format : {only_enable, only_thinking}) {
        const ChatPrompt prompt = format.render(chat);
        EXPECT_EQ(prompt.text, value ? "on" : "off") << key;
        EXPECT_THAT(prompt.unused_kwargs, ElementsAre("thinkign"));
      }
      for (const ChatTemplate& format : ling_templates()) {
        const ChatPrompt prompt = format.render(chat);
        EXPECT_EQ(prompt.reasoning_start, value ? ReasoningStart::Open : ReasoningStart::Off) << key;
        EXPECT_THAT(prompt.unused_kwargs, ElementsAre("thinkign"));
      }
    }
  }
  ChatRequest chat = request({user("x")});
  chat.template_kwargs = {{"thinking", false}};
  EXPECT_THAT(ChatTemplate::from_source("{{ messages }}", "t").render(chat).unused_kwargs, ElementsAre("thinking"));
}

TEST(ChatTemplate, ContinuesTheLastMessage) {
  ChatRequest chat = request({user("Hi"), assistant("Once upon ")}, true);
  chat.continue_last_message = true;
  const std::string before = std::string(kOnHeader) + "<role>HUMAN</role>Hi<|role_end|>";
  expect_text(chat, before + "<role>ASSISTANT</role>\n<think></think>Once upon ");
  chat.messages.back() = {{"role", "assistant"}, {"content", ""}, {"reasoning_content", "Let me see"}};
  expect_text(chat, before + "<role>ASSISTANT</role>\n<think>Let me see");
  for (const ChatTemplate& format : ling_templates()) EXPECT_EQ(format.render(chat).reasoning_start, ReasoningStart::Open);
  chat.messages.back() = assistant("");
  expect_text(chat, before + kOnPrompt);
  chat.messages = Json::array({user("Hi")});
  EXPECT_THAT(request_error(chat), HasSubstr("the last one must be the assistant's"));
}

TEST(ChatTemplate, ContentPartsAreJoinedAndOtherPartsRefused) {
  ChatRequest chat =
      request({{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}});
  expect_text(chat, std::string(kOnHeader) + "<role>HUMAN</role>a\nb<|role_end|>" + kOnPrompt);
  chat.messages[0]["content"][1] = {{"type", "image_url"}, {"image_url", "x"}};
  EXPECT_THAT(request_error(chat), HasSubstr("messages[0].content[1]: found \"image_url\""));
}

TEST(ChatTemplate, BadRequestsAreNamed) {
  ChatRequest chat;
  chat.messages = Json::object();
  EXPECT_THAT(request_error(chat), HasSubstr("messages: expected an array"));
  EXPECT_THAT(request_error(request({1})), HasSubstr("messages[0]: expected an object"));
  EXPECT_THAT(request_error(request({{{"content", "x"}}})), HasSubstr("messages[0].role"));
  EXPECT_THAT(request_error(request({{{"role", "user"}, {"content", 5}}})), HasSubstr("messages[0].content"));
  EXPECT_THAT(request_error(request({{{"role", "assistant"}, {"tool_calls", Json::array({tool_call("f", "{broken")})}}})),
              HasSubstr("messages[0].tool_calls[0].arguments: not JSON: line 1"));
  EXPECT_THAT(request_error(request({{{"role", "assistant"}, {"tool_calls", Json::array({tool_call("f", "[1]")})}}})),
              HasSubstr("messages[0].tool_calls[0].arguments: expected a JSON object"));
  chat = request({user("x")});
  chat.tools = Json::array({1});
  EXPECT_THAT(request_error(chat), HasSubstr("tools[0]"));
}

// As apply_chat_template of Hugging Face calls a template.
TEST(ChatTemplate, ToolsAndDocumentsAreNoneWhereThereAreNoneAndAbsentContentStaysAbsent) {
  const auto format = ChatTemplate::from_source(
      "{{ tools is defined }} {{ tools is none }} {{ documents is none }} {% for m in messages %}{{ m.content is defined }}"
      "{{ m.content is none }} {% endfor %}",
      "t");
  ChatRequest chat = request({user("x"), {{"role", "assistant"}}, {{"role", "assistant"}, {"content", nullptr}}});
  EXPECT_EQ(format.render(chat).text, "True True True TrueFalse FalseFalse TrueTrue ");
  chat.tools = Json::array();
  EXPECT_EQ(format.render(chat).text.substr(0, 9), "True True");
  chat.tools = Json::array({{{"name", "f"}}});
  chat.template_kwargs = {{"documents", Json::array()}};
  EXPECT_EQ(format.render(chat).text.substr(0, 16), "True False False");
}

TEST(ChatTemplate, LargeIntegersOfASchemaAreShownAsTheyWereWritten) {
  ChatRequest chat = request({user("Hi")});
  chat.tools = json_of(R"([{"function": {"name": "f", "parameters": {"maximum": 18446744073709551615, "minimum": -5}}}])");
  for (const ChatTemplate& format : ling_templates())
    EXPECT_THAT(format.render(chat).text, HasSubstr(R"({"maximum": 18446744073709551615, "minimum": -5})"));
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("calandra_chat_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(ChatTemplate, IsFoundWhereverACheckpointKeepsIt) {
  const Folder folder;
  ChatRequest chat = request({user("x")});
  EXPECT_EQ(ChatTemplate::load(folder.path()).where(), "built-in");
  folder.write("tokenizer_config.json",
               R"({"eos_token": {"content": "<e>"}, "bos_token": "<s>", "chat_template": "{{ bos_token }}{{ eos_token }}"})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat).text, "<s><e>");
  EXPECT_THAT(ChatTemplate::load(folder.path()).output_format().end_markers, ElementsAre("<e>"));
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "none"}]})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat).text, "none");
  chat.tools = Json::array({{{"name", "f"}}});
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat).text, "tools");
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat).text, "file");
  folder.write("chat_template.jinja", "{{ x | nope }}");
  EXPECT_THROW(ChatTemplate::load(folder.path()), Error);
}

TEST(ChatTemplate, OutputFormatComesFromTheTemplate) {
  const OutputFormat plain = ChatTemplate::from_source("{{ messages }}", "t").output_format();
  EXPECT_FALSE(plain.reasoning || plain.tool_calls || plain.roles);
  EXPECT_TRUE(ChatTemplate::from_source("{{ '<think>' }}", "t").output_format().reasoning);
  for (const ChatTemplate& format : ling_templates()) {
    EXPECT_TRUE(format.output_format().reasoning && format.output_format().tool_calls && format.output_format().roles);
    EXPECT_THAT(format.output_format().end_markers, testing::Contains("<|role_end|>"));
  }
}

// What a model answers goes back into its next prompt as it was.
TEST(ChatTemplate, ParsedAnswersRenderToTheSameText) {
  const ChatTemplate format = ChatTemplate::load(kModel);
  const Json tools =
      json_of(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}}])");
  for (const std::string answer :
       {"hm</think>Yes", "hm</think>Let me check\n<tool_call>f<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "hm</think><tool_call>f<arg_key>n</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>"}) {
    ChatRequest chat = request({user("x")}, true);
    chat.tools = tools;
    const ChatPrompt prompt = format.render(chat);
    const ParsedOutput output = parse_output(answer, format.output_format(), prompt.reasoning_start, tools);
    Json message = {{"role", "assistant"}, {"content", output.content}, {"reasoning_content", output.reasoning}};
    for (const ToolCall& call : output.tool_calls) message["tool_calls"].push_back(tool_call(call.name.c_str(), call.arguments));
    chat.messages.push_back(message);
    chat.add_generation_prompt = false;
    EXPECT_EQ(format.render(chat).text, prompt.text + answer + "<|role_end|>");
  }
}

TEST(ChatTemplate, DeepRequestsAreRefused) {
  for (const ChatTemplate& format : {ChatTemplate::built_in(), ChatTemplate::from_source("{{ messages }}{{ x }}", "t")}) {
    const auto render = [&](const ChatRequest& request) { return error_of([&] { format.render(request); }); };
    ChatRequest deep_messages, deep_tools, deep_kwargs, deep_text, deep_arguments;
    deep_messages.messages = nested_arrays(200'000);
    deep_tools.tools = nested_arrays(200'000);
    deep_kwargs.template_kwargs["x"] = nested_arrays(200'000);
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
}

}  // namespace
}  // namespace calandra
