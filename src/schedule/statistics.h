#pragma once
// What the scheduler counts, for metrics and tests.

#include <cstdint>

namespace calandra {

/// Since the start. Every request submitted is refused, finished, cancelled, expired, or still there.
struct ScheduleCounters {
  std::int64_t submitted = 0;
  std::int64_t refused = 0;
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t expired = 0;

  std::int64_t steps = 0;
  std::int64_t preemptions = 0;
  std::int64_t admissions = 0;         // one a request, and one a preemption it came back from
  std::int64_t computed_tokens = 0;    // rows of all steps that stay: those of drafts once these are accepted
  std::int64_t recomputed_tokens = 0;  // of these, rows that a preemption had thrown away
  std::int64_t draft_rows = 0;  // as scheduled, where drafters may find fewer; not in computed_tokens before they are accepted
  std::int64_t accepted_drafts = 0;  // of these, appended: all others were computed in vain
  std::int64_t resumed_tokens = 0;   // found by Prefixes: not computed
  std::int64_t set_aside = 0;        // requests that have waited for what another was computing
};

struct ScheduleStatistics : ScheduleCounters {
  std::int64_t running = 0;
  std::int64_t waiting = 0;    // preempted ones too
  std::int64_t preempted = 0;  // of these
  std::int64_t blocks_used = 0;
  std::int64_t blocks_total = 0;
  // The last step: what it costs.
  std::int64_t decode_rows = 0;  // with those of drafts
  std::int64_t prefill_rows = 0;
};

}  // namespace calandra
