#pragma once
// What the scheduler asks of a store of boundaries. Without one every request starts from nothing.

#include "schedule/request.h"

#include <cstdint>

namespace calandra {

class Prefixes {
 public:
  virtual ~Prefixes() = default;

  /// How many of the first `tokens` tokens of a request need not be computed: the position of the deepest boundary stored
  /// that is a prefix of them, from 0 to tokens - 1, since the last one's logits are wanted. Asked once an admission; the
  /// boundary must live until the step that admits it has made its memory.
  ///
  /// The scheduler counts a resumed sequence as if it shared nothing. A store keeps its boundaries in what that leaves of
  /// the pool, and gives blocks back when a step needs them.
  virtual std::int64_t resumable_tokens(RequestId id, std::int64_t tokens) = 0;
};

}  // namespace calandra
