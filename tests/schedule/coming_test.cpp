// Requests that wait for what another computes: by hand, in steps that can be counted.

#include "schedule/runner.h"
#include "support/small_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace calandra {
namespace {

using std::chrono::milliseconds;

/// Prompts that begin alike for `common` tokens, and a store that has them as soon as one has been there.
class Beginnings : public Prefixes {
 public:
  explicit Beginnings(std::int64_t common) : common_(common) {}

  std::optional<ComingPrefix> coming(RequestId id, std::int64_t /*tokens*/) override {
    if (!waits || !sharing.contains(id) || is_there()) return std::nullopt;
    for (const RequestId other : sharing) {
      if (started_.contains(other) && runner->life(other).fate == Runner::Fate::Alive) return ComingPrefix{other, common_};
    }
    return std::nullopt;
  }
  Resumption resume(RequestId id, std::int64_t /*tokens*/, std::int64_t /*spare_blocks*/) override {
    started_.insert(id);
    return {.tokens = sharing.contains(id) && is_there() ? common_ : 0};
  }

  bool waits = true;
  std::set<RequestId> sharing;
  const Runner* runner = nullptr;

 private:
  bool is_there() const {
    for (const RequestId id : sharing) {
      if (runner->life(id).served >= common_) return true;
    }
    return false;
  }

  std::int64_t common_;
  std::set<RequestId> started_;
};

class Coming : public testing::Test {
 protected:
  void start(std::int64_t budget, std::int64_t pool_blocks = 1000) {
    ScheduleLimits limits;
    limits.prefill_tokens = limits.prefill_tokens_beside_decodes = budget;
    runner.emplace(small_layout(false), pool_blocks, limits, &beginnings);
    beginnings.runner = &*runner;
    runner->may_be_passed = [this](RequestId id) { return beginnings.sharing.contains(id); };
  }
  RequestId take(std::int64_t prompt, std::uint64_t client, bool shares = true, std::optional<Instant> deadline = {}) {
    Request request;
    request.prompt_tokens = prompt;
    request.max_new_tokens = 3;
    request.client = client;
    request.deadline = deadline;
    const RequestId id = runner->take(request);
    if (shares) beginnings.sharing.insert(id);
    return id;
  }
  void expect_all_end() {
    runner->run_dry(milliseconds(100));
    EXPECT_EQ(runner->complaint(), "");
    EXPECT_EQ(runner->scheduler().statistics().blocks_used, 0);
  }
  /// The first one's client has had its turn of tokens.
  void until_it_is_the_second_ones_turn() {
    for (int i = 0; i < 6; ++i) runner->step({});
  }
  /// Rows of the last step.
  std::map<RequestId, std::int64_t> rows() const {
    std::map<RequestId, std::int64_t> rows;
    for (const ScheduledSlice& slice : runner->last().slices) rows[slice.id] = slice.count;
    return rows;
  }

  Beginnings beginnings{6000};
  std::optional<Runner> runner;
};

TEST_F(Coming, WhatManyHaveInCommonIsComputedOnce) {
  for (const std::int64_t budget : {512, 700, 4096}) {
    for (const std::uint64_t clients : {1u, 10u}) {
      for (const bool waits : {true, false}) {
        beginnings = Beginnings(2000);
        beginnings.waits = waits;
        start(budget);
        for (std::uint64_t i = 0; i < 10; ++i) take(2020, i % clients);
        expect_all_end();
        const ScheduleStatistics statistics = runner->scheduler().statistics();
        const std::int64_t once = 2000 + 10 * 20 + 10 * 2;
        const std::string trace = "budget " + std::to_string(budget) + ", clients " + std::to_string(clients);
        if (waits) {
          EXPECT_EQ(statistics.computed_tokens, once) << trace;
        } else {
          EXPECT_GT(statistics.computed_tokens, once) << trace << ": there is nothing to be spared here";
        }
      }
    }
  }
}

TEST_F(Coming, OthersArePassedOnAsIfNobodyWaited) {
  start(512);
  const RequestId first = take(6020, 1), second = take(6020, 2);
  until_it_is_the_second_ones_turn();
  EXPECT_EQ(runner->scheduler().statistics().set_aside, 1);
  const RequestId other = take(100, 3, false);
  runner->step({});
  EXPECT_FALSE(rows().contains(second));
  EXPECT_TRUE(rows().contains(other)) << "another client's request waits for what it does not share";
  EXPECT_TRUE(rows().contains(first));
  expect_all_end();
}

TEST_F(Coming, WhoWaitsGoesOnWhenTheOtherEnds) {
  for (const bool expires : {false, true}) {
    beginnings = Beginnings(6000);
    start(512);
    const RequestId first = take(6020, 1, true, expires ? std::optional<Instant>(milliseconds(50)) : std::nullopt);
    const RequestId second = take(6020, 2);
    until_it_is_the_second_ones_turn();
    EXPECT_EQ(runner->scheduler().statistics().set_aside, 1);
    EXPECT_FALSE(rows().contains(second));
    if (!expires) runner->cancel(first);
    runner->step(milliseconds(60));
    EXPECT_TRUE(rows().contains(second));
    expect_all_end();
    EXPECT_EQ(runner->life(second).fate, Runner::Fate::Finished);
  }
}

TEST_F(Coming, WhoWaitsCanBeCancelledAndExpire) {
  start(512);
  take(6020, 1);
  const RequestId second = take(6020, 2), third = take(6020, 3, true, milliseconds(50));
  until_it_is_the_second_ones_turn();
  EXPECT_EQ(runner->scheduler().statistics().set_aside, 2);
  EXPECT_EQ(runner->scheduler().statistics().waiting, 2);
  runner->cancel(second);
  runner->step(milliseconds(60));
  EXPECT_EQ(runner->life(third).fate, Runner::Fate::Expired);
  EXPECT_EQ(runner->scheduler().statistics().waiting, 0);
  expect_all_end();
}

/// The other's class is starved by one above it, which has nothing to do with either.
TEST_F(Coming, NobodyWaitsForOneThatDoesNotGetOn) {
  start(100);
  const RequestId first = take(2020, 1);
  runner->step({});
  Request urgent;
  urgent.prompt_tokens = 5000;
  urgent.max_new_tokens = 1;
  urgent.priority = Priority::High;
  urgent.client = 3;
  const RequestId above = runner->take(urgent);
  urgent.prompt_tokens = 2020;
  urgent.client = 4;
  const RequestId second = runner->take(urgent);
  beginnings.sharing.insert(second);
  // Set aside while the first gets no rows: one step later it is back in its queue, and in its turn.
  for (int i = 0; i < 60 && !rows().contains(second); ++i) runner->step({});
  EXPECT_TRUE(rows().contains(second));
  EXPECT_EQ(runner->life(first).position, 100);
  EXPECT_GT(runner->life(above).position, 0);
  expect_all_end();
}

TEST_F(Coming, WhoWaitsGoesOnWhenTheOtherLosesItsMemory) {
  const MemoryLayout layout = small_layout(false);
  start(512, layout.sequence_blocks(6022) * 22 / 10);
  const RequestId first = take(6020, 1), second = take(6020, 2);
  until_it_is_the_second_ones_turn();
  EXPECT_EQ(runner->scheduler().statistics().set_aside, 1);
  Request urgent;
  urgent.prompt_tokens = 9000;
  urgent.max_new_tokens = 1;
  urgent.priority = Priority::High;
  urgent.client = 3;
  runner->take(urgent);
  runner->step({});
  EXPECT_EQ(runner->life(first).preemptions, 1);
  expect_all_end();
  EXPECT_EQ(runner->life(second).fate, Runner::Fate::Finished);
}

}  // namespace
}  // namespace calandra
