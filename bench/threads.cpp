// Times steps of short loops on a thread pool, as a decoded token has hundreds of them: what handing work over costs.
//   build/release/bench/bench_threads THREADS [LOOPS PIECES ROUNDS]
// A piece is ROUNDS dependent multiplications and additions. Prints the median of 100 steps, the tenth fastest and the tenth slowest.

#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

double multiply_and_add(std::int64_t rounds) {
  double x = 1;
  for (std::int64_t i = 0; i < rounds; ++i) x = x * 0.5 + 1;
  return x;
}

double milliseconds_of_step(ThreadPool& pool, std::int64_t loops, std::int64_t pieces, std::int64_t rounds) {
  std::atomic<double> sink = 0;  // or the pieces could be left out
  const auto start = Clock::now();
  const ThreadPool::Step step(pool);
  for (std::int64_t loop = 0; loop < loops; ++loop) {
    pool.for_each(pieces, 1,
                  [&](std::int64_t, std::int64_t) { sink.store(multiply_and_add(rounds), std::memory_order_relaxed); });
  }
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void time_steps(int threads, std::int64_t loops, std::int64_t pieces, std::int64_t rounds) {
  ThreadPool pool(threads);
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) {
    times.push_back(milliseconds_of_step(pool, loops, pieces, rounds));
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // as between two tokens
  }
  std::sort(times.begin(), times.end());
  fmt::print("{} threads, {} loops of {} pieces: {:.3f} ms a step ({:.3f} to {:.3f})\n", pool.num_threads(), loops, pieces,
             times[50], times[9], times[90]);
}

}  // namespace
}  // namespace calandra

int main(int argc, char** argv) {
  const auto number = [&](int i, long otherwise) { return argc > i ? std::strtol(argv[i], nullptr, 10) : otherwise; };
  calandra::time_steps(static_cast<int>(number(1, 0)), number(2, 300), number(3, 4), number(4, 900));
}
