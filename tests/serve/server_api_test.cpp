// The server as a whole, through sockets: keys, routes, shapes of errors, clients that leave, an orderly end.

#include "base/json.h"
#include "serve/answer_stream.h"
#include "serve/chat_request.h"
#include "serve/client.h"
#include "serve/scripted_answers.h"
#include "serve/server.h"
#include "serve/test_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace calandra {
namespace {

using testing::HasSubstr;

AnswerStep step(std::string text) {
  AnswerStep made;
  made.text = std::move(text);
  return made;
}

AnswerSummary summary(AnswerOutcome outcome) {
  AnswerSummary ended;
  ended.outcome = outcome;
  return ended;
}

/// Takes requests in and leaves them until the test says what becomes of them.
class HeldAnswers : public AnswerService {
 public:
  AnswerSubmission submit(AnswerRequest, std::shared_ptr<AnswerListener> listener) override {
    const std::lock_guard lock(mutex_);
    listeners_.push_back(std::move(listener));
    return RequestId{listeners_.size()};
  }
  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(static_cast<std::uint64_t>(id));
  }

  std::size_t num_submitted() const {
    const std::lock_guard lock(mutex_);
    return listeners_.size();
  }
  std::vector<std::uint64_t> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  AnswerListener& listener(std::size_t index) const {
    const std::lock_guard lock(mutex_);
    return *listeners_[index];
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<AnswerListener>> listeners_;
  std::vector<std::uint64_t> cancelled_;
};

class ServerTest : public testing::Test {
 protected:
  void start(std::vector<std::string> keys = {}) {
    ServerOptions options;
    options.http.port = 0;
    options.api_keys = std::move(keys);
    options.version = "calandra 1.2.3";
    options.metrics = [] { return HttpResponse{.status = 200, .headers = {}, .body = "a page"}; };
    server_.emplace(std::move(options), bench_.model(), answers_, [](std::string_view) {});
  }
  Client connect() const { return Client(server_->port()); }
  Answer ask(std::string_view line, std::string_view fields = {}, std::string_view body = {}) const {
    return connect().ask(request_text(line, fields, body));
  }
  Answer post(const std::string& path, const Json& body) const {
    return ask("POST " + path + " HTTP/1.1", "Content-Type: application/json\r\n", dump_json(body));
  }
  static std::string chat(const Json& more = Json::object()) {
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}};
    body.update(more);
    return request_text("POST /v1/chat/completions HTTP/1.1", "Content-Type: application/json\r\n", dump_json(body));
  }

  ApiBench bench_{nullptr};  // its model
  HeldAnswers answers_;
  std::optional<Server> server_;
};

TEST_F(ServerTest, PagesSayWhatIsServed) {
  start();
  EXPECT_EQ(ask("GET /health HTTP/1.1").status, 200);
  EXPECT_EQ(ask("GET /ready HTTP/1.1").status, 200);
  EXPECT_EQ(parse_json(ask("GET /version HTTP/1.1").body, "test"), Json({{"version", "calandra 1.2.3"}}));
  const Json list = parse_json(ask("GET /v1/models HTTP/1.1").body, "test");
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data")[0].at("id"), "austen-5m");
  EXPECT_EQ(list.at("data")[0].at("object"), "model");
  EXPECT_EQ(parse_json(ask("GET /v1/models/default HTTP/1.1").body, "test").at("id"), "default");
  EXPECT_EQ(parse_json(ask("GET /v1/models/other HTTP/1.1").body, "test").at("error").at("code"), "model_not_found");
}

TEST_F(ServerTest, EveryApiHasItsPath) {
  start();
  for (const char* path :
       {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"}) {
    const Answer incomplete = post(path, Json::object());
    EXPECT_EQ(incomplete.status, 400) << path;
    EXPECT_EQ(parse_json(incomplete.body, "test").at("error").at("type"), "invalid_request_error") << path;
  }
  EXPECT_EQ(ask("GET /metrics HTTP/1.1").body, "a page");
}

TEST_F(ServerTest, WithoutAKeyNobodyIsAnswered) {
  start({"secret", "other"});
  const Answer refused = ask("GET /v1/models HTTP/1.1");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(parse_json(refused.body, "test").at("error").at("code"), "invalid_api_key");
  EXPECT_EQ(parse_json(ask("POST /v1/messages HTTP/1.1", "x-api-key: wrong\r\n", "{}").body, "test").at("error").at("type"),
            "authentication_error");
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "Authorization: Bearer other\r\n").status, 200);
  EXPECT_EQ(ask("GET /v1/models HTTP/1.1", "x-api-key: secret\r\n").status, 200);
  EXPECT_EQ(ask("GET /health HTTP/1.1").status, 200);
}

TEST_F(ServerTest, ErrorsHaveTheShapeOfTheirApi) {
  start();
  const Answer unknown = ask("GET /v1/nothing HTTP/1.1");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_TRUE(parse_json(unknown.body, "test").at("error").contains("param"));
  const Answer wrong_method = ask("GET /v1/chat/completions HTTP/1.1");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_TRUE(parse_json(wrong_method.body, "test").contains("error"));
  EXPECT_EQ(ask("POST /v1/chat/completions HTTP/1.1", "Content-Type: text/plain\r\n", "{}").status, 415);
  const Json anthropic = parse_json(ask("GET /v1/messages/nothing HTTP/1.1").body, "test");
  EXPECT_EQ(anthropic.at("type"), "error");
  EXPECT_EQ(anthropic.at("error").at("type"), "not_found_error");
}

TEST_F(ServerTest, TextsBecomeTokensAndTokensTexts) {
  start();
  const std::string text = "It is a truth <|role_end|> caf\xC3\xA9";
  const Json tokens = parse_json(post("/tokenize", {{"prompt", text}, {"return_token_strs", true}}).body, "test");
  EXPECT_EQ(tokens.at("tokens"), Json(bench_.model().tokenizer->encode(text)));
  EXPECT_EQ(tokens.at("count"), tokens.at("tokens").size());
  EXPECT_EQ(tokens.at("token_strs").size(), tokens.at("tokens").size());
  EXPECT_EQ(parse_json(post("/detokenize", {{"tokens", tokens["tokens"]}}).body, "test").at("prompt"), text);

  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  const std::string prompt = parse_json(post("/apply-template", {{"messages", messages}}).body, "test").at("prompt");
  EXPECT_THAT(prompt, HasSubstr("<role>HUMAN</role>Hi<|role_end|>"));
  EXPECT_EQ(parse_json(post("/tokenize", {{"messages", messages}}).body, "test").at("tokens"),
            Json(bench_.model().tokenizer->encode(prompt)));

  EXPECT_EQ(parse_json(post("/tokenize", {{"text", "x"}}).body, "test").at("error").at("param"), "prompt");
  EXPECT_EQ(parse_json(post("/detokenize", {{"tokens", {1, "x"}}}).body, "test").at("error").at("param"), "tokens[1]");
}

TEST_F(ServerTest, AClientThatLeavesCancelsItsAnswersAndNoOthers) {
  start();
  Client stays = connect(), waits = connect(), streams = connect();
  ASSERT_TRUE(stays.send(chat()));
  ASSERT_TRUE(becomes_true([&] { return answers_.num_submitted() == 1; }));
  ASSERT_TRUE(waits.send(chat({{"n", 2}})));
  ASSERT_TRUE(becomes_true([&] { return answers_.num_submitted() == 3; }));
  ASSERT_TRUE(streams.send(chat({{"stream", true}})));
  ASSERT_TRUE(becomes_true([&] { return answers_.num_submitted() == 4; }));
  EXPECT_THAT(streams.read_through("\"assistant\""), HasSubstr("200 OK"));
  answers_.listener(3).gained(70, step("x"));
  EXPECT_THAT(streams.read_through("\"x\""), HasSubstr("reasoning_content"));
  EXPECT_TRUE(answers_.cancelled().empty());

  waits.close();
  ASSERT_TRUE(becomes_true([&] { return answers_.cancelled().size() == 2; }));
  EXPECT_EQ(answers_.cancelled(), (std::vector<std::uint64_t>{2, 3}));
  streams.reset();
  ASSERT_TRUE(becomes_true([&] { return answers_.cancelled().size() == 3; }));
  EXPECT_EQ(answers_.cancelled().back(), 4U);
  answers_.listener(3).gained(71, step("y"));
  for (const std::size_t i : {1U, 2U, 3U}) answers_.listener(i).ended(summary(AnswerOutcome::Cancelled), "z");

  answers_.listener(0).gained(72, step("</think>Hello"));
  answers_.listener(0).ended(summary(AnswerOutcome::Length), {});
  EXPECT_THAT(stays.read_answer().body, HasSubstr("Hello"));
}

TEST_F(ServerTest, WhatHasBegunIsAnsweredWhenTheServerEnds) {
  start();
  Client client = connect(), watcher = connect();
  ASSERT_TRUE(client.send(chat({{"stream", true}})));
  ASSERT_TRUE(becomes_true([&] { return answers_.num_submitted() == 1; }));
  std::jthread end([&] { server_->end(std::chrono::minutes(1)); });
  ASSERT_TRUE(becomes_true([&] { return ask("GET /ready HTTP/1.1").status == 503; }));
  EXPECT_TRUE(watcher.is_at_end()) << "it waited for nothing";
  EXPECT_EQ(ask("GET /health HTTP/1.1").status, 200);
  answers_.listener(0).gained(70, step("</think>Hello"));
  answers_.listener(0).ended(summary(AnswerOutcome::Length), {});
  const Answer answer = client.read_answer();
  EXPECT_TRUE(answer.is_whole);
  EXPECT_THAT(answer.body, HasSubstr("Hello"));
  EXPECT_THAT(answer.body, HasSubstr("[DONE]"));
}

TEST_F(ServerTest, AnAnswerCutOffByTheEndIsCancelled) {
  start();
  Client client = connect();
  ASSERT_TRUE(client.send(chat()));
  ASSERT_TRUE(becomes_true([&] { return answers_.num_submitted() == 1; }));
  server_->end(std::chrono::milliseconds(0));
  EXPECT_EQ(answers_.cancelled(), (std::vector<std::uint64_t>{1}));
  server_.reset();
  // The engine may still be at it: nobody hears.
  answers_.listener(0).gained(70, step("x"));
  answers_.listener(0).ended(summary(AnswerOutcome::Cancelled), {});
}

/// Its client leaves while a request is being taken in, before anyone knows the request's id.
class LeftAnswers : public AnswerService {
 public:
  AnswerSubmission submit(AnswerRequest, std::shared_ptr<AnswerListener>) override {
    ++num_submitted;
    client.request_stop();
    return RequestId{7};
  }
  void cancel(RequestId id) override { cancelled.push_back(static_cast<std::uint64_t>(id)); }

  std::stop_source client;
  int num_submitted = 0;
  std::vector<std::uint64_t> cancelled;
};

TEST(SubmitAnswers, AClientThatLeavesWhileItsRequestIsTakenInIsCancelledToo) {
  const ApiBench bench(nullptr);
  LeftAnswers answers;
  AnswerJob job = prepare_completion(bench.model(), {5, 6}, default_options(bench.model()), "prompt");
  job.count = 3;
  auto sink = std::make_shared<AnswerCollector>(
      3, [](const std::vector<WholeAnswer>&, const AnswerUsage&) { FAIL(); }, [](const ApiError&) { FAIL(); });
  submit_answers(answers, bench.model(), {job}, std::move(sink), answers.client.get_token());
  EXPECT_EQ(answers.num_submitted, 1);
  EXPECT_EQ(answers.cancelled, (std::vector<std::uint64_t>{7}));
}

}  // namespace
}  // namespace calandra
