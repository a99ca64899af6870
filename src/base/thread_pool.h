#pragma once
// A fixed set of threads for loops whose pieces are independent. The pieces are cut the same way for any number
// of threads, and no piece may depend on who runs it: results never depend on the thread count.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace calandra {

class ThreadPool {
 public:
  /// `num_threads` includes the caller; 0 means one per core this process may use.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

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

  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace calandra
