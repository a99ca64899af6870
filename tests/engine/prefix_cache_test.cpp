// What the cache did must not be seen in any answer, only in the tokens that are computed.

#include "engine/prefix_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>

namespace calandra {
namespace {

class EnginePrefixCache : public PrefixEngineTest {
 protected:
  struct Told {
    Tokens ids;
    std::int64_t computed = 0;  // of the prompt
  };
  /// The answer of `made` tokens to a prompt.
  static Told ask(Engine& engine, const Tokens& prompt, std::int64_t made = 8) {
    AnswerRequest wanted;
    wanted.prompt = prompt;
    wanted.options.max_tokens = made;
    const auto heard = hear(engine, wanted);
    return {heard->ids, heard->summary.prompt_tokens - heard->summary.cached_tokens};
  }
  static EngineOptions roomy() { return room_for(model(), 100, 4096); }
};

TEST_F(EnginePrefixCache, ComputesWhatIsNewAndOneToken) {
  Engine engine(model(), roomy());
  const Tokens prompt = random_tokens(1500, 1);
  const Told first = ask(engine, prompt);
  EXPECT_EQ(first.computed, 1500);
  const Told again = ask(engine, prompt);
  EXPECT_EQ(again.computed, 1);
  EXPECT_EQ(again.ids, first.ids);

  // The next turn: the answer, of which the last token has not been computed, and 40 new ones.
  const Tokens second_turn = joined(joined(prompt, first.ids), random_tokens(40, 2));
  EXPECT_EQ(ask(engine, second_turn).computed, 41);
  EXPECT_EQ(ask(engine, second_turn).computed, 1);

  // A fork at 1,000 is found the second time.
  const Tokens other = joined(first_of(prompt, 1000), random_tokens(200, 3));
  EXPECT_LE(ask(engine, other).computed, 200 + 2048);
  EXPECT_EQ(ask(engine, joined(first_of(prompt, 1000), random_tokens(200, 4))).computed, 200);
  // One at the end of the first prompt at once.
  EXPECT_EQ(ask(engine, joined(prompt, random_tokens(50, 5))).computed, 50);
}

TEST_F(EnginePrefixCache, APrefixOfManyConversationsIsComputedOnce) {
  EngineOptions options = roomy();
  options.limits.prefill_tokens = 4096;
  Engine engine(model(), options);
  Tokens system = random_tokens(2000, 1);        // before the first of the spaced boundaries
  system.back() = stop_ids_of(model()).front();  // a message ends
  ask(engine, joined(system, random_tokens(20, 2)), 1);
  const unsigned conversations = long_tests() ? 1000 : 100;
  for (unsigned i = 0; i < conversations; ++i)
    ASSERT_EQ(ask(engine, joined(system, random_tokens(20, 10 + i)), 1).computed, 20) << i;
}

TEST_F(EnginePrefixCache, ThoseThatComeTogetherComputeWhatTheyShareOnce) {
  std::int64_t set_aside = 0;
  for (const std::int64_t budget : {300, 512, 4096}) {
    EngineOptions options = roomy();
    options.limits.prefill_tokens = options.limits.prefill_tokens_beside_decodes = budget;
    Engine engine(model(), options);
    Tokens system = random_tokens(2000, 1);
    system.back() = stop_ids_of(model()).front();  // a message ends
    std::vector<std::shared_ptr<Heard>> heard;
    for (unsigned i = 0; i < 10; ++i) {
      AnswerRequest wanted;
      wanted.prompt = joined(system, random_tokens(20, 10 + i));
      wanted.options.max_tokens = 2;
      wanted.client = i % 3;
      heard.push_back(std::make_shared<Heard>());
      submit(engine, wanted, heard.back());
    }
    std::int64_t computed = 0;
    for (unsigned i = 0; i < 10; ++i) {
      heard[i]->wait();
      computed += heard[i]->summary.prompt_tokens - heard[i]->summary.cached_tokens;
    }
    EXPECT_EQ(computed, 2000 + 10 * 20) << "budget " << budget;
    set_aside += engine.statistics().schedule.set_aside;
    expect_all_back(engine);
  }
  EXPECT_GT(set_aside, 0) << "where a step is a whole prompt, the first may be done before the others are there";
}

TEST_F(EnginePrefixCache, SpacesAndPromptsToBeScoredFindNothing) {
  Engine engine(model(), roomy());
  AnswerRequest wanted;
  wanted.prompt = random_tokens(100, 1);
  wanted.options.max_tokens = 2;
  const auto cached = [&](const AnswerRequest& request) { return hear(engine, request)->summary.cached_tokens; };
  EXPECT_EQ(cached(wanted), 0);
  EXPECT_EQ(cached(wanted), 99);
  AnswerRequest scored = wanted;
  scored.options.prompt_logprobs = 1;
  EXPECT_EQ(cached(scored), 0);
  wanted.cache_space = "another";
  EXPECT_EQ(cached(wanted), 0);
  EXPECT_EQ(cached(wanted), 99);
}

TEST_F(EnginePrefixCache, WhatWasComputedOutlivesTheEngine) {
  EngineOptions options = with_tier(roomy());
  const Tokens prompt = random_tokens(1500, 1);
  auto engine = std::make_unique<Engine>(model(), options);
  const Told first = ask(*engine, prompt);
  EXPECT_EQ(first.computed, 1500);
  engine = std::make_unique<Engine>(model(), options);
  const Told again = ask(*engine, prompt);
  EXPECT_EQ(again.computed, 1);
  EXPECT_EQ(again.ids, first.ids);
  EXPECT_EQ(engine->statistics().tier.read, 1);
  EXPECT_EQ(engine->statistics().cache.hits, 1);
  EXPECT_EQ(engine->statistics().cache.misses, 0);
  EXPECT_EQ(ask(*engine, prompt).computed, 1);
  EXPECT_EQ(engine->statistics().tier.read, 1) << "in memory now";
  // The next turn in a third process. An answer of eight tokens more was not worth its own object.
  engine = std::make_unique<Engine>(model(), options);
  EXPECT_LE(ask(*engine, joined(joined(prompt, first.ids), random_tokens(40, 2))).computed, 41 + 64);
  // Nobody finds it with other settings.
  ModelOptions exact_options;
  exact_options.activations = Activations::Fp32;
  Model exact(source_path("models/austen-5m").string(), exact_options);
  Engine other(exact, options);
  EXPECT_EQ(ask(other, prompt).computed, 1500);
}

TEST_F(EnginePrefixCache, WhatMemoryHadNoRoomForComesFromTheTier) {
  EngineOptions options = with_tier(roomy());
  options.pool_bytes = 2 * blocks(2048) * model().layout().block_bytes;
  Engine engine(model(), options);
  const Tokens prompt = random_tokens(1500, 1);
  const Told first = ask(engine, prompt);
  while (engine.statistics().tier.waiting > 0) std::this_thread::yield();  // also when there are no more steps
  for (unsigned i = 0; i < 6; ++i) ask(engine, random_tokens(1500, 10 + i), 1);
  const Told again = ask(engine, prompt);
  EXPECT_EQ(again.computed, 1);
  EXPECT_EQ(again.ids, first.ids);
  EXPECT_GT(engine.statistics().tier.read, 0);
}

TEST_F(EnginePrefixCache, WhoIsCancelledWhileItIsReadLeavesNothing) {
  EngineOptions options = with_tier(roomy());
  const Tokens prompt = random_tokens(1500, 1);
  const Told first = ask(*std::make_unique<Engine>(model(), options), prompt);
  std::atomic<bool> reading = false;
  store_->fails = [&](const char* what) {
    if (std::string_view(what) == "read" && reading.exchange(true)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return false;
  };
  Engine engine(model(), options);
  reading = false;  // the index has been read
  AnswerRequest wanted;
  wanted.prompt = prompt;
  wanted.options.max_tokens = 8;
  const auto heard = std::make_shared<Heard>();
  const RequestId id = submit(engine, wanted, heard);
  while (!reading) std::this_thread::yield();
  engine.cancel(id);
  heard->wait();
  EXPECT_EQ(heard->summary.outcome, AnswerOutcome::Cancelled);
  expect_all_back(engine);
  EXPECT_EQ(ask(engine, prompt).ids, first.ids);
}

/// The one before it waits for what is read, and nobody computes.
TEST_F(EnginePrefixCache, WhoLosesItsMemoryInAStepOfNothingElseMayEnd) {
  EngineOptions options = with_tier(roomy());
  const Tokens prompt = random_tokens(1500, 1);
  const Told first = ask(*std::make_unique<Engine>(model(), options), prompt);
  std::int64_t length = 100;  // with a token more it fills its blocks
  while (blocks(length + 2) == blocks(length + 1)) ++length;
  options.limits.reserved_new_tokens = 1;
  options.pool_bytes = (blocks(1501) + blocks(length + 1)) * model().layout().block_bytes;
  std::mutex gate;
  std::atomic<bool> reading = false;
  store_->fails = [&](const char* what) {
    if (std::string_view(what) != "read") return false;
    reading = true;
    const std::lock_guard wait(gate);
    return false;
  };
  Engine engine(model(), options);
  std::unique_lock closed(gate);
  reading = false;  // the index has been read
  AnswerRequest wanted;
  wanted.prompt = prompt;
  wanted.options.max_tokens = 8;
  const auto from_tier = std::make_shared<Heard>(), grows = std::make_shared<Heard>();
  submit(engine, wanted, from_tier);
  while (!reading) std::this_thread::yield();
  wanted.prompt = random_tokens(static_cast<std::size_t>(length), 2);
  wanted.options.max_tokens = 50;
  const RequestId id = submit(engine, wanted, grows);
  while (engine.statistics().schedule.preemptions == 0) std::this_thread::yield();
  engine.cancel(id);
  grows->wait();
  EXPECT_EQ(grows->summary.outcome, AnswerOutcome::Cancelled);
  EXPECT_EQ(grows->summary.preemptions, 1);
  closed.unlock();
  from_tier->wait();
  EXPECT_EQ(from_tier->ids, first.ids);
  expect_all_back(engine);
}

TEST_F(EnginePrefixCache, WhatIsFoundIsComputedOnceMoreWhenNobodyIsThere) {
  EngineOptions options = with_tier(roomy());
  options.prefixes.verify_rate = 0.5;
  const Tokens prompt = random_tokens(1500, 1);
  {
    Engine engine(model(), options);
    for (int i = 0; i < 5; ++i) ask(engine, prompt);  // four hits
    const PrefixVerifications now = verified(engine, 2);
    EXPECT_EQ(now.same, 2);
    EXPECT_EQ(now.different + now.gone, 0);
    // One that is interrupted is begun again.
    for (int i = 0; i < 8; ++i) ask(engine, prompt);
    EXPECT_EQ(verified(engine, 6).same, 6);
  }
  // A number that no checksum can find: written so.
  for (auto& [key, object] : store_->objects()) {
    if (key.first != ObjectKind::End) continue;
    constexpr std::size_t kSum = 16;
    const auto header = static_cast<std::size_t>(object_bytes(0)) - kSum;
    std::span<std::byte> payload = std::span(object.bytes).subspan(header, object.bytes.size() - header - kSum);
    payload[payload.size() / 2] ^= std::byte{1};
    std::ranges::copy(Xxh3().update(payload).checksum().bytes, object.bytes.end() - kSum);
  }
  std::string noted;
  options.prefixes.verify_rate = 1;
  options.prefixes.note = [&](std::string_view what) { noted = what; };
  Engine engine(model(), options);
  EXPECT_EQ(ask(engine, prompt).computed, 1);
  EXPECT_EQ(verified(engine, 1).different, 1);
  EXPECT_EQ(ask(engine, prompt).computed, 1500) << "nothing of it is used again";
  EXPECT_EQ(noted, "what was kept of a prompt at 1499 tokens is not what is computed: all is thrown away");
}

/// Conversations that grow, fork, are edited in the middle, retried, all at once; with a tier also over restarts, and when it fails.
TEST_F(EnginePrefixCache, AnswersAreThoseOfAnEngineWithoutOne) {
  const int rounds = long_tests() ? 120 : 6;
  std::int64_t cached = 0, preemptions = 0, evicted = 0, read = 0, read_errors = 0;
  std::mt19937 luck(1);
  store_->fails = [&](const char*) { return luck() % 100 == 0; };
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(static_cast<unsigned>(round));
    // Room for much, for a few, for hardly two.
    const std::int64_t pool = std::array{100 * blocks(512), 3 * blocks(1), 2 * blocks(1)}[static_cast<std::size_t>(round) % 3];
    EngineOptions options = small_pool(pool);
    options.limits.prefill_tokens = 1 + static_cast<std::int64_t>(random() % 200);
    options.limits.prefill_tokens_beside_decodes = 1 + static_cast<std::int64_t>(random() % 50);
    options.limits.reserved_new_tokens = 1 + static_cast<std::int64_t>(random() % 5);
    EngineOptions without = options;
    without.prefixes.keeps = false;
    const bool tier = round / 3 % 2 == 1;
    if (tier) options = with_tier(options);
    Engine plain(model(), without);
    auto engine = std::make_unique<Engine>(model(), options);
    const auto count_up = [&] {
      const EngineStatistics statistics = engine->statistics();
      preemptions += statistics.schedule.preemptions;
      evicted += statistics.cache.evicted;
      read += statistics.tier.read;
      read_errors += statistics.tier.read_errors;
    };
    std::vector<Tokens> histories = {random_tokens(30, 1), random_tokens(170, 2)};
    for (int step = 0; step < 8; ++step) {
      if (tier && random() % 4 == 0) {
        count_up();
        engine.reset();
        engine = std::make_unique<Engine>(model(), options);
      }
      std::vector<AnswerRequest> requests;
      for (std::size_t i = 0, count = 1 + random() % 5; i < count; ++i) {
        Tokens prompt = histories[random() % histories.size()];
        if (random() % 4 == 0) prompt.resize(1 + random() % prompt.size());
        if (random() % 6 == 0) prompt[random() % prompt.size()] = static_cast<std::int32_t>(random() % 2000);
        if (random() % 5 != 0) prompt = joined(prompt, random_tokens(1 + random() % 90, static_cast<unsigned>(random())));
        // Many end a little before the border of a block of pages, and grow over it.
        const std::size_t longest = random() % 2 == 0 ? 190 : 400;
        if (prompt.size() > longest) prompt.resize(longest);
        AnswerRequest wanted = request(static_cast<unsigned>(random()));
        wanted.prompt = prompt;
        wanted.options.prompt_logprobs.reset();
        if (random() % 3 == 0) wanted.cache_marks = {static_cast<std::int64_t>(prompt.size() / 2)};
        requests.push_back(std::move(wanted));
      }
      std::vector<std::shared_ptr<Heard>> heard, expected;
      for (const AnswerRequest& wanted : requests) {
        heard.push_back(std::make_shared<Heard>());
        submit(*engine, wanted, heard.back());
      }
      for (const auto& one : heard) one->wait();
      for (const AnswerRequest& wanted : requests) {
        expected.push_back(std::make_shared<Heard>());
        submit(plain, wanted, expected.back());
      }
      for (std::size_t i = 0; i < requests.size(); ++i) {
        expected[i]->wait();
        SCOPED_TRACE(fmt::format("round {}, step {}, answer {}", round, step, i));
        ASSERT_EQ(heard[i]->ids, expected[i]->ids) << heard[i]->summary.error;
        ASSERT_EQ(heard[i]->logprobs, expected[i]->logprobs);
        ASSERT_EQ(heard[i]->summary.outcome, expected[i]->summary.outcome);
        cached += heard[i]->summary.cached_tokens;
        histories.push_back(joined(requests[i].prompt, heard[i]->ids));
      }
    }
    count_up();
    expect_all_back(*engine);
  }
  EXPECT_GT(cached, 1000);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(evicted, 0);
  EXPECT_GT(read, 0);
  EXPECT_GT(read_errors, 0);
}

}  // namespace
}  // namespace calandra
