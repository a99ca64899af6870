#pragma once
// A fixed set of threads for loops whose pieces are independent. The pieces are cut the same way for any number
// of threads, and no piece may depend on who runs it: results never depend on the thread count.
//
// A pool with a thread for every core it may use keeps each on a core of its own: workers always, the caller during a Step. Left to itself
// the system sometimes puts two of them on one core for a second, beside a free one. With fewer threads than cores nobody is pinned, for other
// processes and the other half of a core are better avoided by the system; nor is anybody with more. bench/results.md has the figures.
//
// Workers that have nothing to do wait 50 microseconds for the next loop, then sleep: a pool that is not used takes no time.

#include "base/cores.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

namespace calandra {

class ThreadPool {
 public:
  /// `num_threads` includes the caller; 0 means one per core that the calling thread may use.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// Loops in quick succession, such as those of a forward pass. While it lives the calling thread keeps to its core, if the pool has one
  /// for it. Threads must not be started meanwhile: they would inherit that. Costs three system calls.
  class Step {
   public:
    explicit Step(const ThreadPool& pool) : pin_(pool.core_of(0)) {}

   private:
    CorePin pin_;
  };

  /// Calls body(begin, end) for consecutive pieces of at most `grain` items that cover [0, count). Returns when all are
  /// done. Rethrows the first exception of a piece. One caller at a time; a body must not call the pool again.
  template <class Body>
  void for_each(std::int64_t count, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, grain, [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Piece = void (*)(void* context, std::int64_t begin, std::int64_t end);
  void run(std::int64_t count, std::int64_t grain, Piece piece, void* context);
  /// Of the caller (0) or a worker (from 1); none if nobody is pinned.
  std::optional<int> core_of(int thread) const;

  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace calandra
