// Answers that come in pieces and late: who takes them, who has gone, who is too slow, how many at once.

#include "serve/client.h"
#include "serve/http_server.h"
#include "serve/test_server.h"
#include "serve/whole_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace calandra {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasSanitizer = true;
#elif defined(__has_feature)
constexpr bool kHasSanitizer = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kHasSanitizer = false;
#endif

bool is_gone(const HttpResponder& responder) { return responder.gone().stop_requested(); }
bool becomes_gone(const HttpResponder& responder) {
  return becomes_true([&] { return is_gone(responder); });
}

TEST(HttpStream, PiecesArriveAsTheyAreSent) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send(kHeldRequest));
  Held held = test.next_held();
  ASSERT_TRUE(held.responder.start(200, {{"Content-Type", "text/plain"}}));
  EXPECT_THAT(client.read_through("\r\n\r\n"), HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
  for (const std::string_view piece : {"one", "two and more of it", "three"}) {
    ASSERT_TRUE(held.responder.send(piece));
    ASSERT_TRUE(held.responder.send(""));  // says nothing, ends nothing
    EXPECT_THAT(client.read_through(piece), HasSubstr(piece));
  }
  ASSERT_TRUE(held.responder.finish());
  EXPECT_EQ(client.read_through("0\r\n\r\n"), "\r\n0\r\n\r\n");
  EXPECT_FALSE(held.responder.send("too late"));
  EXPECT_FALSE(held.responder.finish());
  EXPECT_EQ(client.ask(request_text("GET /a HTTP/1.1")).status, 200);
  EXPECT_FALSE(is_gone(held.responder));
}

TEST(HttpStream, Http10GetsThePiecesBareUntilTheConnectionEnds) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send("GET /held HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  Held held = test.next_held();
  held.responder.start(200, {});
  held.responder.send("one ");
  held.responder.send("two");
  held.responder.finish();
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.body, "one two");
  EXPECT_EQ(answer.header("transfer-encoding"), "");
  EXPECT_EQ(answer.header("connection"), "close");
}

TEST(HttpStream, HeadHasNoPieces) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send(request_text("HEAD /held HTTP/1.1")));
  Held held = test.next_held();
  held.responder.start(200, {});
  held.responder.send("one");
  held.responder.finish();
  EXPECT_EQ(client.read_answer(true).status, 200);
  EXPECT_EQ(client.ask(request_text("GET /a HTTP/1.1")).status, 200);
}

TEST(HttpStream, EventsAreKeptAliveByCommentsAndOnlyWhileTheyAreSilent) {
  HttpOptions options;
  options.comment_interval = 200ms;
  TestServer test(std::move(options));
  Client client = test.connect();
  ASSERT_TRUE(client.send(kHeldRequest));
  Held held = test.next_held();
  ASSERT_TRUE(held.responder.start_events());
  EXPECT_THAT(client.read_through("\r\n\r\n"), HasSubstr("Content-Type: text/event-stream"));
  EXPECT_EQ(client.read_through("3\r\n:\n\n\r\n"), "3\r\n:\n\n\r\n");
  EXPECT_EQ(client.read_through("3\r\n:\n\n\r\n"), "3\r\n:\n\n\r\n");
  held.responder.send_event("{}", "delta");
  EXPECT_THAT(client.read_through("\n\n"), testing::EndsWith("event: delta\ndata: {}\n\n"));
  held.responder.finish();
  EXPECT_THAT(client.read_for(600ms), testing::EndsWith("0\r\n\r\n"));  // and no comment behind it
}

// A client that leaves is noticed in every phase.

enum class Farewell { Close, Reset, HalfClose };

class Leaving : public testing::TestWithParam<Farewell> {
 protected:
  static void leave(Client& client) {
    switch (GetParam()) {
      case Farewell::Close: return client.close();
      case Farewell::Reset: return client.reset();
      case Farewell::HalfClose: return client.close_sending();
    }
  }
  TestServer test_;
};

TEST_P(Leaving, IsNoticedWhileTheAnswerIsAwaited) {
  Client client = test_.connect();
  ASSERT_TRUE(client.send(kHeldRequest));
  Held held = test_.next_held();
  std::atomic<int> calls = 0;
  const std::stop_callback callback(held.responder.gone(), [&] { ++calls; });
  EXPECT_FALSE(is_gone(held.responder));
  leave(client);
  EXPECT_TRUE(becomes_gone(held.responder));
  EXPECT_TRUE(becomes_true([&] { return calls == 1; }));
  EXPECT_FALSE(held.responder.reply({}));
  EXPECT_TRUE(becomes_true([&] { return test_.server->num_connections() == 0; }));
}

TEST_P(Leaving, IsNoticedInAStream) {
  Client client = test_.connect();
  ASSERT_TRUE(client.send(kHeldRequest));
  Held held = test_.next_held();
  ASSERT_TRUE(held.responder.start_events());
  ASSERT_TRUE(held.responder.send_event("a"));
  client.read_through("data: a\n\n");
  leave(client);
  EXPECT_TRUE(becomes_gone(held.responder));
  EXPECT_FALSE(held.responder.send_event("b"));
  EXPECT_FALSE(held.responder.finish());
}

TEST_P(Leaving, IsNoticedBehindRequestsThatWait) {
  // Little that waits is read; much is left in the socket, and the farewell behind it.
  for (const int count : {1, 3000}) {
    Client client = test_.connect();
    ASSERT_TRUE(client.send(kHeldRequest));
    Held held = test_.next_held();
    std::string more;
    for (int i = 0; i < count; ++i) more += request_text("GET /held/more HTTP/1.1");
    ASSERT_TRUE(client.send(more));
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(is_gone(held.responder)) << "those who ask ahead have not gone";
    leave(client);
    EXPECT_TRUE(becomes_gone(held.responder)) << count << " requests";
    EXPECT_EQ(test_.num_held(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(HttpStream, Leaving, testing::Values(Farewell::Close, Farewell::Reset, Farewell::HalfClose),
                         [](const auto& with) {
                           return with.param == Farewell::Close ? "Close" : with.param == Farewell::Reset ? "Reset" : "HalfClose";
                         });

TEST(HttpStream, AnAnswerGivenAtOnceReachesAClientThatHasClosedItsSide) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send(request_text("GET /a HTTP/1.1") + request_text("GET /b HTTP/1.1")));
  client.close_sending();
  EXPECT_EQ(client.read_answer().body, echo_of("GET", "/a", "", ""));
  EXPECT_EQ(client.read_answer().body, echo_of("GET", "/b", "", ""));
  EXPECT_TRUE(client.is_at_end());
}

TEST(HttpStream, ADroppedStreamIsNotMistakenForAnEnd) {
  TestServer test;
  for (const std::string_view request : {"GET /held HTTP/1.1\r\nHost: x\r\n\r\n", "GET /held HTTP/1.0\r\n\r\n"}) {
    Client client = test.connect();
    ASSERT_TRUE(client.send(request));
    {
      Held held = test.next_held();
      ASSERT_TRUE(held.responder.start(200, {}));
      ASSERT_TRUE(held.responder.send("half of"));
      client.read_through("half of");
    }
    const std::string rest = client.read_for(60s);  // until the connection ends
    EXPECT_THAT(rest, testing::Not(HasSubstr("0\r\n\r\n")));
    EXPECT_FALSE(client.send("x") && client.send("y"));  // it was reset
  }
}

TEST(HttpStream, ASlowReaderIsCutOffAndNobodyElseWaits) {
  HttpOptions options;
  options.backlog_limit_bytes = 200'000;
  TestServer test(std::move(options));
  Client slow(test.server->port(), 4096), quick = test.connect();
  ASSERT_TRUE(slow.send(kHeldRequest));
  Held to_slow = test.next_held();
  ASSERT_TRUE(quick.send(kHeldRequest));
  Held to_quick = test.next_held();
  ASSERT_TRUE(to_slow.responder.start(200, {}));
  ASSERT_TRUE(to_quick.responder.start(200, {}));
  const std::string piece(50'000, 'x');
  std::size_t most_pending = 0;
  int num_sent = 0;
  while (to_slow.responder.send(piece) && num_sent < 10'000) {
    most_pending = std::max(most_pending, to_slow.responder.pending_bytes());
    const std::string word = "<" + std::to_string(++num_sent) + ">";
    ASSERT_TRUE(to_quick.responder.send(word));
    ASSERT_THAT(quick.read_through(word), testing::EndsWith(word));
  }
  EXPECT_LT(num_sent, 10'000);
  EXPECT_GT(most_pending, 100'000u);
  EXPECT_LE(most_pending, 260'000u);
  EXPECT_TRUE(becomes_gone(to_slow.responder));
  EXPECT_EQ(to_slow.responder.pending_bytes(), 0u);
  EXPECT_FALSE(is_gone(to_quick.responder));
}

TEST(HttpStream, AReaderThatTakesNothingIsCutOffInTime) {
  HttpOptions options;
  options.write_timeout = 300ms;
  options.backlog_limit_bytes = std::size_t{1} << 30;
  TestServer test(std::move(options));
  Client client(test.server->port(), 4096);
  ASSERT_TRUE(client.send(kHeldRequest));
  Held held = test.next_held();
  ASSERT_TRUE(held.responder.start(200, {}));
  ASSERT_TRUE(held.responder.send(std::string(16'000'000, 'x')));
  EXPECT_TRUE(becomes_gone(held.responder));
  // The same for a whole answer.
  Client other(test.server->port(), 4096);
  ASSERT_TRUE(other.send(kHeldRequest));
  ASSERT_TRUE(test.next_held().responder.reply({.status = 200, .headers = {}, .body = std::string(16'000'000, 'x')}));
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 0; }));
}

/// Reads an answer so slowly, for three time-outs, that the server's socket takes nothing more from it. Nothing if this process did not
/// get to run often enough to be steady.
std::optional<bool> arrives_at_a_slow_reader(const std::string& body) {
  HttpOptions options;
  options.write_timeout = 1000ms;
  TestServer test(std::move(options));
  Client client(test.server->port(), 65536);
  EXPECT_TRUE(client.send(kHeldRequest));
  Held held = test.next_held();
  EXPECT_TRUE(held.responder.reply({.status = 200, .headers = {}, .body = body}));
  EXPECT_GT(held.responder.pending_bytes(), 0u);
  client.read_through("\r\n\r\n");
  std::string got;
  for (int i = 0; i < 30; ++i) {
    const auto start = std::chrono::steady_clock::now();
    got += client.read_bytes(32'000);
    std::this_thread::sleep_for(100ms);
    if (std::chrono::steady_clock::now() - start > 400ms) return std::nullopt;
  }
  got += client.read_bytes(body.size() - got.size());
  return got == body && becomes_true([&] { return held.responder.pending_bytes() == 0; });
}

TEST(HttpStream, AReaderThatIsSlowAndSteadyGetsEverything) {
  std::string body(8'000'000, 'x');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 23);
  for (int tries = 0; tries < 5; ++tries) {
    if (const std::optional<bool> arrived = arrives_at_a_slow_reader(body)) {
      EXPECT_TRUE(*arrived);
      return;
    }
  }
  GTEST_SKIP() << "this machine is too busy";
}

TEST(HttpStream, ManyThreadsAnswerManyClients) {
  constexpr int kThreads = 4, kStreams = 32, kEvents = 50;
  TestServer test;
  std::vector<Client> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(test.connect());
    ASSERT_TRUE(clients.back().send(request_text("GET /held/" + std::to_string(i) + " HTTP/1.1")));
  }
  std::vector<Held> held;
  for (int i = 0; i < kStreams; ++i) held.push_back(test.next_held());
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&held, t] {
      for (int event = 0; event < kEvents; ++event) {
        for (std::size_t i = static_cast<std::size_t>(t); i < held.size(); i += kThreads) {
          if (event == 0) held[i].responder.start_events();
          held[i].responder.send_event(held[i].request.path + " " + std::to_string(event));
          if (event == kEvents - 1) held[i].responder.finish();
        }
      }
    });
  }
  for (int i = 0; i < kStreams; ++i) {
    std::string expected;
    for (int event = 0; event < kEvents; ++event) {
      expected += "data: /held/" + std::to_string(i) + " " + std::to_string(event) + "\n\n";
    }
    const Answer answer = clients[static_cast<std::size_t>(i)].read_answer();
    EXPECT_EQ(answer.body, expected);
    EXPECT_TRUE(answer.is_whole);
  }
}

TEST(HttpStream, RandomLeavingGivesEveryFileBack) {
  TestServer test;
  test.ask(request_text("GET /a HTTP/1.1"));
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 0; }));
  const int before = num_open_files();
  std::vector<Held> abandoned;
  for (int i = 0; i < 100; ++i) {
    Client client = test.connect();
    ASSERT_TRUE(client.send(i % 5 == 0 ? kHeldRequest.substr(0, 9) : kHeldRequest));
    if (i % 5 == 0) continue;
    abandoned.push_back(test.next_held());
    if (i % 5 > 1) abandoned.back().responder.start_events();
    if (i % 5 > 2) abandoned.back().responder.send_event(std::string(100'000, 'x'));
    if (i % 5 > 3) client.reset();
  }
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 0; }));
  EXPECT_EQ(num_open_files(), before);
  for (const Held& held : abandoned) EXPECT_TRUE(is_gone(held.responder));
}

TEST(HttpStream, FiveThousandIdleStreamsFitIn100MB) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  // Both ends are in this process.
  const auto count = static_cast<int>(std::min<rlim_t>(5000, files.rlim_cur / 2 - 50));
  if (count < 5000) std::printf("only %d streams: RLIMIT_NOFILE\n", count);
  TestServer test;
  std::vector<Client> clients;
  std::vector<Held> held;
  clients.reserve(5000);
  held.reserve(5000);
  const std::string request =
      request_text("POST /held HTTP/1.1", "User-Agent: test\r\nAccept: text/event-stream\r\n", std::string(300, 'x'));
  const std::size_t before = resident_bytes();
  for (int i = 0; i < count; ++i) {
    clients.push_back(test.connect());
    ASSERT_TRUE(clients.back().send(request));
  }
  for (int i = 0; i < count; ++i) {
    held.push_back(test.next_held());
    held.back().responder.start_events();
    ASSERT_TRUE(held.back().responder.send_event("hello"));
  }
  for (Client& client : clients) ASSERT_THAT(client.read_through("\n\n"), HasSubstr("data: hello"));
  const std::size_t used = resident_bytes() - before;
  std::printf("%d idle streams: %.1f MB, with the clients' side\n", count, static_cast<double>(used) * 1e-6);
  if (!kHasSanitizer) {
    EXPECT_LT(used, 100'000'000u * static_cast<std::size_t>(count) / 5000);
  }
  EXPECT_EQ(test.server->num_connections(), count);
  ASSERT_TRUE(held.back().responder.send_event("one more"));
  EXPECT_THAT(clients.back().read_through("\n\n"), HasSubstr("one more"));
}

}  // namespace
}  // namespace calandra
