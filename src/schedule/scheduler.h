#pragma once
// Decides which tokens the next forward pass computes, and runs none: no threads, no clock, no tokens. Whoever runs the passes, on a
// model or in simulated time, goes round
//
//     const ScheduledStep& step = scheduler.next_step(now);
//     ... make and drop memory, run the slices (schedule/step.h) ...
//     scheduler.complete_step();
//     for each slice that wants logits: append_tokens() with how many were drawn, or finish(), and propose() for the next step.
//
// A step decodes every running stream and fills up with rows of prompts to a budget, smaller beside decodes, so that a stream waits
// for its next token no longer than that budget takes. A prompt may be cut anywhere: results do not depend on it. Prompts take turns
// by class, then by what their clients have been served, in turns of kPrefillTurnTokens, then by age. So a long prompt
// does not hold up another client's short one for long, and equal ones still end one after another rather than all at the end.
//
// Memory is counted in blocks of the pool by the allocator's formula. Admission reserves what is known and up to
// `reserved_new_tokens` more; the head of the queue is admitted when it fits, and nobody in its place. When a stream needs a block
// and there is none, the youngest running request of the lowest class is preempted: it loses its memory, keeps its place before all
// others of its class and later computes prompt and generated tokens again. A waiting request also preempts running ones of lower
// classes. The oldest running request of the highest class is never preempted by its own class, and alone everything fits that was
// taken in: so there is always one that gets on.
//
// Drafts are rows beside a stream's own, verified in the same step (schedule/step.h). They change nobody else's step: they are given
// out last, the oldest stream first, and preempt nobody. A stream verifies as many as are proposed, if it may still make more than
// that, and if there is memory: in its own blocks, or in spare ones while no request waits; otherwise fewer, or none. A block taken
// for drafts stays the stream's, as any it grows by. A client is charged for the drafts that are accepted.
//
// A request whose beginning a running one is computing at the moment is set aside, once, before its first admission: until that one is
// there, or does not get on for a step, or has ended or lost its memory. Then it is back in its place. Nobody waits for it meanwhile.
// So what many that arrive together have in common is computed once, and nobody waits for one that waits.
//
// A step costs O(running log running), everything else O(log n). A million requests that all wait at once, 410 million rows in 2.8
// million steps, took 30 s of a 2.4 GHz core (tests/schedule/cost_test.cpp). One thread at a time. Misuse throws Error.

#include "memory/layout.h"
#include "schedule/fair_queue.h"
#include "schedule/limits.h"
#include "schedule/prefixes.h"
#include "schedule/request.h"
#include "schedule/statistics.h"
#include "schedule/step.h"

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace calandra {

/// Tokens over weight that a client's prompts may be ahead of another's before the other has its turn: a few full steps.
inline constexpr std::int64_t kPrefillTurnTokens = 2048;

class Scheduler {
 public:
  /// Sequences share a pool of `pool_blocks` blocks. `prefixes` may be missing; it must outlive the scheduler.
  Scheduler(const MemoryLayout& layout, std::int64_t pool_blocks, const ScheduleLimits& limits, Prefixes* prefixes = nullptr);

  /// An id, or why not. Whether it fits the model's context is the caller's to know.
  Submission submit(const Request& request);

  /// Ends a request wherever it stands: in the queue, running, in the step under way. Its blocks are free at once for the next step.
  /// False if it has ended before.
  bool cancel(RequestId id);

  /// Valid until the next call. No slices: there is nothing to compute until somebody submits, or what a request resumes from has
  /// arrived. With slices, complete_step() is due before the next one.
  const ScheduledStep& next_step(Instant now);

  /// The step's pass is done: its sequences are at the ends of their slices, drafts not counted.
  void complete_step();

  /// What Prefixes had announced for later has come: the sequence's memory is at `position` now, which may be less than announced.
  /// Nothing happens if the request has ended or was preempted.
  void arrived(RequestId id, std::int64_t position);

  /// `count` tokens after all that were known are known now. The last one is to be computed in turn; those before it are: they were the
  /// first drafts of the request's last slice, and are accepted. At least one, at most one more than that slice had drafts. A request
  /// without a token to compute sits steps out. False if the request has ended: with these tokens, the last it may make, or before.
  [[nodiscard]] bool append_tokens(RequestId id, std::int64_t count = 1);

  /// The request's next slice verifies so many drafts, or fewer, if it is one that decodes. Forgotten with that slice, and when it is
  /// preempted. Nothing happens if the request has ended or does not run.
  void propose(RequestId id, std::int64_t drafts);

  /// The request has all it wanted. False if it has ended before. Drafts that came true before its end count if appended before.
  bool finish(RequestId id);

  /// When a step is due even if nothing else happens.
  std::optional<Instant> next_deadline() const;

  ScheduleStatistics statistics() const;

 private:
  enum class State : std::uint8_t { Waiting, SetAside, Running, Preempted };  // all but running ones wait
  struct Sequence {
    RequestId id{};
    Request request;
    FairQueue::Client* client = nullptr;
    State state = State::Waiting;
    std::int64_t known = 0;        // prompt and appended tokens
    std::int64_t position = 0;     // while running: computed
    std::int64_t room = 0;         // while running: positions that have memory
    std::int64_t more_blocks = 0;  // while running: Resumption::more_blocks
    std::int64_t proposed = 0;     // while running: drafts for its next slice
    std::int64_t verified = 0;     // while running: drafts of its last slice, until tokens are appended
    std::int64_t reached = 0;      // the largest position so far: what its client has paid for
    bool expected = false;         // while running: what it resumes from is on its way
    bool has_asked = false;        // Prefixes::coming()
    ComingPrefix coming;           // while set aside
    std::int64_t coming_at = 0;    // where that one was a step before
    Instant waits_since{};

    bool running() const { return state == State::Running; }
    std::int64_t generated() const { return known - request.prompt_tokens; }
    std::int64_t pending() const { return known - position; }
    bool decodes() const { return !expected && generated() > 0 && pending() == 1; }
    bool prefills() const { return !expected && pending() > 0 && !decodes(); }
    /// The last token a request makes is never computed.
    std::int64_t last_position() const { return request.prompt_tokens + request.max_new_tokens - 1; }
  };
  using Rank = std::pair<Priority, RequestId>;                 // the last one is preempted first
  using Turn = std::tuple<Priority, std::int64_t, RequestId>;  // the first one computes its prompt first

  static Rank rank(const Sequence& s) { return {s.request.priority, s.id}; }
  static Turn turn(const Sequence& s);
  FairQueue& queue(const Sequence& s) { return queues_[static_cast<std::size_t>(s.request.priority)]; }
  Sequence* find(RequestId id);
  Sequence* head_of_queues();
  std::int64_t num_waiting() const { return std::ssize(sequences_) - std::ssize(running_); }

  // In the order of a step.
  void expire();
  void bring_back();
  void make_way();
  std::int64_t schedule_decodes();
  std::int64_t schedule_prefills(std::int64_t budget);
  std::int64_t schedule_drafts();
  void add_slice(Sequence& s, std::int64_t count);
  std::int64_t drafts_with_memory(const Sequence& s, std::int64_t most) const;

  // What moves blocks.
  std::int64_t room_to_admit(const Sequence& s) const;
  std::int64_t blocks_of(const Sequence& s) const { return layout_.sequence_blocks(s.room) + s.more_blocks; }
  std::int64_t spare_blocks() const { return pool_blocks_ - used_blocks_ - held_blocks_; }
  bool fits(const Sequence& s, std::int64_t more_slots = 0, std::int64_t more_blocks = 0) const;
  bool set_aside(Sequence& s);
  void admit(Sequence& s);
  void resume(Sequence& s, std::int64_t position);
  bool grow(Sequence& s, std::int64_t room);
  void preempt(Sequence& s);
  void stop(Sequence& s);

  bool end(RequestId id, std::int64_t ScheduleCounters::*counter);
  void note_admission();
  std::chrono::seconds retry_after() const;

  const MemoryLayout layout_;
  const std::int64_t pool_blocks_;
  const ScheduleLimits limits_;
  Prefixes* const prefixes_;

  std::uint64_t last_id_ = 0;
  Instant now_{};
  std::unordered_map<RequestId, Sequence> sequences_;
  std::array<FairQueue, kNumPriorities> queues_;
  std::int64_t num_preempted_ = 0;
  std::map<Rank, Sequence*> running_;
  std::set<RequestId> aside_;
  std::set<std::pair<Instant, RequestId>> deadlines_;
  std::int64_t used_blocks_ = 0;
  std::int64_t held_blocks_ = 0;  // during one step: of the boundaries it resumes from
  ScheduledStep step_;
  bool under_way_ = false;
  std::vector<std::pair<Turn, Sequence*>> prefills_;  // of one step

  ScheduleCounters counters_;
  std::int64_t decode_rows_ = 0, prefill_rows_ = 0;  // of the last step
  std::optional<Instant> backlog_since_;             // the last admission, if it left somebody waiting
  double seconds_an_admission_ = 0;                  // while requests wait
};

}  // namespace calandra
