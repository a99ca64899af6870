#include "engine/sampler.h"

#include "base/error.h"
#include "engine/philox.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
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
  for (int position = 0; position < kDraws; ++position) counts[sample(logits, options, position)] += 1.0 / kDraws;
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheLargestLogitAndTheLowerIdOnTies) { EXPECT_EQ(sample(kLogits, {.temperature = 0}, 5), 1); }

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
    return sample(flat, {.seed = seed}, position, n);
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
    const std::int32_t drawn = sample(logits, {.seed = 5}, position);
    std::vector<float> fewer = logits;
    for (std::size_t i = 0; i < fewer.size(); i += 2) {
      if (static_cast<std::int32_t>(i) != drawn) fewer[i] = -std::numeric_limits<float>::infinity();
    }
    EXPECT_EQ(sample(fewer, {.seed = 5}, position), drawn);
  }
}

TEST(Sampler, RefusesBadSettingsAndLogitsThatAreNoNumbers) {
  EXPECT_EQ(error_of([] { check({.temperature = -1}); }), "temperature -1: expected 0 to 100");
  EXPECT_EQ(error_of([] { check({.temperature = std::nan("")}); }), "temperature nan: expected 0 to 100");
  EXPECT_EQ(error_of([] { check({.top_k = -2}); }), "top_k -2: expected 0 (off) or more");
  EXPECT_EQ(error_of([] { check({.top_p = 0}); }), "top_p 0: expected more than 0, at most 1");
  EXPECT_EQ(error_of([] { check({.min_p = 1.5}); }), "min_p 1.5: expected 0 to 1");
  EXPECT_EQ(error_of([] {
              sample(std::vector<float>{0, std::nanf("")}, {}, 9);
            }),
            "logit of token 1 after 9 tokens is not a number");
  for (const float largest : {HUGE_VALF, -HUGE_VALF}) {
    EXPECT_EQ(error_of([&] {
                sample(std::vector<float>{-HUGE_VALF, largest}, {}, 9);
              }),
              fmt::format("logits after 9 tokens: found {} as the largest, expected a finite number", largest));
  }
}

}  // namespace
}  // namespace calandra
