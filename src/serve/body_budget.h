#pragma once
// The memory that the bodies of all requests may take together, from the first byte that has come to the moment when an API has read
// the whole. A body takes its share as it comes, so that who announces much and sends nothing keeps nobody else's from coming.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace calandra {

/// May be used from any thread.
class BodyBudget {
 public:
  explicit BodyBudget(std::uint64_t bytes) : bytes_(bytes) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t used() const { return used_; }
  bool has_room_for(std::uint64_t bytes) const { return bytes <= bytes_ - used_; }

 private:
  friend class BodyShare;

  bool take(std::uint64_t bytes) {
    std::uint64_t used = used_;
    do {
      if (bytes > bytes_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }

  const std::uint64_t bytes_;
  std::atomic<std::uint64_t> used_ = 0;  // never more than bytes_
};

/// What one body has taken. It goes with the body, and is given back with the last who holds it.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->used_ -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  /// False, and nothing is taken, if there is no room. By one thread at a time.
  bool grow(std::uint64_t bytes) {
    if (!budget_->take(bytes)) return false;
    bytes_ += bytes;
    return true;
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  std::uint64_t bytes_ = 0;
};

}  // namespace calandra
