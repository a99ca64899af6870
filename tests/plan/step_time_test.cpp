// What steps take, learned from made-up machines whose speed is known.

#include "plan/step_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace calandra {
namespace {

StepCost cost_of(double bytes, double operations) {
  StepCost cost;
  cost.state_bytes = static_cast<std::int64_t>(bytes);
  cost.recurrence_operations = static_cast<std::int64_t>(operations);
  return cost;
}

struct Speed {
  double seconds_per_byte = 0;
  double seconds_per_operation = 0;
  double seconds(const StepCost& cost) const {
    return seconds_per_byte * static_cast<double>(cost.bytes()) + seconds_per_operation * static_cast<double>(cost.operations());
  }
};
constexpr Speed kSpeed{1 / 20e9, 1 / 500e9};

/// Decodes of one to sixteen rows, and now and then a prompt that computes a hundred times as much.
class Steps {
 public:
  StepCost decode() {
    const double rows = 1 + static_cast<double>(random_() % 16);
    return cost_of(1e9 + 0.1e9 * rows, 2e9 * rows);
  }
  StepCost prompt() { return cost_of(8e9, 1e9 * static_cast<double>(64 + random_() % 448)); }
  StepCost any() { return random_() % 5 == 0 ? prompt() : decode(); }
  /// 1 on average, and that far off.
  double noise(double relative) { return std::max(0.1, 1 + relative * normal_(random_)); }
  bool one_in(std::uint64_t n) { return random_() % n == 0; }

 private:
  std::mt19937_64 random_{3};
  std::normal_distribution<double> normal_;
};

TEST(StepTime, IsBytesAloneBeforeAnythingWasSeen) {
  const StepTime time;
  EXPECT_GT(time.seconds(cost_of(1000, 0)), 0);
  EXPECT_EQ(time.seconds(cost_of(3000, 0)), 3 * time.seconds(cost_of(1000, 0)));
  EXPECT_EQ(time.seconds(cost_of(1000, 1e12)), time.seconds(cost_of(1000, 0)));
}

TEST(StepTime, FindsTheSpeedsOfAMachine) {
  Steps steps;
  StepTime time, noisy;
  for (int i = 0; i < 500; ++i) {
    const StepCost cost = steps.any();
    time.note(cost, kSpeed.seconds(cost));
    noisy.note(cost, kSpeed.seconds(cost) * steps.noise(0.05));
  }
  EXPECT_NEAR(time.seconds_per_byte() / kSpeed.seconds_per_byte, 1, 0.005);
  EXPECT_NEAR(time.seconds_per_operation() / kSpeed.seconds_per_operation, 1, 0.005);
  EXPECT_NEAR(noisy.seconds_per_byte() / kSpeed.seconds_per_byte, 1, 0.05);
  EXPECT_NEAR(noisy.seconds_per_operation() / kSpeed.seconds_per_operation, 1, 0.05);
}

TEST(StepTime, FindsAMachineThatOnlyMovesAndOneThatOnlyComputes) {
  Steps steps;
  StepTime moves, computes;
  for (int i = 0; i < 300; ++i) {
    const StepCost cost = steps.any();
    moves.note(cost, 1e-10 * static_cast<double>(cost.bytes()));
    computes.note(cost, 1e-12 * static_cast<double>(cost.operations()));
  }
  EXPECT_NEAR(moves.seconds_per_byte(), 1e-10, 1e-13);
  EXPECT_NEAR(moves.seconds_per_operation() * 100e9, 0, 1e-3);
  EXPECT_NEAR(computes.seconds_per_operation(), 1e-12, 5e-15);
}

// Prompts that take a thousand times as long and are badly predicted.
TEST(StepTime, LongStepsDoNotDrownShortOnes) {
  Steps steps;
  StepTime time;
  const StepCost token = cost_of(1e9, 2e9), prompt = cost_of(8e9, 10e12);
  for (int i = 0; i < 500; ++i) {
    time.note(token, kSpeed.seconds(token));
    time.note(prompt, kSpeed.seconds(prompt) * steps.noise(0.3));
  }
  EXPECT_NEAR(time.seconds(token) / kSpeed.seconds(token), 1, 0.03);
}

TEST(StepTime, FollowsAMachineThatBecomesSlowerOrFaster) {
  for (const double factor : {2.5, 0.4}) {
    Steps steps;
    StepTime time;
    for (int i = 0; i < 1000; ++i) {
      const StepCost cost = steps.any();
      time.note(cost, kSpeed.seconds(cost));
    }
    for (int i = 0; i < 500; ++i) {
      const StepCost cost = steps.any();
      time.note(cost, factor * kSpeed.seconds(cost));
    }
    EXPECT_NEAR(time.seconds_per_byte() / kSpeed.seconds_per_byte, factor, 0.1 * factor);
    EXPECT_NEAR(time.seconds_per_operation() / kSpeed.seconds_per_operation, factor, 0.1 * factor);
  }
}

TEST(StepTime, ASingleStepFarOffMovesItLittle) {
  for (const double factor : {10.0, 1000.0, 0.1, 0.001}) {
    Steps steps;
    StepTime time;
    for (int i = 0; i < 300; ++i) {
      const StepCost cost = steps.any();
      time.note(cost, kSpeed.seconds(cost));
    }
    const StepCost decode = steps.decode(), prompt = steps.prompt();
    time.note(decode, factor * kSpeed.seconds(decode));
    EXPECT_NEAR(time.seconds(decode) / kSpeed.seconds(decode), 1, 0.05) << factor;
    EXPECT_NEAR(time.seconds(prompt) / kSpeed.seconds(prompt), 1, 0.05) << factor;
  }
}

TEST(StepTime, StallsOfAMachineAndASlowFirstStepDoNotCount) {
  Steps steps;
  StepTime time;
  time.note(steps.decode(), 60);  // everything read from disk
  for (int i = 0; i < 500; ++i) {
    const StepCost cost = steps.any();
    time.note(cost, (steps.one_in(20) ? 10 : 1) * kSpeed.seconds(cost));
    if (i < 10) continue;
    EXPECT_NEAR(time.seconds(cost) / kSpeed.seconds(cost), 1, 0.1) << i;
  }
}

TEST(StepTime, StepsThatAreAllAlikeAreExplainedByBytes) {
  Steps steps;
  StepTime time;
  const StepCost token = cost_of(1e9, 2e9);
  for (int i = 0; i < 300; ++i) time.note(token, 0.05 * steps.noise(0.05));
  EXPECT_NEAR(time.seconds(token), 0.05, 0.002);
  EXPECT_NEAR(time.seconds(cost_of(2e9, 20e9)), 0.1, 0.005) << "bytes alone";
}

// A context that grows a little under times that vary: no reason to tell anything of operations.
TEST(StepTime, StepsThatAreNearlyAlikeTellNothingOfOperations) {
  Steps steps;
  StepTime time;
  for (int i = 0; i < 2000; ++i) {
    time.note(cost_of(1e9 * steps.noise(0.005), 2e9), 0.05 * steps.noise(0.05));
    if (i >= 50) {
      ASSERT_NEAR(time.seconds(cost_of(2e9, 20e9)), 0.1, 0.05) << i;
    }
  }
}

TEST(StepTime, OtherStepsAreRememberedAmongManyThatAreAlike) {
  Steps steps;
  StepTime time;
  for (int i = 0; i < 300; ++i) {
    const StepCost cost = steps.any();
    time.note(cost, kSpeed.seconds(cost));
  }
  const StepCost token = cost_of(1e9, 2e9), prompt = cost_of(8e9, 400e9);
  for (int i = 0; i < 300; ++i) time.note(token, kSpeed.seconds(token));
  EXPECT_NEAR(time.seconds(prompt) / kSpeed.seconds(prompt), 1, 0.1);
}

TEST(StepTime, IsNeverNegativeWhateverStepsTake) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> exponent(-6, 3);
  std::uniform_real_distribution<double> size(6, 13);
  for (int machine = 0; machine < 50; ++machine) {
    StepTime time;
    for (int i = 0; i < 200; ++i) {
      time.note(cost_of(std::pow(10, size(random)), random() % 4 == 0 ? 0 : std::pow(10, size(random))),
                std::pow(10, exponent(random)));
      ASSERT_GE(time.seconds_per_byte(), 0);
      ASSERT_GE(time.seconds_per_operation(), 0);
      ASSERT_GT(time.seconds(cost_of(1e9, 1e9)), 0);
      ASSERT_TRUE(std::isfinite(time.seconds(cost_of(1e9, 1e9))));
    }
  }
}

// Least squares by trying: no other pair of speeds is better on what was seen, but for what the leaning costs.
TEST(StepTime, NoOtherSpeedsFitBetter) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> spread(0.5, 2);
  for (int machine = 0; machine < 20; ++machine) {
    StepTime time;
    std::vector<StepCost> costs;
    std::vector<double> seconds;
    for (int i = 0; i < 8; ++i) {  // as many as nothing is cut for
      costs.push_back(cost_of(1e9 * spread(random), 1e11 * spread(random) * spread(random)));
      seconds.push_back(0.1 * spread(random));
      time.note(costs.back(), seconds.back());
    }
    const auto errors = [&](Speed speed) {
      double sum = 0, weight = 1;
      for (std::size_t i = costs.size(); i-- > 0; weight *= 0.99) {
        const double error = speed.seconds(costs[i]) / seconds[i] - 1;
        sum += weight * error * error;
      }
      return sum;
    };
    const double found = errors({time.seconds_per_byte(), time.seconds_per_operation()});
    for (int x = 0; x <= 60; ++x)
      for (int y = 0; y <= 60; ++y) ASSERT_LE(found, 1.01 * errors({x * 5e-12, y * 5e-14})) << machine << ": " << x << ", " << y;
  }
}

TEST(StepTime, WhatIsNoStepIsPassedOver) {
  StepTime time;
  const StepCost token = cost_of(1e9, 2e9);
  time.note(token, 0.05);
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    time.note(token, seconds);
  time.note(StepCost{}, 1);
  EXPECT_DOUBLE_EQ(time.seconds(token), 0.05);
}

}  // namespace
}  // namespace calandra
