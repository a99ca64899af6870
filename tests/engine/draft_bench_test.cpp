// Measuring drafts: what a row counts, and against what. Times themselves are nobody's promise.

#include "engine/draft_bench.h"

#include "engine/generate.h"
#include "engine/session.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DraftSetting fixed(std::int64_t drafts) { return {.automatic = false, .drafts = drafts}; }

/// Little of everything.
DraftBenchOptions small_draft_bench() {
  DraftBenchOptions options;
  options.settings = {fixed(2)};
  options.temperatures = {0};
  options.depths = {20};
  options.batches = {1};
  options.tokens = 24;
  options.least_seconds = 0;
  return options;
}

/// The model without its MTP layer, and with it.
struct Models {
  explicit Models(const std::string& name)
      : plain(source_path(name).string(), {.threads = 1}),
        drafting(source_path(name).string(), {.threads = 1, .with_mtp = true}) {}
  Model plain, drafting;
};

Models& austen() {
  static Models models("models/austen-5m");
  return models;
}

DraftBenchResult bench(Models& models, const DraftBenchOptions& options) {
  return run_draft_bench(models.plain, models.drafting, options);
}

std::int64_t num_drafted(const DraftBenchRow& row) {
  std::int64_t drafted = 0;
  for (const DrafterStatistics& drafter : row.drafters) drafted += drafter.num_drafted();
  return drafted;
}

TEST(DraftBench, EverySettingStandsBesidePlainDecodingWhichIsAlwaysFirst) {
  DraftBenchOptions options = small_draft_bench();
  options.settings = {fixed(3), fixed(0), DraftSetting()};
  options.temperatures = {0, 0.7};
  options.batches = {1, 3};
  options.rounds = 2;
  const DraftBenchResult result = bench(austen(), options);
  EXPECT_TRUE(result.complete);
  ASSERT_EQ(result.rows.size(), 3U * 2 * 2);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const DraftBenchRow& row = result.rows[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(row.setting.drafts, (std::array<std::int64_t, 3>{0, 3, kMostDrafts})[i % 3]);
    EXPECT_EQ(row.temperature, i / 3 % 2 == 0 ? 0 : 0.7);
    EXPECT_EQ(row.batch, i < 6 ? 1 : 3);
    EXPECT_EQ(row.runs, 2);
    EXPECT_EQ(row.rates.size(), 2U);
    EXPECT_GT(row.tokens_per_second().least, 0);
    EXPECT_LE(row.tokens, row.runs * row.batch * options.tokens);
    if (i % 3 == 0) {
      EXPECT_EQ(row.tokens_per_step(), 1);
      EXPECT_EQ(num_drafted(row), 0);
      EXPECT_EQ(row.gain().least, 1);
      EXPECT_EQ(row.gain().most, 1);
      EXPECT_EQ(row.predicted_gain().median, 1);
    } else {
      EXPECT_GT(row.gain().least, 0);
      EXPECT_GT(row.predicted_gain().least, 0);
      EXPECT_NEAR(row.gains[1], row.rates[1] / result.rows[i - i % 3].rates[1], 1e-9);
    }
  }
}

// A run of plain decoding has a step for every token but the first, which comes with the prompt.
TEST(DraftBench, PlainDecodingTakesAStepATokenFromTheSecondOn) {
  const DraftBenchResult result = bench(austen(), small_draft_bench());
  EXPECT_EQ(result.rows[0].tokens, 23);
  EXPECT_EQ(result.rows[0].steps, 23);
  // The answer is the same with drafts, however many were right.
  EXPECT_EQ(result.rows[1].tokens, 23);
  EXPECT_LE(result.rows[1].steps, 23);
  EXPECT_GE(result.rows[1].steps * 3, 23);
}

// Counted from outside: the same prompt, answered by generate() with the same drafters.
TEST(DraftBench, TokensAndAcceptanceAreThoseOfTheAnswers) {
  const std::string text = "It is a truth universally acknowledged, that a single man in possession of a good fortune,";
  DraftBenchOptions options = small_draft_bench();
  options.text = austen().plain.tokenizer().encode(text);
  options.depths = {std::ssize(options.text)};  // a single piece
  options.tokens = 40;
  const DraftBenchRow row = bench(austen(), options).rows[1];

  Session session(austen().drafting);
  GenerationOptions wanted;
  wanted.sampling.temperature = 0;
  wanted.max_tokens = 40;
  Speculation speculation(austen().drafting, {.setting = fixed(2)});
  const Generation made = generate(austen().drafting, session, options.text, wanted, {}, &speculation);
  EXPECT_EQ(row.tokens, std::ssize(made.ids) - 1);
  EXPECT_EQ(row.tokens - row.steps, made.accepted_drafts);
  EXPECT_EQ(num_drafted(row), made.accepted_drafts + made.rejected_drafts);
  EXPECT_GT(made.accepted_drafts, 0);
  ASSERT_EQ(row.drafters.size(), 2U);
  EXPECT_EQ(row.drafters[0].name, "lookup");
  EXPECT_EQ(row.drafters[1].name, "mtp");
}

TEST(DraftBench, AnOracleGivesTheTokensThatItIsAskedFor) {
  DraftBenchOptions options = small_draft_bench();
  options.settings = {fixed(1), fixed(2), fixed(3), fixed(8)};
  options.temperatures = {0, 1};
  options.batches = {4};
  options.tokens = 60;
  options.rounds = 10;
  options.oracle_tokens = 2.13;
  Models models("tests/data/golden/b_flash_bf16");
  const DraftBenchResult result = bench(models, options);
  ASSERT_EQ(result.rows.size(), 10U);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const DraftBenchRow& row = result.rows[i];
    if (i % 5 == 0) continue;
    ASSERT_EQ(row.drafters.size(), 1U);
    EXPECT_EQ(row.drafters[0].name, "oracle");
    // One draft that is right as often as the first of two that give 2.13: 1 + p + p^2 = 2.13.
    const double expected = i % 5 == 1 ? 1 + (std::sqrt(1 + 4 * 1.13) - 1) / 2 : 2.13;
    // Tokens of a step vary by less than 2; there are more than 700 of them. Answers end in steps that have fewer drafts.
    const double sigma = 2 / std::sqrt(static_cast<double>(row.steps * row.batch));
    EXPECT_GT(row.steps * row.batch, 700);
    EXPECT_NEAR(row.tokens_per_step(), expected, 4 * sigma + 0.05) << i;
  }
}

TEST(DraftBench, AnOracleThatIsAlwaysRightFillsEveryStep) {
  DraftBenchOptions options = small_draft_bench();
  options.oracle_tokens = 3;
  options.tokens = 31;  // one of the prompt, ten steps of three
  const DraftBenchRow row = bench(austen(), options).rows[1];
  EXPECT_EQ(row.steps, 10);
  EXPECT_EQ(row.tokens_per_step(), 3);
}

TEST(DraftBench, AModelWithoutMtpLayerAndWithoutTokenizerIsMeasuredToo) {
  Model model(golden_path("a_tiny_bf16"), ModelOptions{.threads = 1});
  DraftBenchOptions options = small_draft_bench();
  options.settings = {fixed(2)};
  options.oracle_tokens = 2.5;
  options.batches = {2};
  const DraftBenchResult result = run_draft_bench(model, model, options);
  ASSERT_EQ(result.rows.size(), 2U);
  EXPECT_GT(result.rows[1].tokens_per_step(), 1.5);
}

TEST(DraftBench, ProgressEndsAtTheTokensItPromisedAndMayEndItAnywhere) {
  DraftBenchOptions options = small_draft_bench();
  options.batches = {1, 2};
  options.rounds = 2;
  options.least_seconds = 0;  // as many runs each time
  std::int64_t last = 0, promised = 0, calls = 0;
  run_draft_bench(austen().plain, austen().drafting, options, [&](std::int64_t done, std::int64_t all) {
    EXPECT_LE(done, all);
    last = done;
    promised = all;
    ++calls;
    return true;
  });
  EXPECT_EQ(last, promised);
  std::size_t most_rows = 0;
  for (std::int64_t stop = 1; stop < calls; stop += 3) {
    std::int64_t call = 0;
    const DraftBenchResult result =
        run_draft_bench(austen().plain, austen().drafting, options, [&](std::int64_t, std::int64_t) { return ++call < stop; });
    EXPECT_FALSE(result.complete);
    for (const DraftBenchRow& row : result.rows) EXPECT_GE(row.rates.size(), 1U);
    most_rows = std::max(most_rows, result.rows.size());
  }
  EXPECT_GE(most_rows, 2U);
}

TEST(DraftBench, WhatDoesNotFitIsRefusedByName) {
  const auto error = [](const DraftBenchOptions& options) { return error_of([&] { bench(austen(), options); }); };
  DraftBenchOptions options = small_draft_bench();
  options.depths = {20, 32'760};
  EXPECT_THAT(error(options), AllOf(HasSubstr("depth of 32760 and 24"), HasSubstr("context of 32768")));
  options = small_draft_bench();
  options.text = {1, 2, 3};
  EXPECT_THAT(error(options), AllOf(HasSubstr("depth of 20"), HasSubstr("text for prompts has 3 tokens")));
  options = small_draft_bench();
  options.batches = {1'000'000'000};
  EXPECT_THAT(error(options), AllOf(HasSubstr("batch 1000000000"), HasSubstr("available")));
  options = small_draft_bench();
  options.settings = {fixed(kMostDrafts + 1)};
  EXPECT_THAT(error(options), HasSubstr("drafts: found 9, expected 0 to 8"));
  options = small_draft_bench();
  options.oracle_tokens = 9.5;
  EXPECT_THAT(error(options), HasSubstr("9.5 tokens a step: expected 1 to 9"));
  options = small_draft_bench();
  options.tokens = 1;
  EXPECT_THAT(error(options), HasSubstr("expected at least 2"));
  options = small_draft_bench();
  options.temperatures = {-1};
  EXPECT_THAT(error(options), HasSubstr("temperature"));
}

}  // namespace
}  // namespace calandra
