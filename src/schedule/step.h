#pragma once
// One step, decided: which rows the next forward pass has, and what happens to memory before it. Whoever runs it
//   1. drops the memory of `expired` and `preempted` requests,
//   2. makes that of `admitted` ones: at `resume_at` tokens, with room up to position `room`,
//   3. gives every slice its `room` and runs all slices as one pass.
// A request may be preempted and admitted by one step. Done in this order, the pool has the blocks.

#include "schedule/request.h"

#include <cstdint>
#include <vector>

namespace calandra {

struct Admission {
  RequestId id{};
  std::int64_t resume_at = 0;  // tokens that need not be computed, now or later: what Prefixes answered
  std::int64_t room = 0;       // SequenceMemory::reserve(room)
  Instant waited{};            // since it arrived, or was preempted
};

/// Tokens [begin, begin + count) of a request's prompt and generated tokens. A stream's next token may be followed by drafts of those
/// after it. Their rows are computed as if they were known; afterwards the sequence keeps those that came true (append_tokens()), and
/// goes back behind the last of them.
struct ScheduledSlice {
  RequestId id{};
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t room = 0;
  std::int64_t drafts = 0;    // of the tokens, the last: not known, to be verified
  bool wants_logits = false;  // of the last row that is no draft, after which no token is known, and of every draft's
};

struct ScheduledStep {
  std::vector<RequestId> expired;  // ended: their deadline has come
  std::vector<RequestId> preempted;
  std::vector<Admission> admitted;
  std::vector<ScheduledSlice> slices;  // decodes first; a request has one at most
};

}  // namespace calandra
