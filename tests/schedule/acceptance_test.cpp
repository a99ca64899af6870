// How likely drafts are accepted, learned from drafters whose probabilities are known.

#include "schedule/acceptance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace calandra {
namespace {

/// Accepts draft j with probabilities[j - 1], given those before it.
class Drafter {
 public:
  explicit Drafter(std::vector<double> probabilities) : probabilities_(std::move(probabilities)) {}

  std::int64_t accepted(std::int64_t drafted) {
    std::int64_t n = 0;
    while (n < drafted && uniform_(random_) < probabilities_[static_cast<std::size_t>(n)]) ++n;
    return n;
  }
  void run(Acceptance& acceptance, int steps) {
    const std::int64_t drafts = std::ssize(probabilities_);
    for (int i = 0; i < steps; ++i) acceptance.note(drafts, accepted(drafts));
  }

 private:
  std::vector<double> probabilities_;
  std::mt19937_64 random_{17};
  std::uniform_real_distribution<double> uniform_;
};

TEST(Acceptance, FindsTheProbabilityOfEveryPlaceGivenThoseBefore) {
  Acceptance all;
  Drafter({0.9, 0.5, 0.2}).run(all, 5000);
  EXPECT_NEAR(all.probability(1), 0.9, 0.05);
  EXPECT_NEAR(all.probability(2), 0.5, 0.08);
  EXPECT_NEAR(all.probability(3), 0.2, 0.08);
  EXPECT_EQ(all.probability(4), kUnseenAcceptance) << "never drafted";
  EXPECT_NEAR(all.expected_tokens(3), 1 + 0.9 + 0.45 + 0.09, 0.15);
}

TEST(Acceptance, WhatComesAfterARefusedDraftTellsNothing) {
  Acceptance all;
  for (int i = 0; i < 100; ++i) all.note(4, 1);
  EXPECT_GT(all.probability(1), 0.95);
  EXPECT_LT(all.probability(2), 0.1);
  EXPECT_EQ(all.probability(3), kUnseenAcceptance);
  EXPECT_EQ(all.probability(4), kUnseenAcceptance);
}

TEST(Acceptance, ExpectedTokensAreTheSumOfAGeometricSeries) {
  for (const double p : {0.0, 0.3, 0.68, 0.99}) {
    const Acceptance all(p);
    for (std::int64_t drafts = 0; drafts <= kMostDrafts; ++drafts)
      EXPECT_NEAR(all.expected_tokens(drafts), (1 - std::pow(p, drafts + 1)) / (1 - p), 1e-12) << p << ", " << drafts;
  }
  EXPECT_EQ(Acceptance(1).expected_tokens(kMostDrafts), 1 + kMostDrafts);
}

TEST(Acceptance, AProbabilityIsOneWhateverIsNoted) {
  std::mt19937_64 random(23);
  for (const double prior : {-1.0, 0.0, 1.0, 7.0}) {
    Acceptance all(prior);
    for (int i = 0; i < 1000; ++i) {
      const std::int64_t drafted = std::int64_t(random() % 20);
      all.note(drafted, std::int64_t(random() % std::uint64_t(drafted + 1)));
      for (std::int64_t place = 1; place <= kMostDrafts; ++place) {
        ASSERT_GE(all.probability(place), 0);
        ASSERT_LE(all.probability(place), 1);
      }
    }
  }
}

TEST(Acceptance, ARequestStartsFromWhatWasSeenOfAll) {
  Acceptance all;
  Drafter({0.2, 0.9}).run(all, 3000);
  const Acceptance mine = Acceptance::of_request(all);
  for (std::int64_t place = 1; place <= kMostDrafts; ++place) EXPECT_EQ(mine.probability(place), all.probability(place));
}

TEST(Acceptance, ARequestFollowsItsTextAndAllOfThemSlowly) {
  Acceptance all;
  Drafter({0.8}).run(all, 3000);
  Acceptance mine = Acceptance::of_request(all);
  Drafter({0.9}).run(mine, 300);
  Drafter worse({0.1});
  worse.run(mine, 100);
  worse.run(all, 100);
  EXPECT_NEAR(mine.probability(1), 0.1, 0.25);
  EXPECT_GT(all.probability(1), 0.6);
  worse.run(all, 5000);
  EXPECT_LT(all.probability(1), 0.2);
}

TEST(Acceptance, WhileNothingIsDraftedItGoesBackToThePrior) {
  Acceptance mine = Acceptance::of_request(Acceptance(0.7));
  for (int i = 0; i < 200; ++i) mine.note(1, 0);
  double last = mine.probability(1);
  EXPECT_LT(last, 0.2);
  for (int i = 0; i < 5000; ++i) {
    mine.age();
    EXPECT_GE(mine.probability(1), last);
    last = mine.probability(1);
  }
  EXPECT_NEAR(last, 0.7, 0.01);
}

}  // namespace
}  // namespace calandra
