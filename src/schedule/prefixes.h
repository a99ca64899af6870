#pragma once
// What the scheduler asks of a store of boundaries. Without one every request starts from nothing.

#include "schedule/request.h"

#include <cstdint>
#include <optional>

namespace calandra {

/// What a request finds when it is admitted.
struct Resumption {
  /// Tokens that need not be computed: the position of the deepest boundary stored that is a prefix, from 0 to one less than the
  /// request's, since the last one's logits are wanted.
  std::int64_t tokens = 0;
  /// Blocks that the sequence may hold beyond what its length says, as long as it runs: shared pages lie scattered.
  std::int64_t more_blocks = 0;
  /// Blocks of the boundary, which must live until the step that admits the request has made its memory.
  std::int64_t held_blocks = 0;
  /// These tokens are on their way into the sequence's memory: it has no slice before Scheduler::arrived().
  bool later = false;
};

/// A boundary that does not exist yet.
struct ComingPrefix {
  RequestId from{};           // who is computing it
  std::int64_t position = 0;  // it exists once that one is there
};

class Prefixes {
 public:
  virtual ~Prefixes() = default;

  /// Asked once a request, before its first admission: what a running one will leave that it could go on from, if that is worth waiting
  /// for.
  virtual std::optional<ComingPrefix> coming(RequestId /*id*/, std::int64_t /*tokens*/) { return std::nullopt; }

  /// Asked once an admission of a request of `tokens` tokens. `more_blocks` and `held_blocks` together must not be more than
  /// `spare_blocks`, which nobody has at the moment.
  ///
  /// Beyond that the scheduler counts a resumed sequence as if it shared nothing. A store keeps its boundaries in what that leaves of
  /// the pool, and gives blocks back when a step needs them.
  virtual Resumption resume(RequestId id, std::int64_t tokens, std::int64_t spare_blocks) = 0;
};

}  // namespace calandra
