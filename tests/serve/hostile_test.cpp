// Bytes that no client should send, to a server that must answer all the others meanwhile.

#include "serve/client.h"
#include "serve/test_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {
namespace {

using namespace std::chrono_literals;

/// Well-formed requests, then one to six changes.
std::string hostile_bytes(std::mt19937_64& random) {
  static const std::string kPieces[] = {
      request_text("GET /a HTTP/1.1"),
      request_text("POST /a?b HTTP/1.1", "X: y\r\n", "body"),
      request_text("POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\n") + "4\r\nabcd\r\n0\r\n\r\n",
      "GET http://h/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
      request_text("POST /a HTTP/1.1", "Expect: 100-continue\r\n", "0123456789"),
      request_text("HEAD /a HTTP/1.1", "Connection: close\r\n"),
      "Content-Length: 3\r\n",
      "Transfer-Encoding: chunked\r\n",
      "Content-Length: 99999999999999999999\r\n",
      "ffffffffffffffff\r\n",
      "\r\n\r\n",
      "\r",
      std::string(1, '\0'),
      "\xff\xfe",
      ": ",
      "%",
      std::string(3000, 'A'),
  };
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  std::string bytes;
  for (std::size_t i = 1 + below(3); i > 0; --i) bytes += kPieces[below(6)];
  for (std::size_t i = 1 + below(6); i > 0; --i) {
    const std::size_t at = below(bytes.size() + 1);
    switch (below(4)) {
      case 0: bytes.insert(at, kPieces[below(std::size(kPieces))]); break;
      case 1: bytes.erase(at, below(20)); break;
      case 2:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        break;
      default: bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(40))); break;
    }
    if (bytes.empty()) bytes = "x";
  }
  return bytes;
}

TEST(HttpHostile, MangledRequestsGetAnAnswerOrNoneAndHurtNobody) {
  HttpOptions options;
  options.limits = {.header_bytes = 4096, .target_bytes = 512, .body_bytes = 4096};
  TestServer test(std::move(options));
  Client bystander = test.connect();
  std::mt19937_64 random(7);
  int num_answers = 0, num_refusals = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::string bytes = hostile_bytes(random);
    Client client = test.connect();
    // In up to three pieces; the server may end the connection before the last one.
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = 1 + static_cast<std::size_t>(random()) % bytes.size();
      if (!client.send(std::string_view(bytes).substr(at, count))) break;
      at += count;
    }
    client.close_sending();
    const std::string answers = client.read_for(60s);  // until the connection ends
    ASSERT_TRUE(answers.empty() || answers.starts_with("HTTP/1.1 ")) << answers;
    static const std::regex status_line("HTTP/1\\.1 (\\d\\d\\d) ");
    for (std::sregex_iterator match(answers.begin(), answers.end(), status_line), none; match != none; ++match) {
      const int status = std::stoi((*match)[1]);
      ++num_answers;
      num_refusals += status >= 400;
      ASSERT_TRUE(status == 100 || status == 200 || (status >= 400 && status < 500) || status == 501 || status == 505)
          << status << " to " << testing::PrintToString(bytes);
    }
    if (round % 50 == 0) {
      EXPECT_EQ(bystander.ask(request_text("GET /a HTTP/1.1")).status, 200);
    }
  }
  // Were nothing or everything refused, the mangling would test little.
  EXPECT_GT(num_refusals, 200);
  EXPECT_GT(num_answers - num_refusals, 200);
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 1; }));
}

TEST(HttpHostile, ThousandsOfSmallHeadersAndChunksAreNoBurden) {
  TestServer test;
  std::string fields;
  for (int i = 0; i < 5000; ++i) fields += "a:b\r\n";
  EXPECT_EQ(test.ask(request_text("GET /a HTTP/1.1", fields)).status, 200);
  std::string chunks;
  for (int i = 0; i < 100'000; ++i) chunks += "1\r\nx\r\n";
  const Answer answer = test.ask(request_text("POST /a HTTP/1.1", "Transfer-Encoding: chunked\r\n") + chunks + "0\r\n\r\n");
  EXPECT_EQ(answer.body, echo_of("POST", "/a", "", std::string(100'000, 'x')));
}

}  // namespace
}  // namespace calandra
