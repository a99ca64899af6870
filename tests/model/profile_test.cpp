// Times of families: they add up to the time that was profiled, and a family inside another takes its time away.

#include "model/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TEST(Profile, FamiliesAddUpToTheTimeAndTakeItFromEachOther) {
  Profile profile;
  const auto start = Clock::now();
  {
    const Profiling on(profile);
    std::this_thread::sleep_for(3ms);
    const Timed outer(Family::Experts);
    std::this_thread::sleep_for(5ms);
    {
      const Timed inner(Family::Router);
      std::this_thread::sleep_for(7ms);
    }
    std::this_thread::sleep_for(5ms);
  }
  const double wall = since(start);
  EXPECT_GE(profile.seconds(Family::Other), 0.003);
  EXPECT_GE(profile.seconds(Family::Experts), 0.010);
  EXPECT_GE(profile.seconds(Family::Router), 0.007);
  EXPECT_LE(profile.total_seconds(), wall);
  EXPECT_GE(profile.total_seconds(), 0.020);
  EXPECT_EQ(profile.seconds(Family::Head), 0);
}

TEST(Profile, NothingIsCountedWhileItIsNotInForce) {
  Profile profile, other;
  {
    const Profiling on(profile);
    {
      const Profiling instead(other);
      const Timed timed(Family::Head);
      std::this_thread::sleep_for(2ms);
    }
    std::thread([] {  // another thread's passes
      const Timed timed(Family::Router);
      std::this_thread::sleep_for(2ms);
    })
        .join();
  }
  {
    const Timed timed(Family::Head);
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_GE(other.seconds(Family::Head), 0.002);
  EXPECT_EQ(profile.seconds(Family::Head), 0);
  EXPECT_EQ(profile.seconds(Family::Router), 0);
}

}  // namespace
}  // namespace calandra
