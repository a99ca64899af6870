#include "engine/engine.h"

#include "base/error.h"
#include "engine/generate.h"
#include "engine/prefix_store.h"
#include "engine/session.h"
#include "plan/available_memory.h"
#include "schedule/scheduler.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

Instant now() { return std::chrono::duration_cast<Instant>(Clock::now().time_since_epoch()); }
double seconds(Instant time) { return std::chrono::duration<double>(time).count(); }

AnswerOutcome outcome_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop: return AnswerOutcome::Stop;
    case FinishReason::Length: return AnswerOutcome::Length;
    case FinishReason::Cancelled: return AnswerOutcome::Cancelled;
  }
  return AnswerOutcome::Failed;
}

/// Verifications that wait for a moment when nobody is there.
constexpr std::int64_t kMostToVerify = 16;

/// Hears what a verification says.
class Nobody : public AnswerListener {
 public:
  void gained(std::int32_t, const AnswerStep&) override {}
  void ended(const AnswerSummary&, std::string_view) override {}
};

std::int64_t pool_blocks_of(const Model& model, const EngineOptions& options) {
  const std::int64_t bytes = options.pool_bytes > 0 ? options.pool_bytes : default_pool_bytes(model, options);
  const MemoryLayout layout = model.layout();
  const std::int64_t blocks = bytes / layout.block_bytes, least = layout.sequence_blocks(1);
  if (blocks < least)
    fail("memory for sequences: {} bytes, expected at least {} for a single one", bytes, least * layout.block_bytes);
  return blocks;
}

}  // namespace

std::int64_t default_pool_bytes(const Model& model, const EngineOptions& options) {
  const MemoryLayout layout = model.layout();
  const std::int64_t sequence = layout.sequence_blocks(checked_context(model, options.context)) * layout.block_bytes;
  return std::clamp(available_memory_bytes() / 2, sequence, options.limits.max_running * sequence);
}

class Engine::Runner : private Prefixes {
 public:
  Runner(Model& model, const EngineOptions& options, std::shared_ptr<StepListener> steps)
      : model_(model),
        steps_(std::move(steps)),
        context_(checked_context(model, options.context)),
        pool_(model.layout(), pool_blocks_of(model, options), options.freed),
        prefixes_(pool_, model, options.prefixes, [this] { note_arrival(); }),
        speculation_(model, options.speculation),
        verify_rate_(options.prefixes.keeps ? options.prefixes.verify_rate : 0),
        scheduler_(model.layout(), pool_.blocks().num_blocks(), options.limits, this) {
    statistics_.context = context_;
    statistics_.block_bytes = model.layout().block_bytes;
    statistics_.pool = pool_.use();
    thread_ = std::thread([this] { run(); });
  }

  ~Runner() override {
    {
      const std::lock_guard lock(mutex_);
      draining_ = stopping_ = true;
      end_all();
    }
    wake_.notify_all();
    thread_.join();
    prefixes_.finish();
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const Model& model() const { return model_; }
  std::int64_t context() const { return context_; }

  AnswerSubmission submit(AnswerRequest wanted, std::shared_ptr<AnswerListener> listener) {
    check_request(wanted);
    const std::int64_t room = context_ - std::ssize(wanted.prompt), limit = wanted.options.max_tokens;
    Request request;
    request.prompt_tokens = std::ssize(wanted.prompt);
    request.max_new_tokens = limit > 0 ? std::min(limit, room) : room;
    request.priority = wanted.priority;
    request.client = wanted.client;
    request.weight = wanted.weight;
    auto answer = std::make_unique<Answer>(model_.tokenizer_if_any(), std::move(wanted), context_, std::move(listener));
    request.arrival = answer->submitted;
    prefixes_.name(answer->prefix, answer->tokens);
    if (answer->request.time_limit) request.deadline = request.arrival + *answer->request.time_limit;
    {
      const std::lock_guard lock(mutex_);
      if (draining_) return EngineStopped{};
      interrupt_verification();
      const Submission submission = scheduler_.submit(request);
      if (const auto* full = std::get_if<QueueFull>(&submission)) return *full;
      if (const auto* larger = std::get_if<LargerThanPool>(&submission)) return *larger;
      const RequestId id = std::get<RequestId>(submission);
      answers_.emplace(id, std::move(answer));
      submitted_.push_back(id);
      wake_.notify_one();
      return id;
    }
  }

  void cancel(RequestId id) {
    {
      const std::lock_guard lock(mutex_);
      if (!scheduler_.cancel(id)) return;
      end(id, AnswerOutcome::Cancelled);
    }
    wake_.notify_one();
  }

  void cancel_all() {
    {
      const std::lock_guard lock(mutex_);
      end_all();
    }
    wake_.notify_one();
  }

  void drain() {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    to_verify_.clear();
    interrupt_verification();
  }

  /// In the engine's thread, between two steps.
  void run_errand(std::function<void(PrefixStore&)> errand) {
    {
      const std::lock_guard lock(mutex_);
      errands_.push_back(std::move(errand));
    }
    wake_.notify_one();
  }

  bool idle() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(answers_) == (verifying_ ? 1 : 0) && ended_.empty() && !telling_;
  }

  EngineStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    EngineStatistics all = statistics_;
    all.schedule = scheduler_.statistics();
    all.tier = prefixes_.tier_statistics();  // of now: what is written goes on when no step is
    return all;
  }

 private:
  /// One answer from its submission to its end. The lists of the runner own it; its parts belong to the engine's thread.
  struct Answer {
    Answer(const Tokenizer* tokenizer, AnswerRequest wanted, std::int64_t context, std::shared_ptr<AnswerListener> heard_by)
        : request(std::move(wanted)),
          listener(std::move(heard_by)),
          builder(tokenizer, request.prompt, request.options, context, request.sample),
          tokens(std::move(request.prompt)),
          drafted(builder, tokens, request.guide.get()),
          prefix{.space = std::move(request.cache_space),
                 .marks = std::move(request.cache_marks),
                 .only_marks = request.cache_only_marks,
                 .computes_all = request.options.prompt_logprobs.has_value()},
          submitted(now()) {
      summary.prompt_tokens = std::ssize(tokens);
    }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

    AnswerRequest request;  // without its prompt, and what it says of the cache
    std::shared_ptr<AnswerListener> listener;
    AnswerBuilder builder;
    std::vector<std::int32_t> tokens;  // of the prompt, and made
    DraftedAnswer drafted;
    std::unique_ptr<SequenceMemory> memory;
    bool started = false;  // its first token of all has been, or is next, in a pass
    bool spoilt = false;   // a pass ended in the middle: what is in memory is of no position
    PrefixUser prefix;
    std::vector<LogprobEntry> prompt_logprobs;
    Instant submitted;
    std::optional<Instant> admitted;
    AnswerSummary summary;
  };

  /// The beginning of a request that was gone on from.
  struct ToVerify {
    std::string space;
    std::vector<std::int32_t> tokens;
  };

  struct Gained {
    std::int32_t token = 0;
    AnswerStep step;
  };

  /// An answer in a step.
  struct Work {
    RequestId id{};
    Answer* answer = nullptr;
    ScheduledSlice slice;
    std::vector<std::int32_t> drafted;  // the slice's tokens, if there are drafts among them
    std::vector<BoundaryAhead> ahead;   // that the step fills
    std::int64_t row = -1;              // the first of the step's logits, if it wants some
    std::vector<Gained> gained;
    std::string error;

    /// Rows of the pass: fewer than were scheduled where a drafter found fewer.
    std::int64_t rows() const { return drafted.empty() ? slice.count - slice.drafts : std::ssize(drafted); }
    std::int64_t logit_rows() const { return slice.wants_logits ? 1 + rows() - (slice.count - slice.drafts) : 0; }
    bool has_ended() const { return !gained.empty() && gained.back().step.finish; }
  };

  void check_request(const AnswerRequest& request) const {
    check(request.options, model_.num_samplable());
    check_prompt(std::ssize(request.prompt), context_);
    const std::int64_t vocab = model_.config().vocab;
    for (std::size_t i = 0; i < request.prompt.size(); ++i) {
      const std::int32_t id = request.prompt[i];
      if (id < 0 || id >= vocab) fail("prompt: token {} is {}, expected 0 to {}", i, id, vocab - 1);
    }
  }

  // ---- Under the lock.

  /// Of Prefixes.
  Resumption resume(RequestId id, std::int64_t tokens, std::int64_t spare_blocks) override {
    Answer& answer = *find(id);
    const Resumption found =
        prefixes_.resume(answer.prefix, std::span(answer.tokens).first(static_cast<std::size_t>(tokens)), spare_blocks);
    // Others in this step already may want to wait for it.
    if (!found.later) plan(answer, found.tokens);
    return found;
  }

  /// Of Prefixes.
  std::optional<ComingPrefix> coming(RequestId id, std::int64_t /*tokens*/) override {
    Answer& answer = *find(id);
    ComingPrefix best;
    for (const auto& [other, computing] : answers_) {
      const std::int64_t position = prefixes_.coming(answer.prefix, answer.tokens, computing->prefix, computing->tokens);
      // Of several that will have come as far, the oldest is there first.
      if (position > best.position || (position > 0 && position == best.position && other < best.from)) best = {other, position};
    }
    if (best.position == 0 || !prefixes_.is_worth_waiting(answer.prefix, answer.tokens, best.position)) return std::nullopt;
    return best;
  }

  void plan(Answer& answer, std::int64_t position) {
    const auto prompt = static_cast<std::size_t>(answer.summary.prompt_tokens);
    prefixes_.plan(answer.prefix, std::span(answer.tokens).first(prompt), position);
  }

  /// Every so many hits.
  void want_verified(const Answer& answer, std::int64_t position) {
    verify_share_ += verify_rate_;
    if (verify_share_ < 1 || std::ssize(to_verify_) >= kMostToVerify) return;
    verify_share_ -= 1;
    to_verify_.push_back({answer.prefix.space, {answer.tokens.begin(), answer.tokens.begin() + position}});
  }

  /// Nobody is there: something that was gone on from is computed once more. False if there is nothing to do.
  bool begin_verification() {
    if (draining_ || !answers_.empty() || to_verify_.empty()) return false;
    auto [space, tokens] = std::move(to_verify_.front());
    to_verify_.pop_front();
    AnswerRequest wanted;
    wanted.prompt = std::move(tokens);
    wanted.options.max_tokens = 1;
    wanted.cache_space = std::move(space);
    Request request;
    request.prompt_tokens = std::ssize(wanted.prompt);
    request.max_new_tokens = 1;
    request.priority = Priority::Low;
    auto answer = std::make_unique<Answer>(model_.tokenizer_if_any(), std::move(wanted), context_, std::make_shared<Nobody>());
    answer->prefix.computes_all = true;
    answer->prefix.verifies = answer->summary.prompt_tokens;
    request.arrival = answer->submitted;
    const Submission submission = scheduler_.submit(request);
    if (const auto* id = std::get_if<RequestId>(&submission)) {
      verifying_ = *id;
      answers_.emplace(*id, std::move(answer));
    }
    return true;
  }

  /// Somebody is there: it is begun again later.
  void interrupt_verification() {
    if (!verifying_) return;
    const RequestId id = *verifying_;
    const Answer& answer = *answers_.at(id);
    if (!draining_) {
      to_verify_.push_front({answer.prefix.space, {answer.tokens.begin(), answer.tokens.begin() + answer.summary.prompt_tokens}});
    }
    scheduler_.cancel(id);
    end(id, AnswerOutcome::Cancelled);
  }

  /// The answer has no part in what the scheduler decides any more: it waits to be told so.
  void end(RequestId id, AnswerOutcome outcome, std::string error = {}) {
    const auto at = answers_.find(id);
    if (at == answers_.end()) return;
    if (verifying_ == id) verifying_.reset();
    at->second->summary.outcome = outcome;
    at->second->summary.error = std::move(error);
    ended_.push_back(std::move(at->second));
    answers_.erase(at);
  }

  void end_all() {
    for (const auto& [id, answer] : answers_) scheduler_.cancel(id);
    while (!answers_.empty()) end(answers_.begin()->first, AnswerOutcome::Cancelled);
  }

  Answer* find(RequestId id) {
    const auto at = answers_.find(id);
    return at == answers_.end() ? nullptr : at->second.get();
  }

  /// Waits until there is something to do, and says what. False if the engine stops and nobody is left to be told.
  bool take_step(std::unique_lock<std::mutex>& lock) {
    work_.clear();
    preempted_.clear();
    admitted_.clear();
    for (;;) {
      receive();
      expect();
      if (!stopping_) step_ = scheduler_.next_step(now());
      for (const RequestId id : step_.expired) end(id, AnswerOutcome::TimedOut);
      // Their memory goes first of all: the scheduler may have given it to others.
      ending_.swap(ended_);
      telling_ = !ending_.empty();
      if (stopping_) return telling_;
      running_errands_.swap(errands_);
      for (const RequestId id : step_.preempted) preempted_.push_back(find(id));
      for (const Admission& admission : step_.admitted) admitted_.emplace_back(find(admission.id), admission);
      for (const ScheduledSlice& slice : step_.slices) {
        work_.emplace_back();
        work_.back().id = slice.id;
        work_.back().answer = find(slice.id);
        work_.back().slice = slice;
      }
      // Who was only preempted is done with, too: its memory may be another's, and it may end while this waits.
      if (telling_ || !work_.empty() || !preempted_.empty() || !admitted_.empty() || !running_errands_.empty()) return true;
      if (begin_verification()) continue;
      if (const auto deadline = scheduler_.next_deadline()) {
        wake_.wait_until(lock, Clock::time_point(std::chrono::duration_cast<Clock::duration>(*deadline)));
      } else {
        wake_.wait(lock);
      }
    }
  }

  /// From another thread: something that sequences resume from has come.
  void note_arrival() {
    const std::lock_guard lock(mutex_);  // not between a look and a wait
    wake_.notify_one();
  }

  /// What requests that are new will want from the tier is made ready while they wait.
  void expect() {
    for (const RequestId id : submitted_) {
      if (const Answer* const answer = find(id)) prefixes_.expect(answer->prefix, answer->tokens);
    }
    submitted_.clear();
  }

  /// What sequences resume from and has come.
  void receive() {
    std::erase_if(expecting_, [&](const std::pair<RequestId, std::int64_t>& expected) {
      const auto [id, room] = expected;
      Answer* const answer = find(id);
      if (answer == nullptr || !answer->prefix.reading) return true;  // ended, or preempted
      try {
        if (!prefixes_.arrived(answer->prefix, answer->tokens, answer->memory, room)) return false;
      } catch (const std::exception& error) {
        scheduler_.finish(id);
        end(id, AnswerOutcome::Failed, error.what());
        return true;
      }
      start(*answer);
      scheduler_.arrived(id, answer->memory->position());
      return true;
    });
  }

  /// The answer's memory is where it goes on from.
  void start(Answer& answer) {
    const std::int64_t position = answer.memory->position(), prompt = answer.summary.prompt_tokens;
    plan(answer, position);
    if (std::exchange(answer.started, true)) return;
    speculation_.begin(answer.drafted);
    answer.summary.cached_tokens = std::min(position, prompt);
    if (position > 0) want_verified(answer, position);
    // Of a prompt that has been there whole, the last token is computed all the same.
    answer.summary.lost_tokens = std::max<std::int64_t>(0, std::min(answer.prefix.common, prompt - 1) - position);
  }

  /// What the step has made goes to the scheduler; who has gained something is told later.
  void complete() {
    scheduler_.complete_step();
    for (Work& work : work_) {
      if (find(work.id) == nullptr) {  // cancelled while the step ran
        work.answer = nullptr;
      } else if (!work.error.empty()) {
        scheduler_.finish(work.id);
        end(work.id, AnswerOutcome::Failed, work.error);
        if (work.gained.empty()) work.answer = nullptr;
      } else if (!work.gained.empty()) {
        const bool may_go_on = scheduler_.append_tokens(work.id, std::ssize(work.gained));
        if (may_go_on && !work.has_ended()) {
          scheduler_.propose(work.id, work.answer->drafted.wanted);
          continue;
        }
        scheduler_.finish(work.id);
        end(work.id, outcome_of(work.gained.back().step.finish.value_or(FinishReason::Length)));
      }
    }
  }

  // ---- The engine's thread, without the lock.

  void run() {
    std::unique_lock lock(mutex_);
    while (take_step(lock)) {
      lock.unlock();
      tell_ended();
      for (const auto& errand : running_errands_) errand(prefixes_);
      running_errands_.clear();
      const Instant start = now();
      double draw_seconds = 0;
      std::string failure;
      try {
        compute(draw_seconds);
      } catch (const std::exception& error) {
        failure = error.what();
        for (Work& work : work_) {
          work.error = failure;
          work.answer->spoilt = true;
        }
      }
      lock.lock();
      telling_ = false;
      statistics_.pool = pool_.use();
      statistics_.cache = prefixes_.statistics();
      statistics_.verifications = prefixes_.verifications();
      statistics_.drafters.assign(speculation_.statistics().begin(), speculation_.statistics().end());
      statistics_.predicted_gain = speculation_.predicted_gain();
      for (const auto& [answer, admission] : admitted_) {
        if (answer->prefix.reading) {
          expecting_.emplace_back(admission.id, admission.room);
        } else if (!answer->memory) {
          scheduler_.finish(admission.id);
          end(admission.id, AnswerOutcome::Failed, failure);
        }
      }
      if (work_.empty()) continue;
      complete();
      statistics_.step_seconds = seconds(now() - start);
      statistics_.draw_seconds = draw_seconds;
      telling_ = true;
      lock.unlock();
      tell_gained();
      if (steps_) steps_->step(statistics());
      lock.lock();
      telling_ = false;
    }
  }

  void tell_ended() {
    for (const std::unique_ptr<Answer>& answer : ending_) keep(*answer);
    for (const std::unique_ptr<Answer>& answer : ending_) {
      const std::string rest = answer->builder.cancel();
      AnswerSummary& summary = answer->summary;
      summary.made_tokens = std::ssize(answer->builder.ids());
      summary.accepted_drafts = answer->drafted.accepted;
      summary.rejected_drafts = answer->drafted.rejected;
      summary.kept_tokens = answer->prefix.kept;
      summary.marked_tokens = answer->prefix.kept_mark;
      summary.total_seconds = seconds(now() - answer->submitted);
      if (!answer->admitted) summary.queue_seconds = summary.total_seconds;
      answer->listener->ended(summary, rest);
    }
    ending_.clear();
  }

  void tell_gained() {
    for (Work& work : work_) {
      if (work.answer == nullptr || work.gained.empty()) continue;
      AnswerListener& listener = *work.answer->listener;
      if (work.answer->builder.ids().size() == work.gained.size()) {
        work.answer->summary.first_token_seconds = seconds(now() - work.answer->submitted);
        if (work.answer->request.options.prompt_logprobs) listener.prompt_logprobs(std::move(work.answer->prompt_logprobs));
      }
      for (const Gained& gained : work.gained) listener.gained(gained.token, gained.step);
    }
  }

  void compute(double& draw_seconds) {
    for (Answer* answer : preempted_) {
      if (answer == nullptr) continue;
      keep(*answer);
      ++answer->summary.preemptions;
    }
    for (const auto& [answer, admission] : admitted_) admit(*answer, admission);
    if (work_.empty()) return;
    for (const Work& work : work_) {
      if (!work.answer->memory->reserve(work.slice.room)) fail("memory pool is full, although the scheduler counted room");
    }
    const Instant drafted_from = now();
    make_drafts();
    prepare_boundaries();
    prepare_slices();
    const ConstRows hidden = model_.forward().run(slices_);
    store_boundaries();
    gather_last_rows(hidden);
    score_prompts(hidden);
    const Instant drawn_from = now();
    const std::int64_t logit_rows = draw();
    draw_seconds = seconds(now() - drawn_from);
    conclude();
    speculation_.note_step(costs_, filling_, logit_rows, seconds(now() - drafted_from));
  }

  /// As many as the scheduler had memory for, at most.
  void make_drafts() {
    drafting_.clear();
    for (const Work& work : work_) {
      if (work.slice.drafts == 0) continue;
      DraftedAnswer& drafted = work.answer->drafted;
      drafted.wanted = std::min(drafted.wanted, work.slice.drafts);
      drafted.memory = work.answer->memory.get();
      drafting_.push_back(&drafted);
    }
    if (drafting_.empty()) return;
    speculation_.draft(drafting_);
    for (Work& work : work_) {
      const std::vector<std::int32_t>& drafts = work.answer->drafted.drafts;
      if (work.slice.drafts == 0 || drafts.empty()) continue;
      const auto certain = std::span(work.answer->tokens).subspan(static_cast<std::size_t>(work.slice.begin));
      work.drafted.assign(certain.begin(), certain.end());
      work.drafted.insert(work.drafted.end(), drafts.begin(), drafts.end());
    }
  }

  void prepare_slices() {
    slices_.clear();
    costs_.clear();
    filling_.clear();
    std::span<Boundary* const> ahead = ahead_pointers_;
    for (const Work& work : work_) {
      const bool tentative = !work.drafted.empty();
      const auto begin = static_cast<std::size_t>(work.slice.begin), count = static_cast<std::size_t>(work.rows());
      slices_.push_back(
          {work.answer->memory.get(),
           tentative ? std::span<const std::int32_t>(work.drafted) : std::span(work.answer->tokens).subspan(begin, count),
           ahead.first(work.ahead.size()), tentative, true});
      ahead = ahead.subspan(work.ahead.size());
      costs_.push_back({work.slice.begin, work.rows()});
      if (!tentative && work.rows() > 1) filling_.push_back(costs_.back());
    }
  }

  /// What was drawn becomes what the memories hold.
  void conclude() {
    if (!speculation_.is_on()) return;
    outcomes_.clear();
    for (const Work& work : work_) {
      if (work.row < 0) continue;
      Answer& answer = *work.answer;
      answer.drafted.memory = answer.memory.get();
      const bool goes_on = work.error.empty() && !work.has_ended();
      outcomes_.push_back({&answer.drafted, std::ssize(work.gained), !work.drafted.empty(), goes_on});
    }
    speculation_.conclude(outcomes_);
  }

  /// Its memory stays for whoever goes on from there, as long as nobody else needs it.
  void keep(Answer& answer) {
    try {
      if (answer.memory && !answer.spoilt && prefixes_.keeps(answer.prefix, *answer.memory))
        model_.forward().settle(*answer.memory);
    } catch (const std::exception&) {
      answer.spoilt = true;  // it is given up, and nobody need know
    }
    prefixes_.leave(answer.prefix, answer.tokens, std::move(answer.memory), !answer.spoilt);
  }

  /// Memory for the boundaries that the step's slices pass by.
  void prepare_boundaries() {
    ahead_pointers_.clear();
    for (Work& work : work_) {
      const std::int64_t begin = work.slice.begin;
      work.ahead =
          prefixes_.ahead(work.answer->prefix, *work.answer->memory, begin, begin + work.slice.count - work.slice.drafts);
      for (const BoundaryAhead& ahead : work.ahead) ahead_pointers_.push_back(ahead.boundary.get());
    }
  }
  void store_boundaries() {
    for (Work& work : work_) {
      for (BoundaryAhead& ahead : work.ahead)
        prefixes_.store(work.answer->prefix, work.answer->tokens, std::move(ahead.boundary), ahead.kind);
    }
  }

  void admit(Answer& answer, const Admission& admission) {
    const auto known = std::span(answer.tokens);
    answer.memory = prefixes_.make(answer.prefix, known, admission.room);
    if (!answer.prefix.reading) {
      if (answer.memory->position() != admission.resume_at)
        fail("memory of a request: at {}, expected {}, where it was said to go on", answer.memory->position(),
             admission.resume_at);
      start(answer);
    }
    if (answer.admitted) return;
    answer.admitted = now();
    answer.summary.queue_seconds = seconds(*answer.admitted - answer.submitted);
  }

  /// The rows after which a token is wanted, those of drafts too, copied: what else asks for logits would overwrite them.
  void gather_last_rows(ConstRows hidden) {
    last_rows_.clear();
    std::int64_t row = 0;
    for (Work& work : work_) {
      row += work.rows();
      if (!work.slice.wants_logits) continue;
      work.row = std::ssize(last_rows_) / hidden.cols;
      last_rows_.insert(last_rows_.end(), hidden.row(row - work.logit_rows()), hidden.row(row));
    }
  }

  /// Log probabilities of the prompts' tokens, where asked for. What a preemption has thrown away is not scored again.
  void score_prompts(ConstRows hidden) {
    std::int64_t first_row = 0;
    for (const Work& work : work_) {
      const std::int64_t row_of_begin = std::exchange(first_row, first_row + work.rows());
      const std::optional<int> top = work.answer->request.options.prompt_logprobs;
      if (!top) continue;
      std::vector<LogprobEntry>& entries = work.answer->prompt_logprobs;
      // Row of position p scores token p + 1, the entry p.
      const std::int64_t end = std::min(work.slice.begin + work.rows(), work.answer->summary.prompt_tokens - 1);
      for (std::int64_t p = std::max(work.slice.begin, std::ssize(entries)); p < end;) {
        const std::int64_t rows = std::min(kLogitRows, end - p);
        compute_logits(hidden.slice(row_of_begin + p - work.slice.begin, rows));
        for (std::int64_t row = 0; row < rows; ++row, ++p)
          entries.push_back(logprobs_of(logits_of(row), p + 1, work.answer->tokens[static_cast<std::size_t>(p + 1)], *top));
      }
    }
  }

  void compute_logits(ConstRows rows) {
    const std::int64_t vocab = model_.config().vocab;
    if (std::ssize(logits_) < rows.rows * vocab) logits_.resize(static_cast<std::size_t>(rows.rows * vocab));
    model_.forward().head(rows, {logits_.data(), rows.rows, vocab, vocab});
  }
  /// Of one of those rows, what can be sampled.
  std::span<const float> logits_of(std::int64_t row) const {
    return {logits_.data() + row * model_.config().vocab, static_cast<std::size_t>(model_.num_samplable())};
  }

  /// Draws the next token of every answer that wants one: they have nothing in common, so the threads share them.
  /// How many rows of logits that took.
  std::int64_t draw() {
    const std::int64_t width = model_.config().hidden, count = std::ssize(last_rows_) / width;
    if (count > 0) compute_logits({last_rows_.data(), count, width, width});
    drawing_.clear();
    for (Work& work : work_) {
      if (work.row >= 0) drawing_.push_back(&work);
    }
    model_.compute().threads().for_each(std::ssize(drawing_), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) draw(*drawing_[static_cast<std::size_t>(i)]);
    });
    return count;
  }

  /// Token after token, as far as the drafts are what is drawn.
  void draw(Work& work) const {
    Answer& answer = *work.answer;
    const std::vector<std::int32_t>& drafts = answer.drafted.drafts;
    try {
      for (std::int64_t i = 0; i < work.logit_rows(); ++i) {
        draw_one(work, logits_of(work.row + i));
        if (work.has_ended() || i == std::ssize(drafts) || work.gained.back().token != drafts[static_cast<std::size_t>(i)]) break;
      }
    } catch (const std::exception& error) {
      work.error = error.what();
    }
  }

  void draw_one(Work& work, std::span<const float> logits) const {
    Answer& answer = *work.answer;
    AnswerGuide* const guide = answer.request.guide.get();
    if (answer.request.logits) answer.request.logits->drawn_from(std::ssize(answer.tokens), logits);
    const auto allowed = guide != nullptr ? guide->allowed() : std::span<const std::uint64_t>();
    const std::int32_t token = answer.builder.sample(logits, {}, allowed);
    AnswerStep step = answer.builder.push(token, logits);
    if (guide != nullptr) guide->push(token);
    answer.tokens.push_back(token);
    work.gained.push_back({token, std::move(step)});
  }

  Model& model_;
  const std::shared_ptr<StepListener> steps_;
  const std::int64_t context_;
  MemoryPool pool_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  PrefixStore prefixes_;
  Speculation speculation_;
  const double verify_rate_;
  double verify_share_ = 0;  // hits since one was wanted verified, each counted as the rate
  std::deque<ToVerify> to_verify_;
  std::optional<RequestId> verifying_;  // of answers_
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<Answer>> answers_;  // that the scheduler knows
  std::vector<std::unique_ptr<Answer>> ended_;                      // to be told so
  std::vector<RequestId> submitted_;                                // since the last step was decided
  std::vector<std::function<void(PrefixStore&)>> errands_;
  EngineStatistics statistics_;
  bool draining_ = false;
  bool stopping_ = false;
  bool telling_ = false;  // a listener may be told something at the moment

  // Of the engine's thread.
  std::vector<std::unique_ptr<Answer>> ending_;
  std::vector<std::function<void(PrefixStore&)>> running_errands_;
  ScheduledStep step_;
  std::vector<Answer*> preempted_;
  std::vector<std::pair<Answer*, Admission>> admitted_;
  std::vector<Work> work_;
  std::vector<Boundary*> ahead_pointers_;                      // in the order of work_
  std::vector<std::pair<RequestId, std::int64_t>> expecting_;  // whose memory is being read, and their room
  std::vector<Work*> drawing_;
  std::vector<DraftedAnswer*> drafting_;
  std::vector<DraftOutcome> outcomes_;
  std::vector<Slice> slices_;
  std::vector<StepSlice> costs_, filling_;  // of these; of those that fill the MTP layer's cache at once
  std::vector<float> last_rows_;
  std::vector<float> logits_;
  std::thread thread_;
};

Engine::Engine(Model& model, const EngineOptions& options, std::shared_ptr<StepListener> steps)
    : runner_(std::make_unique<Runner>(model, options, std::move(steps))) {}
Engine::~Engine() = default;

const Model& Engine::model() const { return runner_->model(); }
std::int64_t Engine::context() const { return runner_->context(); }
AnswerSubmission Engine::submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) {
  return runner_->submit(std::move(request), std::move(listener));
}
void Engine::cancel(RequestId id) { runner_->cancel(id); }
void Engine::cancel_all() { runner_->cancel_all(); }
void Engine::drain() { runner_->drain(); }
bool Engine::idle() const { return runner_->idle(); }
EngineStatistics Engine::statistics() const { return runner_->statistics(); }
void Engine::survey_cache(SpaceFilter shows, std::int64_t most, std::function<void(const PrefixSurvey&)> done) {
  runner_->run_errand(
      [shows = std::move(shows), most, done = std::move(done)](PrefixStore& prefixes) { done(prefixes.survey(shows, most)); });
}
void Engine::flush_cache(SpaceFilter meant, std::function<void(const PrefixFlush&)> done) {
  runner_->run_errand([meant = std::move(meant), done = std::move(done)](PrefixStore& prefixes) { done(prefixes.flush(meant)); });
}

}  // namespace calandra
