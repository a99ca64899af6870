// Loads against a server that a script plays: what is sent and when, and what every way to answer is counted as.

#include "loadtest/load_run.h"
#include "support/golden.h"
#include "support/json.h"
#include "support/scripted_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace calandra {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTokensAWord = 2, kTokensBeside = 10;

std::int64_t words_in(const Json& body) {
  std::int64_t words = 0;
  const auto add = [&](const Json& text) {
    const auto& content = text.get_ref<const std::string&>();
    words += 1 + std::count(content.begin(), content.end(), ' ');
  };
  if (body.contains("prompt")) add(body["prompt"]);
  if (body.contains("messages")) {
    for (const Json& message : body["messages"]) add(message["content"]);
  }
  return words;
}

Json usage_of_request(const Json& body, std::int64_t output) {
  return {{"prompt_tokens", kTokensBeside + kTokensAWord * words_in(body)},
          {"completion_tokens", output},
          {"prompt_tokens_details", {{"cached_tokens", 5}}}};
}

const std::string kDone = "data: [DONE]\n\n";

/// A server that knows OpenAI's APIs; what it does with the streams that are measured can be told. Those have more than four tokens.
struct Engine {
  /// The stream of one request, whose header is sent; false for its own.
  std::function<bool(const ScriptedRequest&, const ScriptedServer::Send&)> answer;
  std::chrono::milliseconds before_first{0};
  std::chrono::milliseconds between{0};
  int tokens_a_chunk = 1;
  bool has_usage = true;
  std::set<std::string> refused_fields;

  std::mutex mutex;
  std::vector<Json> bodies;  // of streams that are measured
  std::vector<Clock::time_point> times;
  std::atomic<int> in_flight = 0, most_in_flight = 0;

  bool operator()(const ScriptedRequest& request, const ScriptedServer::Send& send) {
    if (request.target == "/v1/models") {
      send(whole_reply(200, "application/json", R"({"object": "list", "data": [{"id": "first-model"}, {"id": "other"}]})"));
      return true;
    }
    for (const std::string& field : refused_fields) {
      if (!request.body.contains(field)) continue;
      send(whole_reply(400, "application/json", dump_json({{"error", {{"message", field + ": no such field"}}}})));
      return true;
    }
    const char* limit = request.body.contains("max_tokens") ? "max_tokens" : "max_completion_tokens";
    const std::int64_t tokens = request.body.at(limit).get<std::int64_t>();
    if (!request.body["stream"].get<bool>()) {
      Json reply = {{"choices", Json::array()}};
      if (has_usage) reply["usage"] = usage_of_request(request.body, tokens);
      send(whole_reply(200, "application/json", dump_json(reply)));
      return true;
    }
    const bool is_measured = tokens > 4;
    if (is_measured) {
      const std::lock_guard lock(mutex);
      bodies.push_back(request.body);
      times.push_back(Clock::now());
      most_in_flight = std::max(most_in_flight.load(), ++in_flight);
    }
    if (!is_measured || !answer || !answer(request, send)) stream(request, send, tokens);
    if (is_measured) --in_flight;
    return false;
  }

  void stream(const ScriptedRequest& request, const ScriptedServer::Send& send, std::int64_t tokens) const {
    send(stream_header() + event_of({{"choices", Json::array({{{"delta", {{"role", "assistant"}, {"content", ""}}}}})}}));
    std::this_thread::sleep_for(before_first);
    for (std::int64_t made = 0; made < tokens; made += tokens_a_chunk) {
      if (made > 0) std::this_thread::sleep_for(between);
      const bool is_chat = request.body.contains("messages");
      const Json choice = is_chat ? Json{{"delta", {{"content", " word"}}}} : Json{{"text", " word"}};
      send(event_of({{"choices", Json::array({choice})}}));
    }
    if (has_usage) send(event_of({{"choices", Json::array()}, {"usage", usage_of_request(request.body, tokens)}}));
    send(kDone);
  }
};

class LoadRun : public testing::Test {
 protected:
  LoadRun()
      : server_([this](const ScriptedRequest& request, const ScriptedServer::Send& send) { return engine_(request, send); }) {
    options_.url = parse_server_url(fmt::format("http://127.0.0.1:{}", server_.port()));
    options_.output_tokens = {.least = 5, .most = 5};
    options_.prompt_tokens = {.least = 50, .most = 50};
    options_.warmup = 0;
    options_.timeout_seconds = 30;
    options_.seed = 7;
  }

  void users(double number, std::int64_t requests) {
    options_.levels = {{.kind = LoadLevel::Kind::Users, .amount = number}};
    options_.requests = requests;
  }
  void rate(double number, std::int64_t requests) {
    options_.levels = {{.kind = LoadLevel::Kind::Rate, .amount = number}};
    options_.requests = requests;
  }

  LevelFigures run_level() {
    result_ = run_load(options_);
    EXPECT_EQ(result_.levels.size(), 1u);
    return figures_of(result_.levels.at(0));
  }

  Engine engine_;
  LoadOptions options_;
  LoadResult result_;
  ScriptedServer server_;  // last: its threads use the others
};

TEST_F(LoadRun, UsersWaitForTheirAnswersAndAllOfThemAreBusy) {
  engine_.before_first = 20ms;
  users(4, 20);
  const LevelFigures figures = run_level();
  EXPECT_EQ(figures.ok, 20);
  EXPECT_EQ(figures.failed(), 0);
  EXPECT_EQ(engine_.most_in_flight, 4);
  EXPECT_EQ(engine_.bodies.size(), 20u);
  EXPECT_EQ(result_.model, "first-model");
  EXPECT_EQ(engine_.bodies[0]["model"], "first-model");
  EXPECT_EQ(figures.output_tokens, 100);
  // Little's law: requests under way are their rate times the time of each.
  EXPECT_NEAR(figures.in_flight, figures.requests_per_second * figures.end_to_end.mean, 0.05 * figures.in_flight);
  EXPECT_GT(figures.in_flight, 2);
  EXPECT_LE(figures.in_flight, 4);
}

TEST_F(LoadRun, ArrivalsWaitForNobody) {
  engine_.before_first = 2s;
  rate(100, 30);  // the last is due after 0.3 s or so, long before the first is answered
  const LevelFigures figures = run_level();
  EXPECT_EQ(figures.ok, 30);
  EXPECT_EQ(engine_.most_in_flight, 30);
  EXPECT_GE(figures.first_token.p50, 2.0);
  std::vector<RequestResult> records = result_.levels[0].records;
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.scheduled < b.scheduled; });
  EXPECT_GT(records.back().scheduled, 0.1);
  EXPECT_LT(records.back().scheduled, 0.8);
}

TEST_F(LoadRun, ALateClientCountsFromWhenARequestWasDueAndSaysSo) {
  rate(100, 30);
  bool has_slept = false;
  const LoadResult result = run_load(options_, [&](double done) {
    if (done > 0 && !has_slept) {  // in the middle of the level nothing is sent for a while
      has_slept = true;
      std::this_thread::sleep_for(500ms);
    }
    return true;
  });
  ASSERT_TRUE(has_slept);
  const LevelFigures figures = figures_of(result.levels.at(0));
  EXPECT_EQ(figures.ok, 30);
  EXPECT_GT(figures.lateness.most, 0.3);
  EXPECT_GT(figures.first_token.most, 0.3);
  // Those that were under way when it fell asleep were read late; the others were quick once they were sent.
  EXPECT_LT(figures.first_token_from_send.p50, 0.3);
}

TEST_F(LoadRun, TimesAreThoseOfTheServer) {
  engine_.before_first = 80ms;
  engine_.between = 30ms;
  users(1, 3);
  const LevelFigures figures = run_level();
  // Nothing comes early, but a busy machine reads some of it late: the best of three bounds from above, the slowest from below.
  EXPECT_GE(figures.first_token.p50, 0.080);
  EXPECT_GE(figures.token_pace.most, 0.029);
  EXPECT_GE(figures.end_to_end.p50, 0.080 + 4 * 0.030);
  EXPECT_EQ(figures.gap.count, 3u * 4u);
  double best = 1;
  for (const RequestResult& record : result_.levels[0].records) best = std::min(best, record.first_token - record.sent);
  EXPECT_LT(best, 0.200);
}

TEST_F(LoadRun, PromptsHaveTheTokensThatWereWantedByTheServersOwnCount) {
  options_.prompt_tokens = {.least = 100, .most = 100};
  users(2, 10);
  run_level();
  for (const RequestResult& record : result_.levels[0].records) EXPECT_EQ(record.prompt_tokens, 100);
  std::set<std::string> beginnings;
  for (const Json& body : engine_.bodies) beginnings.insert(body["messages"][0]["content"].get<std::string>().substr(0, 60));
  EXPECT_EQ(beginnings.size(), 10u) << "prompts that begin alike would be found in a cache";
}

TEST_F(LoadRun, ASharedPrefixIsTheSameInAllAndLevelsDifferInTheRest) {
  options_.shared_prefix_tokens = 200;
  users(2, 4);
  options_.levels.push_back(options_.levels[0]);
  result_ = run_load(options_);
  ASSERT_EQ(engine_.bodies.size(), 8u);
  std::set<std::string> prefixes, prompts;
  for (const Json& body : engine_.bodies) {
    EXPECT_EQ(body["messages"][0]["role"], "system");
    prefixes.insert(body["messages"][0]["content"].get<std::string>());
    prompts.insert(body["messages"][1]["content"].get<std::string>());
  }
  EXPECT_EQ(prefixes.size(), 1u);
  EXPECT_EQ(prompts.size(), 8u);
  const auto words = 1 + std::count(prefixes.begin()->begin(), prefixes.begin()->end(), ' ');
  EXPECT_NEAR(static_cast<double>(words * kTokensAWord), 200, 2 * kTokensBeside);
  const LevelFigures figures = figures_of(result_.levels[1]);
  EXPECT_DOUBLE_EQ(figures.cached_share.value(), 4 * 5.0 / static_cast<double>(figures.prompt_tokens));
}

TEST_F(LoadRun, AConversationGrowsByWhatWasAnswered) {
  options_.turns = 3;
  users(1, 6);
  EXPECT_EQ(run_level().ok, 6);
  ASSERT_EQ(engine_.bodies.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    const Json& messages = engine_.bodies[i]["messages"];
    ASSERT_EQ(messages.size(), 1 + 2 * (i % 3)) << i;
    if (i % 3 == 0) continue;
    const Json& before = engine_.bodies[i - 1]["messages"];
    EXPECT_TRUE(std::equal(before.begin(), before.end(), messages.begin()));
    EXPECT_EQ(messages[before.size()], Json({{"role", "assistant"}, {"content", " word word word word word"}}));
  }
}

TEST_F(LoadRun, CompletionsHaveAPromptAndExtraFieldsAreSent) {
  options_.api = LoadApi::Completions;
  options_.model = "named";
  options_.extra_fields = R"({"temperature": 0, "max_tokens": 6})";
  users(1, 2);
  EXPECT_EQ(run_level().output_tokens, 12);
  EXPECT_EQ(engine_.bodies[0]["model"], "named");
  EXPECT_EQ(engine_.bodies[0]["temperature"], 0);
  EXPECT_EQ(engine_.bodies[0]["ignore_eos"], true);
  EXPECT_TRUE(engine_.bodies[0]["prompt"].is_string());
}

TEST_F(LoadRun, ATraceIsSentAsItWasRecorded) {
  options_.trace = {{.arrival_seconds = 0, .prompt_tokens = 60, .output_tokens = 5},
                    {.arrival_seconds = 0.2, .prompt_tokens = 80, .output_tokens = 9},
                    {.arrival_seconds = 0.2, .prompt_tokens = 100, .output_tokens = 7}};
  options_.levels = {{.kind = LoadLevel::Kind::Trace, .amount = 1}};
  const LevelFigures figures = run_level();
  EXPECT_EQ(figures.output_tokens, 21);
  EXPECT_EQ(figures.prompt_tokens, 240);
  ASSERT_EQ(engine_.times.size(), 3u);
  EXPECT_GE(engine_.times[1] - engine_.times[0], 150ms);
}

TEST_F(LoadRun, FieldsThatAServerRefusesAreDropped) {
  engine_.refused_fields = {"ignore_eos", "max_tokens"};
  users(1, 2);
  EXPECT_EQ(run_level().ok, 2);
  EXPECT_FALSE(result_.form.ignore_eos);
  EXPECT_TRUE(result_.form.include_usage);
  EXPECT_EQ(engine_.bodies[0]["max_completion_tokens"], 5);
}

TEST_F(LoadRun, WhatIsRefusedInEveryFormIsSaidInTheServersWords) {
  engine_.refused_fields = {"messages"};
  users(1, 2);
  EXPECT_THAT(error_of([&] { run_level(); }), HasSubstr("/v1/chat/completions: 400: messages: no such field"));
}

TEST_F(LoadRun, WithoutUsageTokensAreEstimatedAndMarked) {
  engine_.has_usage = false;
  users(1, 3);
  const LevelFigures figures = run_level();
  EXPECT_EQ(figures.estimated, 3);
  EXPECT_EQ(figures.output_tokens, 15);
  EXPECT_FALSE(figures.cached_share);
  EXPECT_FALSE(result_.scale.is_measured);
}

TEST_F(LoadRun, SeveralTokensInAChunkAreCountedByTheUsage) {
  engine_.tokens_a_chunk = 3;
  options_.output_tokens = {.least = 12, .most = 12};
  engine_.between = 30ms;
  users(1, 2);
  const LevelFigures figures = run_level();
  EXPECT_EQ(figures.output_tokens, 24);
  EXPECT_DOUBLE_EQ(figures.tokens_per_chunk, 3);
  EXPECT_EQ(figures.gap.count, 6u);
  EXPECT_GE(figures.gap.most, 0.029);
  EXPECT_NEAR(figures.token_pace.mean * 11, figures.gap.mean * 3, 1e-3) << "three gaps are eleven steps from token to token";
}

TEST_F(LoadRun, EveryWayToFailHasItsName) {
  std::atomic<int> number = 0;
  engine_.answer = [&](const ScriptedRequest&, const ScriptedServer::Send& send) {
    const std::string begun = stream_header() + event_of({{"choices", Json::array({{{"delta", {{"content", "a"}}}}})}});
    switch (number++) {
      case 0: send(whole_reply(429, "application/json", R"({"error": {"message": "slow down"}})")); return true;
      case 1: send(whole_reply(503, "text/plain", "no room")); return true;
      case 2: send(begun + event_of({{"error", {{"message", "out of memory"}}}})); return true;
      case 3: std::this_thread::sleep_for(1500ms); return true;
      case 4: send(begun.substr(0, begun.size() - 10)); return true;  // ends inside of an event
      case 5: return true;                                            // ends before anything
      case 6: send(whole_reply(200, "application/json", R"({"choices": []})")); return true;
      case 7: send(begun + "data: <html>\n\n"); return true;
      case 8: send("SSH-2.0-OpenSSH\r\n\r\n"); return true;
      case 9: send(whole_reply(302, "text/html", "")); return true;
      default: return false;
    }
  };
  options_.timeout_seconds = 1;
  users(1, 12);
  const LevelFigures figures = run_level();
  const auto& records = result_.levels[0].records;
  std::vector<Failure> failures;
  for (const RequestResult& record : records) failures.push_back(record.failure);
  EXPECT_THAT(failures, ElementsAre(Failure::Refused, Failure::ServerError, Failure::ServerError, Failure::Timeout,
                                    Failure::Malformed, Failure::Connection, Failure::Malformed, Failure::Malformed,
                                    Failure::Malformed, Failure::Malformed, Failure::None, Failure::None));
  EXPECT_EQ(records[0].message, "429: slow down");
  EXPECT_EQ(records[1].message, "503: no room");
  EXPECT_EQ(records[2].message, "out of memory");
  EXPECT_THAT(records[3].message, HasSubstr("no end after 1 s"));
  EXPECT_THAT(records[5].message, HasSubstr("ended before the answer"));
  EXPECT_THAT(records[6].message, HasSubstr("found application/json, expected text/event-stream"));
  EXPECT_EQ(figures.ok, 2);
  EXPECT_EQ(figures.failed(), 10);
  EXPECT_EQ(figures.output_tokens, 10) << "of those that went well alone";
  EXPECT_EQ(figures.first_token.count, 2u);
}

TEST_F(LoadRun, WhatIsSaidBeforeAnAnswerIsNoAnswer) {
  engine_.answer = [](const ScriptedRequest&, const ScriptedServer::Send& send) {
    send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Type: text/html\r\n\r");
    std::this_thread::sleep_for(5ms);
    send("\nHTTP/1.1 102 Processing\r\n\r\n");
    return false;  // then the stream comes as ever
  };
  users(2, 6);
  const LevelFigures figures = run_level();
  EXPECT_EQ(figures.ok, 6);
  EXPECT_EQ(figures.output_tokens, 30);
}

TEST_F(LoadRun, AnswersThatAreNotReadSayWhatTheyAre) {
  const auto reply = [](const std::string& head) { return "HTTP/1.1 " + head + "\r\nContent-Length: 0\r\n\r\n"; };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {reply("308 X\r\nLocation: https://example.org/v1"), "found 308, to https://example.org/v1: redirects are not followed"},
      {reply("302 X\r\nLocation: /" + std::string(5000, 'a')), "found 302, to /aaa"},
      {reply("200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip"), "coded as gzip, expected none"},
      {"HTTP/1.1 101 X\r\nUpgrade: h2c\r\n\r\n", "found 101, another protocol"},
  };
  std::atomic<std::size_t> number = 0;
  std::string header;
  engine_.answer = [&](const ScriptedRequest& request, const ScriptedServer::Send& send) {
    header = request.header;
    send(cases[number++ % cases.size()].first);
    return true;
  };
  users(1, static_cast<std::int64_t>(cases.size()));
  run_level();
  const auto& records = result_.levels[0].records;
  ASSERT_EQ(records.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(records[i].failure, Failure::Malformed) << cases[i].first;
    EXPECT_THAT(records[i].message, HasSubstr(cases[i].second));
    EXPECT_LT(records[i].message.size(), 500u);
  }
  EXPECT_THAT(header, HasSubstr("\r\nAccept-Encoding: identity\r\n"));  // without it any coding would be right (RFC 9110, 12.5.3)
}

TEST_F(LoadRun, AServerThatIsGoneEndsTheMeasurement) {
  std::atomic<bool> is_gone = false;
  std::atomic<int> number = 0;
  engine_.answer = [&](const ScriptedRequest&, const ScriptedServer::Send&) {
    is_gone = is_gone || ++number > 10;
    return is_gone.load();
  };
  users(3, 100'000);
  options_.levels.push_back(options_.levels[0]);
  const LoadResult result = run_load(options_);
  ASSERT_EQ(result.levels.size(), 1u);
  EXPECT_THAT(result.gone.value_or("no"), HasSubstr("the connection ended before the answer did"));
  EXPECT_FALSE(result.levels[0].is_complete);
  const LevelFigures figures = figures_of(result.levels[0]);
  EXPECT_GE(figures.ok, 8);
  EXPECT_LT(figures.failed(), 100);
}

TEST_F(LoadRun, AnEndIsAnsweredWithWhatThereIs) {
  engine_.between = 20ms;
  users(2, 1000);
  bool go_on = true;
  const LoadResult result = run_load(options_, [&](double done) { return go_on = go_on && done < 0.01; });
  EXPECT_TRUE(result.is_interrupted);
  ASSERT_EQ(result.levels.size(), 1u);
  EXPECT_GE(figures_of(result.levels[0]).ok, 10);
  EXPECT_GE(result.levels[0].num_unfinished, 1);
  EXPECT_LE(result.levels[0].num_unfinished, 2);
}

TEST_F(LoadRun, ADurationEndsTheSendingAndWhatWasSentIsWaitedFor) {
  engine_.before_first = 100ms;
  options_.levels = {{.kind = LoadLevel::Kind::Users, .amount = 3}};
  options_.duration_seconds = 0.25;
  const LevelFigures figures = run_level();
  EXPECT_GE(figures.ok, 3);
  EXPECT_LE(figures.ok, 9);
  for (const RequestResult& record : result_.levels[0].records) EXPECT_LT(record.sent, 0.25);
}

TEST_F(LoadRun, TheSameSeedSendsTheSame) {
  const auto sent_with = [&](std::uint64_t seed) {
    engine_.bodies.clear();
    options_.seed = seed;
    options_.prompt_tokens = {.least = 30, .most = 300};
    rate(200, 6);
    run_level();
    std::multiset<std::string> texts;
    for (const Json& body : engine_.bodies) texts.insert(dump_json(body));
    return texts;
  };
  const auto first = sent_with(3);
  EXPECT_EQ(first, sent_with(3));
  EXPECT_NE(first, sent_with(4));
}

/// Connections are kept where the server lets them, and one that it has closed meanwhile is no failure.
TEST(HttpConnections, AreUsedAgainAndReplacedWhenTheServerClosesThem) {
  std::mutex mutex;
  std::map<int, int> requests;  // by connection
  int number = 0;
  ScriptedServer server([&](const ScriptedRequest& request, const ScriptedServer::Send& send) {
    if (request.body.is_null()) {
      send(whole_reply(200, "application/json", R"({"data": [{"id": "m"}]})"));
      return true;
    }
    const std::lock_guard lock(mutex);
    ++requests[request.connection];
    const std::string event = event_of({{"choices", Json::array({{{"text", "a"}, {"finish_reason", "stop"}}})}});
    const std::string chunked = fmt::format(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        event.size(), event);
    // In pieces that cut everything somewhere.
    for (std::size_t i = 0; i < chunked.size(); i += 7) send(std::string_view(chunked).substr(i, 7));
    return ++number % 10 != 0;  // closes without a word, after an answer that did not say so
  });
  LoadOptions options;
  options.url = parse_server_url(fmt::format("127.0.0.1:{}", server.port()));
  options.warmup = 0;
  options.levels = {{.kind = LoadLevel::Kind::Users, .amount = 1}};
  options.requests = 40;
  const LoadResult result = run_load(options);
  const LevelFigures figures = figures_of(result.levels.at(0));
  EXPECT_EQ(figures.ok, 40);
  EXPECT_LE(server.num_connections(), 8);
  EXPECT_GE(server.num_connections(), 4);
}

TEST(HttpConnections, AServerThatHasMovedIsSaidAtOnce) {
  const ScriptedServer server([](const ScriptedRequest&, const ScriptedServer::Send& send) {
    send("HTTP/1.1 301 X\r\nLocation: https://example.org/v1/models\r\nContent-Length: 0\r\n\r\n");
    return true;
  });
  LoadOptions options;
  options.url = parse_server_url(fmt::format("127.0.0.1:{}", server.port()));
  EXPECT_THAT(error_of([&] { run_load(options); }),
              HasSubstr("/v1/models: found 301, to https://example.org/v1/models: redirects are not followed"));
}

TEST(HttpConnections, NobodyThereIsSaidInOneLine) {
  int port = 0;
  {
    const ScriptedServer server([](const ScriptedRequest&, const ScriptedServer::Send&) { return false; });
    port = server.port();
  }
  LoadOptions options;
  options.url = parse_server_url(fmt::format("127.0.0.1:{}", port));
  EXPECT_EQ(error_of([&] { run_load(options); }), fmt::format("/v1/models: 127.0.0.1:{}: Connection refused", port));
}

}  // namespace
}  // namespace calandra
