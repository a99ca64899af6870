#pragma once
// Runs a scheduler's steps on real memory and no model, and checks each step against what it was told itself: what every request's
// sequence holds, which tokens of it exist, which blocks the pool has handed out.

#include "memory/sequence_memory.h"
#include "schedule/scheduler.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace calandra {

class Runner {
 public:
  enum class Fate : std::uint8_t { Alive, Finished, Cancelled, Expired };

  struct Life {
    Request request;
    std::int64_t known = 0;     // prompt and generated tokens
    std::int64_t position = 0;  // in memory
    std::int64_t room = 0;      // positions that have memory
    std::int64_t proposed = 0;  // drafts for its next slice
    std::int64_t answer = 0;    // new tokens after which it stops by itself
    std::int64_t served = 0;    // tokens computed for the first time
    std::unique_ptr<SequenceMemory> memory;
    bool expects = false;        // what it resumes from is on its way
    std::int64_t announced = 0;  //   to this position
    Fate fate = Fate::Alive;
    bool was_running = false;
    std::int64_t admitted_at = 0;  // the step
    std::int64_t preemptions = 0;

    std::int64_t generated() const { return known - request.prompt_tokens; }
  };

  Runner(const MemoryLayout& layout, std::int64_t pool_blocks, const ScheduleLimits& limits, Prefixes* prefixes = nullptr);

  /// As Scheduler::submit(); the sequence stops by itself after `answer` new tokens.
  Submission submit(const Request& request, std::int64_t answer);
  /// The id of a request that is expected to be taken in.
  RequestId take(const Request& request, std::int64_t answer = INT64_MAX);
  void cancel(RequestId id);
  /// One step: everything it says is done, then tokens are appended. `during` is called while it is under way. The step is
  /// kept in `last`.
  void step(Instant now, const std::function<void()>& during = {});
  /// Steps until nothing is left to do.
  void run_dry(Instant now = {});

  /// Requests that younger ones of their client and those of lower classes may be admitted before.
  std::function<bool(RequestId id)> may_be_passed;

  /// Whether what an admitted request resumes from comes later. It does after a few steps, or less of it.
  std::function<bool(RequestId id)> comes_later;

  /// Drafts proposed before each step, 0: no call; also for requests that are not there or cannot have any. How many come true.
  std::function<std::int64_t(RequestId id)> proposes;
  std::function<std::int64_t(RequestId id, std::int64_t drafts)> accepts;

  /// Called with each step before anything of it is done.
  std::function<void(const ScheduledStep& step)> decided;

  /// The first thing that was wrong, or "".
  const std::string& complaint() const { return complaint_; }
  Scheduler& scheduler() { return scheduler_; }
  const Life& life(RequestId id) const { return lives_.at(id); }
  const std::map<RequestId, Life>& lives() const { return lives_; }
  std::int64_t num_alive() const;
  const ScheduledStep& last() const { return last_; }
  std::int64_t steps() const { return steps_; }
  /// One word for everything that was decided so far, without drafts.
  std::uint64_t digest() const { return digest_; }

 private:
  void check(bool good, RequestId id, const std::string& what);
  void drop(RequestId id);
  void propose();
  bool decodes(const Life& life) const;
  void check_who_was_preempted();
  void check_who_was_admitted();
  void check_streams();
  void let_arrive();
  void make_memory();
  void check_drafts();
  void run_slices(const std::function<void()>& during);
  void append_tokens();
  void remember(std::uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3; }

  MemoryLayout layout_;
  MemoryPool pool_;
  ScheduleLimits limits_;
  Scheduler scheduler_;
  std::map<RequestId, Life> lives_;
  ScheduledStep last_;
  std::int64_t steps_ = 0;
  std::int64_t draft_rows_ = 0, accepted_drafts_ = 0;
  std::uint64_t digest_ = 0xcbf29ce484222325;
  std::string complaint_;
};

}  // namespace calandra
