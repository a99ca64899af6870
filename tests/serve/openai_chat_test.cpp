// /v1/chat/completions as OpenAI's documentation and SDKs have it. What a stream says is put together as a client does.

#include "serve/openai_chat.h"
#include "base/json.h"
#include "engine/sampler.h"
#include "serve/openai_stream.h"
#include "serve/scripted_answers.h"
#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

namespace calandra {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::string_view kPath = "/v1/chat/completions";

Json tool(const char* name) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", "Get the current weather in a given location"},
            {"parameters",
             {{"type", "object"}, {"properties", {{"location", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}}}}}};
}

Json hello() { return {{"model", "austen-5m"}, {"messages", Json::array({{{"role", "user"}, {"content", "Hello!"}}})}}; }

Json with(Json body, const char* key, Json value) {
  body[key] = std::move(value);
  return body;
}

Json with_tools() { return with(hello(), "tools", Json::array({tool("get_weather"), tool("get_time")})); }

/// What comes after the prompt's <think>.
constexpr std::string_view kAgentOutput =
    "I should look.\nThen say so \xF0\x9F\x8C\xA4.</think>Let me check.\n<tool_call>get_time\n</tool_call><tool_call>get_weather\n"
    "<arg_key>location</arg_key><arg_value>San \"Francisco\", CA \xE2\x98\x80</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>\n"
    "</tool_call>";

const Json kAgentMessage = {
    {"role", "assistant"},
    {"content", "Let me check."},
    {"refusal", nullptr},
    {"reasoning_content", "I should look.\nThen say so \xF0\x9F\x8C\xA4."},
    {"tool_calls",
     Json::array(
         {{{"id", "call_0a1b2c3d-7-0-0"}, {"type", "function"}, {"function", {{"name", "get_time"}, {"arguments", "{}"}}}},
          {{"id", "call_0a1b2c3d-7-0-1"},
           {"type", "function"},
           {"function",
            {{"name", "get_weather"},
             {"arguments", "{\"location\": \"San \\\"Francisco\\\", CA \xE2\x98\x80\", \"days\": 3}"}}}}})}};

/// The choices of a stream in the shape of a whole reply's.
Json choices_of(const std::vector<Json>& chunks) {
  Json choices = Json::array();
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    EXPECT_EQ(chunk.at("id"), chunks.front().at("id"));
    for (const Json& part : chunk.at("choices")) {
      const std::size_t index = part.at("index");
      while (choices.size() <= index) {
        choices.push_back(
            {{"index", choices.size()}, {"message", Json::object()}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
      }
      Json& choice = choices[index];
      EXPECT_TRUE(choice["finish_reason"].is_null()) << "after the end: " << part;
      Json& message = choice["message"];
      const Json& delta = part.at("delta");
      for (const char* key : {"role", "content", "reasoning_content"}) {
        if (!delta.contains(key)) continue;
        const std::string before = message.contains(key) ? message[key].get<std::string>() : std::string();
        message[key] = before + delta[key].get<std::string>();
      }
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        Json& calls = message["tool_calls"];
        const std::size_t at = call.at("index");
        if (at == calls.size()) {
          EXPECT_TRUE(call.contains("id") && call.at("type") == "function") << call;
          calls.push_back({{"id", call.at("id")}, {"type", "function"}, {"function", call.at("function")}});
        } else if (at + 1 == calls.size()) {
          Json& arguments = calls[at]["function"]["arguments"];
          arguments = arguments.get<std::string>() + call.at("function").at("arguments").get<std::string>();
        } else {
          ADD_FAILURE() << "call " << at << " after " << calls.size();
        }
      }
      if (part.at("logprobs").is_object()) {
        if (choice["logprobs"].is_null()) {
          choice["logprobs"] = part["logprobs"];
        } else {
          for (const Json& token : part["logprobs"].at("content")) choice["logprobs"]["content"].push_back(token);
        }
      }
      choice["finish_reason"] = part.at("finish_reason");
    }
  }
  return choices;
}

/// Without what streams cannot say: null for no text, no refusal.
Json comparable(Json choices) {
  for (Json& choice : choices) {
    Json& message = choice["message"];
    if (message.value("content", Json()).is_null()) message["content"] = "";
    message.erase("refusal");
    std::map<std::string, Json> sorted;
    for (const auto& [key, value] : message.items()) sorted[key] = value;
    message = sorted;
  }
  return choices;
}

TEST(OpenAiChat, AWholeReplyHasTheDocumentedShape) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {std::string(kAgentOutput)}, .cached_tokens = 5, .kept_tokens = 9};
  bench.answers.script.accepted_drafts = 1;
  bench.answers.script.rejected_drafts = 6;
  const ApiReply reply = bench.ask(with_tools(), kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  Json json = reply.json();
  EXPECT_GT(json.at("created"), 1'700'000'000);
  json.erase("created");
  const std::size_t prompt_tokens = bench.answers.requests.back().prompt.size();
  const Json expected = {
      {"id", "chatcmpl-0a1b2c3d-7"},
      {"object", "chat.completion"},
      {"model", "austen-5m"},
      {"choices",
       Json::array({{{"index", 0}, {"message", kAgentMessage}, {"logprobs", nullptr}, {"finish_reason", "tool_calls"}}})},
      {"usage",
       {{"prompt_tokens", prompt_tokens},
        {"completion_tokens", 2},
        {"total_tokens", prompt_tokens + 2},
        {"prompt_tokens_details", {{"cached_tokens", 5}, {"cache_write_tokens", 4}}},
        {"completion_tokens_details",
         {{"reasoning_tokens", 1}, {"accepted_prediction_tokens", 1}, {"rejected_prediction_tokens", 6}}}}}};
  EXPECT_EQ(json, expected) << dump_json(json, 1);
}

// A call that was to be the only one ends an answer before the engine knows, in the middle of a step.
TEST(OpenAiChat, DraftsBehindTheEndOfAnAnswerAreNoneOfItsTokens) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"</think>", "<tool_call>get_time\n</tool_call>", "\n", "<tool_call>"}};
  bench.answers.script.accepted_drafts = 4;  // all five tokens in one step, and the end's is the fifth
  bench.answers.script.rejected_drafts = 2;
  const Json usage = bench.ask(with(with_tools(), "parallel_tool_calls", false), kPath).json().at("usage");
  EXPECT_EQ(usage.at("completion_tokens"), 2);
  EXPECT_EQ(usage.at("completion_tokens_details").at("accepted_prediction_tokens"), 1);
  EXPECT_EQ(usage.at("completion_tokens_details").at("rejected_prediction_tokens"), 5);
}

TEST(OpenAiChat, HoweverTheOutputIsCutAStreamSaysWhatAWholeReplySays) {
  const std::vector<std::string> outputs = {
      std::string(kAgentOutput),
      "No thought ends here \xE2\x9C\x85 ever",
      "</think>\xF0\x9F\x98\x80 plain <tool_cal text </think> and more",
      "a<tool_call>get_weather<arg_key>location</arg_key><arg_value>Rome</arg_value></tool_call>",
      "",
  };
  ApiBench bench(openai_chat);
  for (const std::string& output : outputs) {
    bench.answers.script = {.pieces = {output}};
    const Json whole = bench.ask(with_tools(), kPath).json().at("choices");
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      bench.answers.script.pieces = random_pieces(output, seed);
      const ApiReply streamed = bench.ask(with(with_tools(), "stream", true), kPath);
      ASSERT_EQ(comparable(choices_of(chunks_of(streamed.body))), comparable(whole)) << "seed " << seed << "\n" << streamed.body;
      ASSERT_EQ(bench.ask(with_tools(), kPath).json().at("choices"), whole) << "seed " << seed;
    }
  }
}

TEST(OpenAiChat, AStreamBeginsWithTheRoleAndEndsWithUsageIfAskedFor) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"</think>", "Hi"}};
  Json body = with(hello(), "stream", true);
  std::vector<Json> chunks = chunks_of(bench.ask(body, kPath).body);
  EXPECT_EQ(chunks.front().at("choices")[0].at("delta"), Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_FALSE(chunks.back().contains("usage"));
  const std::size_t without = chunks.size();

  body["stream_options"] = {{"include_usage", true}};
  const ApiReply reply = bench.ask(body, kPath);
  EXPECT_THAT(reply.head, HasSubstr("text/event-stream"));
  chunks = chunks_of(reply.body);
  EXPECT_EQ(chunks.size(), without + 1);
  EXPECT_EQ(chunks.front().at("usage"), nullptr);
  EXPECT_EQ(chunks.back().at("choices"), Json::array());
  EXPECT_EQ(chunks.back().at("usage").at("completion_tokens"), 3);
  EXPECT_EQ(chunks.back().at("usage").at("completion_tokens_details").at("reasoning_tokens"), 1);
}

TEST(OpenAiChat, ThePromptIsWhatTheTemplateWasTrainedOn) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  Json body = hello();
  body["messages"] = Json::array({{{"role", "developer"}, {"content", "Be brief."}},
                                  {{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "Hi"}}})}},
                                  {{"role", "assistant"}, {"content", "Hello."}},
                                  {{"role", "user"}, {"content", "Bye"}}});
  const std::string history = "<role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>\n<think></think>Hello.<|role_end|>";
  ASSERT_EQ(bench.ask(body, kPath).status, 200);
  EXPECT_EQ(bench.last_prompt(), "<role>SYSTEM</role>Be brief.\ndetailed thinking on<|role_end|>" + history +
                                     "<role>HUMAN</role>Bye<|role_end|><role>ASSISTANT</role>\n<think>");
  const std::string off = "<role>SYSTEM</role>Be brief.\ndetailed thinking off<|role_end|>" + history +
                          "<role>HUMAN</role>Bye<|role_end|><role>ASSISTANT</role>\n<think></think>";
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"reasoning_effort", "none"},
                                                 {"chat_template_kwargs", {{"enable_thinking", false}}},
                                                 {"chat_template_kwargs", {{"thinking", false}}}}) {
    ASSERT_EQ(bench.ask(with(body, key, value), kPath).status, 200);
    EXPECT_EQ(bench.last_prompt(), off) << key;
  }
  // Without reasoning all is content, from the first character on.
  EXPECT_EQ(bench.ask(with(body, "reasoning_effort", "none"), kPath).json()["choices"][0]["message"]["content"], "x");
  EXPECT_EQ(bench.ask(body, kPath).json()["choices"][0]["message"]["reasoning_content"], "x");
}

TEST(OpenAiChat, AToolRoundTripReachesThePrompt) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  Json body = with_tools();
  body["messages"].push_back(kAgentMessage);
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "call_0a1b2c3d-7-0-0"}, {"content", "12:00"}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "call_0a1b2c3d-7-0-1"}, {"content", "sunny"}});
  const ApiReply reply = bench.ask(body, kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(bench.last_prompt(),
              HasSubstr("\n<tool_call>get_weather<arg_key>location</arg_key>\n<arg_value>San \"Francisco\", CA"));
  EXPECT_THAT(bench.last_prompt(),
              HasSubstr("<role>OBSERVATION</role>\n<tool_response>\n12:00\n</tool_response>\n<tool_response>\n"
                        "sunny\n</tool_response><|role_end|>"));
}

// As in OpenAI's API, except that a result may go without an id, as templates have it.
TEST(OpenAiChat, AResultAnswersACallBeforeIt) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  const auto ask = [&](const std::vector<Json>& messages) {
    Json body = hello();
    for (const Json& message : messages) body["messages"].push_back(message);
    return bench.ask(body, kPath);
  };
  const auto result_of = [](Json id) { return Json{{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", "12:00"}}; };
  const auto call_of = [](Json id) {
    return Json{
        {"role", "assistant"},
        {"content", nullptr},
        {"tool_calls",
         Json::array(
             {{{"id", std::move(id)}, {"type", "function"}, {"function", {{"name", "get_time"}, {"arguments", "{}"}}}}})}};
  };
  EXPECT_EQ(ask({call_of("a"), result_of("a")}).status, 200);
  EXPECT_EQ(ask({call_of("a"), result_of("a"), call_of("b"), result_of("b"), result_of("a")}).status, 200);
  EXPECT_EQ(ask({call_of("a"), result_of(nullptr)}).status, 200);
  EXPECT_EQ(ask({call_of(nullptr), result_of(nullptr)}).status, 200);
  const std::vector<std::pair<std::vector<Json>, std::string>> refused = {
      {{result_of("a")}, "messages[1].role"},
      {{result_of("a"), call_of("a")}, "messages[1].role"},
      {{{{"role", "assistant"}, {"content", "x"}, {"tool_calls", Json::array()}}, result_of("a")}, "messages[2].role"},
      {{call_of("a"), result_of("b")}, "messages[2].tool_call_id"},
      {{call_of("a"), result_of("b"), call_of("b")}, "messages[2].tool_call_id"},
      {{call_of(nullptr), result_of("a")}, "messages[2].tool_call_id"},
      {{call_of("a"), result_of(7)}, "messages[2].tool_call_id"},
  };
  for (const auto& [messages, field] : refused) {
    const ApiReply reply = ask(messages);
    EXPECT_EQ(reply.status, 400) << Json(messages);
    EXPECT_EQ(reply.error().at("param"), field) << Json(messages);
  }
}

TEST(OpenAiChat, OptionsReachTheEngine) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  Json body = hello();
  body.update(Json({{"temperature", 0.25},
                    {"top_p", 0.5},
                    {"top_k", 7},
                    {"min_p", 0.125},
                    {"presence_penalty", 1.5},
                    {"frequency_penalty", -0.5},
                    {"repetition_penalty", 1.25},
                    {"logit_bias", {{"12", -100}, {"5", 2.5}}},
                    {"seed", 42},
                    {"max_tokens", 6},
                    {"max_completion_tokens", 6},
                    {"min_tokens", 2},
                    {"stop", {"a", "b"}},
                    {"stop_token_ids", {9}},
                    {"logprobs", true},
                    {"top_logprobs", 3},
                    {"n", 3},
                    {"service_tier", "flex"}}));
  const ApiReply reply = bench.ask(body, kPath);
  ASSERT_EQ(reply.status, 200) << reply.body;
  ASSERT_EQ(bench.answers.requests.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(bench.answers.requests[i].sample, i);
  const AnswerRequest& request = bench.answers.requests.front();
  const GenerationOptions& options = request.options;
  EXPECT_EQ(options.sampling.temperature, 0.25);
  EXPECT_EQ(options.sampling.top_p, 0.5);
  EXPECT_EQ(options.sampling.top_k, 7);
  EXPECT_EQ(options.sampling.min_p, 0.125);
  EXPECT_EQ(options.sampling.presence_penalty, 1.5);
  EXPECT_EQ(options.sampling.frequency_penalty, -0.5);
  EXPECT_EQ(options.sampling.repetition_penalty, 1.25);
  EXPECT_EQ(options.sampling.logit_bias, (std::vector<TokenBias>{{5, 2.5F}, {12, -100}}));
  EXPECT_EQ(options.sampling.seed, 42U);
  EXPECT_EQ(options.max_tokens, 6);
  EXPECT_EQ(options.min_tokens, 2);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.stop_ids.back(), 9);
  EXPECT_EQ(options.logprobs, 3);
  EXPECT_EQ(request.priority, Priority::Low);
  EXPECT_EQ(reply.json().at("choices").size(), 3U);
  EXPECT_EQ(reply.json().at("choices")[2].at("index"), 2);
  // The prompt is counted once.
  EXPECT_EQ(reply.json().at("usage").at("prompt_tokens"), request.prompt.size());
  EXPECT_EQ(reply.json().at("usage").at("completion_tokens"), 6);
}

TEST(OpenAiChat, EitherNameOfTheLengthIsTaken) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    ASSERT_EQ(bench.ask(with(hello(), name, 7), kPath).status, 200);
    EXPECT_EQ(bench.answers.requests.back().options.max_tokens, 7) << name;
  }
  EXPECT_THAT(bench.ask(with(with(hello(), "max_tokens", 7), "max_completion_tokens", 8), kPath).error().at("message"),
              testing::AllOf(HasSubstr("max_tokens: found 7"), HasSubstr("which is 8")));
}

TEST(OpenAiChat, SeedsDifferUnlessTheyAreGiven) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  bench.ask(hello(), kPath);
  bench.ask(hello(), kPath);
  EXPECT_NE(bench.answers.requests[0].options.sampling.seed, bench.answers.requests[1].options.sampling.seed);
}

TEST(OpenAiChat, ATopPOfZeroKeepsTheLikeliestTokenAlone) {
  ApiBench bench(openai_chat);
  Json body = hello();
  body["top_p"] = 0;
  ASSERT_EQ(bench.ask(body, kPath).status, 200);
  SamplingOptions options = bench.answers.requests.front().options.sampling;
  options.temperature = 100;
  options.seed = 1;
  const std::array logits{1.0F, 1.5F, 1.4F};
  for (std::int64_t position = 0; position < 20; ++position) EXPECT_EQ(sample(logits, options, {.position = position}), 1);
}

TEST(OpenAiChat, ErrorsNameTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      // What is added to the request, and the field that the error names.
      {R"({"messages": []})", "messages"},
      {R"({"messages": "Hi"})", "messages"},
      {R"({"messages": null})", "messages"},
      {R"({"messages": [1]})", "messages[0]"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "narrator", "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
       "messages[0].content[0]"},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]})",
       "messages[1].tool_calls[0].arguments"},
      {R"({"model": 5})", "model"},
      {R"({"temperature": "hot"})", "temperature"},
      {R"({"temperature": -1})", "temperature"},
      {R"({"top_p": -0.1})", "top_p"},
      {R"({"top_p": 1.5})", "top_p"},
      {R"({"max_tokens": 0})", "max_tokens"},
      {R"({"max_tokens": 1.5})", "max_tokens"},
      {R"({"max_completion_tokens": 18446744073709551615})", "max_completion_tokens"},
      {R"({"max_completion_tokens": 6, "max_tokens": 5})", "max_tokens"},
      {R"({"n": 0})", "n"},
      {R"({"n": 1000})", "n"},
      {R"({"stop": ""})", "stop"},
      {R"({"stop": [1]})", "stop"},
      {R"({"stream": "yes"})", "stream"},
      {R"({"stream_options": {"include_usage": true}})", "stream_options"},
      {R"({"stream": true, "stream_options": {"usage": true}})", "stream_options.usage"},
      {R"({"logit_bias": {"x": 1}})", "logit_bias.x"},
      {R"({"logit_bias": {"999999": 1}})", "logit_bias.999999"},
      {R"({"logit_bias": {"1": 101}})", "logit_bias.1"},
      {R"({"stop_token_ids": [1, -1]})", "stop_token_ids[1]"},
      {R"({"top_logprobs": 2})", "top_logprobs"},
      {R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs"},
      {R"({"reasoning_effort": "some"})", "reasoning_effort"},
      {R"({"chat_template_kwargs": {"enable_thinkin": false}})", "chat_template_kwargs.enable_thinkin"},
      {R"({"chat_template_kwargs": {"messages": []}})", "chat_template_kwargs.messages"},
      {R"({"chat_template_kwargs": {"tools": []}})", "chat_template_kwargs.tools"},
      {R"({"chat_template_kwargs": {"add_generation_prompt": true}})", "chat_template_kwargs.add_generation_prompt"},
      {R"({"chat_template_kwargs": {"enable_thinking": "no"}})", "chat_template_kwargs.enable_thinking"},
      {R"({"chat_template_kwargs": {"enable_thinking": false, "thinking": true}})", "chat_template_kwargs.thinking"},
      {R"({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}})",
       "chat_template_kwargs.enable_thinking"},
      {R"({"tools": [{"type": "web_search"}]})", "tools[0].type"},
      {R"({"tools": [{"type": "function"}]})", "tools[0].function"},
      {R"({"tools": [{"type": "function", "function": {"name": 1}}]})", "tools[0].function.name"},
      {R"({"tool_choice": "required"})", "tool_choice"},
      {R"({"tool_choice": "maybe"})", "tool_choice"},
      {R"({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}})",
       "tool_choice"},
      {R"({"functions": [{"name": "f"}]})", "functions"},
      {R"({"modalities": ["audio"]})", "modalities"},
      {R"({"tempratur": 1})", "tempratur"},
  };
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  for (const auto& [changes, field] : cases) {
    Json body = hello();
    body.update(parse_json(changes, "test"));
    const ApiReply reply = bench.ask(body, kPath);
    EXPECT_EQ(reply.status, 400) << changes << reply.body;
    if (reply.status != 400) continue;
    EXPECT_EQ(reply.error().at("param"), field) << changes << reply.body;
    EXPECT_THAT(reply.error().at("message").get<std::string>(), StartsWith(field)) << changes;
    EXPECT_EQ(reply.error().at("type"), "invalid_request_error");
  }
  EXPECT_TRUE(bench.answers.requests.empty());
}

TEST(OpenAiChat, FieldsWithoutEffectAreTaken) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  Json body = hello();
  body.update(Json({{"user", "me"},
                    {"store", true},
                    {"metadata", {{"a", "b"}}},
                    {"functions", nullptr},
                    {"web_search_options", nullptr},
                    {"response_format", {{"type", "text"}}},
                    {"stop", nullptr},
                    {"temperature", nullptr},
                    {"tools", Json::array()}}));
  EXPECT_EQ(bench.ask(body, kPath).status, 200);
}

// Asked again and again, as 503 asks for, it would never be answered.
TEST(OpenAiChat, MoreAnswersThanMayEverWaitAreNoMatterOfTheMoment) {
  const ApiBench bench(openai_chat);
  const std::int64_t most = bench.model().most_answers;
  const ApiReply refused = bench.ask(with(hello(), "n", most + 1), kPath);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.error().at("param"), "n");
  EXPECT_THAT(refused.error().at("message").get<std::string>(),
              HasSubstr(fmt::format("{} answers, expected at most {}", most + 1, most)));
  EXPECT_TRUE(bench.answers.requests.empty());
  EXPECT_EQ(bench.ask(with(hello(), "n", most), kPath).status, 200);
}

TEST(OpenAiChat, BodiesThatAreNoRequestsAreRefused) {
  ApiBench bench(openai_chat);
  const std::vector<std::string> bodies = {"",
                                           "{",
                                           "[]",
                                           "null",
                                           "\"x\"",
                                           std::string("{\"a\": \"\xFF\"}"),
                                           std::string(100'000, '['),
                                           "{\"messages\": " + std::string(600, '[') + std::string(600, ']') + "}"};
  for (const std::string& body : bodies) {
    const ApiReply reply = bench.ask_text(body, kPath);
    EXPECT_EQ(reply.status, 400) << body.substr(0, 50);
    EXPECT_THAT(reply.error().at("message").get<std::string>(), StartsWith("request body: "));
  }
}

TEST(OpenAiChat, AnotherModelIsNotFound) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  const ApiReply reply = bench.ask(with(hello(), "model", "gpt-4o"), kPath);
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.error().at("code"), "model_not_found");
  EXPECT_EQ(bench.ask(with(hello(), "model", "default"), kPath).status, 200);
}

TEST(OpenAiChat, APromptBeyondTheContextIsNamedAsThat) {
  ApiBench bench(openai_chat);
  Json body = hello();
  std::string text;
  for (int i = 0; i < 110'000; ++i) text += "a\n";
  body["messages"][0]["content"] = text;
  const ApiReply reply = bench.ask(body, kPath);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.error().at("code"), "context_length_exceeded");
  EXPECT_EQ(reply.error().at("param"), "messages");
}

TEST(OpenAiChat, EndingsHaveTheirReasons) {
  ApiBench bench(openai_chat);
  const auto reason = [&](Json body) { return bench.ask(body, kPath).json().at("choices")[0].at("finish_reason"); };
  bench.answers.script = {.pieces = {"</think>Hi"}};
  EXPECT_EQ(reason(hello()), "stop");
  bench.answers.script = {.pieces = {"</think>Hi"}, .ends_by_string = true};
  EXPECT_EQ(reason(with(hello(), "stop", "!")), "stop");
  bench.answers.script = {.pieces = {"</think>Hi"}, .outcome = AnswerOutcome::Length};
  EXPECT_EQ(reason(hello()), "length");
  // A call that is cut is none.
  bench.answers.script = {.pieces = {"</think><tool_call>get_time\n<arg_key>a"}, .outcome = AnswerOutcome::Length};
  EXPECT_EQ(reason(with_tools()), "length");
  EXPECT_FALSE(bench.ask(with_tools(), kPath).json().at("choices")[0].at("message").contains("tool_calls"));
}

TEST(OpenAiChat, TheModelsOwnMarkEndsAnAnswer) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"</think>Hi", "<|role_end|>", "<role>HUMAN</role>And you?"}};
  const Json json = bench.ask(hello(), kPath).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hi");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
}

TEST(OpenAiChat, WhoIgnoresItReadsOnBehindIt) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"</think>Hi", "<|role_end|>", "<role>HUMAN</role>And you?"},
                          .outcome = AnswerOutcome::Length};
  const Json json = bench.ask(with(hello(), "ignore_eos", true), kPath).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hi<|role_end|><role>HUMAN</role>And you?");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
}

TEST(OpenAiChat, WithoutParallelCallsTheFirstIsTheLast) {
  ApiBench bench(openai_chat);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    bench.answers.script = {.pieces = random_pieces(kAgentOutput, seed)};
    const Json choice = bench.ask(with(with_tools(), "parallel_tool_calls", false), kPath).json().at("choices")[0];
    EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
    EXPECT_EQ(choice.at("message").at("tool_calls"), Json::array({kAgentMessage["tool_calls"][0]}));
  }
}

TEST(OpenAiChat, FailuresAreToldInTheShapeOfTheReply) {
  ApiBench bench(openai_chat);
  const auto status = [&](Script script) {
    bench.answers.script = std::move(script);
    const ApiReply whole = bench.ask(hello(), kPath);
    bench.answers.script.pieces = {"a", "b"};
    const ApiReply streamed = bench.ask(with(hello(), "stream", true), kPath);
    if (streamed.status == 200) {
      EXPECT_THAT(streamed.body, Not(HasSubstr("[DONE]")));
      const std::size_t last = streamed.body.rfind("data: ");
      EXPECT_EQ(parse_json(streamed.body.substr(last + 6), "test").at("error"), whole.error());
    } else {
      EXPECT_EQ(streamed.error(), whole.error());
    }
    return whole;
  };
  EXPECT_EQ(status({.outcome = AnswerOutcome::Failed, .error = "disk"}).error().at("message"), "disk");
  EXPECT_EQ(status({.outcome = AnswerOutcome::Failed}).status, 500);
  EXPECT_EQ(status({.outcome = AnswerOutcome::TimedOut}).status, 504);
  EXPECT_EQ(status({.outcome = AnswerOutcome::Cancelled}).status, 503);
  const ApiReply full = status({.refusal = [] { return QueueFull{.waiting = 7, .retry_after = std::chrono::seconds(4)}; }});
  EXPECT_EQ(full.status, 503);
  EXPECT_THAT(full.head, HasSubstr("Retry-After: 4"));
  EXPECT_EQ(status({.refusal = [] { return LargerThanPool{.tokens = 9, .blocks = 8, .pool_blocks = 7}; }}).status, 400);
  EXPECT_EQ(status({.refusal = [] { return EngineStopped{}; }}).status, 503);
}

/// What a guide leaves to say, as long as that is one token.
std::string forced_text(AnswerGuide& guide, const Tokenizer& tokenizer) {
  std::string text;
  for (int step = 0; step < 100; ++step) {
    const std::span<const std::uint64_t> mask = guide.allowed();
    int count = 0;
    std::int32_t id = -1;
    for (std::size_t word = 0; word < mask.size(); ++word) {
      count += std::popcount(mask[word]);
      if (mask[word] != 0) id = static_cast<std::int32_t>(word * 64) + std::countr_zero(mask[word]);
    }
    if (count != 1) break;
    text += tokenizer.token_bytes(id);
    guide.push(id);
  }
  return text;
}

/// What may come next is how these texts may begin, all of them.
void expect_beginnings(AnswerGuide& guide, const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  const std::span<const std::uint64_t> mask = guide.allowed();
  ASSERT_FALSE(mask.empty());
  std::vector<bool> may(texts.size(), false);
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(64 * mask.size()); ++id) {
    if ((mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) == 0) continue;
    const std::string_view bytes = tokenizer.token_bytes(id);
    bool begins_any = false;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i].starts_with(bytes)) continue;
      begins_any = may[i] = true;
    }
    EXPECT_TRUE(begins_any) << bytes;
  }
  EXPECT_EQ(std::count(may.begin(), may.end(), true), std::ssize(texts));
}

void push_text(AnswerGuide& guide, const Tokenizer& tokenizer, std::string_view text) {
  for (const std::int32_t id : tokenizer.encode(text)) {
    EXPECT_TRUE(guide.allowed().empty()) << text;
    guide.push(id);
  }
}

TEST(OpenAiChat, ACallThatMustComeIsForcedAfterTheReasoning) {
  ApiBench bench(openai_chat);
  const Tokenizer& tokenizer = *bench.model().tokenizer;
  bench.answers.script = {.pieces = {"x"}};
  const auto guide_for = [&](Json choice) {
    EXPECT_EQ(bench.ask(with(with_tools(), "tool_choice", std::move(choice)), kPath).status, 200);
    return bench.answers.requests.back().guide;
  };
  EXPECT_EQ(guide_for("auto"), nullptr);

  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  auto guide = guide_for(named);
  push_text(*guide, tokenizer, "I think</think>");
  EXPECT_EQ(forced_text(*guide, tokenizer), "<tool_call>");
  expect_beginnings(*guide, tokenizer, {"get_weather"});

  guide = guide_for("required");
  push_text(*guide, tokenizer, "</think>");
  EXPECT_EQ(forced_text(*guide, tokenizer), "<tool_call>");
  std::vector<std::string> names;
  const Json body = with_tools();
  for (const Json& tool : body.at("tools")) names.push_back(tool.at("function").at("name").get<std::string>());
  expect_beginnings(*guide, tokenizer, names);
  // A model that calls out of its reasoning has begun the call that must come.
  guide = guide_for(named);
  push_text(*guide, tokenizer, "I think<tool_call>");
  expect_beginnings(*guide, tokenizer, {"get_weather"});

  EXPECT_EQ(guide_for("none"), nullptr);
  EXPECT_THAT(bench.last_prompt(), Not(HasSubstr("get_weather")));
}

TEST(OpenAiChat, StrictToolsAreKeptToOrRefused) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  const auto ask = [&](const char* parameters, Json strict, Json choice) {
    Json function = {{"name", "f"}, {"parameters", parse_json(parameters, "test")}, {"strict", std::move(strict)}};
    Json body = with(hello(), "tools", Json::array({{{"type", "function"}, {"function", std::move(function)}}}));
    return bench.ask(with(std::move(body), "tool_choice", std::move(choice)), kPath);
  };
  constexpr const char* kGood = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";
  constexpr const char* kBad = R"({"type": "object", "properties": {"a": {"uniqueItems": true}}})";
  const auto has_guide = [&] { return bench.answers.requests.back().guide != nullptr; };
  EXPECT_EQ(ask(kGood, true, "auto").status, 200);
  EXPECT_TRUE(has_guide());
  EXPECT_EQ(ask(kGood, false, "auto").status, 200);
  EXPECT_FALSE(has_guide());
  EXPECT_EQ(ask(kBad, nullptr, "auto").status, 200);
  EXPECT_FALSE(has_guide());
  // Where a call must come, a schema that is not supported leaves the arguments to the model unless it is strict.
  EXPECT_EQ(ask(kBad, nullptr, "required").status, 200);
  EXPECT_TRUE(has_guide());
  for (const char* const choice : {"auto", "required"}) {
    const ApiReply refused = ask(kBad, true, choice);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.error().at("param"), "tools[0].function.parameters");
    EXPECT_THAT(refused.error().at("message").get<std::string>(),
                HasSubstr("tools[0].function.parameters of 'f': #/properties/a: keyword 'uniqueItems' is not supported"));
  }
  EXPECT_EQ(ask(kBad, true, "none").status, 200);
  EXPECT_EQ(ask(kGood, "yes", "auto").error().at("param"), "tools[0].function.strict");
}

TEST(OpenAiChat, AReasoningThatHasHadItsTokensIsClosed) {
  ApiBench bench(openai_chat);
  const Tokenizer& tokenizer = *bench.model().tokenizer;
  bench.answers.script = {.pieces = {"x"}};
  ASSERT_EQ(bench.ask(with(hello(), "max_reasoning_tokens", 3), kPath).status, 200);
  const auto guide = bench.answers.requests.back().guide;
  for (const std::int32_t id : {70, 71, 72}) {
    EXPECT_TRUE(guide->allowed().empty());
    guide->push(id);
  }
  EXPECT_EQ(forced_text(*guide, tokenizer), "</think>");
  EXPECT_TRUE(guide->allowed().empty());
}

// Nothing but the mark may come when the reasoning has had its tokens: if it could not, the answer would fail in its middle.
TEST(OpenAiChat, WhatMustCloseAReasoningCannotBeForbidden) {
  ApiBench bench(openai_chat);
  bench.answers.script = {.pieces = {"x"}};
  const std::vector<std::int32_t> mark = bench.model().tokenizer->encode("</think>");
  const std::int32_t other = bench.model().tokenizer->id_of("a").value();
  const auto ask = [&](Json more) {
    Json body = hello();
    body.update(more);
    return bench.ask(body, kPath);
  };
  const auto bias = [](std::int32_t id, int value) { return Json{{std::to_string(id), value}}; };
  for (const std::int32_t id : mark) {
    const ApiReply banned = ask({{"max_reasoning_tokens", 3}, {"logit_bias", bias(id, -100)}});
    EXPECT_EQ(banned.status, 400);
    EXPECT_EQ(banned.error().at("param"), "logit_bias." + std::to_string(id));
    const ApiReply early = ask({{"max_reasoning_tokens", 3}, {"stop_token_ids", {id}}, {"min_tokens", 9}});
    EXPECT_EQ(early.status, 400);
    EXPECT_EQ(early.error().at("param"), "min_tokens");
    EXPECT_EQ(ask({{"max_reasoning_tokens", 3}, {"logit_bias", bias(id, -99)}}).status, 200);
    EXPECT_EQ(ask({{"max_reasoning_tokens", 3}, {"stop_token_ids", {id}}}).status, 200);
    EXPECT_EQ(ask({{"logit_bias", bias(id, -100)}}).status, 200) << "the model may think as long as it likes";
    EXPECT_EQ(ask({{"max_reasoning_tokens", 3}, {"reasoning_effort", "none"}, {"logit_bias", bias(id, -100)}}).status, 200);
  }
  EXPECT_EQ(ask({{"max_reasoning_tokens", 3}, {"logit_bias", bias(other, -100)}, {"min_tokens", 9}}).status, 200);
}

TEST(OpenAiChat, LogprobsAreOfAllTokensWithTheirBytes) {
  ApiBench bench(openai_chat);
  const Tokenizer& tokenizer = *bench.model().tokenizer;
  const std::int32_t a = tokenizer.id_of("a").value(), b = tokenizer.id_of("b").value();
  bench.answers.script = {.pieces = {"a", "b"},
                          .ids = {a, b},
                          .logprobs = {{{a, -0.5}, {{a, -0.5}, {b, -1.5}}}, {{b, -2.0}, {{a, -0.25}, {b, -2.0}}}}};
  Json body = hello();
  body.update(Json({{"logprobs", true}, {"top_logprobs", 2}, {"reasoning_effort", "none"}}));
  const Json choices = bench.ask(body, kPath).json().at("choices");
  const Json entry_a = {{"token", "a"}, {"logprob", -0.5}, {"bytes", {97}}},
             entry_b = {{"token", "b"}, {"logprob", -1.5}, {"bytes", {98}}};
  Json expected = entry_a;
  expected["top_logprobs"] = Json::array({entry_a, entry_b});
  ASSERT_EQ(choices[0].at("logprobs").at("content").size(), 2U);
  EXPECT_EQ(choices[0].at("logprobs").at("content")[0], expected);
  body["stream"] = true;
  EXPECT_EQ(choices_of(chunks_of(bench.ask(body, kPath).body))[0].at("logprobs"), choices[0].at("logprobs"));
}

}  // namespace
}  // namespace calandra
