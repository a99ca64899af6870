#pragma once
// What an operator may turn. Defaults suit a machine whose decoding is bound by reading weights.

#include <cstdint>

namespace calandra {

struct ScheduleLimits {
  std::int64_t max_running = 64;    // sequences that have memory, and so streams that a step decodes
  std::int64_t max_waiting = 1024;  // more are refused; preempted requests wait beside them and are never refused

  /// Rows of prompts in a step that decodes nothing: enough to use every weight many times.
  std::int64_t prefill_tokens = 512;
  /// Rows of prompts beside decodes. All that a stream waits for between two of its tokens: fewer keep its pace, more bring
  /// prompts forward.
  std::int64_t prefill_tokens_beside_decodes = 128;

  /// New tokens that an admission reserves memory for, if the request may make that many. More: fewer preemptions; fewer:
  /// more requests at a time.
  std::int64_t reserved_new_tokens = 512;
};

}  // namespace calandra
