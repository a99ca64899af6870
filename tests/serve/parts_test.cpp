// The parts that need no socket: reading requests, targets, routes, keys, events.

#include "serve/api_keys.h"
#include "serve/body_budget.h"
#include "serve/client.h"
#include "serve/events.h"
#include "serve/exchange.h"
#include "serve/request_reader.h"
#include "serve/request_target.h"
#include "serve/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// What a reader makes of bytes that come in pieces whose ends `next_cut` chooses.
template <class NextCut>
std::vector<HttpRequest> read_in_pieces(std::string_view bytes, NextCut next_cut) {
  RequestReader reader(RequestLimits{});
  std::vector<HttpRequest> requests;
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), next_cut());
    reader.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    for (RequestReader::Event event = reader.next(); event != RequestReader::Event::NeedMore; event = reader.next()) {
      if (event == RequestReader::Event::Refusal) {
        ADD_FAILURE() << reader.refusal().message;
        return requests;
      }
      if (event == RequestReader::Event::Request) requests.push_back(reader.take_request());
    }
  }
  EXPECT_TRUE(reader.idle());
  return requests;
}

struct Written {
  std::string bytes, method, body;
  std::vector<HttpHeaders::Field> fields;
};

/// A request of random parts, written as RFC 9112 says.
Written random_request(std::mt19937_64& random) {
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  Written out;
  out.method = below(2) == 0 ? "POST" : "PUT";
  out.bytes = out.method + " /path HTTP/1.1\r\n";
  out.fields = {{"Host", "test"}};
  for (std::size_t i = below(5); i > 0; --i) {
    std::string value;
    for (std::size_t length = below(30); length > 0; --length) value += static_cast<char>('!' + below(90));
    out.fields.emplace_back("X-" + std::to_string(i), value);
  }
  for (std::size_t length = below(3000); length > 0; --length) out.body += static_cast<char>(below(256));
  const bool is_chunked = below(2) == 0;
  if (is_chunked) {
    out.fields.emplace_back("Transfer-Encoding", "chunked");
  } else if (!out.body.empty() || below(2) == 0) {
    out.fields.emplace_back("Content-Length", std::to_string(out.body.size()));
  }
  for (const auto& [name, value] : out.fields) out.bytes += name + ":" + std::string(below(3), ' ') + value + "\r\n";
  out.bytes += "\r\n";
  if (!is_chunked) {
    out.bytes += out.body;
    return out;
  }
  for (std::size_t at = 0; at < out.body.size();) {
    const std::size_t count = std::min(out.body.size() - at, 1 + below(500));
    char size[32];
    std::snprintf(size, sizeof(size), below(2) == 0 ? "%zx" : "%04zX", count);
    out.bytes += size + std::string(below(2) == 0 ? ";name=\"va;lue\"" : "") + "\r\n" + out.body.substr(at, count) + "\r\n";
    at += count;
  }
  out.bytes += below(2) == 0 ? "0\r\n\r\n" : "0\r\nHost: trailer\r\nX-Sum: 1\r\n\r\n";
  return out;
}

TEST(RequestReader, AnyCutOfAnyRequestsReadsWhatWasWritten) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<Written> written;
    std::string bytes;
    for (std::size_t i = 1 + random() % 4; i > 0; --i) bytes += written.emplace_back(random_request(random)).bytes;
    const std::size_t largest = std::size_t{1} << (random() % 12);
    const std::vector<HttpRequest> requests =
        read_in_pieces(bytes, [&] { return 1 + static_cast<std::size_t>(random() % largest); });
    ASSERT_EQ(requests.size(), written.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(requests[i].method, written[i].method);
      EXPECT_EQ(requests[i].path, "/path");
      ASSERT_EQ(requests[i].body, written[i].body);
      EXPECT_THAT(std::vector<HttpHeaders::Field>(requests[i].headers.begin(), requests[i].headers.end()),
                  testing::ElementsAreArray(written[i].fields));
    }
  }
}

TEST(RequestReader, TheHeaderIsToldBeforeTheBodyHasCome) {
  RequestReader reader(RequestLimits{});
  EXPECT_TRUE(reader.idle());
  reader.append("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r");
  EXPECT_EQ(reader.next(), RequestReader::Event::NeedMore);
  EXPECT_FALSE(reader.idle());
  reader.append("\n");
  EXPECT_EQ(reader.next(), RequestReader::Event::Header);
  EXPECT_TRUE(reader.awaits_body());
  EXPECT_TRUE(reader.expects_continue());
  reader.append("abc");
  EXPECT_FALSE(reader.expects_continue());
  EXPECT_EQ(reader.next(), RequestReader::Event::Request);
  EXPECT_EQ(reader.take_request().body, "abc");
  EXPECT_EQ(reader.next(), RequestReader::Event::NeedMore);
  EXPECT_TRUE(reader.idle());
}

TEST(RequestReader, AHeaderOfExactlyTheLimitIsTheLongestOneTaken) {
  const std::string head = "GET / HTTP/1.1\r\nHost: x\r\nA: ", end = "\r\n\r\n";
  for (const std::size_t piece : {1U, 7U, 100U, 5000U}) {
    for (const std::size_t extra : {0U, 1U}) {
      RequestLimits limits;
      limits.header_bytes = 1000;
      const std::string bytes = head + std::string(1000 - head.size() - end.size() + extra, 'a') + end;
      RequestReader reader(limits);
      RequestReader::Event event = RequestReader::Event::NeedMore;
      for (std::size_t at = 0; at < bytes.size() && event == RequestReader::Event::NeedMore; at += piece) {
        reader.append(std::string_view(bytes).substr(at, piece));
        event = reader.next();
      }
      EXPECT_EQ(event, extra == 0 ? RequestReader::Event::Header : RequestReader::Event::Refusal) << piece;
    }
  }
}

/// The event after the header of a body that is announced as so many bytes, or comes in chunks.
RequestReader::Event begin_body(RequestReader& reader, std::optional<int> announced) {
  reader.append(request_text("POST /a HTTP/1.1", announced ? "Content-Length: " + std::to_string(*announced) + "\r\n"
                                                           : "Transfer-Encoding: chunked\r\n"));
  EXPECT_EQ(reader.next(), RequestReader::Event::Header);
  return reader.next();
}

TEST(RequestReader, BodiesTakeTheirShareAsTheyComeAndGiveItBackWithTheRequest) {
  RequestLimits limits;
  limits.bodies = std::make_shared<BodyBudget>(100);
  RequestReader one(limits), other(limits), third(limits);
  EXPECT_EQ(begin_body(one, 60), RequestReader::Event::NeedMore);
  EXPECT_EQ(limits.bodies->used(), 0U) << "announced, and not come";
  one.append(std::string(50, 'x'));
  EXPECT_EQ(one.next(), RequestReader::Event::NeedMore);
  EXPECT_EQ(limits.bodies->used(), 50U);
  EXPECT_EQ(begin_body(other, {}), RequestReader::Event::NeedMore);
  other.append("28\r\n" + std::string(40, 'y') + "\r\n");
  EXPECT_EQ(other.next(), RequestReader::Event::NeedMore);
  EXPECT_EQ(limits.bodies->used(), 90U);
  one.append(std::string(10, 'x'));
  ASSERT_EQ(one.next(), RequestReader::Event::Request);
  {
    const HttpRequest request = one.take_request();
    EXPECT_EQ(request.body, std::string(60, 'x'));
    // What has been read of a body that is refused is not kept for the time that its refusal takes.
    other.append("1\r\ny\r\n");
    ASSERT_EQ(other.next(), RequestReader::Event::Refusal);
    EXPECT_EQ(other.refusal().status, 503);
    EXPECT_EQ(other.refusal().path, "/a");
    EXPECT_THAT(other.refusal().message, HasSubstr("100 bytes"));
    EXPECT_EQ(limits.bodies->used(), 60U);
    ASSERT_EQ(begin_body(third, 41), RequestReader::Event::Refusal) << "before any of it has come";
    EXPECT_EQ(third.refusal().status, 503);
  }
  EXPECT_EQ(limits.bodies->used(), 0U);
  RequestReader last(limits);
  EXPECT_EQ(begin_body(last, 100), RequestReader::Event::NeedMore);
  last.append(std::string(100, 'z'));
  EXPECT_EQ(last.next(), RequestReader::Event::Request);
}

TEST(RequestReader, WhoCouldNotBeTakenIsNotAskedForABody) {
  RequestLimits limits;
  limits.bodies = std::make_shared<BodyBudget>(100);
  for (const int announced : {100, 101}) {
    RequestReader reader(limits);
    reader.append(
        request_text("POST /a HTTP/1.1", "Expect: 100-continue\r\nContent-Length: " + std::to_string(announced) + "\r\n"));
    ASSERT_EQ(reader.next(), RequestReader::Event::Header);
    EXPECT_EQ(reader.expects_continue(), announced == 100);
    EXPECT_EQ(reader.next(), announced == 100 ? RequestReader::Event::NeedMore : RequestReader::Event::Refusal);
  }
}

TEST(RequestTarget, FormsOfRfc9112) {
  const auto parse = [](std::string_view target) -> std::string {
    const auto parts = parse_request_target("GET", target);
    return parts ? parts->path + "|" + parts->query : "refused";
  };
  EXPECT_EQ(parse("/"), "/|");
  EXPECT_EQ(parse("/a/b?c=d?e"), "/a/b|c=d?e");
  EXPECT_EQ(parse("/a%20b%2Fc%C3%A4?%20"), "/a b/c\xC3\xA4|%20");
  EXPECT_EQ(parse("/a/../b"), "/a/../b|");
  EXPECT_EQ(parse("//a"), "//a|");
  EXPECT_EQ(parse("http://host:80/a?b"), "/a|b");
  EXPECT_EQ(parse("https://host?b"), "/|b");
  for (const char* bad :
       {"", "a", "*", "/%", "/%1", "/%1g", "/%0a", "/%7f", "http://", "http:///a", "ftp://host/a", "host:80", "?a"}) {
    EXPECT_EQ(parse(bad), "refused") << bad;
  }
  EXPECT_TRUE(parse_request_target("OPTIONS", "*"));
}

class RouterTest : public testing::Test {
 protected:
  RouterTest() {
    const auto answer = [](std::string body) {
      return
          [body](const HttpRequest&, HttpResponder responder) { responder.reply({.status = 200, .headers = {}, .body = body}); };
    };
    router_.add({"GET", "/v1/models", "", answer("list")});
    router_.add({"GET", "/v1/models/*", "", answer("one")});
    router_.add({"GET", "/v1/models/special", "", answer("special")});
    router_.add({"POST", "/v1/chat", "application/json", answer("chat")});
    router_.add({"DELETE", "/v1/chat", "", answer("gone")});
  }

  /// The whole answer as it would go out.
  std::string ask(const std::string& method, const std::string& path, const HttpHeaders& headers = {}) const {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.headers = headers;
    const auto exchange = std::make_shared<Exchange>(ReplyForm{}, 1000, nullptr);
    router_.handle(std::move(request), HttpResponder(exchange));
    return exchange->take().bytes;
  }

  Router router_;
};

TEST_F(RouterTest, MethodAndPathChooseTheHandler) {
  EXPECT_THAT(ask("GET", "/v1/models"), testing::EndsWith("\r\n\r\nlist"));
  EXPECT_THAT(ask("HEAD", "/v1/models"), testing::EndsWith("\r\n\r\nlist"));  // whose body the server drops
  EXPECT_THAT(ask("GET", "/v1/models/inclusionAI/Ling-3.0-tiny"), testing::EndsWith("\r\n\r\none"));
  EXPECT_THAT(ask("GET", "/v1/models/special"), testing::EndsWith("\r\n\r\nspecial"));
  EXPECT_THAT(ask("POST", "/v1/chat", {{"Content-Length", "2"}, {"Content-Type", "Application/JSON ; charset=utf-8"}}),
              testing::EndsWith("\r\n\r\nchat"));
}

TEST_F(RouterTest, WhatHasNoRouteIsRefusedByName) {
  for (const char* path : {"/", "/v1/model", "/v1/models/", "/v1/modelsx", "/V1/models"}) {
    EXPECT_THAT(ask("GET", path), testing::StartsWith("HTTP/1.1 404 ")) << path;
  }
  const std::string wrong = ask("GET", "/v1/chat");
  EXPECT_THAT(wrong, testing::StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(wrong, HasSubstr("\r\nAllow: DELETE, OPTIONS, POST\r\n"));
  EXPECT_THAT(ask("get", "/v1/models"), HasSubstr("\r\nAllow: GET, HEAD, OPTIONS\r\n"));
  EXPECT_THAT(ask("OPTIONS", "/v1/chat"), testing::StartsWith("HTTP/1.1 204 "));
  EXPECT_THAT(ask("OPTIONS", "/v1/chat"), HasSubstr("\r\nAllow: DELETE, OPTIONS, POST\r\n"));
  EXPECT_THAT(ask("OPTIONS", "*"), HasSubstr("\r\nAllow: DELETE, GET, HEAD, OPTIONS, POST\r\n"));
  EXPECT_THAT(ask("OPTIONS", "/x"), testing::StartsWith("HTTP/1.1 404 "));
}

TEST_F(RouterTest, ABodyMustBeThereAndOfItsType) {
  EXPECT_THAT(ask("POST", "/v1/chat", {{"Content-Type", "application/json"}}), testing::StartsWith("HTTP/1.1 411 "));
  EXPECT_THAT(ask("POST", "/v1/chat", {{"Content-Length", "2"}}), testing::StartsWith("HTTP/1.1 415 "));
  const auto encoded = [&](const char* coding) {
    return ask("POST", "/v1/chat", {{"Content-Length", "2"}, {"Content-Type", "application/json"}, {"Content-Encoding", coding}});
  };
  EXPECT_THAT(encoded("gzip"), testing::StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(encoded("identity"), testing::Not(testing::StartsWith("HTTP/1.1 415 ")));
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "application/jsonp", "text/plain; application/json"}) {
    EXPECT_THAT(ask("POST", "/v1/chat", {{"Content-Length", "2"}, {"Content-Type", type}}), testing::StartsWith("HTTP/1.1 415 "))
        << type;
  }
}

TEST(ApiKeys, OneOfThemOpensInEitherField) {
  const std::vector<std::string> keys = {"first-key", "second"};
  const auto opens = [&](const HttpHeaders& headers) {
    HttpRequest request;
    request.headers = headers;
    return authorised(request, keys);
  };
  EXPECT_TRUE(opens({{"Authorization", "Bearer first-key"}}));
  EXPECT_TRUE(opens({{"authorization", "bearer  second"}}));
  EXPECT_TRUE(opens({{"X-API-Key", "second"}}));
  EXPECT_TRUE(opens({{"Authorization", "Bearer wrong"}, {"x-api-key", "first-key"}}));
  for (const char* value :
       {"", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-keyfirst-key", "Bearer first-key2", "Bearer First-key",
        "first-key", "Basic first-key", "Bearer secondsecond", "Bearer firstkey first-key"}) {
    EXPECT_FALSE(opens({{"Authorization", value}})) << value;
    EXPECT_FALSE(opens({{"x-api-key", value == std::string_view("first-key") ? "" : value}})) << value;
  }
  EXPECT_FALSE(opens({}));
  EXPECT_TRUE(authorised({}, {}));
  HttpRequest empty;
  empty.headers = {{"x-api-key", ""}};
  EXPECT_FALSE(authorised(empty, {""}));  // an empty key, perhaps from an empty variable, opens nothing
}

// The reading side of the WHATWG's standard joins the data's lines with LF; LF, CRLF and CR all end a line.
TEST(Events, EveryLineOfTheDataIsALineOfItsOwn) {
  EXPECT_EQ(format_event("{\"a\":1}"), "data: {\"a\":1}\n\n");
  EXPECT_EQ(format_event("a\nb", "delta"), "event: delta\ndata: a\ndata: b\n\n");
  EXPECT_EQ(format_event("a\r\nb\rc\n"), "data: a\ndata: b\ndata: c\ndata: \n\n");
  EXPECT_EQ(format_event(""), "data: \n\n");
}

}  // namespace
}  // namespace calandra
