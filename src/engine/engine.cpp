#include "engine/engine.h"

#include "base/error.h"
#include "cache/boundary_plan.h"
#include "engine/generate.h"
#include "engine/session.h"
#include "plan/available_memory.h"
#include "schedule/scheduler.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
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
        cache_(pool_),
        caching_(options.prefix_cache),
        message_ends_(stop_ids_of(model)),
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
    auto answer = std::make_unique<Answer>(model_.tokenizer(), std::move(wanted), context_, std::move(listener));
    request.arrival = answer->submitted;
    if (answer->request.time_limit) request.deadline = request.arrival + *answer->request.time_limit;
    {
      const std::lock_guard lock(mutex_);
      if (draining_) return EngineStopped{};
      const Submission submission = scheduler_.submit(request);
      if (const auto* full = std::get_if<QueueFull>(&submission)) return *full;
      if (const auto* larger = std::get_if<LargerThanPool>(&submission)) return *larger;
      const RequestId id = std::get<RequestId>(submission);
      answers_.emplace(id, std::move(answer));
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
  }

  bool idle() const {
    const std::lock_guard lock(mutex_);
    return answers_.empty() && ended_.empty() && !telling_;
  }

  EngineStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    EngineStatistics all = statistics_;
    all.schedule = scheduler_.statistics();
    return all;
  }

 private:
  /// One answer from its submission to its end. The lists of the runner own it; its parts belong to the engine's thread.
  struct Answer {
    Answer(const Tokenizer& tokenizer, AnswerRequest wanted, std::int64_t context, std::shared_ptr<AnswerListener> heard_by)
        : request(std::move(wanted)),
          listener(std::move(heard_by)),
          builder(tokenizer, request.prompt, request.options, context, request.sample),
          tokens(std::move(request.prompt)),
          submitted(now()) {
      summary.prompt_tokens = std::ssize(tokens);
    }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;

    AnswerRequest request;  // without its prompt
    std::shared_ptr<AnswerListener> listener;
    AnswerBuilder builder;
    std::vector<std::int32_t> tokens;  // of the prompt, and made
    std::unique_ptr<SequenceMemory> memory;
    bool spoilt = false;                 // a pass ended in the middle: what is in memory is of no position
    PrefixCache<TokenKey>::Claim claim;  // from its admission until there is memory
    std::vector<PlannedBoundary> plan;   // those that are ahead, ascending
    std::vector<LogprobEntry> prompt_logprobs;
    Instant submitted;
    std::optional<Instant> admitted;
    AnswerSummary summary;
  };

  /// An answer in a step.
  struct Work {
    RequestId id{};
    Answer* answer = nullptr;
    ScheduledSlice slice;
    std::int64_t row = -1;  // of the step's logits, if it wants some
    std::int32_t token = 0;
    AnswerStep gained;
    std::string error;
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
    answer.claim = {};
    // Rows of a prompt that are to be scored have to be computed.
    if (caching_ && !answer.request.options.prompt_logprobs) {
      answer.claim =
          cache_.claim(answer.request.cache_space, TokenKey(std::span(answer.tokens).first(static_cast<std::size_t>(tokens))),
                       tokens - 1, spare_blocks);
    }
    return {answer.claim.position(), answer.claim.more_blocks(), answer.claim.held_blocks()};
  }

  /// The answer has no part in what the scheduler decides any more: it waits to be told so.
  void end(RequestId id, AnswerOutcome outcome, std::string error = {}) {
    const auto at = answers_.find(id);
    if (at == answers_.end()) return;
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
      if (!stopping_) step_ = scheduler_.next_step(now());
      for (const RequestId id : step_.expired) end(id, AnswerOutcome::TimedOut);
      // Their memory goes first of all: the scheduler may have given it to others.
      ending_.swap(ended_);
      telling_ = !ending_.empty();
      if (stopping_) return telling_;
      for (const RequestId id : step_.preempted) preempted_.push_back(find(id));
      for (const Admission& admission : step_.admitted) admitted_.emplace_back(find(admission.id), admission);
      for (const ScheduledSlice& slice : step_.slices) {
        work_.emplace_back();
        work_.back().id = slice.id;
        work_.back().answer = find(slice.id);
        work_.back().slice = slice;
      }
      if (telling_ || !work_.empty()) return true;
      if (const auto deadline = scheduler_.next_deadline()) {
        wake_.wait_until(lock, Clock::time_point(std::chrono::duration_cast<Clock::duration>(*deadline)));
      } else {
        wake_.wait(lock);
      }
    }
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
        work.answer = nullptr;
      } else if (work.row >= 0) {
        const bool goes_on = !work.gained.finish && scheduler_.append_token(work.id);
        if (goes_on) continue;
        scheduler_.finish(work.id);
        end(work.id, outcome_of(work.gained.finish.value_or(FinishReason::Length)));
      }
    }
  }

  // ---- The engine's thread, without the lock.

  void run() {
    std::unique_lock lock(mutex_);
    while (take_step(lock)) {
      lock.unlock();
      tell_ended();
      const Instant start = now();
      double draw_seconds = 0;
      try {
        compute(draw_seconds);
      } catch (const std::exception& error) {
        for (Work& work : work_) {
          work.error = error.what();
          work.answer->spoilt = true;
        }
      }
      lock.lock();
      telling_ = false;
      statistics_.pool = pool_.use();
      statistics_.cache = cache_.statistics();
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
      summary.total_seconds = seconds(now() - answer->submitted);
      if (!answer->admitted) summary.queue_seconds = summary.total_seconds;
      answer->listener->ended(summary, rest);
    }
    ending_.clear();
  }

  void tell_gained() {
    for (Work& work : work_) {
      if (work.answer == nullptr || work.row < 0) continue;
      AnswerListener& listener = *work.answer->listener;
      if (work.answer->builder.ids().size() == 1) {
        work.answer->summary.first_token_seconds = seconds(now() - work.answer->submitted);
        if (work.answer->request.options.prompt_logprobs) listener.prompt_logprobs(std::move(work.answer->prompt_logprobs));
      }
      listener.gained(work.token, work.gained);
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
    prepare_boundaries();
    slices_.clear();
    for (std::size_t i = 0; i < work_.size(); ++i) {
      const ScheduledSlice& slice = work_[i].slice;
      const auto tokens = std::span(work_[i].answer->tokens);
      slices_.push_back({work_[i].answer->memory.get(),
                         tokens.subspan(static_cast<std::size_t>(slice.begin), static_cast<std::size_t>(slice.count)),
                         boundaries_of(i)});
    }
    const ConstRows hidden = model_.forward().run(slices_);
    store_boundaries();
    gather_last_rows(hidden);
    score_prompts(hidden);
    const Instant drawn_from = now();
    draw();
    draw_seconds = seconds(now() - drawn_from);
  }

  /// Its memory stays for whoever goes on from there, as long as nobody else needs it.
  void keep(Answer& answer) {
    answer.claim = {};
    if (!answer.memory) return;
    const bool whole = caching_ && !answer.spoilt && answer.memory->position() > 0;
    auto boundary = SequenceMemory::freeze(std::move(answer.memory));
    if (whole) store(answer, std::move(boundary), BoundaryKind::End);
  }

  void store(const Answer& answer, std::unique_ptr<Boundary> boundary, BoundaryKind kind) {
    const auto tokens = std::span(answer.tokens).first(static_cast<std::size_t>(boundary->position()));
    cache_.store(answer.request.cache_space, TokenKey(tokens), std::move(boundary), kind);
  }

  /// Memory for the boundaries that the step's slices pass by: of what is left, and of others that are worth less.
  void prepare_boundaries() {
    ahead_.clear();
    for (std::size_t i = 0; i < work_.size(); ++i) {
      Answer& answer = *work_[i].answer;
      std::int64_t before = work_[i].slice.begin;
      const std::int64_t end = before + work_[i].slice.count;
      auto planned = answer.plan.begin();
      for (; planned != answer.plan.end() && planned->position <= end; ++planned) {
        if (!cache_.admits(planned->kind, planned->position, before)) continue;
        auto boundary = answer.memory->boundary_ahead(planned->position);
        if (!boundary) continue;
        before = planned->position;
        ahead_.push_back({i, planned->kind, std::move(boundary)});
      }
      answer.plan.erase(answer.plan.begin(), planned);
    }
    ahead_pointers_.clear();
    for (const Ahead& ahead : ahead_) ahead_pointers_.push_back(ahead.boundary.get());
  }
  std::span<Boundary* const> boundaries_of(std::size_t work) const {
    const auto first = std::ranges::lower_bound(ahead_, work, {}, &Ahead::work) - ahead_.begin();
    const auto last = std::ranges::upper_bound(ahead_, work, {}, &Ahead::work) - ahead_.begin();
    return std::span(ahead_pointers_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
  }
  void store_boundaries() {
    for (Ahead& ahead : ahead_) store(*work_[ahead.work].answer, std::move(ahead.boundary), ahead.kind);
    ahead_.clear();
  }

  void admit(Answer& answer, const Admission& admission) {
    answer.memory = answer.claim.make(pool_);
    if (!answer.memory || !answer.memory->reserve(admission.room))
      fail("memory pool is full, although the scheduler counted room");
    plan(answer);
    if (answer.admitted) return;
    answer.admitted = now();
    answer.summary.queue_seconds = seconds(*answer.admitted - answer.submitted);
    answer.summary.cached_tokens = std::min(admission.resume_at, answer.summary.prompt_tokens);
  }

  void plan(Answer& answer) {
    answer.plan.clear();
    if (!caching_) return;
    messages_.clear();
    const auto prompt = std::span(answer.tokens).first(static_cast<std::size_t>(answer.summary.prompt_tokens));
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      if (std::ranges::find(message_ends_, prompt[i]) != message_ends_.end())
        messages_.push_back(static_cast<std::int64_t>(i) + 1);
    }
    answer.plan = plan_boundaries({.tokens = answer.summary.prompt_tokens,
                                   .resumed_at = answer.memory->position(),
                                   .common = answer.claim.common(),
                                   .messages = messages_,
                                   .asked = answer.request.cache_marks},
                                  {});
  }

  /// The rows after which a token is wanted, copied: what else asks for logits would overwrite them.
  void gather_last_rows(ConstRows hidden) {
    last_rows_.clear();
    std::int64_t row = 0;
    for (Work& work : work_) {
      row += work.slice.count;
      if (!work.slice.wants_logits) continue;
      work.row = std::ssize(last_rows_) / hidden.cols;
      last_rows_.insert(last_rows_.end(), hidden.row(row - 1), hidden.row(row - 1) + hidden.cols);
    }
  }

  /// Log probabilities of the prompts' tokens, where asked for. What a preemption has thrown away is not scored again.
  void score_prompts(ConstRows hidden) {
    std::int64_t first_row = 0;
    for (const Work& work : work_) {
      const std::int64_t row_of_begin = std::exchange(first_row, first_row + work.slice.count);
      const std::optional<int> top = work.answer->request.options.prompt_logprobs;
      if (!top) continue;
      std::vector<LogprobEntry>& entries = work.answer->prompt_logprobs;
      // Row of position p scores token p + 1, the entry p.
      const std::int64_t end = std::min(work.slice.begin + work.slice.count, work.answer->summary.prompt_tokens - 1);
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
  void draw() {
    const std::int64_t width = model_.config().hidden, count = std::ssize(last_rows_) / width;
    if (count == 0) return;
    compute_logits({last_rows_.data(), count, width, width});
    drawing_.clear();
    for (Work& work : work_) {
      if (work.row >= 0) drawing_.push_back(&work);
    }
    model_.compute().threads().for_each(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) draw(*drawing_[static_cast<std::size_t>(i)]);
    });
  }

  void draw(Work& work) const {
    const std::span<const float> logits = logits_of(work.row);
    Answer& answer = *work.answer;
    try {
      AnswerGuide* const guide = answer.request.guide.get();
      work.token = answer.builder.sample(logits, {}, guide != nullptr ? guide->allowed() : std::span<const std::uint64_t>());
      work.gained = answer.builder.push(work.token, logits);
      if (guide != nullptr) guide->push(work.token);
      answer.tokens.push_back(work.token);
    } catch (const std::exception& error) {
      work.error = error.what();
    }
  }

  /// A boundary that the step fills.
  struct Ahead {
    std::size_t work = 0;  // whose, in work_
    BoundaryKind kind{};
    std::unique_ptr<Boundary> boundary;
  };

  Model& model_;
  const std::shared_ptr<StepListener> steps_;
  const std::int64_t context_;
  MemoryPool pool_;
  PrefixCache<TokenKey> cache_;
  const bool caching_;
  const std::vector<std::int32_t> message_ends_;  // tokens

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<Answer>> answers_;  // that the scheduler knows
  std::vector<std::unique_ptr<Answer>> ended_;                      // to be told so
  EngineStatistics statistics_;
  bool draining_ = false;
  bool stopping_ = false;
  bool telling_ = false;  // a listener may be told something at the moment

  // Of the engine's thread.
  std::vector<std::unique_ptr<Answer>> ending_;
  ScheduledStep step_;
  std::vector<Answer*> preempted_;
  std::vector<std::pair<Answer*, Admission>> admitted_;
  std::vector<Work> work_;
  std::vector<Ahead> ahead_;  // in the order of work_
  std::vector<Boundary*> ahead_pointers_;
  std::vector<std::int64_t> messages_;
  std::vector<Work*> drawing_;
  std::vector<Slice> slices_;
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

}  // namespace calandra
