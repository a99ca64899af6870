#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace calandra {
namespace {

TEST(ThreadPool, EveryItemIsDoneOnceForAnyThreadCountAndGrain) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 7, 100}) {
      for (const std::int64_t grain : {1, 3, 1000}) {
        std::vector<std::atomic<int>> done(static_cast<std::size_t>(count));
        pool.for_each(count, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++done[static_cast<std::size_t>(i)];
        });
        for (const auto& times : done) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(ThreadPool, ManyShortLoopsInARow) {
  for (const int threads : {2, 3, 40}) {  // 40: most come late to every loop
    ThreadPool pool(threads);
    std::atomic<std::int64_t> sum = 0;
    std::int64_t expected = 0;
    for (std::int64_t round = 0; round < 5000; ++round) {
      const std::int64_t count = round % 7 + 2, factor = round;  // a piece of the loop before would add something else
      pool.for_each(count, 1, [&sum, factor](std::int64_t begin, std::int64_t) { sum += begin * factor; });
      expected += count * (count - 1) / 2 * factor;
      ASSERT_EQ(sum, expected) << threads << " threads, round " << round;
    }
  }
}

TEST(ThreadPool, MayEndWhileItsWorkersAreStillWaking) {
  for (int round = 0; round < 2000; ++round) {
    ThreadPool pool(3);
    for (int loops = 0; loops < round % 3; ++loops) pool.for_each(3, 1, [](std::int64_t, std::int64_t) {});
  }
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolGoesOn) {
  ThreadPool pool(2);
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(pool.for_each(8, 1,
                               [](std::int64_t begin, std::int64_t) {
                                 if (begin == 5) throw std::runtime_error("five");
                               }),
                 std::runtime_error);
    int done = 0;
    pool.for_each(1, 1, [&](std::int64_t, std::int64_t) { ++done; });
    EXPECT_EQ(done, 1);
  }
}

}  // namespace
}  // namespace calandra
