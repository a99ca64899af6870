// What deciding costs: a simulation of many requests spends its time elsewhere.

#include "schedule/scheduler.h"
#include "support/golden.h"
#include "support/small_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <random>
#include <variant>

namespace calandra {
namespace {

struct Cost {
  double seconds = 0;  // of the processor, in the scheduler and in this loop
  ScheduleStatistics statistics;
  std::int64_t longest_queue = 0;
};

/// `count` requests of a thousand clients, faster than they can be served; a step takes a fixed time and a time a row.
Cost simulate(std::int64_t count, std::int64_t max_waiting) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> gap(1000), length(1.0 / 300), answer(1.0 / 100);
  ScheduleLimits limits;
  limits.max_waiting = max_waiting;
  limits.reserved_new_tokens = 32;  // most grow, and some are preempted
  const MemoryLayout layout = small_layout(true);
  Scheduler scheduler(layout, 32 * layout.sequence_blocks(600), limits);
  Cost cost;
  const std::clock_t start = std::clock();
  double now = 0, next_arrival = 0;
  std::int64_t arrived = 0;
  while (true) {
    for (; arrived < count && next_arrival <= now; ++arrived, next_arrival += gap(random)) {
      Request request;
      request.prompt_tokens = 1 + std::int64_t(length(random));
      request.max_new_tokens = 1 + std::int64_t(answer(random));
      request.client = random() % 1000;
      request.priority = static_cast<Priority>(random() % 3);
      request.arrival = Instant(std::int64_t(now * 1e9));
      request.deadline = request.arrival + std::chrono::hours(1000);
      (void)scheduler.submit(request);
    }
    const ScheduledStep& step = scheduler.next_step(Instant(std::int64_t(now * 1e9)));
    if (step.slices.empty()) {
      if (arrived == count) break;
      now = next_arrival;
      continue;
    }
    scheduler.complete_step();
    std::int64_t rows = 0;
    for (const ScheduledSlice& slice : step.slices) {
      rows += slice.count;
      if (slice.wants_logits) (void)scheduler.append_tokens(slice.id);
    }
    now += 0.01 + 1e-5 * static_cast<double>(rows);
    cost.longest_queue = std::max(cost.longest_queue, scheduler.statistics().waiting);
  }
  cost.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  cost.statistics = scheduler.statistics();
  return cost;
}

TEST(Cost, AMillionRequestsTakeSecondsOfDecidingEvenIfAllWaitAtOnce) {
  const std::int64_t count = long_tests() ? 1'000'000 : 20'000;
  const Cost cost = simulate(count, count);
  EXPECT_EQ(cost.statistics.finished, count);
  EXPECT_GT(cost.longest_queue, count / 2);
  EXPECT_GT(cost.statistics.preemptions, 0);
  std::cout << count << " requests, " << cost.statistics.steps << " steps, " << cost.statistics.computed_tokens << " rows, "
            << cost.statistics.preemptions << " preemptions: " << cost.seconds << " s\n";
  EXPECT_LT(cost.seconds, 60e-6 * static_cast<double>(count)) << "60 s a million";
}

}  // namespace
}  // namespace calandra
