#include "base/thread_pool.h"

#include "base/error.h"
#include "base/integer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

// Between two loops of one forward pass the next job comes within microseconds, and waking a thread takes some: spin about that long, then
// sleep. By the clock, for a pause takes 40 cycles on one processor and 140 on the next; the clock is read once in so many pauses.
constexpr std::chrono::microseconds kSpinTime{50};
constexpr int kPausesPerLook = 32;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// A job is cut into pieces, which whoever is free takes one by one. The caller returns when all pieces are done, not when
// all workers have taken part: one that sleeps, or that the system does not let run, costs nothing.
//
// `ticket` holds the generation of the job (high half) and the next piece to take (low half). A worker reads the ticket,
// then the job, and takes the piece by changing the ticket: that succeeds only while this piece of this job is still to be
// had, and until then the job is not overwritten, so what was read belongs to it. Before a job is overwritten the ticket
// is closed, which makes every change that was prepared before fail: whoever has read a new field sees the closed ticket
// (fields are stored with release and read with acquire).
struct ThreadPool::Shared {
  std::atomic<std::uint64_t> ticket{kClosed};
  std::atomic<std::uint32_t> generation{0};  // of the newest job: workers sleep on it
  std::atomic<std::uint32_t> num_finished{0};
  std::atomic<std::uint32_t> num_pieces{0};
  std::atomic<std::int64_t> count{0};
  std::atomic<std::int64_t> grain{1};
  std::atomic<Piece> piece{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<bool> stopping{false};
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;
  std::vector<int> cores;  // by thread, the caller's first; empty if nobody is pinned

  static constexpr std::uint64_t kClosed = UINT32_MAX;  // a piece that no job has

  void open_job(std::int64_t new_count, std::int64_t new_grain, std::uint32_t new_pieces, Piece new_piece, void* new_context) {
    ticket.store(kClosed, std::memory_order_relaxed);
    num_finished.store(0, std::memory_order_relaxed);
    num_pieces.store(new_pieces, std::memory_order_release);
    count.store(new_count, std::memory_order_release);
    grain.store(new_grain, std::memory_order_release);
    piece.store(new_piece, std::memory_order_release);
    context.store(new_context, std::memory_order_release);
    const std::uint32_t next = generation.load(std::memory_order_relaxed) + 1;
    ticket.store(std::uint64_t{next} << 32, std::memory_order_release);
    generation.store(next, std::memory_order_release);
    generation.notify_all();
  }

  /// Takes pieces of the job that is open until none is left.
  void work() {
    std::uint64_t taken = ticket.load(std::memory_order_acquire);
    for (;;) {
      const auto index = static_cast<std::uint32_t>(taken);
      const std::uint32_t pieces = num_pieces.load(std::memory_order_acquire);
      const std::int64_t all = count.load(std::memory_order_acquire), step = grain.load(std::memory_order_acquire);
      const Piece body = piece.load(std::memory_order_acquire);
      void* const argument = context.load(std::memory_order_acquire);
      if (index >= pieces) return;
      if (!ticket.compare_exchange_weak(taken, taken + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      const std::int64_t begin = index * step;
      try {
        body(argument, begin, std::min(all, begin + step));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
      if (num_finished.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) num_finished.notify_one();
      taken = ticket.load(std::memory_order_acquire);
    }
  }

  void wait_until_finished() {
    const std::uint32_t pieces = num_pieces.load(std::memory_order_relaxed);
    for (std::uint32_t done = num_finished.load(std::memory_order_acquire); done != pieces;
         done = num_finished.load(std::memory_order_acquire)) {
      wait_while_equal(num_finished, done);
    }
  }

  std::optional<int> core_of(int thread) const {
    return cores.empty() ? std::nullopt : std::optional(cores[static_cast<std::size_t>(thread)]);
  }

  void worker_loop(int thread) {
    const CorePin pin(core_of(thread));
    std::uint32_t seen = 0;
    for (;;) {
      wait_while_equal(generation, seen);
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) return;  // after `seen`: stop() raises the generation last
      work();
    }
  }

  static void wait_while_equal(std::atomic<std::uint32_t>& value, std::uint32_t old) {
    const auto end = Clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_cpu();
      }
    } while (Clock::now() < end);
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
  }

  void stop() {
    stopping.store(true, std::memory_order_release);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (auto& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int num_threads) : shared_(std::make_unique<Shared>()) {
  std::vector<int> cores = usable_cores();
  const int threads = num_threads > 0 ? num_threads : static_cast<int>(cores.size());
  if (threads > 1 && std::cmp_equal(threads, cores.size())) shared_->cores = std::move(cores);
  try {
    for (int thread = 1; thread < threads; ++thread) {
      shared_->workers.emplace_back([shared = shared_.get(), thread] { shared->worker_loop(thread); });
    }
  } catch (const std::system_error& error) {
    shared_->stop();
    fail("{} threads: cannot start number {}: {}", threads, shared_->workers.size() + 2, error.what());
  }
}

ThreadPool::~ThreadPool() { shared_->stop(); }

int ThreadPool::num_threads() const { return static_cast<int>(shared_->workers.size()) + 1; }

std::optional<int> ThreadPool::core_of(int thread) const { return shared_->core_of(thread); }

void ThreadPool::run(std::int64_t count, std::int64_t grain, Piece piece, void* context) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(1, grain);
  if (shared_->workers.empty() || count <= grain) {
    for (std::int64_t begin = 0; begin < count; begin += grain) piece(context, begin, std::min(count, begin + grain));
    return;
  }
  const std::int64_t pieces = ceil_div(count, grain);
  if (pieces >= static_cast<std::int64_t>(Shared::kClosed)) fail("{} pieces of a loop: expected fewer than 2^32 - 1", pieces);
  Shared& s = *shared_;
  s.error = nullptr;
  s.open_job(count, grain, static_cast<std::uint32_t>(pieces), piece, context);
  s.work();
  s.wait_until_finished();
  if (s.error) std::rethrow_exception(s.error);
}

}  // namespace calandra
