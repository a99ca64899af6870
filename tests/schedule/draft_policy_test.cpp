// How many drafts, against published figures (docs/model.md 10.3, 10.4), trying all choices, and what must hold for any.

#include "schedule/draft_policy.h"

#include "base/error.h"
#include "support/cost_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using Drafts = std::vector<std::int64_t>;

const CostModel& flash(SyntheticFormat format = SyntheticFormat::Fp8) { return cost_model(LingModel::Flash31, format); }

/// The same probability at every place, so that so many drafts give so many tokens.
Acceptance that_gives(double tokens, std::int64_t drafts) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double p = (low + high) / 2;
    (Acceptance(p).expected_tokens(drafts) < tokens ? low : high) = p;
  }
  return Acceptance(low);
}

std::vector<DraftCandidate> alike(std::size_t count, const Acceptance& acceptance, bool runs_mtp, std::int64_t position = 0) {
  return std::vector<DraftCandidate>(count, DraftCandidate{position, kMostDrafts, &acceptance, runs_mtp, 0});
}

Drafts drafts_of(std::span<const DraftCandidate> candidates) {
  Drafts drafts;
  for (const DraftCandidate& candidate : candidates) drafts.push_back(candidate.drafts);
  return drafts;
}

std::int64_t sum_of(const Drafts& drafts) {
  std::int64_t sum = 0;
  for (const std::int64_t n : drafts) sum += n;
  return sum;
}

/// A machine whose time is bytes at 20 GB/s and operations at `operations_per_second`.
StepTime learned(const CostModel& model, double operations_per_second) {
  StepTime time;
  for (int i = 0; i < 100; ++i) {
    const StepSlice slice{0, i % 5 == 0 ? 128 : 1 + i % 4};
    const StepCost cost = model.cost_of({std::span(&slice, 1), 1, model.expected_experts(static_cast<double>(slice.tokens))});
    time.note(cost, static_cast<double>(cost.bytes()) / 20e9 + static_cast<double>(cost.operations()) / operations_per_second);
  }
  return time;
}

/// As the header says it, from whole steps.
double tokens_per_second(const CostModel& model, const StepTime& time, std::span<const DraftCandidate> candidates,
                         const Drafts& drafts) {
  std::vector<StepSlice> slices;
  double tokens = 0;
  std::int64_t rows = 0;
  StepCost cost;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    slices.push_back({candidates[i].position, 1 + drafts[i]});
    rows += 1 + drafts[i];
    tokens += candidates[i].acceptance->expected_tokens(drafts[i]);
    if (drafts[i] > 0) cost.state_bytes += model.commit_bytes();
  }
  cost += model.cost_of({slices, rows, model.expected_experts(static_cast<double>(rows))});
  for (std::int64_t depth = 1; depth <= kMostDrafts; ++depth) {
    std::vector<StepSlice> drafting;
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (candidates[i].runs_mtp && drafts[i] >= depth) drafting.push_back({candidates[i].position + depth - 1, 1});
    cost += model.cost_of_draft(drafting);
  }
  // A row each of 32 rows that are made together.
  const std::vector<StepSlice> together(32, StepSlice{0, 1});
  const StepCost fill = model.cost_of_mtp(together);
  double filled = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) filled += !candidates[i].runs_mtp || drafts[i] == 0 ? 1.0 / 32 : 0;
  return tokens / time.seconds(static_cast<double>(cost.bytes()) + filled * static_cast<double>(fill.bytes()),
                               static_cast<double>(cost.operations()) + filled * static_cast<double>(fill.operations()));
}

/// Without drafts, on a model whose MTP layer does not run.
double plain_tokens_per_second(const CostModel& model, const StepTime& time, std::span<const DraftCandidate> candidates) {
  std::vector<StepSlice> slices;
  for (const DraftCandidate& candidate : candidates) slices.push_back({candidate.position, 1});
  const auto rows = std::ssize(slices);
  return static_cast<double>(rows) /
         time.seconds(model.cost_of({slices, rows, model.expected_experts(static_cast<double>(rows))}));
}

// At batch 1, time as bytes: a drafter that is always right and costs nothing, so that 2.13 rows give 2.13 tokens.
TEST(DraftPolicy, RowsThatCostNoDraftingSpeedUp31FlashAsPublished) {
  for (const auto& [format, expected] : {std::pair(SyntheticFormat::Fp8, 1.54), std::pair(SyntheticFormat::Fp4, 1.71)}) {
    const CostModel& model = flash(format);
    const StepSlice slice{0, 1};
    const auto bytes = [&](double rows) {
      return static_cast<double>(model.cost_of({std::span(&slice, 1), 1, model.expected_experts(rows)}).bytes());
    };
    EXPECT_NEAR(2.13 * bytes(1) / (bytes(2.13) + static_cast<double>(model.commit_bytes())), expected, 0.005);
  }
}

TEST(DraftPolicy, DraftsOfTheMtpLayerSpeedUp31FlashAsPublished) {
  struct Published {
    SyntheticFormat format;
    std::int64_t drafts;
    double gain;
  };
  const StepTime as_bytes;
  for (const Published& published : {Published{SyntheticFormat::Fp8, 2, 1.19}, Published{SyntheticFormat::Fp8, 3, 0.98},
                                     Published{SyntheticFormat::Fp4, 2, 1.36}, Published{SyntheticFormat::Fp4, 3, 1.16}}) {
    DraftPolicy policy(flash(published.format), as_bytes, {false, published.drafts});
    const Acceptance acceptance = that_gives(2.13, published.drafts);
    auto candidates = alike(1, acceptance, true);
    policy.choose(candidates);
    EXPECT_EQ(candidates[0].drafts, published.drafts);
    EXPECT_NEAR(policy.predicted_gain(), published.gain, 0.005);
  }
}

TEST(DraftPolicy, TwoDraftsThatPayAreTakenAndThreeThatCostAreNot) {
  const StepTime as_bytes;
  DraftPolicy policy(flash(), as_bytes, {true, kMostDrafts});
  const Acceptance two = that_gives(2.13, 2), three = that_gives(2.13, 3);
  auto candidates = alike(1, two, true);
  policy.choose(candidates);
  EXPECT_GE(candidates[0].drafts, 1);
  EXPECT_GE(policy.predicted_gain(), 1.19);
  candidates = alike(1, three, true);
  policy.choose(candidates);
  EXPECT_LT(candidates[0].drafts, 3);
}

TEST(DraftPolicy, AFixedNumberIsTakenAsFarAsThereIsRoom) {
  const StepTime as_bytes;
  const Acceptance never(0);
  for (std::int64_t fixed = 0; fixed <= kMostDrafts; ++fixed) {
    DraftPolicy policy(flash(), as_bytes, {false, fixed});
    auto candidates = alike(4, never, true);
    candidates[1].most = 2;
    candidates[2].most = 0;
    candidates[3].most = 100;
    policy.choose(candidates);
    EXPECT_EQ(drafts_of(candidates), (Drafts{fixed, std::min<std::int64_t>(fixed, 2), 0, fixed}));
    EXPECT_LE(policy.predicted_gain(), 1);
  }
}

TEST(DraftPolicy, NothingIsDraftedThatIsNeverAccepted) {
  const StepTime as_bytes;
  const Acceptance never(0);
  DraftPolicy policy(flash(), as_bytes, {});
  for (const bool runs_mtp : {false, true}) {
    auto candidates = alike(8, never, runs_mtp);
    policy.choose(candidates);
    EXPECT_EQ(drafts_of(candidates), Drafts(8, 0));
    EXPECT_GT(policy.predicted_gain(), 0.98) << "the layer is one of 73, and its rows are made together";
    EXPECT_LT(policy.predicted_gain(), 1);
  }
  policy.choose({});
  EXPECT_EQ(policy.predicted_gain(), 1);
}

TEST(DraftPolicy, NobodyGetsMoreThanThereIsRoomForOrTheSettingAllows) {
  std::mt19937_64 random(31);
  std::uniform_real_distribution<double> uniform;
  const StepTime as_bytes;
  std::int64_t taken = 0;
  for (int round = 0; round < 300; ++round) {
    const std::int64_t allowed = std::int64_t(random() % (kMostDrafts + 1));
    DraftPolicy policy(flash(), as_bytes, {true, allowed});
    std::vector<Acceptance> acceptances;
    for (int i = 0; i < 6; ++i) acceptances.emplace_back(std::sqrt(uniform(random)));
    std::vector<DraftCandidate> candidates;
    for (const Acceptance& acceptance : acceptances)
      candidates.push_back({std::int64_t(random() % 10'000), std::int64_t(random() % 12), &acceptance, random() % 2 == 0, 99});
    policy.choose(candidates);
    for (const DraftCandidate& candidate : candidates) {
      ASSERT_GE(candidate.drafts, 0);
      ASSERT_LE(candidate.drafts, std::min(candidate.most, allowed));
    }
    const double plain = plain_tokens_per_second(flash(), as_bytes, candidates);
    ASSERT_GE(policy.predicted_gain() * (1 + 1e-8),
              tokens_per_second(flash(), as_bytes, candidates, Drafts(candidates.size(), 0)) / plain);
    ASSERT_NEAR(policy.predicted_gain(), tokens_per_second(flash(), as_bytes, candidates, drafts_of(candidates)) / plain, 1e-6);
    taken += sum_of(drafts_of(candidates));
  }
  EXPECT_GT(taken, 300);
}

TEST(DraftPolicy, MoreAcceptanceNeverGivesFewerDrafts) {
  for (const double operations_per_second : {200e9, 2e12, 1e15}) {
    const StepTime time = learned(flash(), operations_per_second);
    for (const bool runs_mtp : {false, true})
      for (const std::size_t batch : {1u, 4u}) {
        DraftPolicy policy(flash(), time, {});
        std::int64_t last = 0;
        for (double p = 0; p <= 1; p += 0.01) {
          const Acceptance acceptance(p);
          auto candidates = alike(batch, acceptance, runs_mtp, 1000);
          policy.choose(candidates);
          const std::int64_t now = sum_of(drafts_of(candidates));
          EXPECT_GE(now, last) << p << ", " << batch << " sequences";
          last = now;
        }
        EXPECT_GT(last, 0) << "certain drafts pay";
      }
  }
}

// Of eight sequences hardly two choose the same experts: eight drafts double what is read. So one gives 1.6 tokens for 1.7 times the bytes,
// where a sequence alone gives them for 1.34 times. (Beyond some thirty sequences most experts are read anyway, and operations decide.)
TEST(DraftPolicy, LargerBatchesOfAMixtureOfExpertsGetFewerDraftsEach) {
  const StepTime as_bytes;
  const Acceptance acceptance(0.6);
  for (const bool runs_mtp : {false, true}) {
    DraftPolicy policy(flash(), as_bytes, {});
    double last = kMostDrafts;
    for (const std::size_t batch : {1u, 2u, 4u, 8u}) {
      auto candidates = alike(batch, acceptance, runs_mtp);
      policy.choose(candidates);
      const double each = static_cast<double>(sum_of(drafts_of(candidates))) / static_cast<double>(batch);
      EXPECT_LE(each, last) << batch;
      EXPECT_TRUE(batch > 1 || each >= 1);
      last = each;
    }
    EXPECT_EQ(last, 0);
  }
}

TEST(DraftPolicy, OperationsThatTakeTimeMakeDraftsDearer) {
  const Acceptance acceptance(0.8);
  std::int64_t last = kMostDrafts;
  for (const double operations_per_second : {1e15, 2e12, 200e9, 2e9}) {
    const StepTime time = learned(flash(), operations_per_second);
    DraftPolicy policy(flash(), time, {});
    auto candidates = alike(1, acceptance, false);
    policy.choose(candidates);
    EXPECT_LE(candidates[0].drafts, last) << operations_per_second;
    last = candidates[0].drafts;
  }
  EXPECT_EQ(last, 0);
}

TEST(DraftPolicy, TheLikelierSequenceIsDraftedFor) {
  const StepTime as_bytes;
  DraftPolicy policy(flash(), as_bytes, {});
  const Acceptance good(0.95), bad(0.05);
  for (const bool runs_mtp : {false, true}) {
    std::vector<DraftCandidate> candidates = {{0, 8, &bad, runs_mtp, 0}, {0, 8, &good, runs_mtp, 0}};
    policy.choose(candidates);
    EXPECT_EQ(candidates[0].drafts, 0);
    EXPECT_GT(candidates[1].drafts, 0);
  }
}

// Two sequences, up to three drafts each: all sixteen choices, from whole steps.
TEST(DraftPolicy, TryingAllChoicesFindsNoBetterBeginningOfTheLineAndHardlyABetterChoice) {
  std::mt19937_64 random(41);
  std::uniform_real_distribution<double> uniform;
  double worst = 1;
  std::array<int, 7> chosen{};
  for (int round = 0; round < 400; ++round) {
    const bool runs_mtp = round % 2 == 0;
    const CostModel& model = flash(round % 4 < 2 ? SyntheticFormat::Fp8 : SyntheticFormat::Fp4);
    const StepTime time = round % 8 < 4 ? StepTime() : learned(model, 5e12);
    const std::array<Acceptance, 2> acceptances = {Acceptance(std::sqrt(uniform(random))),
                                                   Acceptance(std::sqrt(uniform(random)))};
    std::vector<DraftCandidate> candidates;
    for (const Acceptance& acceptance : acceptances) candidates.push_back({5000, 3, &acceptance, runs_mtp, 0});
    DraftPolicy policy(model, time, {});
    policy.choose(candidates);
    const double found = tokens_per_second(model, time, candidates, drafts_of(candidates));
    EXPECT_NEAR(policy.predicted_gain() * plain_tokens_per_second(model, time, candidates), found, 1e-6 * found);

    // The line by hand: at every place the sequence whose next draft is likelier.
    Drafts line = {0, 0};
    for (int n = 0; n < 6; ++n) {
      const auto next = [&](std::size_t i) {
        return line[i] == 3 ? -1 : std::pow(acceptances[i].probability(1), static_cast<double>(line[i] + 1));
      };
      ++line[next(0) >= next(1) ? 0 : 1];
      EXPECT_LE(tokens_per_second(model, time, candidates, line), found * (1 + 1e-8)) << line[0] << " and " << line[1];
    }
    for (std::int64_t a = 0; a <= 3; ++a)
      for (std::int64_t b = 0; b <= 3; ++b) worst = std::min(worst, found / tokens_per_second(model, time, candidates, {a, b}));
    ++chosen[static_cast<std::size_t>(sum_of(drafts_of(candidates)))];
  }
  std::cout << "the worst choice has " << worst << " of the best one's tokens per second\n";
  EXPECT_GT(worst, 0.97) << "whether a commit or a run of the MTP layer is shared is all that the line does not see";
  EXPECT_GT(chosen[0], 10);
  EXPECT_GT(chosen[6], 10);
}

// ---- Over time.

/// One sequence of `steps` steps, whose drafts are accepted with probability `truth`. Time relative to that without drafts, for as many tokens.
struct Course {
  double seconds = 0;
  double seconds_without = 0;
  std::int64_t drafted_steps = 0;
};

Course run(DraftPolicy& policy, const CostModel& model, Acceptance& acceptance, bool runs_mtp, double truth, int steps) {
  static std::mt19937_64 random(53);
  std::uniform_real_distribution<double> uniform;
  const StepTime as_bytes;
  Course course;
  for (int i = 0; i < steps; ++i) {
    std::vector<DraftCandidate> candidates = {{1000, kMostDrafts, &acceptance, runs_mtp, 0}};
    policy.choose(candidates);
    const std::int64_t drafts = candidates[0].drafts;
    std::int64_t accepted = 0;
    while (accepted < drafts && uniform(random) < truth) ++accepted;
    course.seconds += acceptance.expected_tokens(drafts) / tokens_per_second(model, as_bytes, candidates, {drafts});
    course.seconds_without += static_cast<double>(1 + accepted) / tokens_per_second(model, as_bytes, candidates, {0});
    course.drafted_steps += drafts > 0 ? 1 : 0;
    if (drafts > 0) {
      acceptance.note(drafts, accepted);
    } else {
      acceptance.age();
    }
  }
  return course;
}

TEST(DraftPolicy, HopelessDraftsAreTriedAgainForAFewPercentAndComeBackWhenTheyPay) {
  const StepTime as_bytes;
  for (const bool runs_mtp : {false, true}) {
    DraftPolicy policy(flash(), as_bytes, {});
    Acceptance mine = Acceptance::of_request(Acceptance(0.7));
    (void)run(policy, flash(), mine, runs_mtp, 0, 200);
    const Course hopeless = run(policy, flash(), mine, runs_mtp, 0, 10'000);
    std::cout << (runs_mtp ? "mtp: " : "look-up: ") << hopeless.drafted_steps << " of 10,000 steps tried, time "
              << hopeless.seconds / hopeless.seconds_without << " of that without drafts\n";
    EXPECT_GT(hopeless.drafted_steps, 5);
    EXPECT_LT(hopeless.seconds, 1.04 * hopeless.seconds_without);
    (void)run(policy, flash(), mine, runs_mtp, 0.95, 1000);
    const Course better = run(policy, flash(), mine, runs_mtp, 0.95, 1000);
    EXPECT_GT(better.drafted_steps, 900);
    EXPECT_LT(better.seconds, 0.8 * better.seconds_without);
  }
}

TEST(DraftPolicy, AChoiceTakesFarLessThanAMillisecond) {
  const StepTime as_bytes;
  DraftPolicy policy(flash(), as_bytes, {});
  std::vector<Acceptance> acceptances;
  for (int i = 0; i < 64; ++i) acceptances.emplace_back(0.5 + i / 150.0);
  std::vector<DraftCandidate> candidates;
  for (const Acceptance& acceptance : acceptances) candidates.push_back({1000, kMostDrafts, &acceptance, true, 0});
  policy.choose(candidates);
  double least = 1;
  for (int i = 0; i < 200; ++i) {
    const std::clock_t start = std::clock();
    policy.choose(candidates);
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::cout << "64 sequences of 8 drafts: " << 1e6 * least << " us\n";
  EXPECT_LT(least, 1e-3);
}

TEST(DraftPolicy, ANumberThatNoStepHasIsRefused) {
  const StepTime as_bytes;
  for (const std::int64_t drafts : {std::int64_t{-1}, kMostDrafts + 1}) {
    try {
      DraftPolicy(flash(), as_bytes, {true, drafts});
      ADD_FAILURE() << drafts;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "drafts: found " + std::to_string(drafts) + ", expected 0 to 8");
    }
  }
}

}  // namespace
}  // namespace calandra
