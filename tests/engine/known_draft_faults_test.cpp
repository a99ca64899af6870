// Faults that speculative decoding is known for, one test each: rejected drafts that leave a trace, tokens after the end, masks and penalties
// of another position, a draft layer that a hit starves. An answer with drafts is compared with the same one without.

#include "engine/speculation_harness.h"
#include "support/wide_slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace calandra {
namespace {

using testing::ElementsAre;

const char* const kProse =
    "It was a truth universally acknowledged, that a single man in possession of a good fortune must be in want of a wife. However little "
    "known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in the minds of "
    "the surrounding families, that he is considered as the rightful property of some one or other of their daughters. ";

class KnownDraftFaults : public SpeculationTest {
 protected:
  static Model& served() { return drafting_model(); }
  static AnswerRequest asked(Tokens prompt, std::int64_t made = 24) { return greedy(std::move(prompt), made); }
  /// Text of the kind that the bundled model knows, of so many tokens.
  static Tokens prose(std::int64_t count, std::int64_t from = 0) {
    std::string text;
    Tokens tokens;
    while (std::ssize(tokens) < from + count) tokens = served().tokenizer().encode(text += kProse);
    return {tokens.begin() + from, tokens.begin() + from + count};
  }
  static std::vector<AnswerRequest> some(std::size_t count, std::int64_t made = 24) {
    std::vector<AnswerRequest> all;
    for (unsigned i = 0; i < count; ++i) {
      all.push_back(i % 2 == 0 ? asked(random_tokens(3 + 17 * i % 150, i), made) : asked(prose(20 + i, 3 * i), made));
      all.back().options.sampling.temperature = i % 3 == 0 ? 0.9 : 0.0;
      all.back().options.sampling.seed = i;
    }
    return all;
  }
  static std::vector<Answered> plain(const std::vector<AnswerRequest>& requests) {
    Engine engine(served(), options_with(served(), 0));
    return answers(engine, requests);
  }
  static void expect_all_same(const std::vector<Answered>& actual, const std::vector<Answered>& expected,
                              const std::string& what = "answer") {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) expect_same(actual[i], expected[i], fmt::format("{} {}", what, i));
  }
  static Truth truth_of(const std::vector<AnswerRequest>& requests) { return Truth(requests, plain(requests)); }
  static std::shared_ptr<Drafter> always_right(const Truth& truth) {
    return partly_right(truth, served(), [](const Tokens&) { return kMostDrafts; });
  }
  /// Any tokens.
  static std::shared_ptr<Drafter> at_random(std::uint64_t seed = 0) {
    const auto vocab = static_cast<std::uint64_t>(served().num_samplable());
    return std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
      Tokens drafts(1 + luck(tokens, seed) % static_cast<std::uint64_t>(wanted));
      for (std::size_t i = 0; i < drafts.size(); ++i) drafts[i] = static_cast<std::int32_t>(luck(tokens, seed + 1 + i) % vocab);
      return drafts;
    });
  }

  /// What follows in this text.
  static std::shared_ptr<Drafter> following(const Tokens& known) {
    return std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
      const auto begin = std::min(std::ssize(tokens), std::ssize(known)), end = std::min(begin + wanted, std::ssize(known));
      return Tokens(known.begin() + begin, known.begin() + end);
    });
  }

  /// These tokens as an answer, with drafts of the same.
  struct Scripted {
    AnswerRequest wanted;
    std::shared_ptr<ScriptGuide> guide;
    Answered answered;
    EngineStatistics statistics;
  };
  static Scripted scripted(const Tokens& script, const std::function<void(AnswerRequest&)>& change,
                           std::int64_t drafts = kMostDrafts, Tokens drafted = {}) {
    Scripted run;
    run.wanted = asked(prose(9), std::ssize(script));
    run.guide = std::make_shared<ScriptGuide>(script, served().num_samplable());
    run.wanted.guide = run.guide;
    change(run.wanted);
    const Tokens known = joined(run.wanted.prompt, drafted.empty() ? script : drafted);
    EngineOptions options = options_with(served(), drafts, following(known));
    options.pool_bytes /= 16;  // one answer
    Engine engine(served(), options);
    run.answered = answers(engine, {run.wanted}).front();
    expect_all_back(engine);
    run.statistics = engine.statistics();
    EXPECT_EQ(run.guide->told, run.answered.heard->ids);
    EXPECT_EQ(run.answered.heard->summary.made_tokens, std::ssize(run.answered.heard->ids));
    return run;
  }
};

// ---------------------------------------------------------------- what rejected drafts leave

class KnownDraftFaultsOfModels : public KnownDraftFaults, public testing::WithParamInterface<std::string> {
 protected:
  static Model& model() {
    if (GetParam() != "wide_slice") return drafting_model(GetParam());
    return drafting_model(wide_slice_folder().string());
  }
};
INSTANTIATE_TEST_SUITE_P(Of, KnownDraftFaultsOfModels,
                         testing::Values("models/austen-5m", "tests/data/golden/b_flash_bf16", "tests/data/golden/c_flash31_fp8",
                                         "tests/data/golden/d_mix_fp4", "wide_slice"),
                         name_of_model);

/// Three drafts of which 0 to 3 are right, at several lengths of the text, some inside the reach of the convolutions; then as many again.
TEST_P(KnownDraftFaultsOfModels, AfterSomeOfThreeDraftsAllStateArraysAreThoseOfPlainDecoding) {
  const auto vocab = static_cast<std::int32_t>(model().num_samplable());
  for (const std::size_t length : {1u, 2u, 63u}) {
    if (GetParam() == "wide_slice" && length != 2) continue;
    Tokens text = random_tokens(length + 12, static_cast<unsigned>(length));
    for (std::int32_t& token : text) token %= vocab;
    for (std::int64_t accepted = 0; accepted <= 3; ++accepted) {
      SCOPED_TRACE(fmt::format("{} tokens, {} of 3", length, accepted));
      Session plain(model(), 128, FreedMemory::Poisoned), drafted(model(), 128, FreedMemory::Poisoned);
      plain.logits(first_of(text, static_cast<std::int64_t>(length)));
      drafted.logits(first_of(text, static_cast<std::int64_t>(length)));
      for (int step = 0; step < 2; ++step) {
        const std::int64_t known = drafted.position() + 1;
        Tokens drafts(text.begin() + known, text.begin() + known + 3);
        for (auto i = static_cast<std::size_t>(accepted); i < 3; ++i) drafts[i] = (drafts[i] + 1) % vocab;
        drafted.verify(first_of(text, known), drafts);
        const Commit commit{&drafted.memory(), 1 + accepted, std::nullopt};
        model().forward().commit(std::span(&commit, 1));
        drafted.follow(text);
        for (std::int64_t i = 0; i <= accepted; ++i) plain.logits(first_of(text, known + i));
        ASSERT_EQ(drafted.position(), plain.position());
        for (Session* session : {&drafted, &plain}) model().forward().settle(session->memory());
        const MemoryContents actual(drafted.memory()), expected(plain.memory());
        EXPECT_TRUE(actual.states == expected.states);
        EXPECT_TRUE(actual.tails == expected.tails);
        EXPECT_TRUE(actual.latents == expected.latents);
        EXPECT_TRUE(actual.mtp_latents == expected.mtp_latents);
        EXPECT_TRUE(actual.hidden == expected.hidden);
        EXPECT_GT(expected.mtp_latents.size() + expected.latents.size(), 0u);
      }
    }
  }
}

TEST_F(KnownDraftFaults, DraftsThatAreAllWrongLeaveTheAnswerOfPlainDecoding) {
  const std::vector<AnswerRequest> requests = some(4);
  const std::vector<Answered> expected = plain(requests);
  const Truth truth(requests, expected);
  for (const std::int64_t drafts : {1, 3, 8}) {
    Engine engine(served(), options_with(served(), drafts, partly_right(truth, served(), [](const Tokens&) { return 0; })));
    expect_all_same(answers(engine, requests), expected);
    EXPECT_EQ(engine.statistics().drafters[0].num_accepted(), 0);
    EXPECT_GT(num_drafted(engine.statistics()), 0);
  }
}

TEST_F(KnownDraftFaults, SixteenAtOnceWithRandomDraftsAreAnsweredAsWithout) {
  const std::vector<AnswerRequest> requests = some(16);
  const std::vector<Answered> expected = plain(requests);
  Engine engine(served(), options_with(served(), 3, at_random()));
  expect_all_same(answers(engine, requests), expected);
  EXPECT_GT(num_drafted(engine.statistics()), 16 * 20);
  expect_all_back(engine);
}

TEST_F(KnownDraftFaults, ATurnAfterDraftsGoesOnFromAnyCutOfTheAnswer) {
  const AnswerRequest first = asked(random_tokens(61, 1), 14);  // its end and the answer lie on both sides of a page's border
  const Truth truth = truth_of({first});
  for (const bool cached : {true, false}) {
    EngineOptions options =
        options_with(served(), 3, partly_right(truth, served(), [](const Tokens& tokens) { return luck(tokens) % 4; }));
    options.prefixes.keeps = cached;
    Engine engine(served(), options);
    const Tokens history = joined(first.prompt, answers(engine, {first}).front().heard->ids);
    EXPECT_GT(engine.statistics().drafters[0].num_accepted(), 0);
    std::vector<AnswerRequest> turns;
    for (std::int64_t cut = 0; cut <= 14; ++cut)
      turns.push_back(asked(joined(first_of(history, 61 + cut), random_tokens(3, static_cast<unsigned>(cut))), 3));
    const std::vector<Answered> actual = answers(engine, turns);
    EXPECT_EQ(actual[14].heard->summary.cached_tokens, cached ? 61 + 13 : 0) << "the end of the answer before";
    expect_all_back(engine);
    Engine without(served(), options_with(served(), 0));
    const std::vector<Answered> expected = answers(without, turns);
    expect_all_same(actual, expected, cached ? "from the cache" : "computed");
  }
}

// ---------------------------------------------------------------- rows of others

/// Streams with drafts, streams without, and prompts that come in pieces of odd lengths between them.
TEST_F(KnownDraftFaults, RowsWithDraftsWithoutThemAndOfPromptsShareAStep) {
  std::vector<AnswerRequest> requests = some(6, 40);
  for (unsigned i = 0; i < 4; ++i) {
    requests.push_back(asked(random_tokens(120 + i, 50 + i), 5));
    requests.back().options.prompt_logprobs = 1;
  }
  const std::vector<Answered> expected = plain(requests);
  const Truth truth(requests, expected);
  const auto drafter =
      std::make_shared<DrafterAtTimes>(partly_right(truth, served(), [](const Tokens& tokens) { return luck(tokens) % 5; }),
                                       [](const Tokens& tokens) { return tokens.front() % 2 == 0; });
  std::int64_t with = 0;
  for (const AnswerRequest& wanted : requests) with += wanted.prompt.front() % 2 == 0 ? 1 : 0;
  ASSERT_GT(with, 1);
  ASSERT_LT(with, std::ssize(requests) - 1);
  EngineOptions options = options_with(served(), 4, drafter);
  options.limits.prefill_tokens = 23;
  options.limits.prefill_tokens_beside_decodes = 7;
  options.prefixes.keeps = false;
  Engine engine(served(), options);
  expect_all_same(answers(engine, requests), expected);
  EXPECT_GT(engine.statistics().drafters[0].num_accepted(), 0);
}

TEST_F(KnownDraftFaults, FourDrawnSequencesKeepTheirOwnDrafts) {
  std::vector<AnswerRequest> requests;
  for (unsigned i = 0; i < 4; ++i) {
    requests.push_back(asked(prose(30 + i, 11 * i), 30));
    requests.back().options.sampling.temperature = 0.3;
    requests.back().options.sampling.seed = i;
  }
  const std::vector<Answered> expected = plain(requests);
  const Truth truth(requests, expected);
  // The drafts of the neighbour, which are right for it, and its own.
  for (const bool swaps : {false, true}) {
    const auto drafter = std::make_shared<ScriptedDrafter>([&, swaps](const Tokens& tokens, std::int64_t wanted) {
      if (!swaps) return truth.after(tokens, wanted);
      const std::size_t at = tokens.size() % 4;
      return first_of(expected[at].heard->ids, std::min(wanted, std::ssize(expected[at].heard->ids)));
    });
    Engine engine(served(), options_with(served(), 3, drafter));
    expect_all_same(answers(engine, requests), expected);
  }
  Engine own(served(), options_with(served(), 3));
  expect_all_same(answers(own, requests), expected);
  EXPECT_GT(num_drafted(own.statistics()), 0);
}

TEST_F(KnownDraftFaults, SamplesOfOnePromptDraftEachForItself) {
  std::vector<AnswerRequest> requests;
  for (std::uint32_t sample = 0; sample < 4; ++sample) {
    requests.push_back(asked(prose(40), 20));
    requests.back().sample = sample;
    requests.back().options.sampling.temperature = 1;
  }
  const std::vector<Answered> expected = plain(requests);
  std::set<Tokens> different;
  for (const Answered& one : expected) different.insert(one.heard->ids);
  EXPECT_GT(different.size(), 1u);
  const Truth truth(requests, expected);
  for (const auto& drafter : {always_right(truth), std::shared_ptr<Drafter>()}) {
    Engine engine(served(), options_with(served(), 4, drafter));
    expect_all_same(answers(engine, requests), expected);
    EXPECT_GT(num_drafted(engine.statistics()), 0);
  }
}

// ---------------------------------------------------------------- the draft layer behind a prefix that was found

/// Where what is found ends at every place of a page, the draft layer goes on from rows that were not computed here: it has to say what it says
/// where all was computed, token by token.
TEST_F(KnownDraftFaults, WhatIsDraftedBehindAPrefixThatWasFoundIsWhatIsDraftedWithout) {
  for (const bool has_tier : {false, true}) {
    for (const std::int64_t shared : {127, 128, 129, 300}) {
      SCOPED_TRACE(fmt::format("{} tokens{}", shared, has_tier ? ", from the tier" : ""));
      AnswerRequest wanted = asked(joined(prose(shared), prose(7, 90)), 40);
      wanted.cache_space = fmt::format("{}", shared);
      const auto drafts_of = [&](bool warm) {
        const auto recorded = std::make_shared<RecordedDrafter>(mtp_drafter(served()));
        EngineOptions options = options_with(served(), 4, recorded);
        if (has_tier && warm) options = with_tier(options);
        auto engine = std::make_unique<Engine>(served(), options);
        if (warm) {
          AnswerRequest before = asked(prose(shared), 1);
          before.cache_space = wanted.cache_space;
          hear(*engine, before);
        }
        if (has_tier && warm) {  // what is in memory goes, what is in the store stays
          engine.reset();
          engine = std::make_unique<Engine>(served(), options);
        }
        recorded->drafted.clear();
        const auto heard = hear(*engine, wanted);
        // The tier leaves out what hardly spares anything.
        EXPECT_LE(heard->summary.cached_tokens, warm ? shared : 0);
        EXPECT_GE(heard->summary.cached_tokens, warm ? shared - (has_tier ? 64 : 0) : 0);
        EXPECT_GT(recorded->drafted.size(), 5u);
        return std::tuple(recorded->drafted, heard->ids, heard->summary.accepted_drafts, heard->summary.rejected_drafts);
      };
      const auto cold = drafts_of(false), warm = drafts_of(true);
      EXPECT_EQ(warm, cold);
      EXPECT_GT(std::get<2>(cold), 0) << "a model that never drafts right shows little";
    }
  }
}

TEST_F(KnownDraftFaults, TheSecondTurnDraftsTheSameWithTheCacheAndWithout) {
  const AnswerRequest first = asked(prose(70), 30);
  std::vector<std::tuple<std::map<Tokens, Tokens>, Tokens, std::int64_t>> turns;
  for (const bool cached : {true, false}) {
    const auto recorded = std::make_shared<RecordedDrafter>(mtp_drafter(served()));
    EngineOptions options = options_with(served(), 2, recorded);
    options.prefixes.keeps = cached;
    Engine engine(served(), options);
    const Tokens history = joined(joined(first.prompt, hear(engine, first)->ids), prose(9, 30));
    recorded->drafted.clear();
    const auto heard = hear(engine, asked(history, 30));
    EXPECT_EQ(heard->summary.cached_tokens, cached ? 99 : 0);
    turns.emplace_back(recorded->drafted, heard->ids, heard->summary.accepted_drafts);
  }
  EXPECT_EQ(turns[0], turns[1]);
  EXPECT_GT(std::get<2>(turns[0]), 0);
}

// ---------------------------------------------------------------- ends inside a step

TEST_F(KnownDraftFaults, AStopTokenInsideAStepEndsTheAnswerBeforeItsLength) {
  const Tokens script = {5, 10, 11, 7, 20, 21, 22};
  const Scripted run = scripted(script, [](AnswerRequest& wanted) {
    wanted.options.max_tokens = 6;
    wanted.options.stop_ids = {7};
  });
  EXPECT_THAT(run.answered.heard->ids, ElementsAre(5, 10, 11, 7));
  EXPECT_EQ(run.answered.heard->summary.outcome, AnswerOutcome::Stop);
  EXPECT_EQ(run.statistics.drafters[0].steps, 1) << "all in one step";
  EXPECT_EQ(run.answered.heard->summary.accepted_drafts, 2);
  EXPECT_EQ(run.answered.heard->text, detokenize(served().tokenizer(), Tokens{5, 10, 11}));
  // The last token that may be made is the one that stops.
  const Scripted last = scripted(script, [](AnswerRequest& wanted) {
    wanted.options.max_tokens = 4;
    wanted.options.stop_ids = {7};
  });
  EXPECT_THAT(last.answered.heard->ids, ElementsAre(5, 10, 11, 7));
  EXPECT_EQ(last.answered.heard->summary.outcome, AnswerOutcome::Stop);
}

TEST_F(KnownDraftFaults, AStopStringThatEndsAtAnyPlaceOfAStepIsFound) {
  const Tokens script = served().tokenizer().encode(" Elizabeth was surprised and delighted by the ball");
  ASSERT_GE(script.size(), 6u);
  for (std::int64_t place = 1; place <= 4; ++place) {
    SCOPED_TRACE(place);
    const std::string before = detokenize(served().tokenizer(), first_of(script, place));
    const std::string with = detokenize(served().tokenizer(), first_of(script, place + 1));
    ASSERT_GT(with.size(), before.size());
    // From the token before into this one: it is complete with a draft.
    const std::string stop = with.substr(before.size() - 2);
    const Scripted run = scripted(
        first_of(script, 6), [&](AnswerRequest& wanted) { wanted.options.stop = {stop}; }, 4);
    EXPECT_EQ(run.answered.heard->ids, first_of(script, place + 1));
    EXPECT_EQ(run.answered.heard->text, before.substr(0, before.size() - 2));
    EXPECT_EQ(run.answered.heard->summary.outcome, AnswerOutcome::Stop);
    EXPECT_EQ(run.answered.heard->summary.accepted_drafts, place - 1);
  }
}

TEST_F(KnownDraftFaults, AnAnswerHasAsManyTokensAsItMayHaveHoweverManyAreDrafted) {
  for (const std::int64_t drafts : {1, 2, 3, 4, 8}) {
    for (const std::int64_t most : {1, 2, 3, 8, 9}) {
      SCOPED_TRACE(fmt::format("{} tokens, {} drafts", most, drafts));
      Tokens script(12);
      std::iota(script.begin(), script.end(), 30);
      const Scripted run = scripted(
          script, [&](AnswerRequest& wanted) { wanted.options.max_tokens = most; }, drafts);
      EXPECT_EQ(run.answered.heard->ids, first_of(script, most));
      EXPECT_EQ(run.answered.heard->logprobs.size(), static_cast<std::size_t>(most));
      EXPECT_EQ(run.answered.heard->summary.outcome, AnswerOutcome::Length);
      EXPECT_EQ(run.answered.heard->summary.rejected_drafts, 0) << "no draft lies behind the end";
    }
  }
}

TEST_F(KnownDraftFaults, AnAnswerThatFillsTheContextHasNoDraftBehindItsEnd) {
  EngineOptions options = options_with(served(), 0);
  options.context = 70;
  AnswerRequest wanted = asked(random_tokens(58, 3), 0);
  Engine without(served(), options);
  const std::vector<Answered> expected = answers(without, {wanted});
  ASSERT_EQ(expected[0].heard->ids.size(), 12u);
  for (const std::int64_t drafts : {1, 4, 8}) {
    options.speculation = options_with(served(), drafts, always_right(Truth({wanted}, expected))).speculation;
    Engine engine(served(), options);
    expect_all_same(answers(engine, {wanted}), expected);
    EXPECT_EQ(engine.statistics().drafters[0].num_accepted(), engine.statistics().drafters[0].num_drafted());
  }
}

/// Whoever counts what was made, for example of a reasoning, counts what gained() tells: nothing more may be in the sum.
TEST_F(KnownDraftFaults, WhatIsToldAndWhatIsCountedIsTheSameWhereverAnAnswerEnds) {
  Tokens script(20);
  std::iota(script.begin(), script.end(), 30);
  for (std::int64_t end = 0; end < 9; ++end) {
    SCOPED_TRACE(end);
    Tokens ends = script;
    ends[static_cast<std::size_t>(end)] = 7;
    const Scripted run = scripted(
        ends, [](AnswerRequest& wanted) { wanted.options.stop_ids = {7}; }, 3);
    const AnswerSummary& summary = run.answered.heard->summary;
    EXPECT_EQ(run.answered.heard->ids, first_of(ends, end + 1));
    EXPECT_EQ(summary.made_tokens, end + 1);
    EXPECT_EQ(run.answered.heard->logprobs.size(), static_cast<std::size_t>(end + 1));
    EXPECT_LT(summary.accepted_drafts, summary.made_tokens);
    // A step makes one token that is no draft.
    EXPECT_EQ(summary.made_tokens - summary.accepted_drafts, 1 + (end + 3) / 4);
    EXPECT_EQ(run.statistics.schedule.accepted_drafts, summary.accepted_drafts);
    EXPECT_EQ(summary.accepted_drafts + summary.rejected_drafts, run.statistics.drafters[0].num_drafted());
  }
}

// ---------------------------------------------------------------- what a token is drawn with

TEST_F(KnownDraftFaults, GreedyIsTheSameWithOneTwoThreeOrFourDrafts) {
  std::vector<AnswerRequest> requests = some(3, 40);
  for (AnswerRequest& wanted : requests) wanted.options.sampling.temperature = 0;
  const std::vector<Answered> expected = plain(requests);
  const Truth truth(requests, expected);
  for (const std::int64_t drafts : {1, 2, 3, 4}) {
    Engine right(served(), options_with(served(), drafts, always_right(truth)));
    expect_all_same(answers(right, requests), expected, fmt::format("{} right drafts, answer", drafts));
  }
  for (const std::int64_t drafts : {1, 2, 3, 4}) {
    Engine own(served(), options_with(served(), drafts));
    expect_all_same(answers(own, requests), expected, fmt::format("{} own drafts, answer", drafts));
  }
}

/// Drafts that are refused and come later: were they counted, they would not come.
TEST_F(KnownDraftFaults, PenaltiesCountWhatWasMadeAndNoDraft) {
  std::vector<AnswerRequest> requests = some(4, 40);
  for (AnswerRequest& wanted : requests) {
    wanted.options.sampling.temperature = 0;
    wanted.options.sampling.presence_penalty = 2.0;
  }
  requests[2].options.sampling.frequency_penalty = 1.0;
  requests[3].options.sampling.repetition_penalty = 1.5;
  const std::vector<Answered> expected = plain(requests);
  std::vector<AnswerRequest> without = requests;
  for (AnswerRequest& wanted : without) wanted.options.sampling.presence_penalty = 0;
  EXPECT_NE(plain(without)[1].heard->ids, expected[1].heard->ids) << "the penalty has an effect";
  const Truth truth(requests, expected);
  const auto too_early = std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
    Tokens next = truth.after(tokens, wanted + 3);
    next.erase(next.begin(), next.begin() + std::min<std::ptrdiff_t>(3, std::ssize(next)));
    return next;
  });
  for (const auto& drafter : {std::shared_ptr<Drafter>(too_early), always_right(truth), std::shared_ptr<Drafter>()}) {
    Engine engine(served(), options_with(served(), 4, drafter));
    expect_all_same(answers(engine, requests), expected);
    EXPECT_GT(num_drafted(engine.statistics()), 0);
  }
}

TEST_F(KnownDraftFaults, ASeedGivesTheSameAnswerTwiceWithDraftsAndWithout) {
  AnswerRequest wanted = asked(prose(25), 40);
  wanted.options.sampling.temperature = 1.0;
  wanted.options.sampling.seed = 7;
  const std::vector<Answered> expected = plain({wanted});
  AnswerRequest other = wanted;
  other.options.sampling.seed = 8;
  EXPECT_NE(plain({other})[0].heard->ids, expected[0].heard->ids);
  Engine engine(served(), options_with(served(), 3));
  for (int time = 0; time < 2; ++time) expect_all_same(answers(engine, {wanted}), expected);
  EXPECT_GT(num_drafted(engine.statistics()), 0);
}

TEST_F(KnownDraftFaults, AMaskIsThatOfItsOwnPlaceInAStepAndHearsNoDraft) {
  const std::vector<AnswerRequest> free = some(8);
  const auto ask = [&](Engine& engine) {
    std::vector<AnswerRequest> guided = free;
    std::vector<std::shared_ptr<HistoryGuide>> guides;
    for (AnswerRequest& wanted : guided) {
      guides.push_back(std::make_shared<HistoryGuide>(served().num_samplable()));
      wanted.guide = guides.back();
    }
    const std::vector<Answered> all = answers(engine, guided);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(guides[i]->told, all[i].heard->ids) << i;
      EXPECT_EQ(guides[i]->broken, 0) << i;
    }
    return all;
  };
  Engine without(served(), options_with(served(), 0));
  const std::vector<Answered> expected = ask(without);
  const Truth guided(free, expected), unguided = truth_of(free);
  const auto what_it_would_say = std::make_shared<ScriptedDrafter>(
      [=](const Tokens& tokens, std::int64_t wanted) { return joined(guided.after(tokens, 1), unguided.after(tokens, wanted)); });
  for (const auto& drafter : {at_random(), partly_right(guided, served(), [](const Tokens& tokens) { return luck(tokens) % 4; }),
                              std::shared_ptr<Drafter>(what_it_would_say), std::shared_ptr<Drafter>()}) {
    Engine engine(served(), options_with(served(), 3, drafter));
    expect_all_same(ask(engine), expected);
    EXPECT_GT(num_drafted(engine.statistics()), 0);
  }
}

TEST_F(KnownDraftFaults, ADraftThatTheMaskForbidsInsideAStepIsNotTaken) {
  const Tokens script = {5, 10, 11, 12, 13}, drafted = {5, 10, 11, 99, 13};
  const Scripted run = scripted(
      script, [](AnswerRequest&) {}, 3, drafted);
  EXPECT_EQ(run.answered.heard->ids, script);
  EXPECT_EQ(run.answered.heard->summary.accepted_drafts, 2);
  EXPECT_EQ(run.answered.heard->summary.rejected_drafts, 1);
}

TEST_F(KnownDraftFaults, EveryOptionOfAnAnswerHasTheSameEffectWithDrafts) {
  using Options = GenerationOptions;
  const std::vector<std::int32_t> often = plain({asked(prose(30), 30)})[0].heard->ids;
  const std::vector<std::pair<const char*, std::function<void(Options&)>>> changes = {
      {"none", [](Options&) {}},
      {"logit_bias",
       [&](Options& o) {
         o.sampling.logit_bias = {{often[3], -100.0F}};
       }},
      {"repetition_penalty", [](Options& o) { o.sampling.repetition_penalty = 1.4; }},
      {"frequency_penalty", [](Options& o) { o.sampling.frequency_penalty = 1.5; }},
      {"presence_penalty", [](Options& o) { o.sampling.presence_penalty = -1; }},
      {"temperature", [](Options& o) { o.sampling.temperature = 1.3; }},
      {"top_k",
       [](Options& o) {
         o.sampling.temperature = 2;
         o.sampling.top_k = 3;
       }},
      {"top_p",
       [](Options& o) {
         o.sampling.temperature = 1.5;
         o.sampling.top_p = 0.6;
       }},
      {"min_p",
       [](Options& o) {
         o.sampling.temperature = 1.5;
         o.sampling.min_p = 0.2;
       }},
      {"seed",
       [](Options& o) {
         o.sampling.temperature = 1;
         o.sampling.seed = 99;
       }},
      {"max_tokens", [](Options& o) { o.max_tokens = 11; }},
      {"stop_ids", [&](Options& o) { o.stop_ids = {often[8]}; }},
      {"min_tokens",
       [&](Options& o) {
         o.stop_ids = {often[8]};
         o.min_tokens = 17;
       }},
      {"stop",
       [](Options& o) {
         o.stop = {"e ", "the", ","};
       }},
      {"stop behind min_tokens",
       [](Options& o) {
         o.stop = {"e ", "the", ","};
         o.min_tokens = 15;
       }},
      {"logprobs", [](Options& o) { o.logprobs = 5; }},
      {"no logprobs", [](Options& o) { o.logprobs.reset(); }},
      {"prompt_logprobs", [](Options& o) { o.prompt_logprobs = 2; }},
  };
  std::vector<AnswerRequest> requests;
  for (const auto& [name, change] : changes) {
    requests.push_back(asked(prose(30), 30));
    change(requests.back().options);
  }
  const std::vector<Answered> expected = plain(requests);
  const Truth truth(requests, expected);
  const auto half_right = partly_right(truth, served(), [](const Tokens& tokens) { return luck(tokens) % 5; });
  for (const auto& drafter : {half_right, std::shared_ptr<Drafter>()}) {
    EngineOptions options = options_with(served(), 4, drafter);
    options.limits.prefill_tokens = 19;
    options.limits.prefill_tokens_beside_decodes = 19;
    Engine engine(served(), options);
    const std::vector<Answered> actual = answers(engine, requests);
    for (std::size_t i = 0; i < changes.size(); ++i) expect_same(actual[i], expected[i], changes[i].first);
    EXPECT_GT(num_drafted(engine.statistics()), 100);
  }
}

// ---------------------------------------------------------------- ends from outside, and memory that goes

TEST_F(KnownDraftFaults, AnAnswerThatIsEndedInsideAStepGivesAllBlocksBack) {
  const AnswerRequest wanted = asked(random_tokens(100, 1), 60), other = asked(prose(30), 60);
  const std::vector<Answered> expected = plain({wanted, other});
  const Truth truth({wanted, other}, expected);
  Engine engine(served(),
                options_with(served(), 5, partly_right(truth, served(), [](const Tokens& tokens) { return luck(tokens) % 6; })));
  for (std::int64_t at = 1; at < 24; ++at) {
    SCOPED_TRACE(at);
    const auto heard = std::make_shared<Heard>(), beside = std::make_shared<Heard>();
    std::promise<RequestId> id;
    heard->cancel_at = at;
    heard->at_token = [&] { engine.cancel(id.get_future().get()); };
    submit(engine, other, beside);
    id.set_value(submit(engine, wanted, heard));
    heard->wait();
    beside->wait();
    EXPECT_EQ(beside->ids, expected[1].heard->ids);
    EXPECT_EQ(heard->summary.outcome, AnswerOutcome::Cancelled);
    EXPECT_GE(std::ssize(heard->ids), at);
    EXPECT_LE(std::ssize(heard->ids), at + 5) << "the step that was cancelled in";
    EXPECT_EQ(heard->ids, first_of(expected[0].heard->ids, std::ssize(heard->ids)));
    EXPECT_EQ(heard->summary.made_tokens, std::ssize(heard->ids));
    expect_all_back(engine);
  }
  AnswerRequest timed = wanted;
  for (const int microseconds : {0, 200, 1000, 5000, 20000}) {
    timed.time_limit = std::chrono::microseconds(microseconds);
    const auto heard = hear(engine, timed);
    EXPECT_EQ(heard->ids, first_of(expected[0].heard->ids, std::ssize(heard->ids)));
    expect_all_back(engine);
  }
  expect_all_same(answers(engine, {wanted, other}), expected, "afterwards, answer");
}

TEST_F(KnownDraftFaults, AnAnswerThatBreaksInsideAStepLeavesTheOthersAndThePool) {
  class Breaks : public ScriptGuide {
   public:
    Breaks(const Tokens& script, std::size_t at) : ScriptGuide(script, served().num_samplable()), at_(at) {}
    std::span<const std::uint64_t> allowed() override {
      if (told.size() == at_) throw Error("broken");
      return ScriptGuide::allowed();
    }
    std::unique_ptr<AnswerGuide> fork() const override { return std::make_unique<Breaks>(*this); }

   private:
    std::size_t at_;
  };
  const AnswerRequest other = asked(prose(30), 30);
  const std::vector<Answered> expected = plain({other});
  Tokens script(20);
  std::iota(script.begin(), script.end(), 30);
  for (const std::size_t at : {0u, 1u, 2u, 3u, 4u, 6u}) {
    SCOPED_TRACE(at);
    AnswerRequest breaks = asked(random_tokens(20, 1), 20);
    breaks.guide = std::make_shared<Breaks>(script, at);
    const Tokens known = joined(breaks.prompt, script), known_other = joined(other.prompt, expected[0].heard->ids);
    Engine engine(served(),
                  options_with(served(), 4, std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
                                 const Tokens& text = tokens.front() == known.front() ? known : known_other;
                                 const auto end = std::min(std::ssize(text), std::ssize(tokens) + wanted);
                                 return Tokens(text.begin() + std::ssize(tokens), text.begin() + end);
                               })));
    const std::vector<Answered> all = answers(engine, {breaks, other});
    EXPECT_EQ(all[0].heard->summary.outcome, AnswerOutcome::Failed);
    EXPECT_EQ(all[0].heard->summary.error, "broken");
    EXPECT_EQ(all[0].heard->ids, first_of(script, static_cast<std::int64_t>(at)));
    expect_same(all[1], expected[0], "beside it");
    expect_all_back(engine);
    // What it leaves in the cache is what its tokens make.
    if (at == 0) continue;
    const AnswerRequest next = asked(joined(joined(breaks.prompt, all[0].heard->ids), {1, 2}), 6);
    const std::vector<Answered> again = answers(engine, {next});
    expect_all_back(engine);
    Engine without(served(), options_with(served(), 0));
    expect_same(again[0], answers(without, {next})[0], "the next turn");
  }
}

TEST_F(KnownDraftFaults, AnAnswerThatLosesItsMemoryBetweenDraftsIsAnsweredTheSame) {
  const MemoryLayout layout = served().layout();
  std::int64_t border = 1;  // so many tokens fill the blocks that they begin with
  while (layout.sequence_blocks(border + 1) == layout.sequence_blocks(border)) ++border;
  std::vector<AnswerRequest> requests;
  for (unsigned i = 0; i < 6; ++i) {
    requests.push_back(asked(random_tokens(static_cast<std::size_t>(border) - 20 + 3 * i, i), 60));
    requests.back().options.sampling.temperature = i % 2 == 0 ? 0.0 : 1.0;
  }
  const std::vector<Answered> expected = plain(requests);
  const Truth truth(requests, expected);
  const auto half_right = partly_right(truth, served(), [](const Tokens& tokens) { return luck(tokens) % 5; });
  for (const bool cached : {false, true}) {
    EngineOptions options = options_with(served(), 4, cached ? nullptr : half_right);
    options.pool_bytes = 3 * layout.sequence_blocks(border) * layout.block_bytes;
    options.limits.reserved_new_tokens = 1;
    options.prefixes.keeps = cached;
    Engine engine(served(), options);
    expect_all_same(answers(engine, requests), expected);
    EXPECT_GT(engine.statistics().schedule.preemptions, 0);
    EXPECT_GT(num_drafted(engine.statistics()), 0);
    expect_all_back(engine);
  }
}

}  // namespace
}  // namespace calandra
