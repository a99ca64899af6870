// What an answer gains by each token, and where it ends.

#include "engine/answer_builder.h"

#include "support/golden.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace calandra {
namespace {

using Ids = std::vector<std::int32_t>;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(source_path("models/austen-5m/tokenizer.json"));
  return loaded;
}

/// One token a byte.
Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char byte : text) ids.push_back(tokenizer().id_of(std::string_view(&byte, 1)).value());
  return ids;
}

struct Whole {
  std::string text;
  std::size_t tokens = 0;  // that were taken
  std::optional<FinishReason> finish;
  friend bool operator==(const Whole&, const Whole&) = default;
};

/// All that an answer of these tokens is, however they go on after its end.
Whole answer_of(const Ids& ids, const GenerationOptions& options, std::int64_t context = 1000) {
  const Ids prompt{1, 2, 3};
  AnswerBuilder answer(tokenizer(), prompt, options, context);
  Whole whole;
  for (const std::int32_t id : ids) whole.text += answer.push(id, {}).text;
  return {whole.text, answer.ids().size(), answer.finish_reason()};
}

Whole stopped(std::string text, std::size_t tokens) { return {std::move(text), tokens, FinishReason::Stop}; }
Whole cut(std::string text, std::size_t tokens) { return {std::move(text), tokens, FinishReason::Length}; }

TEST(AnswerBuilder, AStopWinsOverLengthOnTheSameToken) {
  const Ids ids = bytes_of("abcdef");
  EXPECT_EQ(answer_of(ids, {.max_tokens = 4}), cut("abcd", 4));
  EXPECT_EQ(answer_of(ids, {.max_tokens = 4, .stop_ids = {ids[3]}}), stopped("abc", 4));
  EXPECT_EQ(answer_of(ids, {.max_tokens = 4, .stop = {"cd"}}), stopped("ab", 4));
  EXPECT_EQ(answer_of(ids, {.stop_ids = {ids[3]}}, 7), stopped("abc", 4)) << "the context is full with it";
  EXPECT_EQ(answer_of(ids, {}, 7), cut("abcd", 4));
}

TEST(AnswerBuilder, TokensBehindTheEndAreNoPartOfIt) {
  // A step of six tokens with a stop in the middle, cut at five: three tokens and the stop.
  const Ids ids = bytes_of("abSxyz");
  EXPECT_EQ(answer_of(ids, {.max_tokens = 5, .stop_ids = {ids[2]}}), stopped("ab", 3));
  EXPECT_EQ(answer_of(ids, {.stop = {"S"}}), stopped("ab", 3));
  EXPECT_EQ(answer_of(ids, {.max_tokens = 5, .logprobs = {}, .prompt_logprobs = {}}), cut("abSxy", 5));
  const GenerationOptions options{.stop = {"b"}, .logprobs = 1};
  const std::vector<float> logits(2031);
  AnswerBuilder answer(tokenizer(), {}, options, 100);
  EXPECT_TRUE(answer.push(ids[0], logits).logprobs);
  EXPECT_TRUE(answer.push(ids[1], logits).logprobs);
  const AnswerStep late = answer.push(ids[2], logits);
  EXPECT_FALSE(late.logprobs);
  EXPECT_EQ(late.finish, FinishReason::Stop);
  EXPECT_EQ(answer.ids().size(), 2U);
}

TEST(AnswerBuilder, WhatWaitedComesWithTheEnd) {
  const Ids ids = bytes_of("go STOX");
  EXPECT_EQ(answer_of(ids, {.max_tokens = 6, .stop = {"STOP"}}), cut("go STO", 6));
  EXPECT_EQ(answer_of(ids, {.stop_ids = {ids.back()}, .stop = {"STOP"}}), stopped("go STO", 7));
  const GenerationOptions options{.stop = {"STOP"}};
  AnswerBuilder answer(tokenizer(), {}, options, 100);
  std::string text;
  for (std::size_t i = 0; i < 5; ++i) text += answer.push(ids[i], {}).text;
  EXPECT_EQ(text, "go ");
  EXPECT_EQ(answer.cancel(), "ST");
  EXPECT_EQ(answer.cancel(), "") << "once";
  EXPECT_EQ(answer.finish_reason(), FinishReason::Cancelled);
  EXPECT_EQ(answer.push(ids[5], {}).finish, FinishReason::Cancelled);
}

TEST(AnswerBuilder, ACharacterCutInTheMiddleBecomesAReplacement) {
  const Ids ids = bytes_of("a\xF0\x9F\x90\xA6");  // a bird of four bytes
  EXPECT_EQ(answer_of(ids, {.max_tokens = 3}), cut("a\xEF\xBF\xBD", 3));
  EXPECT_EQ(answer_of(ids, {.max_tokens = 5}), cut("a\xF0\x9F\x90\xA6", 5));
  EXPECT_EQ(answer_of(ids, {.max_tokens = 3, .stop = {"\xEF\xBF\xBD"}}), stopped("a", 3)) << "a stop string like any other";
}

TEST(AnswerBuilder, EverySplitIntoTokensGivesTheSameText) {
  const std::string alphabet[] = {"a",    "b", "the ", "St", "op", "Stop", "\xC3\xA9", "\xE2\x80\x94", "\xF0\x9F\x90\xA6",
                                  "\xFF", " ", "\n"};
  const auto piece =
      rc::gen::map(rc::gen::inRange<std::size_t>(0, std::size(alphabet)), [&](std::size_t i) { return alphabet[i]; });
  EXPECT_TRUE(rc::check("", [&] {
    const auto pieces = *rc::gen::container<std::vector<std::string>>(piece);
    const std::string text = std::accumulate(pieces.begin(), pieces.end(), std::string());
    // The longest tokens that begin at a place are cut off one by one, after a random number of bytes.
    Ids ids;
    for (std::string_view rest = text; !rest.empty();) {
      std::size_t length = std::min<std::size_t>(rest.size(), *rc::gen::inRange<std::size_t>(1, 7));
      while (!tokenizer().id_of(rest.substr(0, length))) --length;
      ids.push_back(*tokenizer().id_of(rest.substr(0, length)));
      rest.remove_prefix(length);
    }
    const GenerationOptions options{.stop_ids = {1999}, .stop = {"Stop", "\xC3\xA9\xC3\xA9"}};
    ids.push_back(1999);
    // By definition: the text of all, up to the first stop string.
    std::string expected = detokenize(tokenizer(), std::span(ids).first(ids.size() - 1));
    expected.resize(std::min({expected.size(), expected.find("Stop"), expected.find("\xC3\xA9\xC3\xA9")}));
    const Whole whole = answer_of(ids, options);
    RC_ASSERT(whole.text == expected);
    RC_ASSERT(whole.finish == FinishReason::Stop);
  }));
}

TEST(AnswerBuilder, NoStopBeforeMinTokens) {
  GenerationOptions options{.min_tokens = 3, .stop_ids = {4, 9}};
  options.sampling.temperature = 0;
  std::vector<float> logits(20);
  logits[4] = 9, logits[9] = 8, logits[6] = 7;
  AnswerBuilder answer(tokenizer(), {}, options, 100);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answer.sample(logits), 6) << i;
    EXPECT_FALSE(answer.push(6, logits).finish);
  }
  EXPECT_EQ(answer.sample(logits), 4);
  EXPECT_EQ(answer.push(4, logits).finish, FinishReason::Stop);
  EXPECT_EQ(answer.ids().size(), 4U);

  // A text of the first three is none that ends it, nor a part of one.
  const Ids ids = bytes_of("xxxxx");
  EXPECT_EQ(answer_of(ids, {.min_tokens = 3, .stop = {"x"}}), stopped("xxx", 4));
  EXPECT_EQ(answer_of(ids, {.min_tokens = 3, .stop = {"xx"}}), stopped("xxx", 5));
}

TEST(AnswerBuilder, DraftsAreSampledAsIfTheyHadBeenPushed) {
  GenerationOptions options{.min_tokens = 6, .stop_ids = {0, 1}};
  options.sampling = {.repetition_penalty = 1.3, .frequency_penalty = 0.5, .presence_penalty = 0.5, .seed = 4};
  const std::vector<float> logits{1.5f, 1.0f, 0.5f, 1.0f, 1.5f, 0.0f};
  const Ids prompt{1, 2};
  for (std::uint32_t sample = 0; sample < 100; ++sample) {
    AnswerBuilder plain(tokenizer(), prompt, options, 100, sample), drafting(tokenizer(), prompt, options, 100, sample);
    Ids drafts;
    for (int i = 0; i < 10; ++i) {
      const std::int32_t id = plain.sample(logits);
      ASSERT_EQ(drafting.sample(logits, drafts), id) << sample << ", draft " << i;
      if (plain.push(id, logits).finish) break;
      drafts.push_back(id);
      if (i % 4 == 3) {  // accepted
        for (const std::int32_t draft : drafts) drafting.push(draft, logits);
        drafts.clear();
      }
    }
  }
}

TEST(AnswerBuilder, AnswersToOnePromptShareNothing) {
  GenerationOptions options;
  options.sampling = {.presence_penalty = 1, .seed = 12};
  std::vector<float> logits(300);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 5);
  const auto alone = [&](std::uint32_t sample) {
    AnswerBuilder answer(tokenizer(), Ids{7}, options, 100, sample);
    for (int i = 0; i < 20; ++i) answer.push(answer.sample(logits), logits);
    return answer.ids();
  };
  std::vector<AnswerBuilder> together;
  for (std::uint32_t sample = 0; sample < 4; ++sample) together.emplace_back(tokenizer(), Ids{7}, options, 100, sample);
  for (int i = 0; i < 20; ++i)
    for (AnswerBuilder& answer : together) answer.push(answer.sample(logits), logits);
  for (std::uint32_t sample = 0; sample < 4; ++sample) {
    EXPECT_EQ(together[sample].ids(), alone(sample));
    for (std::uint32_t other = 0; other < sample; ++other) EXPECT_NE(together[sample].ids(), together[other].ids());
  }
}

TEST(AnswerBuilder, LogprobsAreThoseOfTheModelWhateverTheSamplingDoes) {
  GenerationOptions options{.logprobs = 2};
  options.sampling = {.logit_bias = {{3, -100.0f}}, .temperature = 0.1};
  const std::vector<float> logits{0.0f, 1.0f, 2.0f, 4.0f};
  AnswerBuilder answer(tokenizer(), {}, options, 100);
  const std::int32_t id = answer.sample(logits);
  EXPECT_NE(id, 3);
  const AnswerStep step = answer.push(id, logits);
  const double all = std::log(1 + std::exp(1.0) + std::exp(2.0) + std::exp(4.0));
  ASSERT_TRUE(step.logprobs);
  EXPECT_EQ(step.logprobs->chosen.token, id);
  EXPECT_NEAR(step.logprobs->chosen.logprob, logits[static_cast<std::size_t>(id)] - all, 1e-10);
  ASSERT_EQ(step.logprobs->top.size(), 2U);
  EXPECT_EQ(step.logprobs->top[0].token, 3);
  EXPECT_NEAR(step.logprobs->top[0].logprob, 4 - all, 1e-10);
}

TEST(AnswerBuilder, OptionsOutOfRangeAreRefusedByName) {
  EXPECT_EQ(error_of([] { check(GenerationOptions{.min_tokens = -1}); }), "min tokens -1: expected 0 or more");
  EXPECT_EQ(error_of([] { check(GenerationOptions{.max_tokens = 3, .min_tokens = 4}); }),
            "min tokens 4: expected at most the 3 of max tokens");
  EXPECT_EQ(error_of([] { check(GenerationOptions{.logprobs = 21}); }), "logprobs 21: expected 0 to 20");
  EXPECT_EQ(error_of([] { check(GenerationOptions{.prompt_logprobs = -1}); }), "prompt logprobs -1: expected 0 to 20");
}

}  // namespace
}  // namespace calandra
