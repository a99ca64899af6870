// /v1/responses as OpenAI's documentation and SDKs have it. What a stream says is put together by a client that takes nothing
// out of order.

#include "serve/openai_responses.h"
#include "base/json.h"
#include "serve/scripted_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace calandra::responses_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::string_view kPath = "/v1/responses";

/// Puts a stream together, and fails for events that come out of order, name another item or repeat something otherwise.
class StrictClient {
 public:
  /// The response of the last event, whose output must be what the events before it told of.
  Json read(const std::vector<ServerEvent>& events) {
    std::int64_t number = 0;
    for (const auto& [name, data] : events) {
      EXPECT_EQ(data.at("type"), name);
      EXPECT_EQ(data.at("sequence_number"), number) << name;
      EXPECT_TRUE(final_.is_null()) << name << " after the end";
      take(number++, name, data);
    }
    EXPECT_FALSE(final_.is_null());
    EXPECT_EQ(dump_json(final_.value("output", Json()), 1), dump_json(output_, 1));
    return final_;
  }

 private:
  void take(std::int64_t number, const std::string& name, const Json& data) {
    if (number < 2) {
      EXPECT_EQ(name, number == 0 ? "response.created" : "response.in_progress");
      const Json& response = data.at("response");
      if (number == 0) id_ = response.at("id");
      EXPECT_EQ(response.at("id"), id_);
      EXPECT_EQ(response.at("status"), "in_progress");
      EXPECT_EQ(response.at("output"), Json::array());
    } else if (name == "response.output_item.added") {
      EXPECT_FALSE(item_is_open_);
      EXPECT_EQ(data.at("output_index"), output_.size());
      EXPECT_EQ(data.at("item").at("status"), "in_progress");
      EXPECT_TRUE(ids_.insert(data["item"].at("id")).second) << "an id twice";
      output_.push_back(data.at("item"));
      item_is_open_ = true;
    } else if (name == "response.output_item.done") {
      EXPECT_TRUE(item_is_open_ && !part_is_open_);
      EXPECT_EQ(data.at("output_index"), output_.size() - 1);
      Json item = data.at("item");
      // All but the status is known from the events before it.
      EXPECT_NE(item.at("status"), "in_progress");
      output_.back()["status"] = item["status"];
      EXPECT_EQ(dump_json(item, 1), dump_json(output_.back(), 1));
      item_is_open_ = false;
    } else if (name == "response.completed" || name == "response.incomplete" || name == "response.failed") {
      EXPECT_FALSE(item_is_open_);
      final_ = data.at("response");
      EXPECT_EQ(final_.at("id"), id_);
      EXPECT_EQ("response." + final_.at("status").get<std::string>(), name);
    } else {
      take_part(name, data);
    }
  }

  void take_part(const std::string& name, const Json& data) {
    ASSERT_TRUE(item_is_open_) << name;
    Json& item = output_.back();
    EXPECT_EQ(data.at("item_id"), item.at("id")) << name;
    EXPECT_EQ(data.at("output_index"), output_.size() - 1);
    if (item.at("type") == "function_call") {
      if (name == "response.function_call_arguments.delta") {
        item["arguments"] = item["arguments"].get<std::string>() + data.at("delta").get<std::string>();
      } else {
        EXPECT_EQ(name, "response.function_call_arguments.done");
        EXPECT_EQ(data.at("arguments"), item["arguments"]);
      }
      return;
    }
    EXPECT_EQ(data.at("content_index"), 0);
    const std::string kind = item["type"] == "message" ? "response.output_text." : "response.reasoning_text.";
    if (name == "response.content_part.added") {
      EXPECT_TRUE(item.at("content").empty());
      item["content"].push_back(data.at("part"));
      part_is_open_ = true;
      return;
    }
    ASSERT_TRUE(part_is_open_) << name;
    Json& part = item["content"][0];
    if (name == kind + "delta") {
      EXPECT_NE(data.at("delta"), "");
      part["text"] = part["text"].get<std::string>() + data.at("delta").get<std::string>();
    } else if (name == kind + "done") {
      EXPECT_EQ(data.at("text"), part["text"]);
    } else {
      EXPECT_EQ(name, "response.content_part.done");
      EXPECT_EQ(dump_json(data.at("part"), 1), dump_json(part, 1));
      part_is_open_ = false;
    }
  }

  std::string id_;
  std::set<std::string> ids_;
  Json output_ = Json::array(), final_;
  bool item_is_open_ = false, part_is_open_ = false;
};

const Json kWeatherTool = {{"type", "function"},
                           {"name", "get_weather"},
                           {"description", "Get current temperature for a given location."},
                           {"parameters",
                            {{"type", "object"},
                             {"properties", {{"location", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}},
                             {"required", {"location"}}}},
                           {"strict", true}};

Json agent() {
  return {{"model", "austen-5m"},
          {"input", "What is the weather like in Paris today?"},
          {"reasoning", {{"effort", "high"}}},
          {"tools", Json::array({kWeatherTool})}};
}

Json with(Json body, const char* key, Json value) {
  body[key] = std::move(value);
  return body;
}

constexpr std::string_view kAgentOutput =
    "I should look.\nThen say so \xF0\x9F\x8C\xA4.</think>Let me check.\n<tool_call>get_weather\n</tool_call><tool_call>get_weather\n"
    "<arg_key>location</arg_key><arg_value>Paris, \"France\"</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>\n"
    "</tool_call>";

Json without_time(Json response) {
  EXPECT_GT(response.at("created_at"), 1'700'000'000);
  response["created_at"] = 0;
  return response;
}

TEST(OpenAiResponses, AWholeReplyHasTheDocumentedShape) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {std::string(kAgentOutput)}, .cached_tokens = 5, .kept_tokens = 9};
  const ApiReply reply = bench.ask(agent(), kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json response = reply.json();
  EXPECT_EQ(response.at("id"), "resp_0a1b2c3d-7");
  EXPECT_EQ(response.at("object"), "response");
  EXPECT_EQ(response.at("status"), "completed");
  EXPECT_EQ(response.at("error"), nullptr);
  EXPECT_EQ(response.at("incomplete_details"), nullptr);
  EXPECT_EQ(response.at("model"), "austen-5m");
  EXPECT_EQ(response.at("store"), false);
  EXPECT_EQ(response.at("previous_response_id"), nullptr);
  EXPECT_EQ(response.at("tools"), agent()["tools"]);
  EXPECT_EQ(response.at("reasoning").at("effort"), "high");
  const Json output = {
      {{"id", "rs_0a1b2c3d-7_0"},
       {"type", "reasoning"},
       {"status", "completed"},
       {"summary", Json::array()},
       {"content", Json::array({{{"type", "reasoning_text"}, {"text", "I should look.\nThen say so \xF0\x9F\x8C\xA4."}}})}},
      {{"id", "msg_0a1b2c3d-7_1"},
       {"type", "message"},
       {"status", "completed"},
       {"role", "assistant"},
       {"content", Json::array({{{"type", "output_text"},
                                 {"annotations", Json::array()},
                                 {"logprobs", Json::array()},
                                 {"text", "Let me check."}}})}},
      {{"id", "fc_0a1b2c3d-7_2"},
       {"type", "function_call"},
       {"status", "completed"},
       {"call_id", "call_0a1b2c3d-7_0"},
       {"name", "get_weather"},
       {"arguments", "{}"}},
      {{"id", "fc_0a1b2c3d-7_3"},
       {"type", "function_call"},
       {"status", "completed"},
       {"call_id", "call_0a1b2c3d-7_1"},
       {"name", "get_weather"},
       {"arguments", response["output"].at(3).at("arguments")}}};
  EXPECT_EQ(dump_json(response.at("output"), 1), dump_json(output, 1));
  EXPECT_EQ(parse_json(response["output"][3]["arguments"].get<std::string>(), "test"),
            (Json{{"location", "Paris, \"France\""}, {"days", 3}}));
  const auto prompt_tokens = static_cast<std::int64_t>(bench.answers.requests.back().prompt.size());
  EXPECT_EQ(response.at("usage"), (Json{{"input_tokens", prompt_tokens},
                                        {"input_tokens_details", {{"cached_tokens", 5}, {"cache_write_tokens", 4}}},
                                        {"output_tokens", 2},
                                        {"output_tokens_details", {{"reasoning_tokens", 1}}},
                                        {"total_tokens", prompt_tokens + 2}}));
}

TEST(OpenAiResponses, AStreamSaysWhatAWholeReplySays) {
  ApiBench bench(openai_responses);
  const std::string_view outputs[] = {kAgentOutput, "Only thought", "</think>Only text", "</think>",
                                      "a</think>b<tool_call>get_weather\n<arg_key>location</arg_key><arg_value>cut o"};
  for (const std::string_view output : outputs) {
    for (const AnswerOutcome outcome : {AnswerOutcome::Stop, AnswerOutcome::Length}) {
      bench.answers.script = {.pieces = {std::string(output)}, .outcome = outcome};
      const Json in_one_piece = bench.ask(agent(), kPath).json();
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        bench.answers.script.pieces = random_pieces(output, seed);
        const Json whole = without_time(bench.ask(agent(), kPath).json());
        const Json streamed = without_time(StrictClient().read(bench.ask(with(agent(), "stream", true), kPath).events()));
        EXPECT_EQ(dump_json(whole, 1), dump_json(streamed, 1)) << "seed " << seed;
        EXPECT_EQ(dump_json(whole["output"], 1), dump_json(in_one_piece["output"], 1)) << "seed " << seed;
      }
    }
  }
}

TEST(OpenAiResponses, AnAnswerThatIsCutIsIncomplete) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"a</think>text"}, .outcome = AnswerOutcome::Length};
  const Json response = bench.ask(with(agent(), "max_output_tokens", 20), kPath).json();
  EXPECT_EQ(bench.answers.requests.back().options.max_tokens, 20);
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(response.at("max_output_tokens"), 20);
  EXPECT_EQ(response["output"][0]["status"], "completed");
  EXPECT_EQ(response["output"][1]["status"], "incomplete");
}

TEST(OpenAiResponses, ItemsBecomeThePromptOfTheirConversation) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"ok"}};
  Json body = agent();
  body["instructions"] = "Be brief.";
  body["input"] = parse_json(R"([
    {"role": "developer", "content": [{"type": "input_text", "text": "Use tools."}]},
    {"role": "user", "content": "Weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look it up."}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "One moment.", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather", "arguments": "{\"location\": \"Rome\"}"},
    {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "get_weather", "arguments": "{\"location\": \"Bern\"}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "15 degrees"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "9 degrees"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Compare."}]},
    {"type": "message", "role": "assistant", "content": "Rome is warmer."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks."}]}])",
                             "test");
  const ApiReply reply = bench.ask(body, kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["instructions"], "Be brief.");

  ChatRequest chat;
  chat.messages = parse_json(R"([
    {"role": "system", "content": "Be brief.\nUse tools."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "One moment.", "reasoning_content": "Look it up.", "tool_calls": [
      {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"location": "Rome"}}},
      {"id": "call_2", "type": "function", "function": {"name": "get_weather", "arguments": {"location": "Bern"}}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "15 degrees"},
    {"role": "tool", "tool_call_id": "call_2", "content": "9 degrees"},
    {"role": "assistant", "content": "Rome is warmer.", "reasoning_content": "Compare."},
    {"role": "user", "content": "Thanks."}])",
                             "test");
  chat.tools = Json::array(
      {{{"type", "function"},
        {"function",
         {{"name", "get_weather"}, {"description", kWeatherTool["description"]}, {"parameters", kWeatherTool["parameters"]}}}}});
  chat.thinking = true;
  EXPECT_EQ(bench.last_prompt(), bench.model().chat_template->render(chat).text);
}

TEST(OpenAiResponses, OutputCanBeSentBackAsItIs) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {std::string(kAgentOutput)}};
  Json body = agent();
  Json items = Json::array({{{"role", "user"}, {"content", "Weather?"}}});
  body["input"] = items;
  const Json response = bench.ask(body, kPath).json();
  for (const Json& item : response["output"]) {
    items.push_back(item);
    if (item["type"] != "function_call") continue;
    items.push_back({{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "15"}});
  }
  body["input"] = items;
  const ApiReply again = bench.ask(body, kPath);
  EXPECT_EQ(again.status, 200) << again.body;
  EXPECT_THAT(bench.last_prompt(), HasSubstr("Then say so"));
}

TEST(OpenAiResponses, EffortSwitchesThinking) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"ok"}};
  bench.ask(with(agent(), "reasoning", {{"effort", "none"}}), kPath);
  const std::string silent = bench.last_prompt();
  for (const char* effort : {"minimal", "low", "medium", "high", "xhigh"}) {
    bench.ask(with(agent(), "reasoning", {{"effort", effort}, {"summary", "auto"}}), kPath);
    EXPECT_NE(bench.last_prompt(), silent) << effort;
  }
}

TEST(OpenAiResponses, AFormatConstrainsTheAnswerAndIsRepeated) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"ok"}};
  Json body = agent();
  body.erase("tools");
  body["text"] = {{"verbosity", "low"}};
  EXPECT_EQ(bench.ask(body, kPath).json()["text"]["format"], (Json{{"type", "text"}}));
  EXPECT_EQ(bench.answers.requests.back().guide, nullptr);
  for (const Json& format : {Json{{"type", "json_object"}},
                             Json{{"type", "json_schema"}, {"name", "n"}, {"strict", true}, {"schema", {{"type", "integer"}}}}}) {
    body["text"] = {{"format", format}};
    const ApiReply reply = bench.ask(body, kPath);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["text"]["format"], format);
    EXPECT_NE(bench.answers.requests.back().guide, nullptr);
  }
}

TEST(OpenAiResponses, WhatIsWrongOrStoredIsNamed) {
  ApiBench bench(openai_responses);
  const auto item = [](const char* text) { return Json::array({parse_json(text, "test")}); };
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {
      {"previous_response_id", "resp_1", "previous_response_id"},
      {"conversation", "conv_1", "conversation"},
      {"prompt", {{"id", "pmpt_1"}}, "prompt"},
      {"store", true, "store"},
      {"background", true, "background"},
      {"input", nullptr, "input"},
      {"input", Json::array(), "input"},
      {"input", item(R"({"type": "item_reference", "id": "msg_1"})"), "input[0].type"},
      {"input", item(R"({"type": "web_search_call", "id": "ws_1"})"), "input[0].type"},
      {"input", item(R"({"role": "robot", "content": "x"})"), "input[0].role"},
      {"input", item(R"({"role": "user"})"), "input[0].content"},
      {"input", item(R"({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})"), "input[0].content[0].type"},
      {"input", item(R"({"role": "user", "content": "x", "colour": 1})"), "input[0].colour"},
      {"input", item(R"({"type": "function_call_output", "call_id": "c", "output": "x"})"), "input[0].call_id"},
      {"input", item(R"({"type": "function_call", "call_id": "c", "name": "f"})"), "input[0].arguments"},
      {"tools", item(R"({"type": "web_search"})"), "tools[0].type"},
      {"tool_choice", "sometimes", "tool_choice"},
      {"tool_choice", {{"type", "function"}, {"name", "other"}}, "tool_choice"},
      {"include", {"message.output_text.logprobs"}, "include[0]"},
      {"reasoning", {{"effort", "immense"}}, "reasoning.effort"},
      {"text", {{"format", {{"type", "xml"}}}}, "text.format.type"},
      {"text", {{"format", {{"type", "json_schema"}, {"name", "n"}}}}, "text.format.schema"},
      {"truncation", "auto", "truncation"},
      {"top_logprobs", 3, "top_logprobs"},
      {"max_output_tokens", 0, "max_output_tokens"},
      {"top_p", 2, "top_p"},
      {"metadata", "x", "metadata"},
      {"stream", 1, "stream"},
      {"max_tokens", 1, "max_tokens"},
  };
  for (const auto& [key, value, field] : cases) {
    const ApiReply reply = bench.ask(with(agent(), key, value), kPath);
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(reply.error().at("type"), "invalid_request_error");
    EXPECT_EQ(reply.error().at("param"), field);
    EXPECT_THAT(reply.error().at("message").get<std::string>(), StartsWith(std::string(field) + ": "));
  }
  EXPECT_EQ(bench.ask(with(agent(), "model", "gpt"), kPath).status, 404);
  EXPECT_EQ(bench.ask_text("[]", kPath).status, 400);
  EXPECT_TRUE(bench.answers.requests.empty());
}

TEST(OpenAiResponses, WhatSaysNothingIsNoRefusal) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"ok"}};
  Json body = agent();
  for (const char* key : {"previous_response_id", "conversation", "prompt", "background", "top_logprobs", "text"})
    body[key] = nullptr;
  body["store"] = false;
  body["include"] = {"reasoning.encrypted_content"};
  body["text"] = {{"format", {{"type", "text"}}}, {"verbosity", "low"}};
  body["metadata"] = {{"run", "7"}};
  const ApiReply reply = bench.ask(body, kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["metadata"], body["metadata"]);
}

TEST(OpenAiResponses, FailuresHaveTheShapeOfTheApi) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"a", "b"}, .outcome = AnswerOutcome::Failed, .error = "no more memory"};
  const ApiReply failed = bench.ask(agent(), kPath);
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(failed.error().at("type"), "server_error");
  const Json response = StrictClient().read(bench.ask(with(agent(), "stream", true), kPath).events());
  EXPECT_EQ(response.at("status"), "failed");
  EXPECT_EQ(response.at("error").at("message"), "no more memory");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST(OpenAiResponses, StrictToolsAreKeptToOrRefused) {
  ApiBench bench(openai_responses);
  bench.answers.script = {.pieces = {"x"}};
  const auto ask = [&](Json parameters) {
    return bench.ask(
        {{"input", "x"},
         {"tools", {{{"type", "function"}, {"name", "f"}, {"strict", true}, {"parameters", std::move(parameters)}}}}},
        "/v1/responses");
  };
  EXPECT_EQ(ask({{"type", "object"}}).status, 200);
  EXPECT_NE(bench.answers.requests.back().guide, nullptr);
  EXPECT_EQ(ask({{"not", true}}).error().at("param"), "tools[0].parameters");
}

}  // namespace
}  // namespace calandra::responses_test
