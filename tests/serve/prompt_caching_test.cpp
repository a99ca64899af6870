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

}  // namespace
}  // namespace calandra::prompt_caching_test
