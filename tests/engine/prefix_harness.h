#pragma once
// Prompts asked of an engine that keeps what they have in common, in memory and behind it.

#include "engine/engine_harness.h"
#include "support/memory_store.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>

namespace calandra {

class PrefixEngineTest : public EngineTest {
 protected:
  static Tokens random_tokens(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    Tokens tokens(count);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 2000);
    return tokens;
  }
  static Tokens joined(Tokens first, const Tokens& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  static Tokens first_of(const Tokens& tokens, std::int64_t count) { return {tokens.begin(), tokens.begin() + count}; }

  static AnswerRequest greedy(Tokens prompt, std::int64_t made = 6) {
    AnswerRequest wanted;
    wanted.prompt = std::move(prompt);
    wanted.options.max_tokens = made;
    wanted.options.sampling.temperature = 0;
    wanted.options.logprobs = 2;
    return wanted;
  }

  /// A request, heard to its end.
  static std::shared_ptr<Heard> hear(Engine& engine, const AnswerRequest& wanted) {
    const auto heard = std::make_shared<Heard>();
    submit(engine, wanted, heard);
    heard->wait();
    return heard;
  }
  /// Waits until the engine has compared so many.
  static PrefixVerifications verified(const Engine& engine, std::int64_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    PrefixVerifications now;
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      now = engine.statistics().verifications;
    } while (now.same + now.different + now.gone < count && std::chrono::steady_clock::now() < deadline);
    return now;
  }
  static PrefixFlush flush(Engine& engine, const SpaceFilter& meant) {
    std::promise<PrefixFlush> told;
    engine.flush_cache(meant, [&](const PrefixFlush& flush) { told.set_value(flush); });
    return told.get_future().get();
  }

  /// The same with objects that outlive it.
  EngineOptions with_tier(EngineOptions options) const {
    options.prefixes.objects = store_;
    options.prefixes.object_bytes = std::int64_t{1} << 30;
    return options;
  }
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();

  /// Room for that many sequences of the whole context.
  static EngineOptions room_for(const Model& model, std::int64_t sequences, std::int64_t context) {
    const MemoryLayout layout = model.layout();
    return {.limits = {}, .context = context, .pool_bytes = sequences * layout.sequence_blocks(context) * layout.block_bytes};
  }
};

}  // namespace calandra
