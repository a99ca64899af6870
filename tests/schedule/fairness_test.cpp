// Fair queueing: the line by itself, and the shares that clients get of a busy scheduler.

#include "schedule/fair_queue.h"
#include "schedule/runner.h"
#include "support/small_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <vector>

namespace calandra {
namespace {

TEST(FairQueue, ServesAllClientsInProportionToTheirWeights) {
  EXPECT_TRUE(rc::check("", [] {
    const auto weights = *rc::gen::resize(6, rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 9))));
    const std::int64_t largest = 100;
    FairQueue queue;
    std::vector<FairQueue::Client*> clients;
    std::vector<double> served(weights.size());
    std::map<RequestId, std::size_t> owner;
    std::uint64_t next_id = 0;
    const auto submit = [&](std::size_t i) {
      clients[i] = &queue.join(i, weights[i]);
      owner[RequestId{++next_id}] = i;
      queue.push(*clients[i], RequestId{next_id});
    };
    clients.resize(weights.size());
    for (int n = 0; n < 3; ++n) {
      for (std::size_t i = 0; i < weights.size(); ++i) submit(i);
    }
    std::mt19937 random(*rc::gen::arbitrary<unsigned>());
    for (int n = 0; n < 2'000; ++n) {
      const RequestId id = *queue.head();
      const std::size_t i = owner.at(id);
      const std::int64_t tokens = std::uniform_int_distribution<std::int64_t>(1, largest)(random);
      queue.remove(*clients[i], id);
      queue.charge(*clients[i], tokens);
      queue.leave(*clients[i]);
      served[i] += static_cast<double>(tokens) / weights[i];
      submit(i);
      // One request's worth at most between any two that always have something waiting.
      const auto [least, most] = std::minmax_element(served.begin(), served.end());
      RC_ASSERT(*most - *least <= static_cast<double>(largest));
    }
  }));
}

TEST(FairQueue, NobodyStarvesUnderAnEndlessStreamOfNewClients) {
  FairQueue queue;
  std::uint64_t next_id = 0, next_client = 100;
  std::map<RequestId, FairQueue::Client*> waiting;
  const auto submit = [&](std::uint64_t client) {
    FairQueue::Client& c = queue.join(client, 1);
    waiting[RequestId{++next_id}] = &c;
    queue.push(c, RequestId{next_id});
    return RequestId{next_id};
  };
  // One that has had a lot, and asks again beside four newcomers who have never had anything; each leaves for another.
  submit(1);
  for (int i = 0; i < 4; ++i) submit(next_client++);
  queue.charge(*waiting.begin()->second, 10'000);
  const RequestId again = submit(1);
  queue.remove(*waiting[RequestId{1}], RequestId{1});
  std::int64_t served = 0;
  while (*queue.head() != again) {
    const RequestId id = *queue.head();
    FairQueue::Client& client = *waiting[id];
    queue.remove(client, id);
    queue.charge(client, 50);
    queue.leave(client);
    waiting.erase(id);
    served += 50;
    submit(next_client++);
    ASSERT_LT(served, 10'000 * 5 + 5'000) << "the clock has not passed it";
  }
  EXPECT_GT(served, 10'000) << "it was served as if it had had nothing";
}

TEST(FairQueue, WhatAClientDidNotAskForIsNotKeptForIt) {
  FairQueue queue;
  FairQueue::Client& sleeper = queue.join(1, 1);  // runs something and asks for nothing more
  FairQueue::Client& busy = queue.join(2, 1);
  queue.charge(busy, 100'000);
  queue.push(sleeper, RequestId{1});
  EXPECT_GE(sleeper.served(), 50'000);
}

TEST(FairQueue, PreemptedRequestsGoFirstTheOldestBeforeAll) {
  FairQueue queue;
  FairQueue::Client& client = queue.join(1, 1);
  queue.push(client, RequestId{5});
  queue.push_preempted(RequestId{4});
  queue.push_preempted(RequestId{3});
  EXPECT_EQ(queue.head(), RequestId{3});
  queue.remove(client, RequestId{3});
  EXPECT_EQ(queue.head(), RequestId{4});
  queue.remove(client, RequestId{4});
  EXPECT_EQ(queue.head(), RequestId{5});
}

TEST(FairQueue, ForgetsClientsThatAreGone) {
  FairQueue queue;
  std::deque<FairQueue::Client*> present;
  for (std::uint64_t key = 0; key < 100'000; ++key) {
    present.push_back(&queue.join(key, 1));
    queue.push(*present.back(), RequestId{key + 1});
    queue.remove(*present.back(), RequestId{key + 1});
    queue.charge(*present.back(), 1 + static_cast<std::int64_t>(key % 97));
    if (present.size() < 8) continue;
    queue.leave(*present.front());
    present.pop_front();
    ASSERT_LT(queue.num_clients(), 200u);
  }
}

struct Shares {
  std::map<std::uint64_t, double> tokens;  // by client, for the first time computed
};

/// Every client always has requests waiting; `count` steps.
Shares shares_after(int count, const std::map<std::uint64_t, double>& weights,
                    const std::map<std::uint64_t, std::int64_t>& prompts,
                    const std::map<std::uint64_t, std::int64_t>& drafts = {}) {
  ScheduleLimits limits;
  limits.max_running = 6;
  Runner runner(small_layout(true), 300, limits);
  // They all come true.
  runner.proposes = [&](RequestId id) {
    const auto found = drafts.find(runner.life(id).request.client);
    return found == drafts.end() ? 0 : found->second;
  };
  runner.accepts = [](RequestId, std::int64_t proposed) { return proposed; };
  std::map<std::uint64_t, int> waiting;
  for (int i = 0; i < count; ++i) {
    for (const auto& [client, weight] : weights) waiting[client] = 0;
    for (const auto& [id, life] : runner.lives()) {
      if (life.fate == Runner::Fate::Alive && !life.memory) ++waiting[life.request.client];
    }
    for (const auto& [client, weight] : weights) {
      for (; waiting[client] < 3; ++waiting[client]) {
        Request request;
        request.client = client;
        request.weight = weight;
        request.prompt_tokens = prompts.at(client);
        request.max_new_tokens = 20;
        runner.take(request);
      }
    }
    runner.step({});
  }
  EXPECT_EQ(runner.complaint(), "");
  Shares shares;
  for (const auto& [id, life] : runner.lives()) shares.tokens[life.request.client] += static_cast<double>(life.served);
  return shares;
}

TEST(Fairness, ClientsGetTheirWeightsShareWhateverTheLengthOfTheirPrompts) {
  const std::map<std::uint64_t, double> weights{{1, 1}, {2, 1}, {3, 2}};
  const std::map<std::uint64_t, std::int64_t> prompts{{1, 300}, {2, 60}, {3, 100}};
  Shares shares = shares_after(1'500, weights, prompts);
  // Admitted while it was served least; what runs then may all be its own.
  const double bound = 6 * 320;
  EXPECT_NEAR(shares.tokens[1], shares.tokens[2], bound);
  EXPECT_NEAR(shares.tokens[1], shares.tokens[3] / 2, bound);
  EXPECT_GT(shares.tokens[1], 4 * bound) << "too short to tell";
}

TEST(Fairness, DraftsThatComeTrueAreCharged) {
  const Shares shares = shares_after(1'500, {{1, 1}, {2, 1}}, {{1, 10}, {2, 10}}, {{2, 9}});
  const double bound = 6 * 30;
  EXPECT_NEAR(shares.tokens.at(1), shares.tokens.at(2), bound);
  EXPECT_GT(shares.tokens.at(1), 4 * bound) << "too short to tell";
}

TEST(Fairness, ManyRequestsOfOneClientDoNotDelayTheOneOfAnother) {
  ScheduleLimits limits;
  limits.max_running = 4;
  Runner runner(small_layout(true), 300, limits);
  Request request;
  request.prompt_tokens = 100;
  request.max_new_tokens = 50;
  request.client = 1;
  for (int i = 0; i < 500; ++i) runner.take(request);
  for (int i = 0; i < 100; ++i) runner.step({});
  request.client = 2;
  const RequestId other = runner.take(request);
  const std::int64_t before = runner.steps();
  while (!runner.life(other).was_running) runner.step({});
  EXPECT_LE(runner.steps() - before, 51) << "the next place that comes free is its";
}

}  // namespace
}  // namespace calandra
