#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace calandra {
namespace {

// Between two loops of one forward pass the next job comes within microseconds: spin about that long, then sleep.
constexpr int kSpins = 2000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

struct ThreadPool::Shared {
  // A job is published by writing its fields, then raising `generation`; every worker takes part in every job, so the
  // fields are not written again before all workers have reported in `finished`.
  std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> finished{0};
  std::atomic<std::int64_t> next{0};
  std::int64_t count = 0;
  std::int64_t grain = 1;
  Piece piece = nullptr;
  void* context = nullptr;
  bool stopping = false;
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void work() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      try {
        piece(context, begin, std::min(count, begin + grain));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void worker_loop() {
    std::uint32_t seen = 0;
    for (;;) {
      wait_while_equal(generation, seen);
      ++seen;
      if (stopping) return;
      work();
      finished.fetch_add(1, std::memory_order_release);
      finished.notify_one();
    }
  }

  static void wait_while_equal(std::atomic<std::uint32_t>& value, std::uint32_t old) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_cpu();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
  }

  void publish() {
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }
};

ThreadPool::ThreadPool(int num_threads) : shared_(std::make_unique<Shared>()) {
  const int threads = num_threads > 0 ? num_threads : usable_cores();
  for (int i = 1; i < threads; ++i) {
    shared_->workers.emplace_back([shared = shared_.get()] { shared->worker_loop(); });
  }
}

ThreadPool::~ThreadPool() {
  shared_->stopping = true;
  shared_->publish();
  for (auto& worker : shared_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(shared_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t count, std::int64_t grain, Piece piece, void* context) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(1, grain);
  Shared& s = *shared_;
  s.next.store(0, std::memory_order_relaxed);
  s.count = count;
  s.grain = grain;
  s.piece = piece;
  s.context = context;
  s.error = nullptr;
  const auto helpers = static_cast<std::uint32_t>(s.workers.size());
  if (helpers == 0 || count <= grain) {
    s.work();
  } else {
    s.finished.store(0, std::memory_order_relaxed);
    s.publish();
    s.work();
    for (std::uint32_t done = s.finished.load(std::memory_order_acquire); done != helpers;
         done = s.finished.load(std::memory_order_acquire)) {
      Shared::wait_while_equal(s.finished, done);
    }
  }
  if (s.error) std::rethrow_exception(s.error);
}

}  // namespace calandra
