#include "base/thread_pool.h"

#include "base/cores.h"

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace calandra {
namespace {

using namespace std::chrono_literals;

/// Of this process (RUSAGE_SELF) or thread (RUSAGE_THREAD), in user and system mode: no matter what else runs.
std::chrono::microseconds processor_time(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/// The cores that each thread of the pool may run on during a loop, the caller's first.
std::vector<std::vector<int>> cores_by_thread(ThreadPool& pool) {
  const std::int64_t threads = pool.num_threads();
  std::vector<std::vector<int>> cores(static_cast<std::size_t>(threads));
  const auto caller = std::this_thread::get_id();
  std::atomic<std::size_t> next = 1;
  std::atomic<std::int64_t> arrived = 0;
  pool.for_each(threads, 1, [&](std::int64_t, std::int64_t) {
    cores[std::this_thread::get_id() == caller ? 0 : next++] = usable_cores();
    ++arrived;
    while (arrived < threads) std::this_thread::yield();  // so that everybody takes a piece
  });
  return cores;
}

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

TEST(ThreadPool, AThreadForEveryCoreKeepsToItsOwnDuringAStep) {
  const std::vector<int> all = usable_cores();
  if (all.size() < 2) GTEST_SKIP() << "one core";
  ThreadPool pool(0);
  ASSERT_EQ(pool.num_threads(), std::ssize(all));
  EXPECT_EQ(cores_by_thread(pool)[0], all) << "the caller outside a step";
  {
    const ThreadPool::Step step(pool);
    std::set<int> taken;
    for (const std::vector<int>& cores : cores_by_thread(pool)) {
      ASSERT_EQ(cores.size(), 1U);
      taken.insert(cores[0]);
    }
    EXPECT_EQ(taken, std::set<int>(all.begin(), all.end()));
  }
  EXPECT_EQ(usable_cores(), all);
}

TEST(ThreadPool, NobodyIsPinnedUnlessThereIsOneThreadForEveryCore) {
  const std::vector<int> all = usable_cores();
  for (const int threads : {static_cast<int>(all.size()) - 1, static_cast<int>(all.size()) + 1}) {
    if (threads < 1) continue;
    ThreadPool pool(threads);
    const ThreadPool::Step step(pool);
    EXPECT_THAT(cores_by_thread(pool), testing::Each(all)) << threads << " threads";
  }
}

TEST(ThreadPool, CoresThatAreForbiddenAreNotCounted) {
  const std::vector<int> all = usable_cores();
  const CorePin restricted(all.back());  // as taskset does
  ASSERT_TRUE(restricted.holds());
  EXPECT_EQ(ThreadPool(0).num_threads(), 1);
  ThreadPool pool(3);
  EXPECT_THAT(cores_by_thread(pool), testing::Each(std::vector{all.back()}));
}

TEST(ThreadPool, WhoHasNothingToDoTakesNoTime) {
  ThreadPool pool(3);
  pool.for_each(100, 1, [](std::int64_t, std::int64_t) {});
  std::this_thread::sleep_for(5ms);  // until they sleep
  const auto before = processor_time(RUSAGE_SELF);
  std::this_thread::sleep_for(300ms);
  EXPECT_LT((processor_time(RUSAGE_SELF) - before).count(), 20'000) << "microseconds of 300,000";
}

TEST(ThreadPool, ACallerThatWaitsForALongPieceSleeps) {
  ThreadPool pool(2);
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> is_taken = false;
  const auto before = processor_time(RUSAGE_THREAD);
  pool.for_each(2, 1, [&](std::int64_t, std::int64_t) {
    if (std::this_thread::get_id() == caller) {
      is_taken.wait(false);
    } else {
      is_taken = true;
      is_taken.notify_all();
      std::this_thread::sleep_for(300ms);
    }
  });
  EXPECT_LT((processor_time(RUSAGE_THREAD) - before).count(), 20'000) << "microseconds of 300,000";
}

}  // namespace
}  // namespace calandra
