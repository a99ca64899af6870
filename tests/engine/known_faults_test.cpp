// Faults that caches of prefixes are known for, one test each: states that nobody wrote, tokens fed twice, hits that never come, blocks
// that are lost. An answer is compared with the one of a session that has kept nothing.

#include "engine/prefix_harness.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <atomic>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

namespace calandra {
namespace {

using testing::ElementsAre;

/// From where things come back.
struct Way {
  const char* name;
  bool has_tier;  // from another engine's objects, or else from memory
  bool with_mtp;
};

class KnownFaults : public PrefixEngineTest {
 protected:
  static Model& mtp_model() {
    static Model loaded(source_path("models/austen-5m").string(), {.threads = 2, .with_mtp = true});
    return loaded;
  }
  /// What the answer is if nothing was kept: of another copy of the model.
  static Generation computed(const AnswerRequest& wanted) {
    static Model reference(source_path("models/austen-5m").string(), {.threads = 2});
    Session session(reference, std::ssize(wanted.prompt) + wanted.options.max_tokens);
    return generate(reference, session, wanted.prompt, wanted.options);
  }
  static void expect_same(const Heard& heard, const Generation& expected) {
    EXPECT_EQ(heard.ids, expected.ids) << heard.summary.error;
    EXPECT_EQ(heard.logprobs, expected.logprobs);
  }
  /// Tokens of the prompt that were found. The answer must be the one that is computed.
  static std::int64_t found(Engine& engine, const AnswerRequest& wanted) {
    const auto heard = hear(engine, wanted);
    expect_same(*heard, computed(wanted));
    return heard->summary.cached_tokens;
  }

  /// All blocks are nobody's once nothing is kept.
  static void expect_pool_whole(Engine& engine) {
    expect_all_back(engine);
    const auto all = [](const std::string&) { return true; };
    EXPECT_EQ(flush(engine, all).memory.pinned, 0);
    flush(engine, all);  // heard after the first one's statistics
    const EngineStatistics now = engine.statistics();
    EXPECT_EQ(now.pool.nothing, now.schedule.blocks_total);
    EXPECT_EQ(now.cache.blocks, 0);
    EXPECT_EQ(now.cache.boundaries, 0);
  }
};

class KnownFaultsOfEither : public KnownFaults, public testing::WithParamInterface<Way> {
 protected:
  static Model& served() { return GetParam().with_mtp ? mtp_model() : model(); }
  /// Freed memory is full of numbers that are none.
  static EngineOptions options_of(std::int64_t sequences, std::int64_t context) {
    EngineOptions options = room_for(served(), sequences, context);
    options.freed = FreedMemory::Poisoned;
    return options;
  }
  void start(const EngineOptions& options) {
    engine_.reset();  // only one may compute on a model
    engine_.emplace(served(), GetParam().has_tier ? with_tier(options) : options);
    options_ = options;
  }
  /// With a tier: everybody forgets what is in memory.
  void come_back() {
    if (GetParam().has_tier) start(EngineOptions(options_));
  }
  /// What has to be found where a boundary of `tokens` was taken: the tier leaves out what hardly spares anything.
  static void expect_found(std::int64_t found, std::int64_t tokens) {
    EXPECT_LE(found, tokens);
    EXPECT_GE(found, GetParam().has_tier ? tokens - 64 : tokens);
  }
  std::int64_t found(const AnswerRequest& wanted) { return KnownFaults::found(*engine_, wanted); }

  std::optional<Engine> engine_;
  EngineOptions options_;
};
INSTANTIATE_TEST_SUITE_P(From, KnownFaultsOfEither,
                         testing::Values(Way{"Memory", false, false}, Way{"TheTierWithTheDraftLayer", true, true}),
                         [](const auto& test) { return std::string(test.param.name); });

// ---------------------------------------------------------------- what is restored is not what was there

TEST_P(KnownFaultsOfEither, ASecondRunReadsStatesThatTheFirstHasWritten) {
  EngineOptions options = options_of(12, 512);
  options.limits.prefill_tokens = 80;
  start(options);
  std::vector<AnswerRequest> requests;
  for (unsigned i = 0; i < 3; ++i) requests.push_back(greedy(random_tokens(std::array{160u, 167u, 100u}[i], i)));
  for (const AnswerRequest& wanted : requests) EXPECT_EQ(found(wanted), 0);
  come_back();
  for (const AnswerRequest& wanted : requests) EXPECT_EQ(found(wanted), std::ssize(wanted.prompt) - 1);
}

TEST_P(KnownFaultsOfEither, NoTokenIsFedTwiceWhereABoundaryLiesInsideAPage) {
  start(options_of(60, 512));
  std::vector<std::int64_t> positions = {1, 3, 4, 63, 64, 65, 127, 130};
  if (long_tests()) {
    positions.resize(300);
    std::iota(positions.begin(), positions.end(), 1);
  }
  std::vector<Tokens> prompts;
  for (const std::int64_t position : positions) prompts.push_back(random_tokens(300, static_cast<unsigned>(position)));
  for (std::size_t i = 0; i < positions.size(); i += 8) {
    const std::size_t end = std::min(i + 8, positions.size());
    for (std::size_t k = i; k < end; ++k) hear(*engine_, greedy(first_of(prompts[k], positions[k]), 1));
    come_back();
    for (std::size_t k = i; k < end; ++k) {
      SCOPED_TRACE(positions[k]);
      expect_found(found(greedy(first_of(prompts[k], positions[k] + 13), 12)), positions[k]);
    }
  }
}

TEST_P(KnownFaultsOfEither, WhatIsKeptOfAPromptStaysAsItIsWhileOthersGoOnFromIt) {
  EngineOptions options = options_of(40, 512);
  options.prefixes.verify_rate = 1;  // every byte, each time that it was used
  start(options);
  const Tokens system = random_tokens(150, 1);
  hear(*engine_, greedy(system, 1));
  for (unsigned round = 0; round < 2; ++round) {
    for (unsigned i = 0; i < 4; ++i) {
      const AnswerRequest wanted = greedy(joined(system, random_tokens(5, 10 * round + i)));
      const auto heard = hear(*engine_, wanted);
      expect_found(heard->summary.cached_tokens, 150);
    }
    const std::int64_t hits = round == 0 || GetParam().has_tier ? 4 : 8;
    const PrefixVerifications now = verified(*engine_, hits);
    EXPECT_EQ(now.same, hits);
    EXPECT_EQ(now.different + now.gone, 0);
    come_back();
  }
}

TEST_P(KnownFaultsOfEither, AHitDeepInALongPromptFindsItsOwnPagesAndStates) {
  start(options_of(8, 4096));
  const Tokens prompt =
      random_tokens(1700, 1);  // pages, blocks of pages, blocks of attention and runs of the tier: several of each
  const std::array<std::int64_t, 3> depths{600, 1100, 1650};
  for (const std::int64_t depth : depths) hear(*engine_, greedy(first_of(prompt, depth), 1));
  come_back();
  for (const std::int64_t depth : depths)
    expect_found(found(greedy(joined(first_of(prompt, depth), random_tokens(5, static_cast<unsigned>(depth))))), depth);
}

TEST_P(KnownFaultsOfEither, APromptThatEndsWhereAChunkDoesIsAnsweredTheSameAgain) {
  EngineOptions options = options_of(8, 4096);
  options.limits.prefill_tokens = 64;
  start(options);
  // Of pages and steps, of attention, of the tier, and between spaced boundaries.
  std::vector<std::int64_t> lengths = {64, 128, 512, 1024};
  if (long_tests()) lengths.insert(lengths.end(), {1536, 2048, 3072, 4032});
  std::vector<AnswerRequest> requests;
  for (const std::int64_t length : lengths)
    requests.push_back(greedy(random_tokens(static_cast<std::size_t>(length), static_cast<unsigned>(length))));
  std::vector<Generation> expected;
  for (const AnswerRequest& wanted : requests) {
    expected.push_back(computed(wanted));
    expect_same(*hear(*engine_, wanted), expected.back());
  }
  come_back();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto heard = hear(*engine_, requests[i]);
    expect_same(*heard, expected[i]);
    expect_found(heard->summary.cached_tokens, lengths[i] - 1);
  }
}

TEST_P(KnownFaultsOfEither, AHitAtAMultipleOf2048GoesOnAsIfNothingHadBeenKept) {
  start(options_of(8, 8192));
  const Tokens prompt = random_tokens(6500, 1);
  for (const std::int64_t multiple : long_tests() ? std::vector{1, 2, 3} : std::vector{1}) {
    const std::int64_t border = 2048 * multiple;
    hear(*engine_, greedy(first_of(prompt, border + 150), 1));
    come_back();
    for (const std::size_t more : long_tests() ? std::vector<std::size_t>{1, 2, 17, 63, 64, 65} : std::vector<std::size_t>{9}) {
      SCOPED_TRACE(fmt::format("{} + {}", border, more));
      expect_found(found(greedy(joined(first_of(prompt, border), random_tokens(more, 2)), long_tests() ? 64 : 16)), border);
    }
  }
}

/// Cold in one piece, cold in pieces, and warm from wherever the one before has ended.
TEST_P(KnownFaultsOfEither, NoLengthOfAPromptChangesItsAnswer) {
  const std::int64_t longest = long_tests() ? 6000 : 1500;
  const Tokens all = random_tokens(static_cast<std::size_t>(longest) + 1, 11);
  std::vector<std::int64_t> lengths;
  std::mt19937 random(2);
  for (std::int64_t length = 1; length <= longest; length += long_tests() ? 1 : 1 + static_cast<std::int64_t>(random() % 60))
    lengths.push_back(length);
  std::map<std::int64_t, LogprobEntry> expected;
  {
    Model& by_rows = GetParam().with_mtp ? model() : mtp_model();
    Session session(by_rows, longest + 1);
    session.all_logits(all, {}, [&](std::int64_t position, std::span<const float> logits) {
      const auto samplable = logits.first(static_cast<std::size_t>(by_rows.num_samplable()));
      const auto largest = std::ranges::max_element(samplable) - samplable.begin();
      expected[position] = logprobs_of(samplable, position, static_cast<std::int32_t>(largest), 2);
    });
  }
  const auto expect_answer = [&](std::int64_t length) {
    const auto heard = hear(*engine_, greedy(first_of(all, length), 1));
    ASSERT_EQ(heard->logprobs.front(), expected.at(length)) << length << " tokens, " << heard->summary.cached_tokens << " found";
  };
  start(options_of(6, longest + 8));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (i % (lengths.size() / 4 + 1) == 1) come_back();
    expect_answer(lengths[i]);
  }
  EXPECT_GT(engine_->statistics().schedule.resumed_tokens, longest);
  EngineOptions pieces = options_of(2, longest + 8);
  pieces.limits.prefill_tokens = 100;
  pieces.prefixes.keeps = false;
  start(pieces);
  const std::vector<std::int64_t> some = {127, 1376, 2048, 2049, 3001, 4096, 5769};
  for (const std::int64_t length : some) {
    if (length <= longest) expect_answer(length);
  }
}

TEST_P(KnownFaultsOfEither, AConversationGoesOnFromAnyCutOfTheAnswerBefore) {
  start(options_of(60, 512));
  std::vector<std::int64_t> lengths = {129, 160, 191};
  if (long_tests()) {
    lengths.resize(63);
    std::iota(lengths.begin(), lengths.end(), 129);
  }
  for (const std::int64_t length : lengths) {
    SCOPED_TRACE(length);
    const Tokens prompt = random_tokens(static_cast<std::size_t>(length), static_cast<unsigned>(length));
    const Tokens history = joined(prompt, hear(*engine_, greedy(prompt, 20))->ids);
    come_back();
    for (const std::int64_t cut : {0, 1, 19, 20}) {
      const AnswerRequest wanted = greedy(joined(first_of(history, length + cut), random_tokens(3, 7)), 3);
      const std::int64_t tokens = found(wanted);
      // The state after the whole answer belongs to nobody who leaves its path; its last token was never computed.
      expect_found(tokens, cut >= 19 ? length + 19 : length);
    }
  }
}

TEST_P(KnownFaultsOfEither, APromptThatLosesItsLastTokensNeverGoesOnFromZeroStates) {
  start(options_of(30, 512));
  Tokens history = random_tokens(180, 1);
  history = joined(history, hear(*engine_, greedy(history, 4))->ids);
  come_back();
  for (int i = 0; i < 6; ++i) {
    history.pop_back();
    EXPECT_LT(found(greedy(history, 3)), std::ssize(history));
  }
}

TEST_P(KnownFaultsOfEither, AHitIsNeverLongerThanWhatIsSharedHoweverTheAnswerBeforeHasEnded) {
  start(options_of(30, 512));
  for (int ending = 0; ending < 3; ++ending) {
    SCOPED_TRACE(ending);
    AnswerRequest wanted = greedy(random_tokens(140, static_cast<unsigned>(ending)), ending == 1 ? 200 : 12);
    if (ending == 2) wanted.options.stop = {"e", "a", "i"};
    const auto heard = std::make_shared<Heard>();
    std::atomic<std::uint64_t> id{0};
    heard->cancel_at = 5;
    heard->at_token = [&] {
      while (id == 0) std::this_thread::yield();
      if (ending == 1) engine_->cancel(static_cast<RequestId>(id.load()));
    };
    id = static_cast<std::uint64_t>(submit(*engine_, wanted, heard));
    heard->wait();
    come_back();
    const std::int64_t made = std::ssize(heard->ids);
    for (const std::int64_t kept : {made, made / 2}) {
      const Tokens shared = joined(wanted.prompt, first_of(heard->ids, kept));
      const std::int64_t tokens = found(greedy(joined(shared, random_tokens(20, 9)), 4));
      EXPECT_LE(tokens, std::ssize(shared));
      EXPECT_GE(tokens, std::ssize(wanted.prompt) - 1);
    }
  }
}

TEST_P(KnownFaultsOfEither, APromptThatMovesBackAndForthIsAnsweredTheSame) {
  const Tokenizer& tokenizer = served().tokenizer();
  std::string tools, front;
  for (int i = 0; i < 20; ++i) tools += fmt::format("{{\"name\": \"tool_{}\", \"description\": \"Tells the {}.\"}}\n", i, i * i);
  const std::size_t characters = long_tests() ? 8192 : 1024;
  for (std::size_t i = 0; front.size() < characters; ++i) front += fmt::format("{} letters came on day {}. ", i % 7, i);
  const Tokens first = tokenizer.encode(tools + "Name all of them.");
  const Tokens moved = tokenizer.encode(front.substr(0, characters) + tools + "Name all of them.");
  start(options_of(6, 8192));
  const Generation expected = computed(greedy(first, 30));
  expect_same(*hear(*engine_, greedy(first, 30)), expected);
  come_back();
  EXPECT_LE(found(greedy(moved, 10)), 3);
  come_back();
  const auto again = hear(*engine_, greedy(first, 30));
  expect_same(*again, expected);
  expect_found(again->summary.cached_tokens, std::ssize(first) - 1);
}

TEST_P(KnownFaultsOfEither, AHitInAPoolFullOfHolesReadsItsOwnRows) {
  start(options_of(40, 512));
  std::vector<AnswerRequest> requests;
  std::vector<std::shared_ptr<Heard>> heard;
  for (unsigned i = 0; i < 8; ++i) {  // pages taken in turn
    requests.push_back(greedy(random_tokens(110 + 7 * i, i), 30));
    requests.back().cache_space = i % 2 == 0 ? "stays" : "goes";
    heard.push_back(std::make_shared<Heard>());
    submit(*engine_, requests.back(), heard.back());
  }
  for (const auto& one : heard) one->wait();
  EXPECT_GT(flush(*engine_, [](const std::string& space) { return space == "goes"; }).memory.boundaries, 0);
  hear(*engine_, greedy(random_tokens(300, 20), 1));  // fills some of the holes
  come_back();
  for (unsigned i = 0; i < 8; i += 2) {
    AnswerRequest wanted = greedy(joined(joined(requests[i].prompt, heard[i]->ids), random_tokens(5, i)));
    wanted.cache_space = "stays";
    expect_found(found(wanted), std::ssize(requests[i].prompt) + 29);
  }
}

TEST_F(KnownFaults, WhatIsOverwrittenWhileItIsBeingWrittenDoesNotReachTheStore) {
  std::atomic<bool> slow = true;
  std::atomic<int> answered = 0;
  store_->fails = [&](const char* what) {
    if (std::string_view(what) != "write") return false;
    // Every piece takes as long as an answer: blocks of the pool go from hand to hand meanwhile.
    for (const int before = answered; slow && answered == before;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  };
  const MemoryLayout layout = mtp_model().layout();
  EngineOptions small = room_for(mtp_model(), 1, 512);
  small.pool_bytes = 3 * layout.sequence_blocks(200) * layout.block_bytes;
  small.freed = FreedMemory::Poisoned;
  const unsigned count = long_tests() ? 200 : 10;
  std::vector<Tokens> answers;
  {
    Engine engine(mtp_model(), with_tier(small));
    for (unsigned i = 0; i < count; ++i, ++answered)
      answers.push_back(hear(engine, greedy(random_tokens(120 + i % 50, i), 2))->ids);
    slow = false;
    EXPECT_GT(engine.statistics().tier.lost, 0) << "nothing had to go before it was written";
  }
  EngineOptions roomy = room_for(mtp_model(), 12, 512);
  roomy.prefixes.verify_rate = 1;
  Engine engine(mtp_model(), with_tier(roomy));
  std::int64_t hits = 0;
  for (unsigned i = 0; i < count; ++i) {
    const auto heard = hear(engine, greedy(random_tokens(120 + i % 50, i), 2));
    EXPECT_EQ(heard->ids, answers[i]) << i;
    hits += heard->summary.cached_tokens > 0 ? 1 : 0;
    EXPECT_EQ(verified(engine, hits).same, hits);
  }
  EXPECT_GT(hits, 0);
}

TEST_P(KnownFaultsOfEither, WhatIsBroughtBackIsByteForByteWhatIsComputed) {
  EngineOptions options = options_of(12, 2048);
  options.prefixes.verify_rate = 1;
  start(options);
  std::vector<AnswerRequest> requests;
  for (const std::size_t length : {65u, 200u, 1030u}) requests.push_back(greedy(random_tokens(length, 3), 1));
  for (AnswerRequest& wanted : requests) wanted.cache_space = std::to_string(wanted.prompt.size());
  for (const AnswerRequest& wanted : requests) hear(*engine_, wanted);
  come_back();
  for (const AnswerRequest& wanted : requests)
    EXPECT_EQ(hear(*engine_, wanted)->summary.cached_tokens, std::ssize(wanted.prompt) - 1);
  const PrefixVerifications now = verified(*engine_, 3);
  EXPECT_EQ(now.same, 3);
  EXPECT_EQ(now.different + now.gone, 0);
}

// ---------------------------------------------------------------- what should be found is not

TEST_F(KnownFaults, APathThatPartsFromAStoredOneIsFoundTheSecondTime) {
  Engine engine(model(), room_for(model(), 40, 512));
  const Tokens a = random_tokens(100, 1), b = random_tokens(100, 2), c = random_tokens(100, 3);
  hear(engine, greedy(joined(joined(a, b), c), 1));
  hear(engine, greedy(joined(a, b), 1));
  for (unsigned i = 0; i < 2; ++i) EXPECT_EQ(found(engine, greedy(joined(joined(a, b), random_tokens(20, 10 + i)))), 200);
  // Nobody has stopped there: known when the second has been.
  hear(engine, greedy(joined(joined(a, first_of(b, 50)), random_tokens(30, 20)), 1));
  EXPECT_EQ(found(engine, greedy(joined(joined(a, first_of(b, 50)), random_tokens(30, 21)))), 150);
}

TEST_F(KnownFaults, AModelWithItsDraftLayerFindsAsMuchAsOneWithout) {
  const Tokens prompt = random_tokens(1100, 1);
  const std::vector<Tokens> prompts = {prompt, prompt, joined(prompt, random_tokens(40, 2)),
                                       joined(first_of(prompt, 900), random_tokens(30, 3)),
                                       joined(first_of(prompt, 900), random_tokens(30, 4))};
  const auto ask_all = [&](Model& served) {
    Engine engine(served, room_for(served, 12, 2048));
    std::vector<std::pair<std::int64_t, Tokens>> told;
    for (const Tokens& tokens : prompts) {
      const auto heard = hear(engine, greedy(tokens, 3));
      told.emplace_back(heard->summary.cached_tokens, heard->ids);
    }
    return told;
  };
  const auto with = ask_all(mtp_model()), without = ask_all(model());
  EXPECT_EQ(with, without);
  EXPECT_EQ(with[1].first, 1099);
  EXPECT_EQ(with[4].first, 900);
}

TEST_F(KnownFaults, ThreeIdenticalPromptsWithTheDraftLayerAreComputedOnce) {
  const std::size_t length = long_tests() ? 5018 : 1018;
  const auto context = static_cast<std::int64_t>(length) + 10;
  const AnswerRequest wanted = greedy(random_tokens(length, 1), 3);
  for (const bool at_once : {false, true}) {
    Engine engine(mtp_model(), room_for(mtp_model(), 8, context));
    std::vector<std::shared_ptr<Heard>> heard;
    for (int i = 0; i < 3; ++i) {
      heard.push_back(std::make_shared<Heard>());
      submit(engine, wanted, heard.back());
      if (!at_once) heard.back()->wait();
    }
    std::vector<std::int64_t> cached;
    for (const auto& one : heard) {
      one->wait();
      EXPECT_EQ(one->ids, heard[0]->ids);
      cached.push_back(one->summary.cached_tokens);
    }
    const auto all_but_one = static_cast<std::int64_t>(length) - 1;
    EXPECT_THAT(cached, ElementsAre(0, all_but_one, all_but_one)) << (at_once ? "at once" : "one after another");
  }
}

TEST_F(KnownFaults, ASiblingThatSharesPartOfALongPromptFindsMostOfIt) {
  const std::int64_t length = long_tests() ? 8000 : 2400, shared = long_tests() ? 5000 : 2200;
  Engine engine(model(), room_for(model(), 6, length + 10));
  const Tokens prompt = random_tokens(static_cast<std::size_t>(length), 1);
  hear(engine, greedy(prompt, 1));
  const auto sibling = [&](unsigned seed) {
    return greedy(joined(first_of(prompt, shared), random_tokens(static_cast<std::size_t>(length - shared), seed)), 2);
  };
  EXPECT_EQ(hear(engine, sibling(2))->summary.cached_tokens, shared / 2048 * 2048);
  EXPECT_EQ(found(engine, sibling(3)), shared) << "where two have parted";
}

TEST_P(KnownFaultsOfEither, TheSameAgainMovesTheCountersOfWhatIsFound) {
  start(options_of(6, 512));
  const AnswerRequest wanted = greedy(random_tokens(200, 1), 1);
  hear(*engine_, wanted);
  EngineStatistics now = engine_->statistics();
  EXPECT_EQ(now.cache.hits, 0);
  EXPECT_EQ(now.cache.misses, 1);
  come_back();
  const EngineStatistics before = engine_->statistics();
  EXPECT_EQ(hear(*engine_, wanted)->summary.cached_tokens, 199);
  now = engine_->statistics();
  EXPECT_EQ(now.cache.hits - before.cache.hits, 1);
  EXPECT_EQ(now.cache.misses - before.cache.misses, 0);
  EXPECT_EQ(now.schedule.resumed_tokens - before.schedule.resumed_tokens, 199);
  EXPECT_EQ(now.tier.read, GetParam().has_tier ? 1 : 0);
}

TEST_F(KnownFaults, ARestartCostsTheNewTokensAndLittleMore) {
  const EngineOptions options = with_tier(room_for(model(), 6, 2048));
  Tokens history = random_tokens(1100, 1);
  for (unsigned life = 0; life < 3; ++life) {
    Engine engine(model(), options);
    const AnswerRequest wanted = greedy(history, 80);
    const auto heard = hear(engine, wanted);
    if (life > 0) {
      EXPECT_LE(heard->summary.prompt_tokens - heard->summary.cached_tokens, 10 + 64) << life;
    }
    if (life == 2) expect_same(*heard, computed(wanted));
    history = joined(joined(history, heard->ids), random_tokens(10, 2 + life));
  }
}

/// A client that sends the reasoning back, and one that leaves it out: the past of the next prompt is another than what was made.
TEST_P(KnownFaultsOfEither, AChatThatThinksComputesOnlyWhatIsNew) {
  const std::vector<std::int32_t> ends = stop_ids_of(served());
  std::string long_text;
  for (int i = 0; i < 8; ++i) long_text += fmt::format("It was the {}th ball of the season. ", i);
  for (const bool sends_reasoning : {true, false}) {
    start(options_of(20, 2048));
    Json messages = Json::array();
    messages.push_back({{"role", "system"}, {"content", "Be brief. " + long_text}});
    std::int64_t known = 0;  // up to the end of the last question
    for (int turn = 0; turn < 3; ++turn) {
      messages.push_back({{"role", "user"}, {"content", fmt::format("Question {}: {}", turn, long_text)}});
      ChatRequest chat;
      chat.messages = messages;
      chat.thinking = true;
      const Tokens prompt = served().tokenizer().encode(served().chat_template().render(chat).text);
      const auto heard = hear(*engine_, greedy(prompt, 4));
      EXPECT_GE(heard->summary.cached_tokens, known - (GetParam().has_tier ? 64 : 0)) << "turn " << turn;
      const auto last = std::find_first_of(prompt.rbegin(), prompt.rend(), ends.begin(), ends.end());
      known = prompt.rend() - last;
      ASSERT_GT(known, turn == 0 ? 100 : heard->summary.cached_tokens);
      Json answer = {{"role", "assistant"}, {"content", fmt::format("Answer {}.", turn)}};
      if (sends_reasoning) answer["reasoning_content"] = fmt::format("The user asks question {}.", turn);
      messages.push_back(answer);
      if (turn == 1) come_back();
    }
  }
}

TEST_P(KnownFaultsOfEither, ATenTurnConversationComputesEveryTokenOnce) {
  const std::size_t turn = long_tests() ? 3000 : 110;
  start(options_of(40, static_cast<std::int64_t>(11 * turn)));
  Tokens history;
  std::int64_t expected = 0, computed_tokens = 0;
  for (unsigned i = 0; i < 10; ++i) {
    history = joined(history, random_tokens(turn, i));
    const auto heard = hear(*engine_, greedy(history, 4));
    computed_tokens += heard->summary.prompt_tokens - heard->summary.cached_tokens;
    expected += static_cast<std::int64_t>(turn) + (i > 0 ? 1 : 0);  // the last token of an answer has not been computed
    history = joined(history, heard->ids);
  }
  EXPECT_EQ(computed_tokens, expected);
}

/// Matrices, three tails, latents, the draft layer's, and the hidden row: of every shape.
TEST_F(KnownFaults, EveryModelGoesOnFromAllThatItKeeps) {
  for (const std::string& name : golden_variants()) {
    SCOPED_TRACE(name);
    const std::string folder = golden_path(name).string();
    const bool with_mtp = Model(folder, {.threads = 1}).config().mtp_layers > 0;
    Model golden(folder, {.threads = 1, .with_mtp = with_mtp});
    Tokens history = random_tokens(120, 1);
    for (auto& token : history) token %= 256;
    const auto logits_of = [](Session& session, const Tokens& tokens) {
      const auto logits = session.logits(tokens);
      return std::vector<float>(logits.begin(), logits.end());
    };
    const Tokens other = joined(first_of(history, 70), {1, 2, 3});
    Session fresh(golden, 256), fresh_other(golden, 256), kept(golden, 256, FreedMemory::Poisoned),
        loaded(golden, 256, FreedMemory::Poisoned);
    const std::vector<float> expected = logits_of(fresh, history), expected_other = logits_of(fresh_other, other);
    logits_of(kept, first_of(history, 70));
    kept.keep_boundary();
    kept.save(store_, history);
    expect_same_bits(logits_of(kept, history), expected, "gone on");
    expect_same_bits(logits_of(kept, other), expected_other, "from a boundary");
    EXPECT_EQ(kept.num_reused_tokens(), 70);
    loaded.load(store_, history);
    expect_same_bits(logits_of(loaded, history), expected, "from objects");
    EXPECT_EQ(loaded.num_reused_tokens(), 70);
  }
}

TEST_P(KnownFaultsOfEither, ALongerTailFindsNoLessOfThePrefix) {
  const std::int64_t unit = long_tests() ? 1000 : 100;
  start(options_of(8, 21 * unit));
  const Tokens prefix = random_tokens(static_cast<std::size_t>(6 * unit), 1);
  hear(*engine_, greedy(prefix, 1));
  for (const std::int64_t tail : {4, 7, 14}) {
    come_back();
    const auto heard = hear(*engine_, greedy(joined(prefix, random_tokens(static_cast<std::size_t>(tail * unit), 2)), 1));
    EXPECT_GE(heard->summary.cached_tokens, 6 * unit - (GetParam().has_tier ? 64 : 0)) << tail;
  }
}

// ---------------------------------------------------------------- what others have left behind

TEST_P(KnownFaultsOfEither, DocumentsOneAfterAnotherInOneSlotLeaveNoTrace) {
  std::vector<AnswerRequest> requests;
  std::vector<Generation> expected;
  for (unsigned i = 0; i < 3; ++i) {
    requests.push_back(greedy(random_tokens(100 + 9 * i, i)));
    expected.push_back(computed(requests.back()));
  }
  for (const std::int64_t rows : {1, 16, 512}) {
    EngineOptions options = options_of(1, 128);
    options.limits.max_running = 1;
    options.limits.prefill_tokens = rows;
    start(options);
    for (std::size_t i = 0; i < 3; ++i) expect_same(*hear(*engine_, requests[i]), expected[i]);
  }
}

TEST_P(KnownFaultsOfEither, TheSameRequestTwentyTimesHasOneAnswer) {
  EngineOptions options = options_of(3, 256);
  options.prefixes.verify_rate = 0.25;
  start(options);
  AnswerRequest wanted = greedy(random_tokens(90, 1), 8);
  wanted.options.sampling.temperature = 0.9;
  wanted.options.sampling.seed = 0;
  const Generation expected = computed(wanted);
  for (unsigned i = 0; i < 20; ++i) {
    if (i == 10) come_back();
    if (i % 3 == 1) hear(*engine_, greedy(random_tokens(50 + i, 100 + i), 2));
    SCOPED_TRACE(i);
    expect_same(*hear(*engine_, wanted), expected);
  }
  EXPECT_EQ(verified(*engine_, 1).different, 0);
}

TEST_P(KnownFaultsOfEither, APromptThatLosesItsMemoryHalfWayIsAnsweredTheSame) {
  EngineOptions options = options_of(2, 320);
  options.limits.prefill_tokens = 64;
  options.limits.prefill_tokens_beside_decodes = 8;  // the prompts take many steps
  start(options);
  std::int64_t preemptions = 0;
  for (unsigned round = 0; round < (long_tests() ? 30u : 2u); ++round) {
    std::vector<AnswerRequest> requests;
    std::vector<std::shared_ptr<Heard>> heard;
    std::promise<void> runs;
    const auto ask = [&](std::size_t length, std::int64_t made, Priority priority) {
      requests.push_back(greedy(random_tokens(length, 10 * round + static_cast<unsigned>(requests.size())), made));
      requests.back().priority = priority;
      heard.push_back(std::make_shared<Heard>());
      if (heard.size() == 1) {
        heard[0]->cancel_at = 3 + static_cast<std::int64_t>(round % 10);
        heard[0]->at_token = [&] { runs.set_value(); };
      }
      submit(*engine_, requests.back(), heard.back());
    };
    ask(20, 60, Priority::High);
    ask(280, 3, Priority::Low);
    runs.get_future().wait();
    ask(200, 3, Priority::High);  // takes the memory of the one below
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(fmt::format("round {}, answer {}", round, i));
      heard[i]->wait();
      expect_same(*heard[i], computed(requests[i]));
      preemptions += heard[i]->summary.preemptions;
    }
  }
  EXPECT_GT(preemptions, 0);
  expect_pool_whole(*engine_);
}

TEST_P(KnownFaultsOfEither, AHundredConversationsOnEightSlotsLoseNoBlock) {
  EngineOptions options = options_of(8, 100);
  options.limits.max_running = 8;
  start(options);
  std::vector<std::shared_ptr<Heard>> heard;
  for (unsigned i = 0; i < 100; ++i) {
    heard.push_back(std::make_shared<Heard>());
    submit(*engine_, greedy(random_tokens(5 + i % 80, i), 1 + i % 3), heard.back());
  }
  for (const auto& one : heard) one->wait();
  expect_pool_whole(*engine_);
}

TEST_P(KnownFaultsOfEither, HoweverAnAnswerEndsItsBlocksComeBack) {
  class Breaks : public AnswerGuide {
   public:
    std::span<const std::uint64_t> allowed() override {
      if (++asked_ == 3) throw std::runtime_error("broken");
      return {};
    }
    void push(std::int32_t) override {}
    std::unique_ptr<AnswerGuide> fork() const override { return std::make_unique<Breaks>(*this); }

   private:
    int asked_ = 0;
  };
  EngineOptions options = options_of(3, 320);
  options.limits.prefill_tokens = 16;
  start(options);
  hear(*engine_, greedy(random_tokens(200, 0), 1));
  come_back();
  std::mt19937 luck(1);
  store_->fails = [&](const char* what) { return std::string_view(what) == "read" && luck() % 2 == 0; };
  std::map<AnswerOutcome, int> outcomes;
  std::vector<std::shared_ptr<Heard>> heard;
  std::vector<RequestId> ids;
  for (unsigned i = 0; i < 40; ++i) {
    AnswerRequest wanted = greedy(random_tokens(i % 2 == 0 ? 200 : 30, i % 7), 1 + i % 20);
    if (i % 5 == 1) wanted.guide = std::make_shared<Breaks>();
    if (i % 5 == 2) wanted.time_limit = std::chrono::microseconds(i * i * 40);
    if (i % 4 == 3) wanted.priority = Priority::High;
    heard.push_back(std::make_shared<Heard>());
    ids.push_back(submit(*engine_, wanted, heard.back()));
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 100));
    if (i % 5 == 3) engine_->cancel(ids[i / 2]);
    if (i % 5 == 4) engine_->cancel(ids[i]);
  }
  for (const auto& one : heard) {
    one->wait();
    ++outcomes[one->summary.outcome];
  }
  EXPECT_GT(outcomes[AnswerOutcome::Failed], 0);
  EXPECT_GT(outcomes[AnswerOutcome::Cancelled], 0);
  EXPECT_GT(outcomes[AnswerOutcome::Length], 0);
  expect_pool_whole(*engine_);
}

TEST_P(KnownFaultsOfEither, ASequenceThatJoinsARunningOneStartsFromNothing) {
  start(options_of(4, 256));
  const AnswerRequest first = greedy(random_tokens(30, 1), 40), second = greedy(random_tokens(9, 2), 10);
  const auto running = std::make_shared<Heard>(), joins = std::make_shared<Heard>();
  std::promise<void> runs;
  running->cancel_at = 5;
  running->at_token = [&] { runs.set_value(); };
  submit(*engine_, first, running);
  runs.get_future().wait();
  submit(*engine_, second, joins);
  running->wait();
  joins->wait();
  expect_same(*running, computed(first));
  expect_same(*joins, computed(second));
}

TEST_F(KnownFaults, FourAnswersAtOnceTakeTheStepsOfOne) {
  Engine engine(model(), room_for(model(), 8, 256));
  std::vector<std::shared_ptr<Heard>> heard;
  std::promise<void> all_are_there;
  for (unsigned i = 0; i < 4; ++i) {
    heard.push_back(std::make_shared<Heard>());
    heard.back()->cancel_at = i == 0 ? 1 : 0;
    heard.back()->at_token = [&] { all_are_there.get_future().wait(); };
    submit(engine, greedy(random_tokens(20, i), 60), heard.back());
  }
  all_are_there.set_value();
  for (const auto& one : heard) one->wait();
  EXPECT_LT(engine.statistics().schedule.steps, 2 * 60) << "one after another they take 240";
}

TEST_P(KnownFaultsOfEither, WhatTheCacheSaysItHoldsIsWhatThePoolHasGiven) {
  start(options_of(40, 1200));
  Tokens history = random_tokens(50, 1);
  for (unsigned turn = 0; turn < 20; ++turn) {
    history = joined(joined(history, hear(*engine_, greedy(history, 3))->ids), random_tokens(20 + turn, turn));
    expect_all_back(*engine_);
    flush(*engine_, [](const std::string&) { return false; });
    flush(*engine_, [](const std::string&) { return false; });  // heard after the first one's statistics
    const EngineStatistics now = engine_->statistics();
    const std::int64_t given = now.schedule.blocks_total - now.pool.nothing;
    // A boundary inside a page has a copy of that page, which may have begun a block.
    const std::int64_t kinds = GetParam().with_mtp ? 2 : 1;
    EXPECT_GE(given, now.cache.blocks) << turn;
    EXPECT_LE(given, now.cache.blocks + kinds * now.cache.boundaries) << turn;
  }
}

/// In memory up to one position, in the tier up to a later one, and reads that fail: every counter only grows, and they add up.
TEST_F(KnownFaults, ATokenIsFoundOrComputedAndNeverBoth) {
  class Watch : public StepListener {
   public:
    void step(const EngineStatistics& now) override {
      const auto list = [](const EngineStatistics& s) {
        return std::vector<std::int64_t>{s.schedule.admissions,
                                         s.schedule.computed_tokens,
                                         s.schedule.recomputed_tokens,
                                         s.schedule.finished,
                                         s.schedule.resumed_tokens,
                                         s.cache.stored,
                                         s.cache.evicted,
                                         s.cache.hits,
                                         s.cache.misses,
                                         s.tier.written,
                                         s.tier.written_bytes,
                                         s.tier.read,
                                         s.tier.read_bytes,
                                         s.tier.refused,
                                         s.tier.lost};
      };
      const auto values = list(now);
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_GE(values[i], last_.empty() ? 0 : last_[i]) << "counter " << i;
      last_ = values;
    }

   private:
    std::vector<std::int64_t> last_;
  };
  const EngineOptions options = with_tier(room_for(model(), 40, 1024));
  for (const bool fails : {false, true}) {
    const Tokens prompt = random_tokens(700, fails ? 1 : 2);
    hear(*std::make_unique<Engine>(model(), options), greedy(prompt, 1));
    Engine engine(model(), options, std::make_shared<Watch>());
    std::int64_t prompts = 0, cached = 0, made = 0;
    const auto ask = [&](const Tokens& tokens) {
      const auto heard = hear(engine, greedy(tokens, 2));
      prompts += heard->summary.prompt_tokens;
      cached += heard->summary.cached_tokens;
      made += heard->summary.made_tokens - 1;
      EXPECT_GE(heard->summary.lost_tokens, 0);
      return heard->summary.cached_tokens;
    };
    EXPECT_EQ(ask(first_of(prompt, 300)), 0);
    store_->fails = [fails](const char* what) { return fails && std::string_view(what) == "read"; };
    EXPECT_EQ(ask(joined(prompt, random_tokens(20, 2))), fails ? 0 : 699);
    ask(joined(prompt, random_tokens(20, 3)));
    const EngineStatistics now = engine.statistics();
    EXPECT_EQ(now.schedule.resumed_tokens, cached);
    EXPECT_EQ(now.schedule.computed_tokens, prompts - cached + made);
    EXPECT_EQ(now.cache.hits + now.cache.misses, now.schedule.admissions);
    EXPECT_EQ(now.cache.hits, fails ? 1 : 2);
    store_->fails = [](const char*) { return false; };
  }
}

/// The store is told to make ready what will be read, not what is in memory.
TEST_F(KnownFaults, WhatIsInMemoryIsNotFetchedFromTheTier) {
  const EngineOptions options = with_tier(room_for(model(), 6, 2048));
  const Tokens prompt = random_tokens(1100, 1);
  auto engine = std::make_unique<Engine>(model(), options);
  for (int i = 0; i < 3; ++i) hear(*engine, greedy(prompt, 1));
  engine.reset();
  EXPECT_EQ(store_->num_expected(), 0);
  engine = std::make_unique<Engine>(model(), options);
  for (int i = 0; i < 3; ++i) hear(*engine, greedy(prompt, 1));
  EXPECT_EQ(engine->statistics().tier.read, 1);
  engine.reset();
  EXPECT_LE(store_->num_expected(), 2);
}

}  // namespace
}  // namespace calandra
