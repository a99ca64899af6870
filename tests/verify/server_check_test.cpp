// Checks of servers that a script plays: one that keeps its word, and ones that break it in every way there is.

#include "verify/server_check.h"

#include "support/golden.h"
#include "support/json.h"
#include "support/scripted_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace calandra {
namespace {

using testing::HasSubstr;

/// An answer that depends on the prompt alone, until it is told to lie. Keeps prompts whole and says what of a new one it knows.
struct FakeServer {
  /// Changes the answer (choices[0]) to a prompt that comes for the n-th time, n from 1; `total` counts all words of prompts.
  std::function<void(Json& choice, int n, std::int64_t total)> lie;
  std::set<std::string> refused_fields;
  bool says_cached = true;
  bool has_logprobs = true;
  std::int64_t cache_words = 1'000'000;  // what is older is forgotten
  int fails_at = 0;                      // the n-th request for an answer, from 1

  std::mutex mutex;
  std::map<std::string, int> times;
  std::vector<std::string> kept;
  std::int64_t words_total = 0;
  int requests = 0;
  int num_streams = 0;

  static std::string prompt_of(const Json& body) {
    if (body.contains("prompt")) return body["prompt"].get<std::string>();
    std::string text;
    for (const Json& message : body["messages"])
      text += message["role"].get<std::string>() + " " + message["content"].get<std::string>() + "\n";
    return text;
  }
  static std::int64_t words_in(std::string_view text) { return 1 + std::count(text.begin(), text.end(), ' '); }

  std::int64_t cached_words(const std::string& prompt) {
    std::int64_t room = cache_words, best = 0;
    for (auto at = kept.rbegin(); at != kept.rend() && room > 0; ++at) {
      room -= words_in(*at);
      const auto common = std::mismatch(prompt.begin(), prompt.end(), at->begin(), at->end()).first - prompt.begin();
      best = std::max(best, words_in(std::string_view(prompt).substr(0, static_cast<std::size_t>(common))) - 1);
    }
    kept.push_back(prompt);
    return best;
  }

  static Json choice_of(const Json& body, const std::string& prompt) {
    const bool is_chat = body.contains("messages");
    std::uint64_t hash = 1469598103934665603u;
    for (const char c : prompt) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    std::string text;
    Json chat = Json::array(), texts = Json::array(), scores = Json::array(), tops = Json::array();
    for (int i = 0; i < 6; ++i) {
      hash = hash * 6364136223846793005u + 1442695040888963407u;
      const std::string token = " w" + std::to_string(hash >> 60);
      const double logprob = -static_cast<double>(hash >> 40) / (1 << 24);
      text += token;
      Json entry = {{"token", token}, {"logprob", logprob}};
      Json top = Json::array();
      top.push_back(entry);
      entry["top_logprobs"] = top;
      chat.push_back(entry);
      texts.push_back(token);
      scores.push_back(logprob);
      tops.push_back({{token, logprob}});
    }
    Json choice = Json::object();
    if (is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", text}};
      choice["logprobs"] = {{"content", chat}};
    } else {
      choice["text"] = text;
      choice["logprobs"] = {{"tokens", texts}, {"token_logprobs", scores}, {"top_logprobs", tops}};
    }
    return choice;
  }

  bool operator()(const ScriptedRequest& request, const ScriptedServer::Send& send) {
    const std::lock_guard lock(mutex);
    if (request.target == "/v1/models") {
      send(whole_reply(200, "application/json", R"({"data": [{"id": "fake"}]})"));
      return true;
    }
    for (const std::string& field : refused_fields) {
      if (!request.body.contains(field)) continue;
      send(whole_reply(400, "application/json", dump_json({{"error", {{"message", field + ": no such field"}}}})));
      return true;
    }
    EXPECT_EQ(request.body.at("temperature"), 0);
    if (request.body["stream"].get<bool>()) {  // the introduction
      send(stream_header() + event_of(json_of(R"({"choices": [{"delta": {"content": "a"}, "text": "a"}]})")) +
           "data: [DONE]\n\n");
      return false;
    }
    if (++requests == fails_at) {
      send(whole_reply(500, "application/json", R"({"error": {"message": "out of memory"}})"));
      return true;
    }
    const std::string prompt = prompt_of(request.body);
    Json choice = choice_of(request.body, prompt);
    if (!has_logprobs || !request.body.contains("logprobs")) choice["logprobs"] = nullptr;
    words_total += words_in(prompt);
    if (const int n = ++times[prompt]; lie) lie(choice, n, words_total);
    Json usage = {{"prompt_tokens", words_in(prompt)}, {"completion_tokens", 6}};
    const std::int64_t cached = cached_words(prompt);
    if (says_cached) usage["prompt_tokens_details"] = {{"cached_tokens", cached}};
    Json reply = {{"choices", Json::array()}, {"usage", usage}};
    reply["choices"].push_back(choice);
    send(whole_reply(200, "application/json", dump_json(reply)));
    return true;
  }
};

class ServerCheck : public testing::Test {
 protected:
  ServerCheck() : server_([this](const auto& request, const auto& send) { return fake_(request, send); }) {
    options_.server.url = parse_server_url(fmt::format("127.0.0.1:{}", server_.port()));
    options_.server.timeout_seconds = 30;
    options_.server.seed = 3;
    options_.prompt_tokens = 100;
    options_.answer_tokens = 6;
    options_.rounds = 2;
    options_.concurrency = 3;
    options_.evict_tokens = 600;
  }
  static const ServerStep& step_of(const ServerReport& found, std::string_view name) {
    return *std::ranges::find(found.steps, name, &ServerStep::name);
  }
  ServerReport report() { return check_server(options_, {}); }

  FakeServer fake_;
  ServerCheckOptions options_;
  ScriptedServer server_;
};

void lower_a_logprob(Json& choice) {
  Json& entry = choice["logprobs"]["content"][4];
  entry["logprob"] = entry["logprob"].get<double>() - 1e-6;
}

TEST_F(ServerCheck, OneThatKeepsItsWordIsTheSameInBothApis) {
  for (const LoadApi api : {LoadApi::Chat, LoadApi::Completions}) {
    options_.server.api = api;
    options_.server.seed += 1;
    const ServerReport found = report();
    EXPECT_EQ(found.verdict(), ServerVerdict::Same);
    EXPECT_TRUE(found.has_logprobs);
    EXPECT_EQ(found.model, "fake");
    std::map<std::string_view, std::int64_t> requests, compared;
    for (const ServerStep& step : found.steps) {
      requests[step.name] = step.requests;
      compared[step.name] = step.compared;
      EXPECT_EQ(step.failed, 0) << step.first_failure;
    }
    using Counts = std::map<std::string_view, std::int64_t>;
    EXPECT_EQ(requests, (Counts{{"first", 2}, {"again", 2}, {"next turn", 4}, {"next again", 4}, {"busy", 6}, {"evicted", 6}}));
    EXPECT_EQ(compared, (Counts{{"first", 0}, {"again", 2}, {"next turn", 0}, {"next again", 4}, {"busy", 6}, {"evicted", 6}}));
    EXPECT_LT(found.cached_share({"first"}).value(), 0.05) << "new prompts";
    EXPECT_GT(found.cached_share({"again"}).value(), 0.9);
    EXPECT_EQ(found.saw_eviction(), false);
    const double next = found.cached_share({"next turn"}).value();
    EXPECT_GT(next, 0.4);
    EXPECT_LT(next, 0.95);
  }
}

TEST_F(ServerCheck, WhatIsForgottenIsSeen) {
  fake_.cache_words = 400;
  const ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Same);
  EXPECT_EQ(found.saw_eviction(), true);
}

TEST_F(ServerCheck, ALogProbabilityThatDiffersTheSecondTimeIsSeen) {
  fake_.lie = [](Json& choice, int n, std::int64_t) {
    if (n == 2 && choice["logprobs"].is_object()) lower_a_logprob(choice);
  };
  const ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Different);
  const ServerStep& again = step_of(found, "again");
  EXPECT_EQ(again.other_logprobs, 2);
  EXPECT_EQ(again.other_text, 0);
  EXPECT_NEAR(again.largest, 1e-6, 1e-9);
  EXPECT_EQ(again.first_request, "turn 1 of conversation 1");
  EXPECT_EQ(again.first->token, 4u);
  EXPECT_EQ(step_of(found, "busy").differing(), 0) << "that is the third time";
}

TEST_F(ServerCheck, AnotherTextIsSeen) {
  fake_.lie = [](Json& choice, int n, std::int64_t) {
    if (n > 2) choice["message"]["content"] = choice["message"]["content"].get<std::string>() + "!";
  };
  const ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Different);
  EXPECT_EQ(step_of(found, "again").differing(), 0);
  EXPECT_EQ(step_of(found, "busy").other_text, 6);
  EXPECT_FALSE(step_of(found, "busy").first->token) << "what is scored is the same";
}

TEST_F(ServerCheck, ADifferenceAfterOthersAloneIsSeen) {
  fake_.lie = [](Json& choice, int n, std::int64_t total) {
    if (n == 4 && total > 2000) lower_a_logprob(choice);
  };
  const ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Different);
  for (const ServerStep& step : found.steps) EXPECT_EQ(step.differing() > 0, step.name == "evicted") << step.name;
}

TEST_F(ServerCheck, WithoutLogProbabilitiesTheTextAloneIsCompared) {
  fake_.has_logprobs = false;
  ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Untested);
  EXPECT_FALSE(found.has_logprobs);
  EXPECT_EQ(found.no_logprobs, "the answer has none");
  EXPECT_GT(step_of(found, "again").compared, 0);
  fake_.lie = [](Json& choice, int n, std::int64_t) {
    if (n == 2) choice["message"]["content"] = "other";
  };
  options_.server.seed += 1;
  EXPECT_EQ(report().verdict(), ServerVerdict::Different);
}

TEST_F(ServerCheck, WhatTheServerDoesNotTakeIsNotAsked) {
  fake_.refused_fields = {"top_logprobs", "ignore_eos", "stream_options"};
  fake_.says_cached = false;
  ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Same);
  EXPECT_FALSE(found.cached_share({"again"}));
  fake_.refused_fields = {"logprobs"};
  options_.server.seed += 1;
  found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Untested);
  EXPECT_THAT(found.no_logprobs, HasSubstr("logprobs: no such field"));
}

TEST_F(ServerCheck, ARequestThatFailsLeavesItUntested) {
  fake_.fails_at = 8;
  const ServerReport found = report();
  EXPECT_EQ(found.verdict(), ServerVerdict::Untested);
  std::int64_t failed = 0;
  std::string why;
  for (const ServerStep& step : found.steps) {
    failed += step.failed;
    why += step.first_failure;
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(why, "500: out of memory");
}

TEST_F(ServerCheck, AStoppedCheckIsUntested) {
  int asked = 0;
  const ServerReport found = check_server(options_, [&](double) { return ++asked < 3; });
  EXPECT_TRUE(found.is_interrupted);
  EXPECT_EQ(found.verdict(), ServerVerdict::Untested);
}

TEST_F(ServerCheck, NobodyThereIsAnError) {
  options_.server.url = parse_server_url("127.0.0.1:1");
  EXPECT_THAT(error_of([&] { report(); }), HasSubstr("Connection refused"));
}

ServerAnswer answer_of(std::vector<ScoredToken> tokens, std::string text = "text") {
  return {.text = std::move(text), .tokens = std::move(tokens), .usage = {}};
}

TEST(ServerAnswer, DifferencesAreThoseOfTheSameTokensAfterTheSameTokens) {
  const ServerAnswer was = answer_of({{"a", -1, {{"a", -1}, {"b", -2}}}, {"c", -1, {}}, {"d", -3, {}}});
  EXPECT_FALSE(difference_of(was, was));
  // Only an alternative.
  ServerAnswer is = was;
  is.tokens[0].others[1].second = -2.5;
  auto found = difference_of(was, is);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->token, 0u);
  EXPECT_EQ(found->largest, 0.5);
  EXPECT_FALSE(found->in_text);
  // From another token on nothing is comparable.
  is = was;
  is.text = "other";
  is.tokens[1] = {"x", -1.25, {}};
  is.tokens[2].logprob = -100;
  found = difference_of(was, is);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->in_text);
  EXPECT_EQ(found->token, 1u);
  EXPECT_EQ(found->largest, 0);
  EXPECT_EQ(found->expected, "\"c\" -1");
  EXPECT_EQ(found->found, "\"x\" -1.25");
  // Shorter.
  is = was;
  is.tokens.pop_back();
  found = difference_of(was, is);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->token, 2u);
  EXPECT_EQ(found->found, "nothing");
}

TEST(ServerAnswer, WhatIsNoAnswerIsRefusedAndOddLogProbabilitiesAreNone) {
  EXPECT_THAT(error_of([] { read_answer(LoadApi::Chat, "<html>"); }), HasSubstr("expected choices[0]"));
  EXPECT_THAT(error_of([] { read_answer(LoadApi::Chat, R"({"choices": []})"); }), HasSubstr("expected choices[0]"));
  for (const char* odd : {"null", "3", "{}", R"({"content": 1})", R"({"content": [{"token": "a"}]})",
                          R"({"tokens": ["a"], "token_logprobs": []})", R"({"tokens": ["a"], "token_logprobs": [null]})"}) {
    const std::string body = fmt::format(R"({{"choices": [{{"message": {{"content": "a"}}, "logprobs": {}}}]}})", odd);
    for (const LoadApi api : {LoadApi::Chat, LoadApi::Completions}) {
      EXPECT_TRUE(read_answer(api, body).tokens.empty()) << odd;
      EXPECT_EQ(read_answer(api, body).text, "a");
    }
  }
  const ServerAnswer reasoned = read_answer(
      LoadApi::Chat, R"({"choices": [{"message": {"content": "b", "reasoning_content": "a"}}], "usage": {"prompt_tokens": 3}})");
  EXPECT_EQ(reasoned.text, "ab");
  EXPECT_EQ(reasoned.usage->prompt_tokens, 3);
}

}  // namespace
}  // namespace calandra
