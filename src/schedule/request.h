#pragma once
// What the scheduler knows of a request: lengths, times and who asks. Not its tokens, its text or its connection.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace calandra {

/// Counts up with every request taken in and is never used again: the smaller of two is the older.
enum class RequestId : std::uint64_t {};

/// A moment, as the time since an origin of the caller's choice: that of a real clock or of a virtual one.
using Instant = std::chrono::nanoseconds;

/// Strict classes, served in this order: a class may starve for as long as those before it have work.
enum class Priority : std::uint8_t { High, Normal, Low };
inline constexpr std::size_t kNumPriorities = 3;

struct Request {
  std::int64_t prompt_tokens = 0;   // at least 1
  std::int64_t max_new_tokens = 0;  // at least 1
  Priority priority = Priority::Normal;
  std::uint64_t client = 0;  // requests of one client share one place in the queue of their class
  double weight = 1;         // the client's share against that of others, from now on
  Instant arrival{};
  std::optional<Instant> deadline;  // from then on it is of no use to anybody: it is ended wherever it stands
};

// Why a request is not taken in. `message()` is one line for a person.

/// As many wait as may. Worth asking again after `retry_after`.
struct QueueFull {
  std::int64_t waiting = 0;
  std::chrono::seconds retry_after{};
  std::string message() const;
};

/// It would not fit if it were alone.
struct LargerThanPool {
  std::int64_t tokens = 0;  // prompt and new ones
  std::int64_t blocks = 0;
  std::int64_t pool_blocks = 0;
  std::string message() const;
};

using Submission = std::variant<RequestId, QueueFull, LargerThanPool>;

}  // namespace calandra
