// What clients say about the prefix cache in their requests, and what they are told of it: salts, marks, usage.

#include "base/json.h"
#include "serve/anthropic_messages.h"
#include "serve/openai_chat.h"
#include "serve/openai_completions.h"
#include "serve/openai_responses.h"
#include "serve/scripted_answers.h"
#include "serve/whole_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace calandra::prompt_caching_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kMessages = "/v1/messages";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";
constexpr const char* kResponses = "/v1/responses";
constexpr const char* kApis[] = {kChat, kText, kResponses, kMessages};

Json with(Json body, const char* key, Json value) {
  body[key] = std::move(value);
  return body;
}

/// A request of one of the APIs for one token.
Json body_for(std::string_view api, const std::string& text) {
  const Json messages = Json::array({{{"role", "user"}, {"content", text}}});
  if (api == kText) return {{"prompt", text}, {"max_tokens", 1}};
  if (api == kResponses) return {{"input", text}, {"max_output_tokens", 1}};
  return {{"messages", messages}, {"max_tokens", 1}};
}

std::int64_t cached_tokens(std::string_view api, const Json& reply) {
  const Json& usage = reply.at("usage");
  if (api == kMessages) return usage.at("cache_read_input_tokens");
  return usage.at(api == kResponses ? "input_tokens_details" : "prompt_tokens_details").at("cached_tokens");
}

// ---------------------------------------------------------------- salts

/// Requests find each other exactly if key and salt are the same.
TEST(CacheSalt, RequestsOfOneKeyAndOneSaltShareAndNoOthers) {
  const std::vector<std::string> keys = {"first-key", "second-key"};
  // The salts try to look like something else: another salt, a key, a key and a salt.
  const std::vector<std::optional<std::string>> salts = {std::nullopt, "x", "x ", "salt x", "key 0", "key 1 salt x", " salt x"};
  for (const bool isolates_keys : {true, false}) {
    WholeServerOptions options;
    options.server.api_keys = keys;
    options.server.isolates_keys = isolates_keys;
    WholeServer whole(options);
    std::set<std::pair<std::string, std::optional<std::string>>> seen;
    for (int round = 0; round < 2; ++round) {
      for (const std::string& key : keys) {
        for (const auto& salt : salts) {
          Json body = body_for(kText, "It is a truth universally acknowledged");
          if (salt) body["cache_salt"] = *salt;
          const Answer answer = whole.post(kText, body, "x-api-key: " + key + "\r\n");
          ASSERT_EQ(answer.status, 200) << answer.body;
          const bool is_known = !seen.emplace(isolates_keys ? key : "", salt).second;
          EXPECT_EQ(cached_tokens(kText, parse_json(answer.body, "test")) > 0, is_known)
              << key << ", " << salt.value_or("none") << ", round " << round;
        }
      }
    }
  }
}

TEST(CacheSalt, EveryApiHasOne) {
  WholeServer whole;
  for (const char* api : kApis) {
    const auto cached = [&](const char* salt) {
      const Answer answer = whole.post(api, with(body_for(api, std::string("From ") + api), "cache_salt", salt));
      EXPECT_EQ(answer.status, 200) << answer.body;
      return cached_tokens(api, parse_json(answer.body, "test"));
    };
    EXPECT_EQ(cached("one"), 0) << api;
    EXPECT_GT(cached("one"), 0) << api;
    EXPECT_EQ(cached("two"), 0) << api;
  }
}

ApiBench::Handler handler_of(std::string_view api) {
  if (api == kText) return openai_completions;
  if (api == kResponses) return openai_responses;
  return api == kChat ? openai_chat : anthropic_messages;
}

TEST(CacheSalt, OneThatIsEmptyOrLongOrNoTextIsRefused) {
  for (const char* api : kApis) {
    ApiBench bench(handler_of(api));
    bench.answers.script = {.pieces = {"x"}};
    for (const Json& salt : {Json(""), Json(7), Json::array(), Json(std::string(257, 'x'))}) {
      const ApiReply reply = bench.ask(with(body_for(api, "x"), "cache_salt", salt), api);
      EXPECT_EQ(reply.status, 400) << api << salt;
      EXPECT_THAT(reply.error().at("message").get<std::string>(), StartsWith("cache_salt: found ")) << api;
    }
    EXPECT_EQ(bench.ask(with(body_for(api, "x"), "cache_salt", std::string(256, 'x')), api).status, 200) << api;
    EXPECT_EQ(bench.ask(with(body_for(api, "x"), "cache_salt", nullptr), api).status, 200) << api;
  }
}

// ---------------------------------------------------------------- marks

const Json kEphemeral = {{"type", "ephemeral"}};

Json text_block(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

Json tool(const std::string& name) {
  return {{"name", name}, {"description", "Does " + name}, {"input_schema", {{"type", "object"}}}};
}

/// A conversation of every kind of block: words that stand nowhere else.
Json conversation() {
  Json body = {{"max_tokens", 9}, {"thinking", {{"type", "adaptive"}}}};
  body["tools"] = {tool("toolone"), tool("tooltwo")};
  body["system"] = {text_block("Sysone is here."), text_block("Systwo is here.")};
  body["messages"] = Json::array();
  body["messages"].push_back({{"role", "user"}, {"content", {text_block("Userone asks."), text_block("Usertwo asks.")}}});
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content",
        {text_block("Saidone so."), text_block("Saidtwo so."),
         Json{{"type", "tool_use"}, {"id", "a"}, {"name", "toolone"}, {"input", {{"place", "Callone"}}}},
         Json{{"type", "tool_use"}, {"id", "b"}, {"name", "tooltwo"}, {"input", {{"place", "Calltwo"}}}}}}});
  body["messages"].push_back(
      {{"role", "user"},
       {"content",
        {Json{{"type", "tool_result"}, {"tool_use_id", "a"}, {"content", "Resone came."}},
         Json{{"type", "tool_result"}, {"tool_use_id", "b"}, {"content", Json::array({text_block("Restwo came.")})}},
         text_block("Userthree asks.")}}});
  return body;
}

/// A place of the conversation, a word that it ends with, and one of the text that comes next in the prompt.
struct Place {
  const char* pointer;
  const char* word;
  const char* next;
};

// In the order of Ling's template, which shows tools behind the system's message.
const std::vector<Place> kPlaces = {
    {"/system/0", "Sysone is here", "Systwo"},
    {"/tools/0", "Does toolone", "tooltwo"},
    {"/tools/1", "Does tooltwo", "If none"},
    {"/system/1", "Does tooltwo", "Userone"},  // the whole of the system's message, tools included
    {"/messages/0/content/0", "Userone asks", "Usertwo"},
    {"/messages/0/content/1", "Usertwo asks", "Saidone"},
    {"/messages/1/content/0", "Saidone so", "Saidtwo"},
    {"/messages/1/content/1", "Saidtwo so", "Callone"},
    {"/messages/1/content/2", "Callone", "Calltwo"},
    {"/messages/1/content/3", "Calltwo", "Resone"},
    {"/messages/2/content/0", "Resone came", "Restwo"},
    {"/messages/2/content/1", "Restwo came", "Userthree"},
    {"/messages/2/content/1/content/0", "Restwo came", "Userthree"},
    {"/messages/2/content/2", "Userthree asks", "Userthree asks.<|role_end|><role>"},
};

class CacheMarks : public testing::Test {
 protected:
  CacheMarks() { messages.answers.script = openai.answers.script = responses.answers.script = {.pieces = {"ok"}}; }

  static std::vector<std::int64_t> marks_of(const ApiBench& bench, const Json& body, std::string_view path) {
    const ApiReply reply = bench.ask(body, path);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return bench.answers.requests.back().cache_marks;
  }
  static std::string text_before(const ApiBench& bench, std::int64_t position) {
    std::string text;
    for (std::int64_t i = 0; i < position; ++i)
      text += bench.model().tokenizer->token_bytes(bench.answers.requests.back().prompt[static_cast<std::size_t>(i)]);
    return text;
  }

  ApiBench messages{anthropic_messages}, openai{openai_chat}, responses{openai_responses};
};

TEST_F(CacheMarks, AMarkIsWhereItsBlockEndsInThePrompt) {
  for (const auto& [pointer, word, next] : kPlaces) {
    Json body = conversation();
    body[Json::json_pointer(pointer)]["cache_control"] = kEphemeral;
    const auto marks = marks_of(messages, body, kMessages);
    ASSERT_EQ(marks.size(), 1u) << pointer;
    const std::string before = text_before(messages, marks[0]);
    EXPECT_THAT(before, HasSubstr(word)) << pointer;
    EXPECT_THAT(before, testing::Not(HasSubstr(next))) << pointer;
    // The prompt itself is that of a conversation without marks.
    const std::string prompt = messages.last_prompt();
    EXPECT_TRUE(marks_of(messages, conversation(), kMessages).empty());
    EXPECT_EQ(messages.last_prompt(), prompt);
  }
}

/// The conversation up to the block, and then something else.
Json parting_behind(const std::string& pointer, const std::string& words) {
  Json body = conversation();
  const Json::json_pointer list = Json::json_pointer(pointer).parent_pointer();
  const std::size_t index = std::stoul(Json::json_pointer(pointer).back());
  const bool is_system = pointer.starts_with("/system");
  const bool is_last = index + 1 == body[list].size();
  while (body[list].size() > index + 1) body[list].erase(body[list].size() - 1);
  const std::size_t messages = is_system ? 0 : 1 + std::stoul(pointer.substr(std::string("/messages/").size()));
  while (body["messages"].size() > messages) body["messages"].erase(body["messages"].size() - 1);
  if (!is_last && body[list].back()["type"] == "text") {
    body[list].push_back(text_block(words));
    if (!is_system) return body;
  }
  body["messages"].push_back({{"role", "user"}, {"content", words}});
  return body;
}

/// Whatever comes behind the block: up to the mark the tokens are the same, which is what a cache looks for.
TEST_F(CacheMarks, ConversationsThatPartBehindTheBlockHaveTheTokensBeforeTheMarkInCommon) {
  for (const auto& [place, word, next] : kPlaces) {
    const std::string pointer = place;
    if (pointer.starts_with("/tools") || pointer.ends_with("/content/1/content/0")) continue;
    Json body = conversation();
    body[Json::json_pointer(pointer)]["cache_control"] = kEphemeral;
    const auto marks = marks_of(messages, body, kMessages);
    ASSERT_EQ(marks.size(), 1u);
    const auto tokens = messages.answers.requests.back().prompt;
    for (const char* words : {"!", "s", "...", "\n\nAnother", " ", "\xC3\xA9", "<think>", "</role>"}) {
      marks_of(messages, parting_behind(pointer, words), kMessages);
      const auto& others = messages.answers.requests.back().prompt;
      ASSERT_GE(std::ssize(others), marks[0]);
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + marks[0], others.begin())) << pointer << " then " << words;
    }
  }
}

TEST_F(CacheMarks, ToolsMayBeAddedBehindAMarkedOne) {
  Json body = conversation();
  body["tools"][1]["cache_control"] = kEphemeral;
  const auto marks = marks_of(messages, body, kMessages);
  ASSERT_EQ(marks.size(), 1u);
  const auto tokens = messages.answers.requests.back().prompt;
  for (const char* name : {"toolthree", "x", "_"}) {
    Json other = conversation();
    other["tools"].push_back(tool(name));
    marks_of(messages, other, kMessages);
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + marks[0], messages.answers.requests.back().prompt.begin())) << name;
  }
  // Where the choice hides the tools there is no such place.
  EXPECT_TRUE(marks_of(messages, with(body, "tool_choice", {{"type", "none"}}), kMessages).empty());
}

TEST_F(CacheMarks, SeveralAreAscendingAndTheRequestsOwnGoesOnItsLastBlock) {
  Json body = conversation();
  for (const char* pointer : {"/messages/1/content/0", "/tools/0", "/system/1"})
    body[Json::json_pointer(pointer)]["cache_control"] = {{"type", "ephemeral"}, {"ttl", "1h"}};
  const auto three = marks_of(messages, body, kMessages);
  ASSERT_EQ(three.size(), 3u);
  EXPECT_TRUE(std::is_sorted(three.begin(), three.end()));
  body["cache_control"] = kEphemeral;
  const auto four = marks_of(messages, body, kMessages);
  ASSERT_EQ(four.size(), 4u);
  EXPECT_TRUE(std::equal(three.begin(), three.end(), four.begin()));
  EXPECT_THAT(text_before(messages, four[3]), testing::EndsWith("Userthree asks.<|role_end|>"));
  // On a block that has one already it says the same again.
  body["messages"][2]["content"][2]["cache_control"] = kEphemeral;
  EXPECT_EQ(marks_of(messages, body, kMessages), four);
  // A text that is no block is one too.
  Json plain = body_for(kMessages, "What is it?");
  plain["cache_control"] = kEphemeral;
  const auto one = marks_of(messages, plain, kMessages);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_THAT(text_before(messages, one[0]), testing::EndsWith("What is it?<|role_end|>"));
}

TEST_F(CacheMarks, WhatTheApiDoesNotAllowIsRefusedByName) {
  const auto refusal = [&](const std::vector<std::pair<const char*, Json>>& changes) {
    Json body = conversation();
    for (const auto& [pointer, value] : changes) body[Json::json_pointer(pointer)] = value;
    const ApiReply reply = messages.ask(body, kMessages);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.status == 400 ? reply.error().at("message").get<std::string>() : std::string();
  };
  const Json hour = {{"type", "ephemeral"}, {"ttl", "1h"}};
  const char* first = "/system/0/cache_control";
  EXPECT_THAT(refusal({{first, true}}), StartsWith("system[0].cache_control: found true, expected an object"));
  EXPECT_THAT(refusal({{first, Json::object()}}), StartsWith("system[0].cache_control.type: is missing"));
  EXPECT_THAT(refusal({{first, {{"type", "lasting"}}}}), StartsWith("system[0].cache_control.type: found \"lasting\""));
  EXPECT_THAT(refusal({{first, {{"type", "ephemeral"}, {"ttl", "2h"}}}}),
              StartsWith("system[0].cache_control.ttl: found \"2h\""));
  EXPECT_THAT(refusal({{first, {{"type", "ephemeral"}, {"tll", "1h"}}}}),
              StartsWith("system[0].cache_control.tll: no such field"));
  EXPECT_THAT(refusal({{"/cache_control", 1}}), StartsWith("cache_control: found 1"));
  EXPECT_THAT(refusal({{"/tools/0/cache_control", 1}}), StartsWith("tools[0].cache_control: found 1"));
  // Blocks that cannot have one.
  EXPECT_THAT(refusal({{"/system/0", {{"type", "text"}, {"text", ""}, {"cache_control", kEphemeral}}}}),
              StartsWith("system[0].text: found \"\""));
  EXPECT_THAT(refusal({{"/messages/1/content/0", {{"type", "thinking"}, {"thinking", "x"}, {"cache_control", kEphemeral}}}}),
              StartsWith("messages[1].content[0].cache_control: no such field"));
  // At most four, the request's own included, longer lives first, and no two of different lives on one block.
  const std::vector<std::pair<const char*, Json>> four = {{"/tools/0/cache_control", kEphemeral},
                                                          {"/system/0/cache_control", kEphemeral},
                                                          {"/messages/0/content/0/cache_control", kEphemeral},
                                                          {"/messages/2/content/0/cache_control", kEphemeral}};
  auto five = four;
  five.emplace_back("/messages/2/content/1/content/0/cache_control", kEphemeral);
  EXPECT_THAT(refusal(five), StartsWith("messages[2].content[1].content[0].cache_control: is one too many, expected at most 4"));
  five = four;
  five.emplace_back("/cache_control", kEphemeral);
  EXPECT_THAT(refusal(five), StartsWith("cache_control: is one too many"));
  EXPECT_THAT(refusal({{"/tools/1/cache_control", kEphemeral}, {first, hour}}), StartsWith("system[0].cache_control.ttl: "));
  EXPECT_THAT(refusal({{"/messages/2/content/2/cache_control", hour}, {"/cache_control", kEphemeral}}),
              StartsWith("cache_control: "));
}

TEST_F(CacheMarks, CountingTokensTakesWhatAMessageTakes) {
  ApiBench counter(anthropic_count_tokens);
  Json body = conversation();
  body.erase("max_tokens");
  const Json plain = counter.ask(body, "/v1/messages/count_tokens").json();
  body["system"][0]["cache_control"] = body["cache_control"] = kEphemeral;
  EXPECT_EQ(counter.ask(body, "/v1/messages/count_tokens").json(), plain);
}

// OpenAI's: breakpoints in parts, and a key.

Json openai_conversation() {
  return {{"tools", Json::array({{{"type", "function"}, {"function", {{"name", "toolone"}}}}})},
          {"messages",
           {Json{{"role", "system"}, {"content", {text_block("Sysone is here."), text_block("Systwo is here.")}}},
            Json{{"role", "developer"}, {"content", "Sysmore is here."}},
            Json{{"role", "user"}, {"content", {text_block("Userone asks."), text_block("Usertwo asks.")}}},
            Json{{"role", "assistant"}, {"content", "Saidone so."}}, Json{{"role", "user"}, {"content", "Userthree asks."}}}}};
}

Json responses_conversation() {
  const auto part = [](const char* text) { return Json{{"type", "input_text"}, {"text", text}}; };
  return {{"instructions", "Sysone is here."},
          {"tools", Json::array({{{"type", "function"}, {"name", "toolone"}}})},
          {"input",
           {Json{{"role", "developer"}, {"content", {part("Systwo is here."), part("Sysmore is here.")}}},
            Json{{"role", "user"}, {"content", {part("Userone asks."), part("Usertwo asks.")}}},
            Json{{"type", "function_call"}, {"call_id", "a"}, {"name", "toolone"}, {"arguments", "{}"}},
            Json{{"type", "function_call_output"}, {"call_id", "a"}, {"output", {part("Resone came."), part("Restwo came.")}}}}}};
}

TEST_F(CacheMarks, ABreakpointIsWhereItsPartEndsInThePrompt) {
  const Json breakpoint = {{"mode", "explicit"}};
  const std::vector<std::tuple<ApiBench*, const char*, Place>> places = {
      {&openai, kChat, {"/messages/0/content/0", "Sysone is here", "Systwo"}},
      {&openai, kChat, {"/messages/2/content/0", "Userone asks", "Usertwo"}},
      {&openai, kChat, {"/messages/2/content/1", "Usertwo asks", "Saidone"}},
      {&responses, kResponses, {"/input/0/content/0", "Systwo is here", "Sysmore"}},
      {&responses, kResponses, {"/input/1/content/0", "Userone asks", "Usertwo"}},
      {&responses, kResponses, {"/input/3/output/0", "Resone came", "Restwo"}},
      {&responses, kResponses, {"/input/3/output/1", "Restwo came", "Restwo came.\n</tool_response><|role_end|><role>"}}};
  for (const auto& [bench, path, place] : places) {
    Json body = path == kChat ? openai_conversation() : responses_conversation();
    body[Json::json_pointer(place.pointer)]["prompt_cache_breakpoint"] = breakpoint;
    const auto marks = marks_of(*bench, body, path);
    ASSERT_EQ(marks.size(), 1u) << place.pointer;
    EXPECT_THAT(text_before(*bench, marks[0]), HasSubstr(place.word));
    EXPECT_THAT(text_before(*bench, marks[0]), testing::Not(HasSubstr(place.next)));
    body[Json::json_pointer(place.pointer)]["prompt_cache_breakpoint"] = {{"mode", "implicit"}};
    EXPECT_EQ(bench->ask(body, path).status, 400);
  }
}

TEST_F(CacheMarks, OfManyBreakpointsTheLatestFourCount) {
  Json body = {{"messages", Json::array()}};
  for (int i = 0; i < 6; ++i) {
    Json part = text_block(fmt::format("Part {} of it.", i));
    part["prompt_cache_breakpoint"] = {{"mode", "explicit"}};
    body["messages"].push_back({{"role", "user"}, {"content", Json::array({part})}});
  }
  const auto marks = marks_of(openai, body, kChat);
  ASSERT_EQ(marks.size(), 4u);
  EXPECT_THAT(text_before(openai, marks[0]), HasSubstr("Part 2"));
  EXPECT_THAT(text_before(openai, marks[0]), testing::Not(HasSubstr("Part 3")));
}

TEST_F(CacheMarks, ARequestWithAKeyMarksTheEndOfItsInstructions) {
  for (const auto& [bench, path] : {std::pair{&openai, kChat}, std::pair{&responses, kResponses}}) {
    Json body = path == kChat ? openai_conversation() : responses_conversation();
    EXPECT_TRUE(marks_of(*bench, body, path).empty()) << path;
    body["prompt_cache_key"] = "some application";
    const auto marks = marks_of(*bench, body, path);
    ASSERT_EQ(marks.size(), 1u) << path;
    const std::string before = text_before(*bench, marks[0]);
    for (const char* word : {"Sysone", "Systwo", "Sysmore", "toolone"}) EXPECT_THAT(before, HasSubstr(word)) << path;
    EXPECT_THAT(before, testing::Not(HasSubstr("Userone"))) << path;
    // Without instructions there is nothing that an application's conversations are known to share, but for tools.
    Json bare = body_for(path, "Userone asks.");
    bare["prompt_cache_key"] = "some application";
    EXPECT_TRUE(marks_of(*bench, bare, path).empty()) << path;
    bare["tools"] = body["tools"];
    const auto tools = marks_of(*bench, bare, path);
    ASSERT_EQ(tools.size(), 1u) << path;
    EXPECT_THAT(text_before(*bench, tools[0]), HasSubstr("toolone")) << path;
    EXPECT_THAT(text_before(*bench, tools[0]), testing::Not(HasSubstr("Userone"))) << path;
  }
}

TEST_F(CacheMarks, SettingsOfTheCacheAreThoseOfOpenAisApi) {
  for (const auto& [bench, path] : {std::pair{&openai, kChat}, std::pair{&responses, kResponses}}) {
    const auto status = [&, bench = bench, path = path](const char* key, Json value) {
      return bench->ask(with(body_for(path, "x"), key, std::move(value)), path).status;
    };
    for (const char* retention : {"in_memory", "in-memory", "24h"}) EXPECT_EQ(status("prompt_cache_retention", retention), 200);
    EXPECT_EQ(status("prompt_cache_retention", "forever"), 400);
    EXPECT_EQ(status("prompt_cache_key", 7), 400);
    EXPECT_EQ(status("prompt_cache_options", {{"mode", "implicit"}, {"ttl", "30m"}}), 200);
    EXPECT_FALSE(bench->answers.requests.back().cache_only_marks);
    EXPECT_EQ(status("prompt_cache_options", {{"mode", "explicit"}}), 200);
    EXPECT_TRUE(bench->answers.requests.back().cache_only_marks);
    EXPECT_EQ(status("prompt_cache_options", {{"ttl", "1h"}}), 400);
    EXPECT_EQ(status("prompt_cache_options", {{"until", "1h"}}), 400);
  }
}

// ---------------------------------------------------------------- usage

/// A block that is too short to be kept for itself, and something behind it that differs.
Json short_system(const std::string& question, bool is_marked) {
  Json body = body_for(kMessages, question);
  body["system"] = Json::array({text_block("Be brief and polite, and never talk about the weather.")});
  if (is_marked) body["system"][0]["cache_control"] = kEphemeral;
  return body;
}

TEST(CacheUsage, WhatTheFirstRequestHasMarkedTheNextOneFinds) {
  const auto ask = [](const WholeServer& whole, const std::string& question, bool is_marked) {
    const Answer answer = whole.post(kMessages, short_system(question, is_marked));
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json usage = parse_json(answer.body, "test").at("usage");
    Json counted = short_system(question, is_marked);
    counted.erase("max_tokens");
    const Json count = parse_json(whole.post("/v1/messages/count_tokens", counted).body, "test");
    EXPECT_EQ(usage.at("input_tokens").get<int>() + usage.at("cache_creation_input_tokens").get<int>() +
                  usage.at("cache_read_input_tokens").get<int>(),
              count.at("input_tokens"));
    return usage;
  };
  for (const bool is_marked : {false, true}) {
    const WholeServer whole;
    const Json first = ask(whole, "Who are you?", is_marked), second = ask(whole, "What is your name?", is_marked);
    EXPECT_EQ(first.at("cache_read_input_tokens"), 0);
    EXPECT_EQ(second.at("cache_creation_input_tokens"), 0);
    EXPECT_EQ(first.at("cache_creation_input_tokens") > 0, is_marked);
    EXPECT_EQ(second.at("cache_read_input_tokens"), first.at("cache_creation_input_tokens"));
  }
  // Without a cache there is nothing to be written.
  WholeServerOptions without;
  without.engine.prefixes.keeps = false;
  const WholeServer whole(without);
  for (const char* question : {"Who are you?", "What is your name?"}) {
    const Json usage = ask(whole, question, true);
    EXPECT_EQ(usage.at("cache_creation_input_tokens"), 0);
    EXPECT_EQ(usage.at("cache_read_input_tokens"), 0);
  }
}

TEST(CacheUsage, OpenAisApisSayWhatWasFoundAndWhatWasKept) {
  const WholeServer whole;
  for (const char* api : {kChat, kText, kResponses}) {
    const std::string text = std::string("A text for ") + api + " that has some tokens in it, one after another.";
    for (const bool is_known : {false, true}) {
      const Json usage = parse_json(whole.post(api, body_for(api, text)).body, "test").at("usage");
      const bool is_responses = api == std::string_view(kResponses);
      const int prompt = usage.at(is_responses ? "input_tokens" : "prompt_tokens");
      const Json& details = usage.at(is_responses ? "input_tokens_details" : "prompt_tokens_details");
      EXPECT_EQ(details.at("cached_tokens"), is_known ? prompt - 1 : 0) << api;
      EXPECT_EQ(details.at("cache_write_tokens"), is_known ? 1 : prompt) << api;
    }
  }
}

TEST(CacheUsage, AStreamSaysInTheEndWhatAWholeReplySays) {
  ApiBench bench(anthropic_messages);
  bench.answers.script = {.pieces = {"ok"}, .cached_tokens = 3, .kept_tokens = 9, .marked_tokens = 7};
  const Json body = body_for(kMessages, "Who are you?");
  const Json whole = bench.ask(body, kMessages).json().at("usage");
  EXPECT_EQ(whole.at("cache_creation_input_tokens"), 4);
  const std::vector<ServerEvent> events = bench.ask(with(body, "stream", true), kMessages).events();
  EXPECT_EQ(events[events.size() - 2].data.at("usage"), whole);
}

/// With explicit breakpoints alone: nothing else stays, and a conversation without any leaves no trace.
TEST(CacheUsage, AnExplicitRequestKeepsWhatItMarksAndNothingElse) {
  const WholeServer whole;
  const auto ask = [&](const std::string& question, const char* mode, bool is_marked) {
    Json body = {{"max_tokens", 1}, {"prompt_cache_options", {{"mode", mode}}}, {"messages", Json::array()}};
    Json system = text_block("Be brief and polite, and never talk about the weather.");
    if (is_marked) system["prompt_cache_breakpoint"] = {{"mode", "explicit"}};
    body["messages"].push_back({{"role", "system"}, {"content", Json::array({system})}});
    body["messages"].push_back({{"role", "user"}, {"content", question}});
    const Answer answer = whole.post(kChat, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return parse_json(answer.body, "test").at("usage").at("prompt_tokens_details");
  };
  EXPECT_EQ(ask("Who are you?", "explicit", false), (Json{{"cached_tokens", 0}, {"cache_write_tokens", 0}}));
  EXPECT_EQ(ask("Who are you?", "explicit", false).at("cached_tokens"), 0);
  EXPECT_EQ(whole.engine.statistics().cache.stored, 0);
  EXPECT_EQ(whole.engine.statistics().cache.hits + whole.engine.statistics().cache.misses, 0);
  const Json first = ask("Who are you?", "explicit", true);
  EXPECT_EQ(first.at("cached_tokens"), 0);
  EXPECT_GT(first.at("cache_write_tokens"), 0);
  EXPECT_EQ(whole.engine.statistics().cache.stored, 1);
  for (const char* question : {"Who are you?", "What is your name?"})
    EXPECT_EQ(ask(question, "explicit", true), (Json{{"cached_tokens", first["cache_write_tokens"]}, {"cache_write_tokens", 0}}));
  EXPECT_EQ(whole.engine.statistics().cache.stored, 1);
  EXPECT_EQ(ask("Who are you?", "implicit", false).at("cached_tokens"), first["cache_write_tokens"]);
  EXPECT_GT(whole.engine.statistics().cache.stored, 1);
}

// ---------------------------------------------------------------- what is kept

class CachePages : public testing::Test {
 protected:
  static WholeServerOptions with_keys(bool isolates_keys) {
    WholeServerOptions options;
    options.server.api_keys = {"first-key", "second-key"};
    options.server.isolates_keys = isolates_keys;
    return options;
  }
  static std::string key(const std::string& name) { return "x-api-key: " + name + "-key\r\n"; }
  static Json cache(const WholeServer& whole, const std::string& fields = {}) {
    const Answer answer = whole.connect().ask(request_text("GET /cache HTTP/1.1", fields));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return parse_json(answer.body, "test");
  }
  static Json flush(const WholeServer& whole, const std::string& fields = {}) {
    const Answer answer = whole.post("/cache/flush", Json::object(), fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return parse_json(answer.body, "test");
  }
  static std::int64_t ask(const WholeServer& whole, const Json& body, const std::string& fields = {}) {
    const Answer answer = whole.post(kText, body, fields);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return cached_tokens(kText, parse_json(answer.body, "test"));
  }
  static std::size_t num_boundaries(const Json& cache) {
    std::size_t count = 0;
    for (const Json& space : cache.at("spaces")) count += space.at("boundaries").size();
    return count;
  }

  const Json secret = body_for(kText, "A secret that nobody else may read, in some tokens");
};

TEST_F(CachePages, ShowWhereRequestsCanGoOnAndNoWordOfThem) {
  const WholeServer whole;
  EXPECT_EQ(cache(whole).at("spaces"), Json::array());
  ask(whole, secret);
  const std::int64_t found = ask(whole, secret);
  ASSERT_GT(found, 0);
  const Json now = cache(whole);
  ASSERT_EQ(now.at("spaces").size(), 1u);
  const Json& boundaries = now["spaces"][0].at("boundaries");
  std::int64_t bytes = 0, hits = 0;
  for (const Json& boundary : boundaries) {
    bytes += boundary.at("bytes").get<std::int64_t>();
    hits += boundary.at("hits").get<std::int64_t>();
    EXPECT_EQ(boundary.at("kind"), "end");
    EXPECT_EQ(boundary.at("pinned"), false);
    if (boundary.at("hits") == 1) {
      EXPECT_EQ(boundary.at("position"), found);
    }
    if (!boundary.at("parent").is_null()) {
      EXPECT_LT(boundary["parent"], boundary.at("id"));
      EXPECT_LT(boundaries[boundary["parent"].get<std::size_t>()].at("position"), boundary["position"]);
    }
  }
  EXPECT_EQ(hits, 1);
  EXPECT_THAT(dump_json(now), testing::Not(HasSubstr("secret")));
  const auto metrics = whole.metrics();
  EXPECT_EQ(static_cast<double>(bytes), metrics.at("calandra_prefix_cache_bytes"));
  EXPECT_EQ(static_cast<double>(num_boundaries(now)), metrics.at("calandra_prefix_cache_boundaries"));
}

TEST_F(CachePages, AFlushMakesAllMemoryFreeAndRequestsComputeAgain) {
  const WholeServer whole;
  ask(whole, secret);
  EXPECT_GT(ask(whole, secret), 0);
  const std::size_t before = num_boundaries(cache(whole));
  const Json dropped = flush(whole);
  EXPECT_EQ(dropped.at("boundaries"), before);
  EXPECT_GT(dropped.at("bytes"), 0);
  EXPECT_EQ(dropped.at("pinned"), 0);
  EXPECT_EQ(num_boundaries(cache(whole)), 0u);
  EXPECT_TRUE(whole.becomes_idle()) << "all blocks are back";
  EXPECT_EQ(ask(whole, secret), 0);
}

TEST_F(CachePages, AKeySeesAndDropsWhatIsItsOwn) {
  const WholeServer whole(with_keys(true));
  ask(whole, secret, key("first"));
  ask(whole, with(secret, "cache_salt", "x"), key("first"));
  EXPECT_EQ(cache(whole, key("first")).at("spaces").size(), 2u);
  EXPECT_EQ(num_boundaries(cache(whole, key("second"))), 0u);
  EXPECT_EQ(flush(whole, key("second")).at("boundaries"), 0);
  EXPECT_GT(ask(whole, secret, key("first")), 0);
  EXPECT_GT(flush(whole, key("first")).at("boundaries"), 0);
  EXPECT_EQ(ask(whole, secret, key("first")), 0);
  // Who has none learns nothing.
  EXPECT_EQ(whole.connect().ask(request_text("GET /cache HTTP/1.1")).status, 401);
  EXPECT_EQ(whole.post("/cache/flush", Json::object()).status, 401);
}

TEST_F(CachePages, KeysThatShareSeeTheSame) {
  const WholeServer whole(with_keys(false));
  ask(whole, secret, key("first"));
  EXPECT_GT(num_boundaries(cache(whole, key("second"))), 0u);
}

TEST_F(CachePages, WhatIsNoFlushIsRefused) {
  const WholeServer whole;
  EXPECT_EQ(whole.post("/cache/flush", {{"all", true}}).status, 400);
  EXPECT_EQ(whole.connect().ask(request_text("GET /cache/flush HTTP/1.1")).status, 405);
  EXPECT_EQ(whole.connect().ask(request_text("POST /cache/flush HTTP/1.1", "Content-Type: text/plain\r\n", "{}")).status, 415);
}

/// Pages are asked for and the cache is emptied all the while: answers are what they are without.
TEST_F(CachePages, NobodyWhoIsAnsweredIsDisturbed) {
  const WholeServer whole;
  Json body = body_for(kText, "It is a truth universally acknowledged, that a single man");
  body["max_tokens"] = 30;
  body["seed"] = 7;
  const std::string expected = dump_json(parse_json(whole.post(kText, body).body, "test").at("choices"));
  std::vector<Client> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(whole.connect());
    ASSERT_TRUE(clients.back().send(WholeServer::request(kText, body)));
    cache(whole);
    if (i % 2 == 0) flush(whole);
  }
  for (Client& client : clients) EXPECT_EQ(dump_json(parse_json(client.read_answer().body, "test").at("choices")), expected);
  flush(whole);
  clients.clear();
  EXPECT_TRUE(whole.becomes_idle());
}

}  // namespace
}  // namespace calandra::prompt_caching_test
