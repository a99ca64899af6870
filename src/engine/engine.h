#pragma once
// Many answers at once on one model: the scheduler decides steps, one thread runs them. Every answer is bit for bit what it would
// be alone (docs/numerics.md): who else is served, how prompts are cut, and a preemption change when it comes, and nothing else.
//
// A request is submitted from any thread with a listener, which hears of it in the engine's thread: so it must not block or throw, nor call
// the engine except to cancel. Whatever happens to the answer, ended() is called once and nothing after it.

#include "engine/answer_builder.h"
#include "engine/answer_guide.h"
#include "engine/model.h"
#include "engine/prefix_store.h"
#include "engine/speculation.h"
#include "memory/pool.h"
#include "schedule/limits.h"
#include "schedule/request.h"
#include "schedule/statistics.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace calandra {

/// Sees what the tokens of one answer are drawn from: for whoever compares answers more closely than by their tokens.
class LogitListener {
 public:
  virtual ~LogitListener() = default;
  /// `logits` of all tokens that can be sampled, after `position` tokens of prompt and answer. Once for each token of the answer, in their
  /// order, before the listener is told of the token; a preemption repeats nothing. Valid during the call, which is made in any of the
  /// model's threads and must not block or throw.
  virtual void drawn_from(std::int64_t position, std::span<const float> logits) = 0;
};

struct AnswerRequest {
  std::vector<std::int32_t> prompt;
  GenerationOptions options;
  std::uint32_t sample = 0;  // counts answers to one prompt
  std::shared_ptr<AnswerGuide> guide;
  std::shared_ptr<LogitListener> logits = {};

  /// Who shares prefixes with whom: what requests of one space have computed, those of another neither find nor can tell.
  std::string cache_space;
  /// Positions in the prompt that the client expects to come back to, ascending.
  std::vector<std::int64_t> cache_marks = {};
  /// Nothing of it is kept but there; without marks nothing is looked for either.
  bool cache_only_marks = false;

  Priority priority = Priority::Normal;
  std::uint64_t client = 0;  // who shares a place in the queues
  double weight = 1;
  std::optional<std::chrono::nanoseconds> time_limit;  // from its submission to its end
};

enum class AnswerOutcome : std::uint8_t { Stop, Length, Cancelled, TimedOut, Failed };

struct AnswerSummary {
  AnswerOutcome outcome = AnswerOutcome::Stop;
  std::string error;  // why Failed
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;    // of the prompt, that did not have to be computed, at its first admission
  std::int64_t lost_tokens = 0;      // behind them, that others had computed too, but kept nothing of to go on from
  std::int64_t kept_tokens = 0;      // up to the last boundary that was taken in the prompt
  std::int64_t marked_tokens = 0;    // up to the last such at one of cache_marks
  std::int64_t made_tokens = 0;      // a final stop id included
  std::int64_t accepted_drafts = 0;  // of these, tokens that a step made beyond its first
  std::int64_t rejected_drafts = 0;  // that were verified beside them in vain
  std::int64_t preemptions = 0;
  double queue_seconds = 0;        // until it was first admitted; until the end if it never was
  double first_token_seconds = 0;  // from submission; 0 if there was none
  double total_seconds = 0;
};

class AnswerListener {
 public:
  virtual ~AnswerListener() = default;
  /// Of every token of the prompt but the first, if options.prompt_logprobs asked for them. Before the first token.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): whoever overrides it keeps them
  virtual void prompt_logprobs(std::vector<LogprobEntry> /*entries*/) {}
  /// The answer has gained a token, and with it this text.
  virtual void gained(std::int32_t id, const AnswerStep& step) = 0;
  /// `rest` is text that had waited, if the answer was ended from outside.
  virtual void ended(const AnswerSummary& summary, std::string_view rest) = 0;
};

/// Why a request is not taken in, beside what the scheduler says.
struct EngineStopped {
  std::string message() const { return "the server is stopping"; }
};
using AnswerSubmission = std::variant<RequestId, QueueFull, LargerThanPool, EngineStopped>;

struct EngineOptions {
  ScheduleLimits limits;
  std::int64_t context = 0;     // tokens of prompt and answer; 0: the model's
  std::int64_t pool_bytes = 0;  // for states, tails and latents; 0: default_pool_bytes()
  FreedMemory freed = FreedMemory::AsIs;
  PrefixStoreOptions prefixes = {};  // what requests have in common is computed once, as long as there is room to keep it
  SpeculationOptions speculation = {.setting = {.automatic = false, .drafts = 0}};  // changes when tokens come, and nothing else
};

/// Half of the memory that is available beside the weights, at least one sequence of the whole context, at most `max_running` of them.
std::int64_t default_pool_bytes(const Model& model, const EngineOptions& options);

/// Of the scheduler and the tier, and of the last step.
struct EngineStatistics {
  ScheduleStatistics schedule;
  std::int64_t context = 0;
  std::int64_t block_bytes = 0;
  PrefixCacheStatistics cache;
  TierStatistics tier;
  PrefixVerifications verifications;
  std::vector<DrafterStatistics> drafters;  // none: no speculation
  double predicted_gain = 1;                // of the last step's drafts, in tokens per second
  PoolUse pool;                             // after the last step, while `schedule` counts what is promised, too
  double step_seconds = 0;                  // of the last step: the pass, and drawing tokens
  double draw_seconds = 0;                  // of these
};

/// What a step was, for metrics. In the engine's thread.
class StepListener {
 public:
  virtual ~StepListener() = default;
  virtual void step(const EngineStatistics& statistics) = 0;
};

class Engine {
 public:
  /// `model` must outlive the engine, which is from now on the only one to compute on it (but for other engines while this one has no request). Throws Error if the memory cannot be had.
  Engine(Model& model, const EngineOptions& options, std::shared_ptr<StepListener> steps = nullptr);
  /// Cancels what is still there.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const;
  std::int64_t context() const;

  /// Throws Error for options out of range, an empty prompt, one that leaves no room in the context, ids outside the vocabulary. From
  /// any thread.
  AnswerSubmission submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener);

  /// Ends an answer wherever it stands; ended() follows soon. Nothing happens if it has ended. From any thread, listeners included.
  void cancel(RequestId id);

  /// As cancel() of every answer: for an end that has waited long enough.
  void cancel_all();

  /// No further requests; those taken in are answered. From any thread; returns at once.
  void drain();
  /// Whether nothing is waiting or running.
  bool idle() const;

  EngineStatistics statistics() const;

  // As PrefixStore's survey() and flush(). From any thread, and at once: `done` hears in the engine's thread, between two steps. It must not
  // block or throw, and is dropped unheard if the engine ends before.
  void survey_cache(SpaceFilter shows, std::int64_t most, std::function<void(const PrefixSurvey&)> done);
  void flush_cache(SpaceFilter meant, std::function<void(const PrefixFlush&)> done);

 private:
  class Runner;
  std::unique_ptr<Runner> runner_;
};

}  // namespace calandra
