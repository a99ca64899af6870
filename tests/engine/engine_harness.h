#pragma once
// Answers of an engine on the bundled model, heard to their end, and what each would be alone.

#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/session.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace calandra {

using Tokens = std::vector<std::int32_t>;

/// Hears one answer, and waits for its end.
class Heard : public AnswerListener {
 public:
  void prompt_logprobs(std::vector<LogprobEntry> entries) override {
    EXPECT_TRUE(ids.empty());
    prompt = std::move(entries);
  }
  void gained(std::int32_t id, const AnswerStep& step) override {
    EXPECT_FALSE(ended_) << "after its end";
    ids.push_back(id);
    text += step.text;
    if (step.logprobs) logprobs.push_back(*step.logprobs);
    if (at_token && std::ssize(ids) == cancel_at) at_token();
  }
  void ended(const AnswerSummary& heard, std::string_view rest) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "twice";
    summary = heard;
    text += rest;
    ended_ = true;
    ended_now_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(ended_now_.wait_for(lock, std::chrono::minutes(5), [&] { return ended_; }));
  }

  Tokens ids;
  std::string text;
  std::vector<LogprobEntry> logprobs, prompt;
  AnswerSummary summary;
  std::function<void()> at_token;
  std::int64_t cancel_at = 0;

 private:
  std::mutex mutex_;
  std::condition_variable ended_now_;
  bool ended_ = false;
};

class EngineTest : public testing::Test {
 protected:
  static Model& model() {
    static Model loaded(source_path("models/austen-5m").string(), {.threads = 2});
    return loaded;
  }
  static std::int64_t blocks(std::int64_t tokens) { return model().layout().sequence_blocks(tokens); }
  static EngineOptions small_pool(std::int64_t num_blocks) {
    return {
        .limits = {}, .context = 512, .pool_bytes = num_blocks * model().layout().block_bytes, .freed = FreedMemory::Poisoned};
  }
  /// Settings of every kind, by number.
  static AnswerRequest request(unsigned seed) {
    std::mt19937 random(seed);
    AnswerRequest wanted;
    wanted.prompt.resize(seed % 2 == 0 ? 1 + random() % 60 : 150 + random() % 40);  // many grow over the border of a block
    for (auto& token : wanted.prompt) token = static_cast<std::int32_t>(random() % 2000);
    wanted.options.max_tokens = 1 + static_cast<std::int64_t>(random() % 60);
    wanted.options.sampling.temperature = seed % 3 == 0 ? 0.0 : 0.8;
    wanted.options.sampling.seed = seed;
    wanted.options.sampling.top_p = seed % 4 == 1 ? 0.9 : 1.0;
    wanted.options.sampling.repetition_penalty = seed % 5 == 2 ? 1.2 : 1.0;
    if (seed % 2 == 0) wanted.options.logprobs = 3;
    if (seed % 7 == 3) wanted.options.prompt_logprobs = 2;
    if (seed % 6 == 1) wanted.options.stop = {"e"};
    return wanted;
  }
  static Generation alone(const AnswerRequest& wanted) {
    Session session(model(), 512);
    return generate(model(), session, wanted.prompt, wanted.options);
  }
  static RequestId submit(Engine& engine, const AnswerRequest& wanted, const std::shared_ptr<Heard>& heard) {
    const AnswerSubmission submission = engine.submit(wanted, heard);
    EXPECT_TRUE(std::holds_alternative<RequestId>(submission));
    return std::get<RequestId>(submission);
  }
  static void expect_all_back(const Engine& engine) {
    while (!engine.idle()) std::this_thread::yield();
    const EngineStatistics statistics = engine.statistics();
    EXPECT_EQ(statistics.schedule.blocks_used, 0);
    EXPECT_EQ(statistics.schedule.running + statistics.schedule.waiting, 0);
  }
};

}  // namespace calandra
