// The end of a server: nothing new, what has begun is finished, and nobody waits for ever.

#include "serve/client.h"
#include "serve/test_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace calandra {
namespace {

using namespace std::chrono_literals;

TEST(HttpDrain, WhatRunsIsFinishedAndWhatIsIdleIsClosed) {
  TestServer test;
  Client idle = test.connect(), used = test.connect(), waiting = test.connect(), streaming = test.connect(),
         sending = test.connect();
  EXPECT_EQ(used.ask(request_text("GET /a HTTP/1.1")).status, 200);
  ASSERT_TRUE(waiting.send(kHeldRequest));
  Held to_waiting = test.next_held();
  ASSERT_TRUE(streaming.send(kHeldRequest));
  Held to_streaming = test.next_held();
  to_streaming.responder.start_events();
  ASSERT_TRUE(sending.send("POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(sending.read_answer().status, 100);  // its header has been read by now
  EXPECT_TRUE(becomes_true([&] { return test.server->num_connections() == 5; }));

  test.server->stop(60s);
  EXPECT_TRUE(idle.is_at_end());
  EXPECT_TRUE(used.is_at_end());
  // Those who watch the server are told until its end; who says nothing keeps nobody.
  Client silent = test.connect();
  const Answer told = test.ask(request_text("GET /ready HTTP/1.1"));
  EXPECT_EQ(told.body, echo_of("GET", "/ready", "", ""));
  EXPECT_EQ(told.header("connection"), "close");
  ASSERT_TRUE(sending.send("abcd"));
  const Answer late = sending.read_answer();
  EXPECT_EQ(late.body, echo_of("POST", "/late", "", "abcd"));
  EXPECT_EQ(late.header("connection"), "close");
  ASSERT_TRUE(to_waiting.responder.reply({.status = 200, .headers = {}, .body = "done"}));
  EXPECT_EQ(waiting.read_answer().body, "done");
  ASSERT_TRUE(to_streaming.responder.send_event("last"));
  ASSERT_TRUE(to_streaming.responder.finish());
  const Answer streamed = streaming.read_answer();
  EXPECT_EQ(streamed.body, "data: last\n\n");
  EXPECT_TRUE(streamed.is_whole);
  for (Client* client : {&waiting, &streaming, &sending}) {
    EXPECT_TRUE(client->is_at_end());
    client->close();
  }
  test.server->wait();  // far before the minute is over
  EXPECT_TRUE(silent.is_at_end());
  EXPECT_THROW(test.connect(), std::runtime_error);
}

TEST(HttpDrain, WhatIsNotFinishedInTimeIsCutOff) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send(kHeldRequest));
  Held held = test.next_held();
  held.responder.start_events();
  const auto start = std::chrono::steady_clock::now();
  test.server->stop(300ms);
  test.server->wait();
  EXPECT_GE(std::chrono::steady_clock::now() - start, 300ms);
  EXPECT_TRUE(held.responder.gone().stop_requested());
  EXPECT_FALSE(client.read_answer().is_whole);
}

TEST(HttpDrain, ALaterStopShortensTheTime) {
  TestServer test;
  Client client = test.connect();
  ASSERT_TRUE(client.send(kHeldRequest));
  const Held held = test.next_held();
  test.server->stop(1h);
  test.server->stop(0ms);
  test.server->stop(1h);
  test.server->wait();
  EXPECT_TRUE(held.responder.gone().stop_requested());
}

TEST(HttpDrain, AnyThreadMayStopAndAnswerMeanwhile) {
  for (int round = 0; round < 20; ++round) {
    TestServer test;
    std::vector<Client> clients;
    std::vector<Held> held;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(test.connect());
      ASSERT_TRUE(clients.back().send(kHeldRequest));
      held.push_back(test.next_held());
    }
    std::vector<std::jthread> threads;
    for (Held& one : held) {
      threads.emplace_back([&one] {
        one.responder.start_events();
        for (int i = 0; i < 100; ++i) one.responder.send_event("x");
        one.responder.finish();
      });
    }
    {
      std::vector<std::jthread> stoppers;
      for (int i = 0; i < 3; ++i) stoppers.emplace_back([&test] { test.server->stop(5ms); });
      test.server->wait();
    }
    test.server.reset();
    threads.clear();
  }
}

TEST(HttpDrain, ARespondersLifeMayBeLongerThanTheServers) {
  std::vector<Held> held;
  std::vector<Client> clients;
  {
    TestServer test;
    for (int i = 0; i < 3; ++i) {
      clients.push_back(test.connect());
      ASSERT_TRUE(clients.back().send(kHeldRequest));
      held.push_back(test.next_held());
    }
    held[1].responder.start_events();
  }
  for (Held& one : held) {
    EXPECT_TRUE(one.responder.gone().stop_requested());
    EXPECT_FALSE(one.responder.reply({}));
    EXPECT_FALSE(one.responder.send("x"));
    EXPECT_FALSE(one.responder.finish());
  }
}

}  // namespace
}  // namespace calandra
