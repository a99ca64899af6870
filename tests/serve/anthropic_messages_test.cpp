// /v1/messages as Anthropic's documentation and SDKs have it. What a stream says is put together by a client that takes
// nothing out of order.

#include "serve/anthropic_messages.h"
#include "base/json.h"
#include "serve/scripted_answers.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace calandra::anthropic_test {
namespace {

using testing::HasSubstr;

constexpr std::string_view kPath = "/v1/messages";

/// The message that a stream of events tells of.
Json message_of(const std::vector<ServerEvent>& events) {
  Json message;
  std::string open, partial_json;
  bool is_over = false;
  for (const auto& [name, data] : events) {
    EXPECT_EQ(data.at("type"), name);
    EXPECT_FALSE(is_over) << name;
    if (name == "message_start") {
      EXPECT_TRUE(message.is_null());
      message = data.at("message");
      continue;
    }
    if (!message.is_object()) {
      ADD_FAILURE() << name << " before message_start";
      return message;
    }
    if (name == "content_block_start") {
      EXPECT_EQ(open, "");
      EXPECT_EQ(data.at("index"), message["content"].size());
      message["content"].push_back(data.at("content_block"));
      open = data["content_block"].at("type");
      partial_json.clear();
    } else if (name == "content_block_delta") {
      EXPECT_EQ(data.at("index"), message["content"].size() - 1);
      Json& block = message["content"].back();
      const Json& delta = data.at("delta");
      const std::string type = delta.at("type");
      if (type == "text_delta" && open == "text") {
        block["text"] = block["text"].get<std::string>() + delta.at("text").get<std::string>();
      } else if (type == "thinking_delta" && open == "thinking") {
        block["thinking"] = block["thinking"].get<std::string>() + delta.at("thinking").get<std::string>();
      } else if (type == "signature_delta" && open == "thinking") {
        block["signature"] = delta.at("signature");
      } else if (type == "input_json_delta" && open == "tool_use") {
        partial_json += delta.at("partial_json");
      } else {
        ADD_FAILURE() << type << " in a block of type " << open;
      }
    } else if (name == "content_block_stop") {
      EXPECT_EQ(data.at("index"), message["content"].size() - 1);
      EXPECT_NE(open, "");
      if (open == "tool_use" && is_json(partial_json)) message["content"].back()["input"] = parse_json(partial_json, "test");
      open.clear();
    } else if (name == "message_delta") {
      EXPECT_EQ(open, "");
      message.update(data.at("delta"));
      message["usage"].update(data.at("usage"));
    } else if (name == "message_stop") {
      EXPECT_TRUE(message["stop_reason"].is_string());
      is_over = true;
    } else {
      ADD_FAILURE() << "unknown event " << name;
    }
  }
  EXPECT_TRUE(is_over);
  return message;
}

const Json kWeatherTool = {{"name", "get_weather"},
                           {"description", "Get the current weather in a given location"},
                           {"input_schema",
                            {{"type", "object"},
                             {"properties", {{"location", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}},
                             {"required", {"location"}}}}};

Json hello() {
  return {{"model", "austen-5m"},
          {"max_tokens", 1024},
          {"messages", Json::array({{{"role", "user"}, {"content", "What is the weather like in San Francisco?"}}})}};
}

Json with(Json body, const char* key, Json value) {
  body[key] = std::move(value);
  return body;
}

/// Thinks, talks and calls, with typed arguments.
Json agent() {
  Json body = with(hello(), "tools", Json::array({kWeatherTool}));
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1000}};
  return body;
}

constexpr std::string_view kAgentOutput =
    "I should look.\nThen say so \xF0\x9F\x8C\xA4.</think>Let me check.\n<tool_call>get_weather\n</tool_call><tool_call>get_weather\n"
    "<arg_key>location</arg_key><arg_value>San \"Francisco\", CA</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>\n"
    "</tool_call>";

TEST(AnthropicMessages, AWholeReplyHasTheDocumentedShape) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {std::string(kAgentOutput)}, .cached_tokens = 5, .kept_tokens = 40, .marked_tokens = 12};
  const ApiReply reply = bench.ask(agent(), kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto prompt_tokens = static_cast<std::int64_t>(bench.answers.requests.back().prompt.size());
  const Json expected = {
      {"id", "msg_0a1b2c3d-7"},
      {"type", "message"},
      {"role", "assistant"},
      {"model", "austen-5m"},
      {"content",
       {{{"type", "thinking"}, {"thinking", "I should look.\nThen say so \xF0\x9F\x8C\xA4."}, {"signature", "calandra"}},
        {{"type", "text"}, {"text", "Let me check."}},
        {{"type", "tool_use"}, {"id", "toolu_0a1b2c3d-7_0"}, {"name", "get_weather"}, {"input", Json::object()}},
        {{"type", "tool_use"},
         {"id", "toolu_0a1b2c3d-7_1"},
         {"name", "get_weather"},
         {"input", {{"location", "San \"Francisco\", CA"}, {"days", 3}}}}}},
      {"stop_reason", "tool_use"},
      {"stop_sequence", nullptr},
      {"usage",
       {{"input_tokens", prompt_tokens - 12},
        {"cache_creation_input_tokens", 7},
        {"cache_read_input_tokens", 5},
        {"output_tokens", 2}}}};
  EXPECT_EQ(dump_json(reply.json(), 1), dump_json(expected, 1));
}

TEST(AnthropicMessages, AStreamSaysWhatAWholeReplySays) {
  ApiBench bench(anthropic_messages);
  const std::string_view outputs[] = {
      kAgentOutput, "Only thought", "</think>Only text", "</think>",
      "a</think><tool_call>get_weather\n<arg_key>days</arg_key><arg_value>1</arg_value></tool_call>"};
  for (const std::string_view output : outputs) {
    bench.answers.script = {.pieces = {std::string(output)}, .cached_tokens = 3, .marked_tokens = 4};
    const Json in_one_piece = bench.ask(agent(), kPath).json();
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      bench.answers.script.pieces = random_pieces(output, seed);
      const Json whole = bench.ask(agent(), kPath).json();
      const Json streamed = message_of(bench.ask(with(agent(), "stream", true), kPath).events());
      EXPECT_EQ(dump_json(whole, 1), dump_json(streamed, 1)) << "seed " << seed;
      EXPECT_EQ(dump_json(whole["content"], 1), dump_json(in_one_piece["content"], 1)) << "seed " << seed;
    }
  }
}

TEST(AnthropicMessages, ACallThatIsCutIsNoToolUse) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"a</think>b<tool_call>get_weather\n<arg_key>location</arg_key><arg_value>San"},
                          .outcome = AnswerOutcome::Length};
  const Json whole = bench.ask(agent(), kPath).json();
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  EXPECT_EQ(whole["content"].size(), 2u) << whole["content"];
  // A stream has begun to tell of it; its block is closed all the same.
  EXPECT_EQ(message_of(bench.ask(with(agent(), "stream", true), kPath).events())["stop_reason"], "max_tokens");
}

TEST(AnthropicMessages, StopReasons) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"Hi"}};
  EXPECT_EQ(bench.ask(hello(), kPath).json()["stop_reason"], "end_turn");
  bench.answers.script.outcome = AnswerOutcome::Length;
  EXPECT_EQ(bench.ask(hello(), kPath).json()["stop_reason"], "max_tokens");
  bench.answers.script = {.pieces = {"Hi"}, .ends_by_string = true};
  const Json stopped = bench.ask(with(hello(), "stop_sequences", {"\n\nHuman:"}), kPath).json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "\n\nHuman:");
  // Of those that begin where the text ends, the one that was complete first, whatever else the token has.
  const Tokenizer& tokenizer = *bench.model().tokenizer;
  bench.answers.script.ids = {tokenizer.id_of("H").value(), tokenizer.id_of(" the").value()};
  bench.answers.script.pieces = {"H", ""};
  EXPECT_EQ(bench.ask(with(hello(), "stop_sequences", {" them", "the", " the", " t"}), kPath).json()["stop_sequence"], " t");
}

TEST(AnthropicMessages, AConversationBecomesThePromptOfItsMessages) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"ok"}};
  Json body = agent();
  body["system"] = Json::array({{{"type", "text"}, {"text", "Be brief."}, {"cache_control", {{"type", "ephemeral"}}}}});
  body["messages"] = parse_json(R"([
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "Look it up.", "signature": "xyz"},
      {"type": "redacted_thinking", "data": "abc"},
      {"type": "text", "text": "One moment."},
      {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Rome"}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "15 degrees"}]},
      {"type": "text", "text": "Well?"}]}])",
                                "test");
  ASSERT_EQ(bench.ask(body, kPath).status, 200);

  ChatRequest chat;
  chat.messages = parse_json(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "One moment.", "reasoning_content": "Look it up.",
     "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "get_weather", "arguments": {"location": "Rome"}}}]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "15 degrees"},
    {"role": "user", "content": "Well?"}])",
                             "test");
  chat.tools = Json::array({{{"type", "function"},
                             {"function",
                              {{"name", "get_weather"},
                               {"description", kWeatherTool["description"]},
                               {"parameters", kWeatherTool["input_schema"]}}}}});
  chat.thinking = true;
  EXPECT_EQ(bench.last_prompt(), bench.model().chat_template->render(chat).text);
}

TEST(AnthropicMessages, ThinkingIsOffUnlessAskedFor) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"ok"}};
  bench.ask(hello(), kPath);
  const std::string silent = bench.last_prompt();
  bench.ask(with(hello(), "thinking", {{"type", "disabled"}}), kPath);
  EXPECT_EQ(bench.last_prompt(), silent);
  for (const Json& thinking : {Json{{"type", "adaptive"}}, Json{{"type", "enabled"}, {"budget_tokens", 100}}}) {
    bench.ask(with(hello(), "thinking", thinking), kPath);
    EXPECT_NE(bench.last_prompt(), silent);
    EXPECT_EQ(bench.answers.requests.back().guide != nullptr, thinking.contains("budget_tokens"));
  }
}

TEST(AnthropicMessages, ALastMessageOfTheAssistantIsGoneOnWith) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {" sun"}};
  Json body = hello();
  body["messages"].push_back({{"role", "assistant"}, {"content", "The capital of the"}});
  EXPECT_EQ(bench.ask(body, kPath).json()["content"][0]["text"], " sun");
  EXPECT_THAT(bench.last_prompt(), testing::EndsWith("The capital of the"));
}

TEST(AnthropicMessages, CountedTokensAreThoseOfThePrompt) {
  ApiBench bench(anthropic_messages), counter(anthropic_count_tokens);
  bench.answers.script = {.pieces = {"ok"}};
  for (Json body : {hello(), agent()}) {
    const Json used = bench.ask(body, kPath).json()["usage"];
    body.erase("max_tokens");
    const ApiReply counted = counter.ask(body, "/v1/messages/count_tokens");
    ASSERT_EQ(counted.status, 200) << counted.body;
    EXPECT_EQ(counted.json(), (Json{{"input_tokens", used["input_tokens"]}}));
  }
  EXPECT_TRUE(counter.answers.requests.empty());
}

TEST(AnthropicMessages, AFormatConstrainsTheAnswer) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"7"}};
  bench.ask(hello(), kPath);
  EXPECT_EQ(bench.answers.requests.back().guide, nullptr);
  const Json format = {{"type", "json_schema"}, {"schema", {{"type", "integer"}}}};
  const ApiReply reply = bench.ask(with(hello(), "output_config", {{"format", format}, {"effort", "low"}}), kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(bench.answers.requests.back().guide, nullptr);
}

TEST(AnthropicMessages, WhatIsWrongIsNamed) {
  ApiBench bench(anthropic_messages);
  const auto message = [](Json content, const char* role = "user") {
    return Json::array({{{"role", role}, {"content", std::move(content)}}});
  };
  const auto block = [&](Json one, const char* role = "user") { return message(Json::array({std::move(one)}), role); };
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {
      {"max_tokens", nullptr, "max_tokens: is missing"},
      {"max_tokens", 0, "max_tokens: found 0, expected an integer"},
      {"messages", nullptr, "messages: is missing"},
      {"messages", Json::array(), "messages: "},
      {"messages", Json::array({1}), "messages[0]: "},
      {"messages", message("x", "system"), "messages[0].role: "},
      {"messages", message(7), "messages[0].content: "},
      {"messages", message(Json::array()), "messages[0].content: "},
      {"messages", block({{"type", "image"}, {"source", Json::object()}}), "messages[0].content[0].type: "},
      {"messages", block({{"type", "text"}}), "messages[0].content[0].text: is missing"},
      {"messages", block({{"type", "text"}, {"text", "x"}, {"txet", 1}}), "messages[0].content[0].txet: no such field"},
      {"messages", block({{"type", "tool_result"}, {"tool_use_id", "t"}}), "messages[0].content[0].tool_use_id: "},
      {"messages", block({{"type", "tool_use"}, {"id", "t"}, {"name", "n"}, {"input", "x"}}, "assistant"),
       "messages[0].content[0].input: "},
      {"messages", block({{"type", "tool_use"}, {"id", "t"}, {"name", "n"}, {"input", Json::object()}}, "assistant"),
       "messages: "},
      {"system", 3, "system: "},
      {"temperature", "hot", "temperature: "},
      {"stop_sequences", Json::array({""}), "stop_sequences: "},
      {"thinking", {{"type", "maybe"}}, "thinking.type: "},
      {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}, "thinking.budget_tokens: "},
      {"tools", Json::array({{{"type", "bash_20250124"}, {"name", "bash"}}}), "tools[0].type: "},
      {"tools", Json::array({{{"name", "f"}}}), "tools[0].input_schema: "},
      {"tool_choice", {{"type", "tool"}, {"name", "f"}}, "tool_choice: "},
      {"mcp_servers", Json::array({1}), "mcp_servers: "},
      {"output_config", {{"format", {{"type", "json_schema"}}}}, "output_config.format.schema: "},
      {"stream", "yes", "stream: "},
      {"max_token", 1, "max_token: no such field"},
  };
  for (const auto& [key, value, expected] : cases) {
    const ApiReply reply = bench.ask(with(hello(), key, value), kPath);
    EXPECT_EQ(reply.status, 400) << expected;
    EXPECT_EQ(reply.json().at("type"), "error");
    EXPECT_EQ(reply.error().at("type"), "invalid_request_error");
    EXPECT_THAT(reply.error().at("message").get<std::string>(), testing::StartsWith(expected));
  }
  EXPECT_EQ(bench.ask(with(hello(), "model", "claude"), kPath).error().at("type"), "not_found_error");
  EXPECT_EQ(bench.ask_text("{\"messages\": " + std::string(100'000, '['), kPath).status, 400);
  EXPECT_EQ(bench.ask_text("{\"model\": \"\xFF\"}", kPath).status, 400);
  EXPECT_TRUE(bench.answers.requests.empty());
}

/// What @anthropic-ai/sdk 1.14.0 looks for before it sends a conversation whole instead (lib/internal/threads/ThreadState).
TEST(AnthropicMessages, AThreadIsRefusedInTheWordsThatMakeAClientGoOnWithoutOne) {
  ApiBench bench(anthropic_messages);
  const ApiReply reply = bench.ask(with(hello(), "thread", {{"type", "create"}}), kPath);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.error().at("details").at("error_code"), "thread_unsupported_request");
  EXPECT_EQ(reply.error().at("details").at("unsupported"), Json::array({"thread"}));
  EXPECT_FALSE(bench.ask(with(hello(), "max_tokens", 0), kPath).error().contains("details"));
  EXPECT_EQ(bench.ask(with(hello(), "thread", nullptr), kPath).status, 200);
}

TEST(AnthropicMessages, FailuresHaveTheShapeOfTheApi) {
  ApiBench bench(anthropic_messages);
  bench.answers.script.refusal = [] { return QueueFull{7, std::chrono::seconds(11)}; };
  for (const bool is_stream : {false, true}) {
    const ApiReply busy = bench.ask(with(hello(), "stream", is_stream), kPath);
    EXPECT_EQ(busy.status, 503);
    EXPECT_EQ(busy.error().at("type"), "overloaded_error");
    EXPECT_THAT(busy.head, HasSubstr("Retry-After: 11"));
  }
  bench.answers.script = {.pieces = {"a", "b"}, .outcome = AnswerOutcome::Failed, .error = "no more memory"};
  const ApiReply failed = bench.ask(hello(), kPath);
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(failed.error().at("type"), "api_error");
  const std::vector<ServerEvent> events = bench.ask(with(hello(), "stream", true), kPath).events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data, failed.json());
}

TEST(AnthropicMessages, StrictToolsAreKeptToOrRefused) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"x"}};
  const auto ask = [&](Json schema) {
    return bench.ask({{"max_tokens", 9},
                      {"messages", {{{"role", "user"}, {"content", "x"}}}},
                      {"tools", {{{"name", "f"}, {"strict", true}, {"input_schema", std::move(schema)}}}}},
                     "/v1/messages");
  };
  EXPECT_EQ(ask({{"type", "object"}}).status, 200);
  EXPECT_NE(bench.answers.requests.back().guide, nullptr);
  EXPECT_THAT(ask({{"not", true}}).error().at("message").get<std::string>(),
              HasSubstr("tools[0].input_schema of 'f': #: keyword 'not' is not supported"));
}

}  // namespace
}  // namespace calandra::anthropic_test
