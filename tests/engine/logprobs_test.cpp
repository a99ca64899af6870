// One row of logits against float64 arithmetic of the plainest kind.

#include "engine/logprobs.h"

#include "engine/logit_row.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace calandra {
namespace {

std::vector<float> random_row(std::size_t size, double spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> row(size);
  for (float& logit : row) logit = static_cast<float>(normal(random));
  return row;
}

/// log softmax in long double, term by term.
std::vector<double> log_softmax(const std::vector<float>& row) {
  const long double largest = *std::max_element(row.begin(), row.end());
  long double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<long double>(logit) - largest);
  std::vector<double> result;
  for (const float logit : row) result.push_back(static_cast<double>(logit - largest - std::log(sum)));
  return result;
}

/// Ids in the falling order of `row`, lower first on ties.
std::vector<std::int32_t> ids_by_logit(const std::vector<float>& row) {
  std::vector<std::int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  return ids;
}

TEST(Logprobs, AreTheLogSoftmaxOfTheRow) {
  unsigned seed = 0;
  for (const std::size_t size : {1UL, 2UL, 15UL, 64UL, 65UL, 1000UL, 157184UL, 300000UL}) {
    for (const double spread : {0.0, 0.01, 1.0, 8.0, 300.0}) {
      if (size > 100000 && spread != 1) continue;  // takes seconds
      const std::vector<float> row = random_row(size, spread, ++seed);
      const std::vector<double> expected = log_softmax(row);
      const std::vector<std::int32_t> ids = ids_by_logit(row);
      for (const std::size_t chosen : {std::size_t{0}, size / 2, size - 1}) {
        const LogprobEntry entry = logprobs_of(row, 0, ids[chosen], 20);
        EXPECT_EQ(entry.chosen.token, ids[chosen]);
        EXPECT_NEAR(entry.chosen.logprob, expected[static_cast<std::size_t>(ids[chosen])], 1e-10) << size << " x " << spread;
        ASSERT_EQ(entry.top.size(), std::min<std::size_t>(20, size));
        for (std::size_t i = 0; i < entry.top.size(); ++i) {
          EXPECT_EQ(entry.top[i].token, ids[i]);
          EXPECT_NEAR(entry.top[i].logprob, expected[static_cast<std::size_t>(ids[i])], 1e-10);
        }
      }
    }
  }
}

TEST(Logprobs, NoInfinityGetsOut) {
  const LogprobEntry entry = logprobs_of(std::vector<float>{0.0f, -HUGE_VALF, -3e38f, 1.0f}, 0, 1, 20);
  EXPECT_EQ(entry.chosen, (TokenLogprob{1, -9999}));
  ASSERT_EQ(entry.top.size(), 3U) << "a token that cannot come is no alternative";
  EXPECT_EQ(entry.top[2], (TokenLogprob{2, -9999}));
  EXPECT_NEAR(entry.top[0].logprob, -std::log1p(std::exp(-1.0)), 1e-10);
}

TEST(Logprobs, TiesGoToTheLowerId) {
  const LogprobEntry entry = logprobs_of(std::vector<float>(500, 2.5f), 0, 400, 3);
  for (std::int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(entry.top.at(static_cast<std::size_t>(i)).token, i);
    EXPECT_NEAR(entry.top[static_cast<std::size_t>(i)].logprob, -std::log(500.0), 1e-10);
  }
}

TEST(Logprobs, RefusesWhatIsOutOfRange) {
  const std::vector<float> row(8);
  EXPECT_EQ(error_of([&] { logprobs_of(row, 3, 8, 0); }), "log probability of token 8 after 3 tokens: expected 0 to 7");
  EXPECT_EQ(error_of([&] {
              logprobs_of(std::vector<float>{0, std::nanf("")}, 3, 0, 0);
            }),
            "logit of token 1 after 3 tokens is not a number");
  EXPECT_EQ(error_of([] { check_top_logprobs("logprobs", 21); }), "logprobs 21: expected 0 to 20");
}

TEST(LogitRow, SumsBeforeAPlaceAndTheLargestAreThoseOfASort) {
  for (const std::size_t size : {1UL, 63UL, 64UL, 130UL, 5000UL, 300000UL}) {
    std::vector<float> logits = random_row(size, 2, static_cast<unsigned>(size));
    for (float& logit : logits) logit = std::round(logit * 8) / 8;  // many ties
    const LogitRow row(logits, 0);
    const std::vector<std::int32_t> ids = ids_by_logit(logits);
    EXPECT_EQ(row.best().token, ids[0]);
    const auto count = static_cast<std::int64_t>(size);
    for (const std::int64_t wanted : {std::int64_t{1}, count / 90 + 1, count / 2, count, count + 5}) {
      const std::vector<Candidate> largest = row.largest(wanted);
      ASSERT_EQ(std::ssize(largest), std::min(wanted, count));
      for (std::size_t i = 0; i < largest.size(); ++i) ASSERT_EQ(largest[i].token, ids[i]);
    }
    long double sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const Candidate end = row.at(ids[i]);
      if (i % (size / 7 + 1) == 0) {
        EXPECT_NEAR(row.sum_exp_before(end, 0.7), static_cast<double>(sum), 1e-10 * static_cast<double>(sum) + 1e-12) << i;
      }
      sum += std::exp((static_cast<long double>(end.logit) - row.best().logit) * 0.7L);
    }
    EXPECT_NEAR(row.sum_exp(0.7), static_cast<double>(sum), 1e-10 * static_cast<double>(sum));
  }
}

}  // namespace
}  // namespace calandra
