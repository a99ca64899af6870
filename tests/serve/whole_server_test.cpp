// The server with its engine, from socket to pool: what it counts, what it logs, how it ends, and what it takes from clients that
// misbehave.

#include "serve/whole_server.h"

#include "base/json.h"
#include "engine/generate.h"
#include "serve/scarce_memory.h"
#include "serve/test_server.h"
#include "support/golden.h"
#include "support/memory_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <list>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace calandra {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kText = "/v1/completions";
constexpr const char* kApis[] = {"/v1/chat/completions", kText, "/v1/responses", "/v1/messages"};

/// A request of one of the APIs that goes on for so many tokens.
Json body_for(std::string_view api, std::int64_t tokens, bool is_stream, const std::string& text = "It is a truth") {
  const Json messages = Json::array({{{"role", "user"}, {"content", text}}});
  Json body = {{"stream", is_stream}, {"seed", 7}};
  for (const std::int32_t id : stop_ids_of(WholeServer::model())) body["logit_bias"][std::to_string(id)] = -100;
  body[api == "/v1/responses" ? "max_output_tokens" : "max_tokens"] = tokens;
  if (api == kText) {
    body["prompt"] = text;
  } else if (api == "/v1/responses") {
    body["input"] = messages;
  } else {
    body["messages"] = messages;
  }
  return body;
}

// ---------------------------------------------------------------- metrics

// Every name but these few has a value after a day's work in a second.
TEST(WholeServer, EveryMetricIsFilledByWhatAServerDoes) {
  const std::set<std::string> kUnfilled = {
      "calandra_requests_total{outcome=\"failed\"}",  // nothing that a client may send makes the engine fail
      // Nothing is damaged, full or in a hurry here: tests/cache.
      "calandra_prefix_tier_evicted_total", "calandra_prefix_tier_lost_total", "calandra_prefix_tier_refused_total",
      "calandra_prefix_tier_read_errors_total", "calandra_prefix_tier_write_errors_total",
      "calandra_prefix_cache_verifications_total{result=\"different\"}",
      "calandra_prefix_cache_verifications_total{result=\"gone\"}"};
  const std::string kFleeting = "calandra_prefix_tier_waiting";  // gone before one looks, or not
  std::map<std::string, double> most;
  const auto look = [&](const WholeServer& whole) {
    auto now = whole.metrics();
    for (const auto& [name, value] : now) most[name] = std::max(most[name], value);
    return now;
  };
  WholeServerOptions options;
  options.drafts = kMostDrafts;
  {
    // All drafts are right, of the one who is asked first of equal ones where a text repeats itself, and of the other where a grammar leaves
    // no choice: a digit is a token.
    WholeServerOptions forced;
    forced.drafts = kMostDrafts;
    WholeServer whole(forced);
    const std::int32_t zero = WholeServer::model().tokenizer().encode("0").front();
    EXPECT_EQ(whole
                  .post(kText, {{"prompt", std::vector<std::int32_t>(12, zero)},
                                {"max_tokens", 40},
                                {"logit_bias", {{std::to_string(zero), 100}}}})
                  .status,
              200);
    EXPECT_EQ(whole
                  .post(kText, {{"prompt", "x"},
                                {"max_tokens", 100},
                                {"grammar", R"(root ::= "27182818284590452353602874713526624977572470936999595749669")"}})
                  .status,
              200);
    look(whole);
  }
  const MemoryLayout layout = WholeServer::model(options.drafts).layout();
  // Room for one long answer and a half; little is set aside, so that both begin.
  options.engine.pool_bytes = layout.sequence_blocks(1200) * layout.block_bytes * 3 / 2;
  options.engine.limits.reserved_new_tokens = 1;
  {
    WholeServer whole(options);
    Client one = whole.connect(), other = whole.connect();
    ASSERT_TRUE(one.send(WholeServer::request(kText, body_for(kText, 1100, false))));
    ASSERT_TRUE(becomes_true([&] { return look(whole)["calandra_generated_tokens_total"] > 0; }));
    ASSERT_TRUE(other.send(WholeServer::request(kText, body_for(kText, 1100, false))));
    ASSERT_TRUE(becomes_true([&] { return look(whole)["calandra_requests_total{outcome=\"length\"}"] == 2; }));
    EXPECT_EQ(one.read_answer().status, 200);
    EXPECT_EQ(other.read_answer().status, 200);
    EXPECT_EQ(whole.post(kText, {{"prompt", "x"}, {"grammar", "root ::= \"a\""}}).status, 200);
    EXPECT_EQ(whole.post(kText, body_for(kText, 1, false, "It is a lie")).status, 200)
        << "begins like one before, and parts in the middle";
    Client sends = whole.connect();
    const std::string request = WholeServer::request(kText, body_for(kText, 1, false));
    ASSERT_TRUE(sends.send(request.substr(0, request.size() - 1)));
    ASSERT_TRUE(becomes_true([&] { return look(whole)["calandra_request_body_bytes"] > 0; }));
    Client leaves = whole.connect();
    ASSERT_TRUE(leaves.send(WholeServer::request(kText, body_for(kText, 1100, true))));
    leaves.read_through("data: ");
    leaves.close();
    ASSERT_TRUE(becomes_true([&] { return look(whole)["calandra_requests_total{outcome=\"cancelled\"}"] == 1; }));
  }
  options.server.time_limit = 10ms;
  options.engine.pool_bytes = layout.sequence_blocks(1024) * layout.block_bytes;
  {
    WholeServer hasty(options);
    EXPECT_EQ(hasty.post(kText, body_for(kText, 1100, false)).status, 504);
    std::string long_text;
    for (int i = 0; i < 1900; ++i) long_text += "a ";
    EXPECT_EQ(hasty.post(kText, body_for(kText, 100, false, long_text)).status, 400) << "larger than the pool";
    look(hasty);
  }
  WholeServerOptions kept;
  kept.engine.limits.prefill_tokens = 64;
  kept.engine.prefixes.objects = std::make_shared<MemoryStore>();
  kept.engine.prefixes.object_bytes = std::int64_t{1} << 30;
  kept.engine.prefixes.verify_rate = 1;
  std::string some_steps;  // of the first answer, for which the second waits
  for (int i = 0; i < 400; ++i) some_steps += "b ";
  for (const char* written : {"calandra_prefix_tier_written_total", "calandra_prefix_tier_read_total"}) {
    kept.metrics = std::make_shared<Metrics>("1.2.3");
    WholeServer whole(kept);
    EXPECT_EQ(whole.post(kText, {{"prompt", some_steps}, {"n", 2}, {"max_tokens", 1}}).status, 200);
    ASSERT_TRUE(becomes_true([&] { return look(whole)[written] > 0; })) << written;
    // Of what the second answer has found; what the next server reads is not in memory yet to be compared.
    ASSERT_TRUE(becomes_true([&] {
      look(whole);
      return most["calandra_prefix_cache_verifications_total{result=\"same\"}"] > 0;
    }));
  }
  for (const auto& [name, value] : most) {
    if (name.find("_bucket{") != std::string::npos || name == kFleeting) continue;
    EXPECT_EQ(value > 0, !kUnfilled.contains(name)) << name << " is " << value;
  }
}

// What never came to the engine counts, too, and under no name that a client could make up.
TEST(WholeServer, EveryReplyCountsByItsPathAndStatus) {
  WholeServerOptions options;
  options.server.api_keys = {"key"};
  options.server.http.limits.body_bytes = 10'000;
  WholeServer whole(options);
  const std::string key = "Authorization: Bearer key\r\n";
  const auto ask = [&](const std::string& line, const std::string& fields = {}, const std::string& body = {}) {
    return whole.connect().ask(request_text(line + " HTTP/1.1", fields, body)).status;
  };
  for (const char* api : kApis) {
    EXPECT_EQ(whole.post(api, body_for(api, 1, api == std::string(kText)), key).status, 200);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(whole.post(api, {{"no such field", 1}}, key).status, 400);
    EXPECT_EQ(whole.post(api, Json::object()).status, 401);
    EXPECT_EQ(whole.post(api, {{"prompt", std::string(10'000, 'x')}}, key).status, 413);
    EXPECT_EQ(ask(std::string("GET ") + api, key), 405);
    EXPECT_EQ(ask(std::string("POST ") + api, key + "Content-Type: text/plain\r\n", "x"), 415);
  }
  EXPECT_EQ(ask("GET /v1/models/none", key), 404);
  EXPECT_EQ(ask("GET /health"), 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask("GET /nowhere/" + std::to_string(i), key), 404);
  EXPECT_EQ(whole.connect().ask("nonsense\r\n\r\n").status, 400);

  std::map<std::string, double> expected;
  const auto expect = [&](const std::string& path, int status, int count) {
    expected["calandra_http_requests_total{path=\"" + path + "\",status=\"" + std::to_string(status) + "\"}"] = count;
  };
  for (const char* api : kApis) {
    for (const int status : {200, 400, 401, 405, 413, 415}) expect(api, status, status == 400 ? 2 : 1);
  }
  expect("/v1/models/*", 404, 1);
  expect("/health", 200, 1);
  expect("other", 404, 3);
  expect("other", 400, 1);
  auto found = read_metrics(whole.connect().ask(request_text("GET /metrics HTTP/1.1", key)).body);
  std::erase_if(found, [](const auto& sample) { return !sample.first.starts_with("calandra_http_requests_total{"); });
  EXPECT_EQ(found, expected);
}

// ---------------------------------------------------------------- the end

// Cut off in silence a client cannot tell a restart from a broken network.
TEST(WholeServer, AnAnswerCutByTheEndSaysSoInTheShapeOfItsApi) {
  for (const bool is_stream : {true, false}) {
    WholeServer whole;
    std::vector<Client> clients;
    for (const char* api : kApis) {
      clients.push_back(whole.connect());
      ASSERT_TRUE(clients.back().send(WholeServer::request(api, body_for(api, 2000, is_stream))));
    }
    ASSERT_TRUE(becomes_true([&] { return whole.engine.statistics().schedule.running == 4; }));
    whole.server.end(0ms);
    const std::vector<std::string> last = {
        R"("error":{"message":"the server is stopping","type":"server_error","param":null,"code":"overloaded"}})",
        R"("error":{"message":"the server is stopping","type":"server_error","param":null,"code":"overloaded"}})",
        "the server is stopping", R"({"type":"error","error":{"type":"overloaded_error","message":"the server is stopping"}})"};
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const Answer answer = clients[i].read_answer();
      EXPECT_EQ(answer.status, is_stream ? 200 : 503) << kApis[i];
      EXPECT_TRUE(answer.is_whole) << kApis[i];
      EXPECT_THAT(answer.body.substr(answer.body.size() - std::min<std::size_t>(answer.body.size(), 1000)), HasSubstr(last[i]))
          << kApis[i];
      EXPECT_THAT(answer.body, Not(HasSubstr("[DONE]"))) << kApis[i];
    }
  }
}

// ---------------------------------------------------------------- the log of requests

class LoggedServer {
 public:
  explicit LoggedServer(bool with_prompts = false) {
    std::filesystem::remove(file);
    WholeServerOptions options;
    options.server.api_keys = {"the-secret-key"};
    options.server.request_log = std::make_shared<RequestLog>(RequestLogOptions{file, with_prompts});
    options.drafts = 3;
    whole = std::make_unique<WholeServer>(std::move(options));
  }
  ~LoggedServer() {
    whole.reset();
    std::filesystem::remove(file);
  }

  Answer post(const std::string& path, const Json& body) const {
    return whole->post(path, body, "Authorization: Bearer the-secret-key\r\n");
  }
  std::string text() const {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// The lines so far, once there are so many.
  std::vector<Json> lines(std::size_t count) const {
    EXPECT_TRUE(becomes_true([&] {
      const std::string all = text();
      return static_cast<std::size_t>(std::count(all.begin(), all.end(), '\n')) >= count;
    }));
    std::vector<Json> lines;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "log"));
    EXPECT_EQ(lines.size(), count);
    lines.resize(count);
    return lines;
  }

  const std::string file = testing::TempDir() + "calandra_requests.log";
  std::unique_ptr<WholeServer> whole;
};

TEST(RequestLog, ALineSaysWhatBecameOfARequest) {
  LoggedServer logged;
  const Answer answer = logged.post("/v1/chat/completions", body_for("/v1/chat/completions", 4, true, "my secret"));
  const Answer both = logged.post(kText, {{"prompt", "my secret"}, {"max_tokens", 5}, {"n", 2}, {"ignore_eos", true}});
  const Json usage = parse_json(both.body, "test").at("usage");
  const std::vector<Json> lines = logged.lines(2);
  const auto chat = std::find_if(lines.begin(), lines.end(), [](const Json& line) { return line["stream"] == true; });
  ASSERT_NE(chat, lines.end());
  const Json& texts = lines[chat == lines.begin() ? 1 : 0];
  EXPECT_THAT(chat->at("time").get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..\\....Z"));
  EXPECT_EQ(chat->at("id"), answer.header("x-request-id"));
  EXPECT_THAT(chat->at("client").get<std::string>(), HasSubstr("127.0.0.1:"));
  EXPECT_EQ(chat->at("key"), key_mark("the-secret-key"));
  EXPECT_EQ(chat->at("path"), "/v1/chat/completions");
  EXPECT_EQ(chat->at("model"), "austen-5m");
  EXPECT_EQ(chat->at("status"), 200);
  EXPECT_EQ(chat->at("finish"), "length");
  EXPECT_EQ(chat->at("generated_tokens"), 4);
  EXPECT_EQ(chat->at("reasoning_tokens"), 4);  // the prompt ends with <think>
  EXPECT_EQ(chat->at("error"), Json());
  EXPECT_GE(chat->at("first_token_seconds"), chat->at("queue_seconds"));
  EXPECT_GE(chat->at("total_seconds"), chat->at("first_token_seconds"));
  EXPECT_EQ(texts.at("accepted_drafts"), usage.at("completion_tokens_details").at("accepted_prediction_tokens"));
  EXPECT_EQ(texts.at("rejected_drafts"), usage.at("completion_tokens_details").at("rejected_prediction_tokens"));
  std::int64_t drafted = 0;
  for (const DrafterStatistics& drafter : logged.whole->engine.statistics().drafters) drafted += drafter.num_drafted();
  for (const Json& line : lines)
    drafted -= line.at("accepted_drafts").get<std::int64_t>() + line.at("rejected_drafts").get<std::int64_t>();
  EXPECT_EQ(drafted, 0) << "more than the lines have";
  EXPECT_GT(texts.at("accepted_drafts").get<int>() + texts.at("rejected_drafts").get<int>(), 0);
  EXPECT_EQ(texts.at("answers"), 2);
  EXPECT_EQ(texts.at("generated_tokens"), usage.at("completion_tokens"));
  EXPECT_EQ(texts.at("prompt_tokens"), usage.at("prompt_tokens").get<int>() * 2);  // of each answer
  // Watching leaves no line, and nothing tells what was asked or the key.
  EXPECT_EQ(logged.whole->connect().ask(request_text("GET /health HTTP/1.1")).status, 200);
  Client watcher = logged.whole->connect();
  ASSERT_TRUE(watcher.send(request_text("HEAD /ready HTTP/1.1")));
  EXPECT_EQ(watcher.read_answer(true).status, 200);
  EXPECT_EQ(logged.whole->connect().ask(request_text("GET /v1/models HTTP/1.1")).status, 401);
  const Json refused = logged.lines(3)[2];
  EXPECT_EQ(refused.at("path"), "/v1/models");
  EXPECT_EQ(refused.at("error"), "Unauthorized");
  EXPECT_THAT(logged.text(), AllOf(Not(HasSubstr("my secret")), Not(HasSubstr("the-secret-key"))));
}

TEST(RequestLog, RefusalsSayWhichFieldAndNotWhatItHeld) {
  for (const bool with_prompts : {false, true}) {
    LoggedServer logged(with_prompts);
    EXPECT_EQ(logged.post(kText, {{"prompt", "x"}, {"temperature", "my secret"}}).status, 400);
    ASSERT_EQ(logged.lines(1).size(), 1U);  // written when all have let go of the request, which may be after the next
    EXPECT_EQ(logged.whole->connect().ask("GET /a HTTP/1.1\r\nno host\r\n\r\n").status, 400);
    const std::vector<Json> lines = logged.lines(2);
    EXPECT_EQ(lines[0].at("status"), 400);
    EXPECT_THAT(lines[0].at("error").get<std::string>(), testing::StartsWith("temperature: "));
    EXPECT_EQ(lines[0].at("error").get<std::string>().find("my secret") != std::string::npos, with_prompts);
    EXPECT_EQ(lines[0].contains("body"), with_prompts);
    EXPECT_EQ(lines[1].at("status"), 400);
    EXPECT_NE(lines[1].at("error"), Json());
  }
}

TEST(RequestLog, ARequestWhoseClientLeftSaysSo) {
  LoggedServer logged;
  Client client = logged.whole->connect();
  ASSERT_TRUE(client.send(WholeServer::request(kText, body_for(kText, 2000, true), "x-api-key: the-secret-key\r\n")));
  client.read_through("data: ");
  client.reset();
  const Json line = logged.lines(1)[0];
  EXPECT_EQ(line.at("finish"), "cancelled");
  EXPECT_THAT(line.at("error").get<std::string>(), HasSubstr("connection ended"));
  EXPECT_GT(line.at("generated_tokens"), 0);
  EXPECT_LT(line.at("generated_tokens"), 2000);
}

// Whatever a client sends, a line is a line: who reads the log believes it.
TEST(RequestLog, NobodyCanForgeALine) {
  LoggedServer logged(true);
  const std::string forged = "x\"}\n{\"time\": \"forged\"}\n\x1b[2J\xff\xe2\x80\xa8";
  std::string path = "/v1/";
  for (const char c : std::string("a\"},{\xc2\x85\xff")) path += fmt::format("%{:02x}", static_cast<unsigned char>(c));
  EXPECT_EQ(logged.whole->connect().ask(request_text("POST " + path + " HTTP/1.1", "x-api-key: the-secret-key\r\n", "{}")).status,
            404);
  EXPECT_EQ(logged.post(kText, {{"prompt", "a"}, {"model", "a\"}\n{\"time\": \"forged\"}"}}).status, 404);
  EXPECT_EQ(
      logged.whole->connect()
          .ask(request_text("POST /tokenize HTTP/1.1", "x-api-key: the-secret-key\r\nContent-Type: application/json\r\n", forged))
          .status,
      400);
  for (const Json& line : logged.lines(3)) EXPECT_NE(line.at("time"), "forged");
  // Not on a screen either, nor for a reader to whom U+0085 or U+2028 ends a line.
  const std::string text = logged.text();
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c < 0x7F); })) << text;
}

TEST(RequestLog, AFileThatIsMovedAwayIsBegunAnew) {
  LoggedServer logged;
  EXPECT_EQ(logged.post("/tokenize", {{"prompt", "a"}}).status, 200);
  logged.lines(1);
  const std::string old = logged.file + ".1";
  std::filesystem::rename(logged.file, old);
  EXPECT_EQ(logged.post("/tokenize", {{"prompt", "b"}}).status, 200);
  logged.lines(1);
  std::filesystem::remove(old);
}

// A reader that does not read: what waits for it is bounded by bytes, since with prompts a line may be as long as a body.
TEST(RequestLog, WhatTheFileDoesNotTakeIsDroppedAndCounted) {
  constexpr int kLines = 100;
  const std::string file = testing::TempDir() + "calandra_requests.fifo";
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const int reader = ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  auto log = std::make_unique<RequestLog>(RequestLogOptions{file, true});
  for (int i = 0; i < kLines; ++i) log->write("\"" + std::string(1 << 20, 'x') + "\"");
  const std::jthread ends([&] { log.reset(); });  // which waits for the reader
  ASSERT_EQ(::fcntl(reader, F_SETFL, 0), 0);
  std::string text(std::size_t{1} << 16, '\0'), seen;
  for (ssize_t count; (count = ::read(reader, text.data(), text.size())) > 0;)
    seen.append(text, 0, static_cast<std::size_t>(count));
  ::close(reader);
  std::filesystem::remove(file);
  int num_whole = 0, num_dropped = 0;
  std::istringstream lines(seen);
  for (std::string line; std::getline(lines, line);) {
    const Json json = parse_json(line, "log");
    if (json.is_object()) {
      num_dropped += json.at("dropped_lines").get<int>();
    } else {
      ++num_whole;
    }
  }
  EXPECT_EQ(num_whole + num_dropped, kLines);
  EXPECT_GE(num_whole, 16);
  EXPECT_LE(num_whole, 2 * 16 + 1) << "those that are being written and those that wait";
}

/// A limit of the size of files does what a full disk does, and tells by a signal of each write that came to nothing.
TEST(RequestLog, AFullDiskLosesLinesAndSaysHowMany) {
  static std::atomic<int> num_refused = 0;
  num_refused = 0;
  const auto before = std::signal(SIGXFSZ, [](int) { ++num_refused; });
  const std::string file = testing::TempDir() + "calandra_full_disk.log";
  std::filesystem::remove(file);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {20, limit.rlim_max};
  {
    RequestLog log({file, false});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    log.write(R"({"line":1})");
    log.write(R"({"line":"two"})");
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (num_refused < 2 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_GE(num_refused, 2);  // the rest of the second line, and the end of what was written of it
    log.write(R"({"line":3})");
  }
  std::signal(SIGXFSZ, before);
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::filesystem::remove(file);
  ASSERT_THAT(lines, testing::SizeIs(4));
  EXPECT_EQ(lines[0], R"({"line":1})");
  EXPECT_EQ(lines[1], R"({"line":")");
  EXPECT_EQ(lines[2], R"({"line":3})");
  EXPECT_EQ(parse_json(lines[3], "log").at("dropped_lines"), 1);
}

TEST(RequestLog, WithoutMemoryItGoesOnAndSaysHowManyLinesAreMissing) {
  if (!ScarceMemory::is_possible()) GTEST_SKIP() << "sanitizers have an operator new of their own";
  const std::string file = testing::TempDir() + "calandra_scarce_memory.log";
  std::filesystem::remove(file);
  const auto lines = [&] {
    std::ifstream in(file);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  };
  {
    const auto log = std::make_shared<RequestLog>(RequestLogOptions{file, false});
    auto record = std::make_unique<RequestRecord>(log, HttpRequest{}, "");
    std::promise<void> run_out;
    std::thread ends_a_request([&] {
      run_out.get_future().wait();
      record.reset();
    });
    {
      const ScarceMemory scarce;
      run_out.set_value();
      ends_a_request.join();
      log->write(R"({"line":1})");
      EXPECT_TRUE(becomes_true([&] { return lines().size() == 1; })) << "there is no memory to say what is missing";
    }
    log->write(R"({"line":2})");
    record = std::make_unique<RequestRecord>(log, HttpRequest{}, "");
    record->reply_ended(false);
    record.reset();
  }
  const std::vector<std::string> found = lines();
  std::filesystem::remove(file);
  ASSERT_GE(found.size(), 4U);
  EXPECT_EQ(found[0], R"({"line":1})");
  EXPECT_EQ(found[1], R"({"line":2})");
  int num_dropped = 0, num_cut = 0;
  for (const std::string& line : found) {
    const Json json = parse_json(line, "log");
    num_dropped += json.value("dropped_lines", 0);
    num_cut += json.value("error", Json()) == "the connection ended before the reply";
  }
  EXPECT_EQ(num_dropped, 1);
  EXPECT_EQ(num_cut, 1);
}

TEST(RequestLog, AFileThatCannotBeOpenedIsNamed) {
  EXPECT_THAT(error_of([] {
                const RequestLog log({"/nowhere/at/all.log", false});
              }),
              AllOf(HasSubstr("/nowhere/at/all.log"), HasSubstr("No such file")));
}

// ---------------------------------------------------------------- abuse

// Clients that go in the queue, in the prompt, while tokens are made, while they are streamed: everything comes back, and one who
// stays is not disturbed.
TEST(WholeServer, ClientsThatLeaveAnywhereTakeNothingWithThem) {
  const int num_clients = long_tests() ? 1000 : 100;
  WholeServerOptions options;
  options.engine.limits.max_running = 3;
  options.engine.pool_bytes = WholeServer::model().layout().sequence_blocks(1024) * WholeServer::model().layout().block_bytes * 2;
  options.engine.limits.reserved_new_tokens = 16;
  options.engine.prefixes.keeps = false;  // which keeps blocks for those to come
  WholeServer whole(options);
  const Json stays = body_for(kText, 40, false);
  const std::string expected = dump_json(parse_json(whole.post(kText, stays).body, "test").at("choices"));
  ASSERT_TRUE(whole.becomes_idle());
  const int files = num_open_files();

  std::mt19937_64 random(11);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::string long_text;
  for (int i = 0; i < 100; ++i) long_text += "It is a truth. ";
  std::list<Client> clients;
  int num_cut = 0;
  for (int i = 0; i < num_clients; ++i) {
    const std::string api = kApis[below(4)];
    const bool is_stream = below(2) == 0;
    Json body = body_for(api, 1 + static_cast<std::int64_t>(below(120)), is_stream, below(3) == 0 ? long_text : "Who");
    if (api == kText || api == kApis[0]) body["n"] = 1 + below(3);
    const std::string request = WholeServer::request(api, body);
    clients.push_back(whole.connect());
    ASSERT_TRUE(clients.back().send(below(10) == 0 ? request.substr(0, below(request.size())) : request));
    while (clients.size() > below(12)) {
      const auto chosen = std::next(clients.begin(), static_cast<std::ptrdiff_t>(below(clients.size())));
      Client& leaves = *chosen;
      if (below(3) == 0) leaves.read_for(std::chrono::milliseconds(below(20)));
      switch (below(3)) {
        case 0: leaves.close(); break;
        case 1: leaves.reset(); break;
        default: leaves.close_sending(); break;
      }
      ++num_cut;
      clients.erase(chosen);
    }
    if (i % 25 == 0) {
      EXPECT_EQ(dump_json(parse_json(whole.post(kText, stays).body, "test").at("choices")), expected);
    }
  }
  num_cut += static_cast<int>(clients.size());
  clients.clear();
  EXPECT_EQ(num_cut, num_clients);
  EXPECT_TRUE(whole.becomes_idle());
  EXPECT_EQ(num_open_files(), files);
  const auto samples = whole.metrics();
  EXPECT_GT(samples.at("calandra_requests_total{outcome=\"cancelled\"}"), num_clients / 5);
  EXPECT_EQ(samples.at("calandra_requests_running"), 0);
  EXPECT_EQ(samples.at("calandra_requests_waiting"), 0);
}

// Identical requests at once share steps and have one answer, the one of a single request; they take the steps of one, not of
// eight.
TEST(WholeServer, IdenticalRequestsAtOnceHaveOneAnswerAndShareTheirSteps) {
  WholeServer whole;
  Json body = body_for(kText, 200, false);
  body["temperature"] = 0;
  const auto text_of = [](const Answer& answer) { return dump_json(parse_json(answer.body, "test").at("choices")); };
  const std::string expected = text_of(whole.post(kText, body));
  const std::int64_t steps_of_one = whole.engine.statistics().schedule.steps;
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(whole.connect());
    ASSERT_TRUE(clients.back().send(WholeServer::request(kText, body)));
  }
  for (Client& client : clients) EXPECT_EQ(text_of(client.read_answer()), expected);
  EXPECT_LT(whole.engine.statistics().schedule.steps - steps_of_one, 4 * steps_of_one);
}

// A client that asks for much and reads none of it costs what HttpOptions::backlog_limit_bytes says, then nothing.
TEST(WholeServer, AClientThatNeverReadsHoldsUpNobody) {
  WholeServerOptions options;
  options.server.http.backlog_limit_bytes = 50'000;
  options.engine.prefixes.keeps = false;  // which keeps blocks for those to come
  WholeServer whole(options);
  const Json quick = body_for(kText, 20, false);
  Client slow(whole.server.port(), 4096);
  Json body = body_for(kText, 1900, true);
  body["n"] = 8;
  body["logprobs"] = 20;  // a kilobyte a token
  ASSERT_TRUE(slow.send(WholeServer::request(kText, body)));
  ASSERT_TRUE(becomes_true([&] { return whole.engine.statistics().schedule.running > 0; }));
  // It is given up long before its 15,200 tokens are made, and others are answered meanwhile.
  int num_answered = 0;
  while (whole.metrics().at("calandra_requests_total{outcome=\"cancelled\"}") < 8) {
    ASSERT_EQ(whole.post(kText, quick).status, 200);
    ASSERT_LT(++num_answered, 10'000);
  }
  EXPECT_GT(num_answered, 0);
  EXPECT_LT(whole.metrics().at("calandra_generated_tokens_total"), 15'200 + 20 * num_answered);
  slow.close();
  EXPECT_TRUE(whole.becomes_idle());
}

// A body that there is no room for is refused in the shape of its API while it is still to come, and taken when others have been read.
TEST(WholeServer, WhatDoesNotFitBesideOtherBodiesIsRefusedForAWhile) {
  WholeServerOptions options;
  options.body_bytes = 10'000;
  WholeServer whole(options);
  Client slow = whole.connect();
  ASSERT_TRUE(
      slow.send(request_text("POST /v1/completions HTTP/1.1", "Content-Type: application/json\r\nContent-Length: 9999\r\n") +
                std::string(9998, ' ')));
  ASSERT_TRUE(becomes_true([&] { return whole.bodies().used() == 9998; }));
  for (const char* api : kApis) {
    Client refused = whole.connect();
    const Answer answer = refused.ask(std::string("POST ") + api +
                                      " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n");
    EXPECT_EQ(answer.status, 503) << api;
    EXPECT_EQ(answer.header("retry-after"), "1") << api;
    const Json error = parse_json(answer.body, api).at("error");
    EXPECT_EQ(error.at("type"), api == std::string("/v1/messages") ? "overloaded_error" : "server_error") << api;
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("10000 bytes")) << api;
    EXPECT_TRUE(refused.is_at_end()) << api;
  }
  slow.close();
  ASSERT_TRUE(becomes_true([&] { return whole.bodies().used() == 0; }));
  for (const char* api : kApis) EXPECT_EQ(whole.post(api, body_for(api, 1, false)).status, 200) << api;
  EXPECT_EQ(whole.bodies().used(), 0U);
}

// Many at once, far more than there is room for: each is answered or told to come again, and nothing is left behind.
TEST(WholeServer, BodiesOfACrowdNeverTakeMoreThanTheirRoom) {
  WholeServerOptions options;
  options.body_bytes = 3 << 20;
  WholeServer whole(options);
  const std::string body = dump_json(body_for(kText, 1, false)) + std::string(1 << 20, ' ');
  const std::string request = request_text("POST /v1/completions HTTP/1.1", "Content-Type: application/json\r\n", body);
  std::atomic<int> num_answered = 0, num_refused = 0, num_others = 0;
  std::vector<std::thread> crowd;
  for (int i = 0; i < 16; ++i) {
    crowd.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        Client client = whole.connect();
        client.send(request);
        const int status = client.read_answer().status;
        ++(status == 200 ? num_answered : status == 503 ? num_refused : num_others);
      }
    });
  }
  std::uint64_t most = 0;
  while (num_answered + num_refused + num_others < 64) most = std::max(most, whole.bodies().used());
  for (std::thread& one : crowd) one.join();
  EXPECT_LE(most, options.body_bytes);
  EXPECT_GT(num_answered, 0);
  EXPECT_GT(num_refused, 0);
  EXPECT_EQ(num_others, 0);
  EXPECT_TRUE(becomes_true([&] { return whole.bodies().used() == 0; }));
}

// One address, all APIs: what is no request is refused with a 4xx, and the server goes on.
TEST(WholeServer, BodiesThatAreNoRequestsAreRefusedByEveryApi) {
  WholeServerOptions options;
  options.server.http.limits.body_bytes = 4 << 20;
  WholeServer whole(options);
  const std::string deep(100'000, '[');
  const std::vector<std::string> bodies = {" ",
                                           "{",
                                           "[]",
                                           "null",
                                           "\"text\"",
                                           "{\"a\":}",
                                           "{} {}",
                                           deep,
                                           "{\"messages\":" + deep,
                                           "{\"prompt\":\"\xff\xfe\"}",
                                           "{\"prompt\":\"\\ud800\"}",
                                           std::string("{\"prompt\":\"\0\"}", 14),
                                           "{\"prompt\":1e999}",
                                           "{\"max_tokens\":-1,\"messages\":[],\"input\":[],\"prompt\":[]}",
                                           std::string(3 << 20, ' '),
                                           std::string(5 << 20, 'x')};
  for (const char* path : {"/v1/chat/completions", kText, "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
                           "/tokenize", "/detokenize", "/apply-template"}) {
    for (const std::string& body : bodies) {
      const Answer answer = whole.connect().ask(
          request_text(std::string("POST ") + path + " HTTP/1.1", "Content-Type: application/json\r\n", body));
      EXPECT_EQ(answer.status, body.size() > (4 << 20) ? 413 : 400) << path << " " << body.substr(0, 40);
      EXPECT_TRUE(parse_json(answer.body, path).contains("error")) << path << " " << body.substr(0, 40);
    }
  }
  EXPECT_EQ(whole.post(kText, body_for(kText, 1, false)).status, 200);
}

}  // namespace
}  // namespace calandra
