// Many answers at once: each must be what it is alone, whoever else is served, and everything must come back.

#include "engine/engine_harness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

namespace calandra {
namespace {

TEST_F(EngineTest, EveryAnswerIsWhatItIsAloneAlsoWhenPreempted) {
  constexpr unsigned kAnswers = 24;
  std::vector<Generation> expected;
  for (unsigned seed = 0; seed < kAnswers; ++seed) expected.push_back(alone(request(seed)));
  std::int64_t preemptions = 0;
  // Room for many, and for a few that do not all stay.
  for (const std::int64_t pool : {blocks(512) * 8, 3 * blocks(1), 2 * blocks(1)}) {
    EngineOptions options = small_pool(pool);
    options.limits.prefill_tokens = 96;
    options.limits.prefill_tokens_beside_decodes = 17;
    options.limits.reserved_new_tokens = 4;
    Engine engine(model(), options);
    std::vector<std::shared_ptr<Heard>> heard;
    for (unsigned seed = 0; seed < kAnswers; ++seed) {
      heard.push_back(std::make_shared<Heard>());
      submit(engine, request(seed), heard.back());
    }
    for (unsigned seed = 0; seed < kAnswers; ++seed) {
      SCOPED_TRACE(fmt::format("answer {} with {} blocks", seed, pool));
      heard[seed]->wait();
      EXPECT_EQ(heard[seed]->ids, expected[seed].ids);
      EXPECT_EQ(heard[seed]->text, expected[seed].text);
      EXPECT_EQ(heard[seed]->logprobs, expected[seed].logprobs);
      EXPECT_EQ(heard[seed]->prompt, expected[seed].prompt_logprobs);
      EXPECT_EQ(heard[seed]->summary.outcome,
                expected[seed].finish_reason == FinishReason::Stop ? AnswerOutcome::Stop : AnswerOutcome::Length);
      EXPECT_EQ(heard[seed]->summary.made_tokens, std::ssize(expected[seed].ids));
      // Not counted again when it comes back after a preemption.
      EXPECT_EQ(heard[seed]->summary.prompt_tokens, std::ssize(request(seed).prompt));
      EXPECT_LE(heard[seed]->summary.cached_tokens, heard[seed]->summary.prompt_tokens);
    }
    preemptions += engine.statistics().schedule.preemptions;
    expect_all_back(engine);
  }
  EXPECT_GT(preemptions, 0);
}

TEST_F(EngineTest, CancellingAnywhereGivesEverythingBackAndDisturbsNobody) {
  Engine engine(model(), small_pool(blocks(512) * 3));
  std::mt19937 random(5);
  AnswerRequest watched = request(3);
  watched.options.max_tokens = 200;
  const Generation expected = alone(watched);
  const auto kept = std::make_shared<Heard>();
  submit(engine, watched, kept);
  std::vector<std::shared_ptr<Heard>> heard;
  std::vector<RequestId> ids;
  for (unsigned i = 0; i < 100; ++i) {
    heard.push_back(std::make_shared<Heard>());
    ids.push_back(submit(engine, request(100 + i), heard.back()));
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    engine.cancel(ids[random() % ids.size()]);
  }
  for (const RequestId id : ids) engine.cancel(id);
  for (const auto& one : heard) one->wait();
  kept->wait();
  EXPECT_EQ(kept->ids, expected.ids);
  expect_all_back(engine);
}

TEST_F(EngineTest, AListenerMayCancelItsOwnAnswer) {
  Engine engine(model(), small_pool(blocks(512)));
  AnswerRequest wanted = request(6);
  wanted.options.max_tokens = 300;
  const auto heard = std::make_shared<Heard>();
  std::atomic<std::uint64_t> id{0};
  heard->cancel_at = 5;
  heard->at_token = [&] {
    while (id == 0) std::this_thread::yield();
    engine.cancel(static_cast<RequestId>(id.load()));
  };
  id = static_cast<std::uint64_t>(submit(engine, wanted, heard));
  heard->wait();
  EXPECT_EQ(heard->summary.outcome, AnswerOutcome::Cancelled);
  EXPECT_EQ(heard->ids.size(), 5u);
  EXPECT_EQ(heard->summary.made_tokens, 5);
  expect_all_back(engine);
}

TEST_F(EngineTest, ATimeLimitEndsAnAnswerWhereverItStands) {
  EngineOptions options = small_pool(blocks(512));
  options.limits.max_running = 1;
  Engine engine(model(), options);
  AnswerRequest endless = request(6);
  endless.prompt.resize(1);
  endless.options = {};
  endless.options.max_tokens = 500;
  endless.time_limit = std::chrono::milliseconds(30);
  const auto running = std::make_shared<Heard>(), waiting = std::make_shared<Heard>();
  submit(engine, endless, running);
  submit(engine, endless, waiting);
  running->wait();
  waiting->wait();
  for (const auto& heard : {running, waiting}) {
    if (heard->summary.outcome == AnswerOutcome::Length) continue;  // a machine that makes 500 tokens in 30 ms
    EXPECT_EQ(heard->summary.outcome, AnswerOutcome::TimedOut);
    EXPECT_GE(heard->summary.total_seconds, 0.03);
  }
  expect_all_back(engine);
}

TEST_F(EngineTest, AGuideDecidesWhatMayCome) {
  class Evens : public AnswerGuide {
   public:
    std::span<const std::uint64_t> allowed() override { return bits_; }
    void push(std::int32_t id) override { told.push_back(id); }
    std::unique_ptr<AnswerGuide> fork() const override { return std::make_unique<Evens>(*this); }
    Tokens told;

   private:
    std::vector<std::uint64_t> bits_ =
        std::vector<std::uint64_t>(static_cast<std::size_t>(model().num_samplable() + 63) / 64, 0x5555555555555555u);
  };
  Engine engine(model(), small_pool(blocks(512)));
  AnswerRequest wanted = request(5);
  wanted.options.max_tokens = 20;
  wanted.options.stop = {};
  const auto guide = std::make_shared<Evens>();
  wanted.guide = guide;
  const auto heard = std::make_shared<Heard>();
  submit(engine, wanted, heard);
  heard->wait();
  EXPECT_EQ(heard->ids.size(), 20u);
  EXPECT_THAT(heard->ids, testing::Each(testing::Truly([](std::int32_t id) { return id % 2 == 0; })));
  EXPECT_EQ(guide->told, heard->ids);
}

TEST_F(EngineTest, WhatCannotBeAnsweredIsRefusedByName) {
  EngineOptions options = small_pool(blocks(100));
  options.limits.max_waiting = 2;
  options.limits.max_running = 1;
  Engine engine(model(), options);
  const auto error = [&](const AnswerRequest& wanted) {
    return error_of([&] { engine.submit(wanted, std::make_shared<Heard>()); });
  };
  AnswerRequest wanted = request(1);
  wanted.prompt = {};
  EXPECT_EQ(error(wanted), "prompt: no tokens, expected at least 1");
  wanted.prompt.assign(512, 1);
  EXPECT_THAT(error(wanted),
              testing::HasSubstr("prompt of 512 tokens: expected at most 511, which leaves room for an answer in"));
  wanted.prompt = {1, 1 << 20};
  EXPECT_THAT(error(wanted), testing::HasSubstr("prompt: token 1 is 1048576, expected 0 to"));
  wanted.prompt.assign(400, 1);
  EXPECT_TRUE(std::holds_alternative<LargerThanPool>(engine.submit(wanted, std::make_shared<Heard>())));
  wanted.prompt.assign(20, 1);
  wanted.options = {};
  wanted.options.max_tokens = 60;
  std::vector<std::shared_ptr<Heard>> heard;
  bool refused = false;
  for (int i = 0; i < 50 && !refused; ++i) {
    heard.push_back(std::make_shared<Heard>());
    const AnswerSubmission submission = engine.submit(wanted, heard.back());
    refused = std::holds_alternative<QueueFull>(submission);
    if (refused) heard.pop_back();
  }
  EXPECT_TRUE(refused);
  engine.drain();
  EXPECT_TRUE(std::holds_alternative<EngineStopped>(engine.submit(wanted, std::make_shared<Heard>())));
  for (const auto& one : heard) one->wait();
  expect_all_back(engine);
}

TEST_F(EngineTest, AnEngineThatGoesEndsWhatIsLeft) {
  std::vector<std::shared_ptr<Heard>> heard;
  {
    Engine engine(model(), small_pool(blocks(512)));
    for (unsigned i = 0; i < 8; ++i) {
      heard.push_back(std::make_shared<Heard>());
      AnswerRequest wanted = request(i);
      wanted.options.max_tokens = 300;
      submit(engine, wanted, heard.back());
    }
  }
  for (const auto& one : heard) one->wait();
}

}  // namespace
}  // namespace calandra
