// One request after another: framing, limits, time-outs, what is refused.

#include "serve/client.h"
#include "serve/http_server.h"
#include "serve/test_server.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>
#include <vector>

namespace calandra {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kGet = request_text("GET /a HTTP/1.1");
const std::string kEcho = echo_of("GET", "/a", "", "");

TEST(HttpServer, AConnectionIsKeptFromRequestToRequest) {
  TestServer test;
  Client client = test.connect();
  for (int i = 0; i < 5; ++i) {
    const Answer answer = client.ask(request_text("POST /p%20q?x=%31 HTTP/1.1", {}, "body " + std::to_string(i)));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, echo_of("POST", "/p q", "x=%31", "body " + std::to_string(i)));
    EXPECT_EQ(answer.header("connection"), "");
  }
  EXPECT_EQ(test.server->num_connections(), 1);
}

TEST(HttpServer, CloseIsSaidAndDone) {
  TestServer test;
  Client client = test.connect();
  const Answer answer = client.ask(request_text("GET /a HTTP/1.1", "Connection: close\r\n"));
  EXPECT_EQ(answer.body, kEcho);
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_TRUE(client.is_at_end());
}

TEST(HttpServer, Http10ClosesUnlessAskedToStay) {
  TestServer test;
  Client once = test.connect();
  EXPECT_EQ(once.ask("GET /a HTTP/1.0\r\n\r\n").body, kEcho);
  EXPECT_TRUE(once.is_at_end());
  Client staying = test.connect();
  for (int i = 0; i < 2; ++i) {
    const Answer answer = staying.ask("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(answer.body, kEcho);
    EXPECT_EQ(answer.header("connection"), "keep-alive");
  }
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  TestServer test;
  Client client = test.connect();
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += request_text("POST /n HTTP/1.1", {}, std::to_string(i));
  requests += request_text("GET /held HTTP/1.1") + request_text("GET /after HTTP/1.1");
  ASSERT_TRUE(client.send(requests));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read_answer().body, echo_of("POST", "/n", "", std::to_string(i)));
  Held held = test.next_held();
  EXPECT_EQ(client.read_for(50ms), "");  // the one after it waits
  held.responder.reply({.status = 200, .headers = {}, .body = "held"});
  EXPECT_EQ(client.read_answer().body, "held");
  EXPECT_EQ(client.read_answer().body, echo_of("GET", "/after", "", ""));
}

TEST(HttpServer, OneByteAtATimeIsTheSameRequest) {
  TestServer test;
  Client client = test.connect();
  for (const char c :
       request_text("POST /slow HTTP/1.1", "Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n") {
    ASSERT_TRUE(client.send({&c, 1}));
  }
  EXPECT_EQ(client.read_answer().body, echo_of("POST", "/slow", "", "abcde"));
  EXPECT_EQ(client.ask(kGet).body, kEcho);
}

TEST(HttpServer, HeadHasTheLengthOfGetAndNoBody) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send(request_text("HEAD /a HTTP/1.1")));
  const Answer answer = client.read_answer(true);
  EXPECT_EQ(answer.header("content-length"), std::to_string(echo_of("HEAD", "/a", "", "").size()));
  EXPECT_EQ(client.ask(kGet).body, kEcho);  // nothing lies between
}

TEST(HttpServer, EveryAnswerHasADateAndAnIdOfItsOwn) {
  TestServer test;
  const Answer one = test.ask(kGet), two = test.ask(kGet);
  EXPECT_THAT(one.header("date"), testing::MatchesRegex("..., .. ... .... ..:..:.. GMT"));
  EXPECT_NE(one.header("x-request-id"), "");
  EXPECT_NE(one.header("x-request-id"), two.header("x-request-id"));
  EXPECT_EQ(one.header("request-id"), one.header("x-request-id"));
  const Answer refused = test.ask("GET /a HTTP/1.1\r\n\r\n");
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.header("request-id"), "");
}

TEST(HttpServer, ContinueIsSentToWhoWaitsForIt) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.read_answer().status, 100);
  EXPECT_EQ(client.ask("abc").body, echo_of("POST", "/a", "", "abc"));
  // Not to one who does not wait.
  EXPECT_EQ(client.ask("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc").status, 200);
}

TEST(HttpServer, WhatCannotBeTakenIsRefusedWithAStatusAndTheConnectionEnds) {
  HttpOptions options;
  options.limits = {.header_bytes = 1000, .target_bytes = 200, .body_bytes = 100};
  TestServer test(std::move(options));
  const struct {
    int status;
    std::string bytes;
  } cases[] = {
      {400, "nonsense\r\n\r\n"},
      {400, "GET  /a HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /a HTTP/1.1\nHost: x\n\n"},
      {400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},  // TLS
      {400, "GET a HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET * HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /a HTTP/1.1\r\n\r\n"},
      {400, "GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},
      {400, "GET /a HTTP/1.1\r\nHost : x\r\n\r\n"},
      {400, "GET /a HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n"},
      {400, "GET /a HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n"},
      {505, "GET /a HTTP/2.0\r\nHost: x\r\n\r\n"},
      {505, "GET /a HTTP/0.9\r\nHost: x\r\n\r\n"},
      // Smuggling: everything that two servers could measure differently.
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\nContent-Length: 4\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4, 4\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0x4\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551617\r\n\r\nabcd"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\nabcd"},
      {501, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
      {501, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
      {501, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"},
      {400, "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabcd\r\n0\r\n\r\n"},
      {417, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: magic\r\n\r\nabcd"},
      {413, request_text("POST /a HTTP/1.1", {}, std::string(101, 'x'))},
      {413, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n"},
      {413, request_text("POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\n") + "33\r\n" + std::string(51, 'x') + "\r\n33\r\n" +
                std::string(51, 'x') + "\r\n0\r\n\r\n"},
      {414, "GET /" + std::string(200, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"},
      {414, "GET /" + std::string(5000, 'a')},
      {431, "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(5000, 'a')},
      {431, "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(980, 'a') + "\r\n\r\n"},
      {431, request_text("POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\n") + "0\r\nT: " + std::string(5000, 'x')},
  };
  for (const auto& [status, bytes] : cases) {
    Client client = test.connect();
    const Answer answer = client.ask(bytes);
    EXPECT_EQ(answer.status, status) << bytes;
    EXPECT_TRUE(answer.is_whole);
    EXPECT_NE(answer.body, "");
    EXPECT_EQ(answer.header("connection"), "close");
    EXPECT_TRUE(client.is_at_end()) << bytes;
  }
  EXPECT_EQ(test.ask(kGet).body, kEcho);
}

TEST(HttpServer, WhatIsUnusualAndRightIsTaken) {
  TestServer test;
  const struct {
    std::string bytes, echo;
  } cases[] = {
      {"\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n", kEcho},
      {"GET http://example.org/a?b HTTP/1.1\r\nHost: x\r\n\r\n", echo_of("GET", "/a", "b", "")},
      {"GET HTTP://example.org HTTP/1.1\r\nHost: x\r\n\r\n", echo_of("GET", "/", "", "")},
      {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", echo_of("OPTIONS", "*", "", "")},
      {"GET /a?%zz HTTP/1.1\r\nhOsT:x\r\n\r\n", echo_of("GET", "/a", "%zz", "")},
      {"BREW /a HTTP/1.1\r\nHost:\r\nA:\t b \r\n\r\n", echo_of("BREW", "/a", "", "")},
      {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0004\r\n\r\nabcd", echo_of("POST", "/a", "", "abcd")},
      {"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: CHUNKED\r\n\r\n000A\r\n0123456789\r\n0\r\n\r\n",
       echo_of("POST", "/a", "", "0123456789")},
      {"GET /%E2%82%AC%2Fb HTTP/1.1\r\nHost: x\r\n\r\n", echo_of("GET", "/\xE2\x82\xAC/b", "", "")},
  };
  for (const auto& [bytes, echo] : cases) EXPECT_EQ(test.ask(bytes).body, echo) << bytes;
}

TEST(HttpServer, ARefusalReachesAClientThatIsStillSending) {
  HttpOptions options;
  options.limits.body_bytes = 1000;
  TestServer test(std::move(options));
  Client client = test.connect();
  ASSERT_TRUE(client.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"));
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 100; ++i) {
    if (!client.send(piece)) break;
  }
  EXPECT_EQ(client.read_answer().status, 413);
}

TEST(HttpServer, ABodyCutShortIsNoRequest) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send("POST /held HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
  client.close_sending();
  EXPECT_TRUE(client.is_at_end());
  EXPECT_EQ(test.num_held(), 0u);
}

TEST(HttpServer, EveryPhaseHasItsTimeOut) {
  HttpOptions options;
  options.header_timeout = options.body_timeout = 300ms;
  options.idle_timeout = 2s;  // time enough for this thread to send what follows
  TestServer test(std::move(options));
  Client idle = test.connect(), in_header = test.connect(), in_body = test.connect(), later = test.connect();
  EXPECT_EQ(later.ask(kGet).status, 200);
  ASSERT_TRUE(in_header.send("GET /a HTTP/1.1\r\n"));
  ASSERT_TRUE(in_body.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
  for (Client* client : {&in_header, &in_body}) {
    EXPECT_EQ(client->read_answer().status, 408);
    EXPECT_TRUE(client->is_at_end());
  }
  EXPECT_TRUE(idle.is_at_end());
  EXPECT_TRUE(later.is_at_end());
}

TEST(HttpServer, BytesThatTrickleInDoNotMoveTheDeadline) {
  HttpOptions options;
  options.header_timeout = 300ms;
  TestServer test(std::move(options));
  Client client = test.connect();
  ASSERT_TRUE(client.send("GET /a HTTP/1.1\r\nA: "));
  const auto start = std::chrono::steady_clock::now();
  std::string answer;
  while (answer.empty() && std::chrono::steady_clock::now() - start < 30s) {
    client.send("x");
    answer = client.read_for(20ms);
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 "));
}

TEST(HttpServer, AnAnswerMayTakeLongerThanAnyTimeOut) {
  HttpOptions options;
  options.header_timeout = options.body_timeout = options.idle_timeout = options.write_timeout = 100ms;
  TestServer test(std::move(options));
  Client client = test.connect();
  ASSERT_TRUE(client.send(request_text("GET /held HTTP/1.1")));
  Held held = test.next_held();
  EXPECT_EQ(client.read_for(600ms), "");
  EXPECT_TRUE(held.responder.reply({.status = 200, .headers = {}, .body = "late"}));
  EXPECT_EQ(client.read_answer().body, "late");
}

TEST(HttpServer, ErrorsHaveTheShapeOfTheirPath) {
  HttpOptions options;
  options.limits.body_bytes = 10;
  HttpService service;
  service.error = [](int status, std::string_view message, std::string_view path) {
    return HttpResponse{.status = status, .headers = {{"X-Path", std::string(path)}}, .body = "{" + std::string(message) + "}"};
  };
  TestServer test(std::move(options), std::move(service));
  const Answer answer = test.ask(request_text("POST /v1/x%79z HTTP/1.1", {}, "more than ten bytes"));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.header("x-path"), "/v1/xyz");
  EXPECT_EQ(answer.body, "{body: expected at most 10 bytes, found more}");
}

TEST(HttpServer, WhoMayNotAskIsToldBeforeTheBodyIsRead) {
  HttpService service;
  service.check = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.headers.find("let-me-in")) return std::nullopt;
    return HttpResponse{.status = 401, .headers = {}, .body = "no"};
  };
  TestServer test({}, std::move(service));
  Client client = test.connect();
  EXPECT_EQ(client.ask(kGet).status, 401);
  EXPECT_EQ(client.ask(request_text("GET /a HTTP/1.1", "Let-Me-In: please\r\n")).body, kEcho);  // the connection stays
  const Answer answer = client.ask("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(answer.status, 401);
  EXPECT_TRUE(client.is_at_end());  // or the body, were it sent, would be taken for a request
}

TEST(HttpServer, AnswersOfOtherOriginsAreReadableOnlyIfTheyAreListed) {
  const std::string get = request_text("GET /a HTTP/1.1", "Origin: https://page.example\r\n");
  const std::string preflight = request_text("OPTIONS /a HTTP/1.1",
                                             "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n"
                                             "Access-Control-Request-Headers: authorization, content-type\r\n");
  TestServer closed;
  EXPECT_EQ(closed.ask(get).header("access-control-allow-origin"), "");
  EXPECT_EQ(closed.ask(preflight).header("access-control-allow-origin"), "");
  HttpOptions options;
  options.cors_origins = {"https://other.example", "https://page.example"};
  HttpService service;
  service.check = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.method == "OPTIONS") return HttpResponse{.status = 401, .headers = {}, .body = {}};
    return std::nullopt;
  };
  TestServer open(std::move(options), std::move(service));
  EXPECT_EQ(open.ask(get).header("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(open.ask(get).header("vary"), "Origin");
  const Answer asked = open.ask(preflight);
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.header("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(asked.header("access-control-allow-methods"), "POST");
  EXPECT_EQ(asked.header("access-control-allow-headers"), "authorization, content-type");
  EXPECT_EQ(
      open.ask(request_text("GET /a HTTP/1.1", "Origin: https://page.example.evil\r\n")).header("access-control-allow-origin"),
      "");
}

TEST(HttpServer, AHandlerThatThrowsOrForgetsCostsOneAnswer) {
  HttpService service;
  service.handle = [](const HttpRequest& request, HttpResponder responder) {
    if (request.path == "/throws") throw std::runtime_error("broken handler");
    if (request.path == "/good") responder.reply({.status = 200, .headers = {}, .body = "good"});
  };
  TestServer test({}, std::move(service));
  Client client = test.connect();
  for (const std::string_view path : {"/throws", "/forgets"}) {
    const Answer answer = client.ask(request_text("GET " + std::string(path) + " HTTP/1.1"));
    EXPECT_EQ(answer.status, 500) << path;
    EXPECT_THAT(answer.body, testing::Not(HasSubstr("broken handler")));
    EXPECT_EQ(client.ask(request_text("GET /good HTTP/1.1")).body, "good");
  }
  EXPECT_TRUE(test.has_logged("/throws: broken handler"));
}

TEST(HttpServer, AHeaderCannotSmuggleAnother) {
  HttpService service;
  service.handle = [](const HttpRequest&, HttpResponder responder) {
    responder.reply({.status = 200, .headers = {{"X-Model", "a\r\nSet-Cookie: b\n\nbody"}}, .body = "true body"});
  };
  TestServer test({}, std::move(service));
  const Answer answer = test.ask(kGet);
  EXPECT_EQ(answer.header("x-model"), "a  Set-Cookie: b  body");
  EXPECT_EQ(answer.header("set-cookie"), "");
  EXPECT_EQ(answer.body, "true body");
}

TEST(HttpServer, TooManyConnectionsAreToldSo) {
  HttpOptions options;
  options.max_connections = 2;
  TestServer test(std::move(options));
  Client one = test.connect();
  {
    Client two = test.connect();
    EXPECT_EQ(one.ask(kGet).status, 200);
    EXPECT_EQ(two.ask(kGet).status, 200);
    Client three = test.connect();
    const Answer answer = three.ask(kGet);
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.header("retry-after"), "1");
  }
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 1; }));
  EXPECT_EQ(test.ask(kGet).status, 200);
}

TEST(HttpServer, OutOfFileDescriptorsIsNotTheEnd) {
  TestServer test;
  EXPECT_EQ(test.ask(kGet).status, 200);
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 0; }));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  Client client = test.connect();
  EXPECT_EQ(client.ask(kGet).status, 200);
  // Room for the client's socket and not for the server's.
  const int free_one = ::dup(0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(free_one) + 1;
  ::close(free_one);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  Client late = test.connect();
  EXPECT_TRUE(late.send(kGet));
  EXPECT_TRUE(becomes_true([&] { return test.has_logged("cannot accept connections: Too many open files"); }));
  EXPECT_EQ(client.ask(kGet).status, 200);  // the others go on
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(late.read_answer().status, 200);
}

TEST(HttpServer, AnAddressThatCannotBeHadIsNamed) {
  TestServer test;
  const auto message_of = [](const std::string& host, int port) {
    return error_of([&] {
      HttpOptions options;
      options.host = host;
      options.port = port;
      const HttpServer server(options, {});
    });
  };
  const int port = test.server->port();
  EXPECT_EQ(message_of("127.0.0.1", port), "cannot listen on 127.0.0.1:" + std::to_string(port) + ": Address already in use");
  EXPECT_THAT(message_of("127.0.0.1", 70000), HasSubstr("expected a port from 0 to 65535, found 70000"));
  EXPECT_THAT(message_of("no.such.host.invalid", 0), HasSubstr("cannot listen on no.such.host.invalid:0: "));
}

}  // namespace
}  // namespace calandra
