#include "engine/sampler.h"

#include "base/error.h"
#include "engine/gumbel_noise.h"
#include "engine/logit_row.h"
#include "support/golden.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace calandra {
namespace {

TEST(Philox, KnownAnswers) {
  // Known-answer vectors that the authors of the generator publish with it (philox4x32, 10 rounds).
  using Block = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

const std::vector<float> kLogits{1.0f, 3.0f, 2.0f, 3.0f, -1.0f};

/// How often each token is drawn at 20,000 positions.
std::map<std::int32_t, double> shares(const std::vector<float>& logits, const SamplingOptions& options) {
  constexpr int kDraws = 20000;
  std::map<std::int32_t, double> counts;
  for (int position = 0; position < kDraws; ++position) counts[sample(logits, options, {.position = position})] += 1.0 / kDraws;
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheLargestLogitAndTheLowerIdOnTies) {
  EXPECT_EQ(sample(kLogits, {.temperature = 0}, {.position = 5}), 1);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const auto drawn = shares(kLogits, {.temperature = temperature, .seed = 11});
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    for (std::size_t i = 0; i < kLogits.size(); ++i) {
      const double p = std::exp(kLogits[i] / temperature) / total;
      const auto found = drawn.find(static_cast<std::int32_t>(i));
      // Four standard deviations of a share of 20,000 draws.
      EXPECT_NEAR(found == drawn.end() ? 0.0 : found->second, p, 4 * std::sqrt(p * (1 - p) / 20000))
          << temperature << " token " << i;
    }
  }
}

TEST(Sampler, FiltersKeepExactlyTheirTokens) {
  // Probabilities at temperature 1: 1 and 3 have 0.395 each, 2 has 0.145, 0 has 0.053, 4 has 0.007.
  const auto tokens = [](const SamplingOptions& options) {
    std::vector<std::int32_t> kept;
    for (const auto& [token, share] : shares(kLogits, options)) kept.push_back(token);
    return kept;
  };
  using Kept = std::vector<std::int32_t>;
  EXPECT_EQ(tokens({.top_k = 1}), (Kept{1}));
  EXPECT_EQ(tokens({.top_k = 3}), (Kept{1, 2, 3}));
  EXPECT_EQ(tokens({.top_p = 0.39}), (Kept{1}));
  EXPECT_EQ(tokens({.top_p = 0.7}), (Kept{1, 3}));
  EXPECT_EQ(tokens({.top_p = 0.8}), (Kept{1, 2, 3}));
  EXPECT_EQ(tokens({.min_p = 0.36}), (Kept{1, 2, 3}));
  EXPECT_EQ(tokens({.min_p = 0.37}), (Kept{1, 3}));
  EXPECT_EQ(tokens({.top_k = 3, .top_p = 0.84}), (Kept{1, 3})) << "top_p counts what top_k left";
}

TEST(Sampler, ADrawDependsOnSeedPositionAndSampleOnly) {
  const std::vector<float> flat(1000, 0.0f);
  const auto draw = [&](std::uint64_t seed, std::int64_t position, std::uint32_t n) {
    return sample(flat, {.seed = seed}, {.position = position, .sample = n});
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(2, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 3, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 2, 4));
  EXPECT_NE(draw(1, 2, 3), draw(1, 2 + (std::int64_t{1} << 32), 3));
  EXPECT_NE(draw(1, 2, 3), draw(1 + (std::uint64_t{1} << 32), 2, 3));
}

TEST(Sampler, ATokenThatIsFilteredAwayDoesNotDisturbTheOthers) {
  // Noise belongs to a token id, so removing tokens that were not drawn changes nothing.
  std::vector<float> logits(50);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  for (std::int64_t position = 0; position < 200; ++position) {
    const std::int32_t drawn = sample(logits, {.seed = 5}, {.position = position});
    std::vector<float> fewer = logits;
    for (std::size_t i = 0; i < fewer.size(); i += 2) {
      if (static_cast<std::int32_t>(i) != drawn) fewer[i] = -std::numeric_limits<float>::infinity();
    }
    EXPECT_EQ(sample(fewer, {.seed = 5}, {.position = position}), drawn);
  }
}

// ---- against the definition, computed the slow way

/// All that the filters keep, by sorting everything.
std::vector<Candidate> kept_by_definition(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<Candidate> all;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -HUGE_VALF) all.push_back({static_cast<std::int32_t>(i), logits[i]});
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (options.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(options.top_k)));
  long double total = 0, mass = 0;
  std::vector<long double> weights;
  for (const Candidate& c : all) {
    weights.push_back(std::exp((static_cast<long double>(c.logit) - all[0].logit) / options.temperature));
    total += weights.back();
  }
  std::size_t end = 0;
  for (; end < all.size() && mass < options.top_p * total; ++end) mass += weights[end];
  while (weights[end - 1] < options.min_p) --end;
  all.resize(end);
  return all;
}

TEST(Sampler, TheWinnerIsTheLoudestOfAllThatTheFiltersKeep) {
  std::mt19937 random(17);
  const auto number = [&](double least, double most) { return std::uniform_real_distribution<>(least, most)(random); };
  for (int round = 0; round < 600; ++round) {
    const auto size = static_cast<std::size_t>(std::exp(number(0, round % 50 == 0 ? 12.7 : 8)));  // up to 327,000
    const double spread = number(0, 6);
    std::normal_distribution<double> normal(0, spread);
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = static_cast<float>(normal(random));
      if (round % 3 == 0) logit = std::round(logit * 2) / 2;  // ties
      if (round % 5 == 0 && random() % 3 == 0) logit = -HUGE_VALF;
    }
    logits[random() % size] = 3;
    SamplingOptions options{.temperature = std::exp(number(-2, 1)), .seed = random()};
    if (random() % 2 == 0) options.top_k = static_cast<int>(std::exp(number(0, 9)));
    if (random() % 2 == 0) options.top_p = number(0.01, 1);
    if (random() % 3 == 0) options.min_p = number(0, 0.5);
    const GumbelNoise noise(options.seed, round, 0);
    double loudest = -HUGE_VAL;
    std::int32_t expected = -1;
    const auto kept = kept_by_definition(logits, options);
    for (const Candidate& c : kept) {
      const double sum = (static_cast<double>(c.logit) - kept[0].logit) / options.temperature + noise.of(c.token);
      if (sum > loudest) expected = c.token;
      loudest = std::max(loudest, sum);
    }
    ASSERT_EQ(sample(logits, options, {.position = round}), expected)
        << fmt::format("round {}: {} logits, {} kept, temperature {}, top_k {}, top_p {}, min_p {}", round, size, kept.size(),
                       options.temperature, options.top_k, options.top_p, options.min_p);
  }
}

TEST(Sampler, SharesOverSeedsPassAChiSquareTest) {
  // 40 tokens in a vocabulary of 3,000 have nine tenths of the probability; the rest counts as one.
  std::vector<float> logits(3000, 0.0f);
  for (std::size_t i = 0; i < 40; ++i) logits[i * 71 % 3000] = static_cast<float>(5.5 + 0.05 * static_cast<double>(i));
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / 0.9);
  constexpr int kDraws = 20000;
  std::map<std::int32_t, double> counts;
  double others = 0;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    const std::int32_t token = sample(logits, {.temperature = 0.9, .seed = seed * 0x9E3779B97F4A7C15u}, {.position = 7});
    (logits[static_cast<std::size_t>(token)] > 0 ? counts[token] : others) += 1;
  }
  double expected_others = kDraws, chi_square = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == 0) continue;
    const double expected = kDraws * std::exp(logits[i] / 0.9) / total;
    chi_square += std::pow(counts[static_cast<std::int32_t>(i)] - expected, 2) / expected;
    expected_others -= expected;
  }
  chi_square += std::pow(others - expected_others, 2) / expected_others;
  // 40 degrees of freedom: the mean is 40, and five standard deviations above it 85.
  EXPECT_GT(chi_square, 10);
  EXPECT_LT(chi_square, 85);
}

TEST(GumbelNoise, FollowsItsDistributionAndItsBound) {
  constexpr std::int32_t kTokens = 100000;
  const GumbelNoise noise(99, 1234567890123, 5);
  std::vector<double> values;
  std::array<std::uint32_t, 64> words;
  for (std::int32_t first = 0; first < kTokens; first += 32) {
    noise.upper_words(first, words);
    for (std::int32_t i = 0; i < 32; ++i) {
      values.push_back(noise.of(first + i));
      const float most = GumbelNoise::most_for(words[static_cast<std::size_t>(i)]);
      ASSERT_GE(most, values.back()) << first + i;
      // Tight where it matters, far out in the tail: -log(1 - u) is the noise but for e^-noise / 2.
      if (values.back() > 4) {
        ASSERT_LT(most, values.back() + 0.1) << first + i;
      }
    }
  }
  EXPECT_GE(GumbelNoise::most_for(~0u), 37.5f) << "what the lower word may add";
  // Kolmogorov and Smirnov: exceeded once in a million times.
  std::sort(values.begin(), values.end());
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double below = std::exp(-std::exp(-values[i])), n = static_cast<double>(values.size());
    largest = std::max({largest, std::abs(below - static_cast<double>(i) / n), std::abs(below - static_cast<double>(i + 1) / n)});
  }
  EXPECT_LT(largest, 2.7 / std::sqrt(static_cast<double>(values.size())));
}

// ---- what changes logits

/// Expects the draws of `options` and `draw` from `logits` to be those of plain sampling from `changed`.
void expect_draws_of(const std::vector<float>& changed, const std::vector<float>& logits, const SamplingOptions& options,
                     Draw draw) {
  for (; draw.position < 2000; ++draw.position)
    ASSERT_EQ(sample(logits, options, draw), sample(changed, {}, {.position = draw.position})) << draw.position;
}

const std::vector<float> kBefore{2.0f, -1.0f, 0.5f, 3.0f, -2.0f};

TokenCounts counts_of(std::initializer_list<std::int32_t> prompt, std::initializer_list<std::int32_t> answer) {
  TokenCounts counts{std::span(prompt.begin(), prompt.size())};
  for (const std::int32_t token : answer) counts.add(token);
  return counts;
}

TEST(Penalties, AreThoseComputedByHand) {
  const TokenCounts counts = counts_of({0, 1, 1}, {3, 4, 3});
  // Tokens 0, 1, 3 and 4 are there: 2 / 2, -1 x 2, 3 / 2, -2 x 2.
  expect_draws_of({1.0f, -2.0f, 0.5f, 1.5f, -4.0f}, kBefore, {.repetition_penalty = 2}, {.counts = &counts});
  // The answer has 3 twice and 4 once; the prompt does not count.
  expect_draws_of({2.0f, -1.0f, 0.5f, 2.5f, -2.25f}, kBefore, {.frequency_penalty = 0.25}, {.counts = &counts});
  expect_draws_of({2.0f, -1.0f, 0.5f, 2.0f, -3.0f}, kBefore, {.presence_penalty = 1}, {.counts = &counts});
  expect_draws_of({2.0f, -1.0f, 0.5f, 4.0f, -1.0f}, kBefore, {.presence_penalty = -1}, {.counts = &counts});
  // All three: the repetition penalty first.
  expect_draws_of({1.0f, -2.0f, 0.5f, 0.0f, -5.25f}, kBefore,
                  {.repetition_penalty = 2, .frequency_penalty = 0.25, .presence_penalty = 1}, {.counts = &counts});
}

TEST(Penalties, ABiasIsAddedBeforeThem) {
  const TokenCounts counts = counts_of({0}, {});
  expect_draws_of({1.75f, 0.0f, 0.5f, 3.0f, -2.0f}, kBefore, {.logit_bias = {{0, 1.5f}, {1, 1.0f}}, .repetition_penalty = 2},
                  {.counts = &counts});
}

TEST(Penalties, DraftsCountAsIfTheyHadBeenPushed) {
  const TokenCounts committed = counts_of({0, 1}, {3});
  const std::vector<std::int32_t> drafts{3, 2, 2};
  const SamplingOptions options{.repetition_penalty = 1.5, .frequency_penalty = 0.3, .presence_penalty = 0.2};
  const TokenCounts before = committed, all = counts_of({0, 1}, {3, 3, 2, 2});
  for (std::int64_t position = 0; position < 1000; ++position) {
    ASSERT_EQ(sample(kBefore, options, {.position = position, .counts = &committed, .drafts = drafts}),
              sample(kBefore, options, {.position = position, .counts = &all}));
  }
  EXPECT_EQ(committed, before) << "looking changes nothing";
}

TEST(Penalties, TokensThatHaveNoLogitAreNoMatter) {
  const TokenCounts counts = counts_of({0, 7, 5}, {});
  expect_draws_of({1.0f, -1.0f, 0.5f, 3.0f, -2.0f}, kBefore, {.repetition_penalty = 2}, {.counts = &counts});
}

TEST(TokenCounts, AreAFunctionOfTheTokens) {
  const auto tokens = rc::gen::container<std::vector<std::int32_t>>(rc::gen::inRange(0, 12));
  EXPECT_TRUE(rc::check("", [&] {
    const auto prompt = *tokens, answer = *tokens, drafts = *tokens;
    TokenCounts counts(prompt);
    for (const std::int32_t token : answer) counts.add(token);
    std::map<std::int32_t, std::int64_t> expected, found;  // times made by token, with the drafts
    for (const std::int32_t token : prompt) expected[token];
    for (const std::int32_t token : answer) ++expected[token];
    for (const std::int32_t token : answer) RC_ASSERT(counts.made(token) == std::count(answer.begin(), answer.end(), token));
    for (const std::int32_t token : drafts) ++expected[token];
    std::size_t visits = 0;
    counts.for_each_with(drafts, [&](std::int32_t token, std::int32_t made) {
      ++visits;
      found[token] = made;
    });
    RC_ASSERT(found == expected);
    RC_ASSERT(visits == expected.size());
  }));
}

TEST(Sampler, WhatIsBannedNeverComesAndWhatIsAllowedIsNotDisturbed) {
  constexpr float kNever = -HUGE_VALF;
  expect_draws_of({2.0f, kNever, 0.5f, kNever, -2.0f}, kBefore, {.logit_bias = {{1, -100.0f}, {3, -100.0f}}}, {});
  expect_draws_of({2.0f, -1.0f, 0.5f, 3.0f - 99.5f, -2.0f}, kBefore, {.logit_bias = {{3, -99.5f}}}, {});
  const std::vector<std::int32_t> banned{3, 0, 4000};
  expect_draws_of({kNever, -1.0f, 0.5f, kNever, -2.0f}, kBefore, {}, {.banned = banned});
  const std::vector<std::uint64_t> allowed{0b10110};
  expect_draws_of({kNever, -1.0f, 0.5f, kNever, -2.0f}, kBefore, {}, {.allowed = allowed});

  std::vector<float> logits(150), left(150, kNever);
  std::mt19937_64 random(3);
  const std::vector<std::uint64_t> words{random(), 0, random()};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(random() % 100) / 25;
    if ((words[i / 64] >> i % 64 & 1) != 0) left[i] = logits[i];
  }
  expect_draws_of(left, logits, {}, {.allowed = words});
}

TEST(Sampler, NeitherNeighboursNorOrderMatter) {
  // One thread's draws with all kinds of settings, in two orders.
  std::mt19937 random(8);
  std::vector<std::vector<float>> rows(40, std::vector<float>(900));
  for (auto& row : rows)
    for (float& logit : row) logit = static_cast<float>(random() % 1000) / 100;
  const TokenCounts counts = counts_of({5, 6}, {7, 7});
  const std::vector<std::uint64_t> allowed(15, 0x5555555555555555);
  const auto draw_from = [&](std::size_t i) {
    SamplingOptions options{.temperature = i % 7 == 0 ? 0.0 : 1.0, .top_k = i % 3 == 0 ? 9 : 0, .top_p = i % 2 == 0 ? 0.8 : 1.0};
    if (i % 4 == 1) options.presence_penalty = 2;
    Draw draw{.position = static_cast<std::int64_t>(i), .counts = &counts};
    if (i % 5 == 0) draw.allowed = allowed;
    return sample(rows[i], options, draw);
  };
  std::vector<std::int32_t> forward(rows.size()), backward(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) forward[i] = draw_from(i);
  for (std::size_t i = rows.size(); i-- > 0;) backward[i] = draw_from(i);
  EXPECT_EQ(forward, backward);
}

TEST(Sampler, RefusesBadSettingsAndLogitsThatAreNoNumbers) {
  EXPECT_EQ(error_of([] { check({.temperature = -1}); }), "temperature -1: expected 0 to 100");
  EXPECT_EQ(error_of([] { check({.temperature = std::nan("")}); }), "temperature nan: expected 0 to 100");
  EXPECT_EQ(error_of([] { check({.top_k = -2}); }), "top_k -2: expected 0 (off) or more");
  EXPECT_EQ(error_of([] { check({.top_p = 0}); }), "top_p 0: expected more than 0, at most 1");
  EXPECT_EQ(error_of([] { check({.min_p = 1.5}); }), "min_p 1.5: expected 0 to 1");
  EXPECT_EQ(error_of([] { check({.presence_penalty = 2.5}); }), "presence_penalty 2.5: expected -2 to 2");
  EXPECT_EQ(error_of([] { check({.frequency_penalty = -3}); }), "frequency_penalty -3: expected -2 to 2");
  EXPECT_EQ(error_of([] { check({.repetition_penalty = 0}); }), "repetition_penalty 0: expected 0.1 to 10");
  EXPECT_EQ(error_of([] { check({.logit_bias = {{5, 101}}}); }), "logit_bias: 101 for token 5: expected -100 to 100");
  EXPECT_EQ(error_of([] {
              check({.logit_bias = {{5, 1}, {5, 2}}});
            }),
            "logit_bias: token 5 after 5: expected ascending ids, each once");
  EXPECT_EQ(error_of([] { check({.logit_bias = {{50, 1}}}, 50); }), "logit_bias: token 50: expected 0 to 49");
  const std::vector<std::uint64_t> none{0}, long_mask{1, 1};
  EXPECT_EQ(error_of([&] { sample(kBefore, {}, {.position = 9, .allowed = none}); }),
            "after 9 tokens: logit_bias, mask and min_tokens leave no token, expected at least 1");
  EXPECT_EQ(error_of([&] { sample(kBefore, {}, {.allowed = long_mask}); }),
            "mask of allowed tokens: found 2 words of 64, expected 1");
  EXPECT_EQ(error_of([] {
              sample(std::vector<float>{0, std::nanf("")}, {}, {.position = 9});
            }),
            "logit of token 1 after 9 tokens is not a number");
  for (const float largest : {HUGE_VALF, -HUGE_VALF}) {
    EXPECT_EQ(error_of([&] {
                sample(std::vector<float>{-HUGE_VALF, largest}, {}, {.position = 9});
              }),
              fmt::format("logits after 9 tokens: found {} as the largest, expected a finite number", largest));
  }
}

}  // namespace
}  // namespace calandra
