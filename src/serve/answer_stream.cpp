#include "serve/answer_stream.h"

#include "serve/request_log.h"
#include "text/detokenizer.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <variant>

namespace calandra {
namespace {

using Kind = OutputEvent::Kind;

/// All answers to one request, and the one who hears of them. Two locks: calls into the engine are made under none, since it may
/// call back at once; the client's going, which comes in the HTTP server's thread, waits for no sink.
class AnswerGroup : public std::enable_shared_from_this<AnswerGroup> {
 public:
  AnswerGroup(AnswerService& answers, std::shared_ptr<AnswerSink> sink, std::size_t num_choices,
              std::shared_ptr<RequestRecord> record)
      : answers_(answers), sink_(std::move(sink)), record_(std::move(record)), places_(num_choices), num_open_(num_choices) {}

  void watch(std::stop_token gone) {
    gone_.emplace(std::move(gone), [weak = weak_from_this()] {
      if (const auto group = weak.lock()) group->abandon();
    });
  }

  bool is_over() const { return is_over_; }

  /// Nobody is to hear any more; what still runs is cancelled.
  void abandon() {
    is_over_ = true;
    for (std::size_t choice = 0; choice < places_.size(); ++choice) cancel(choice);
  }

  void cancel(std::size_t choice) {
    std::optional<RequestId> id;
    {
      const std::lock_guard lock(places_mutex_);
      places_[choice].is_cancelled = true;
      id = places_[choice].id;
    }
    if (id) answers_.cancel(*id);
  }

  /// It may have been cancelled before its id was known.
  void set_id(std::size_t choice, RequestId id) {
    bool is_cancelled = false;
    {
      const std::lock_guard lock(places_mutex_);
      places_[choice].id = id;
      is_cancelled = places_[choice].is_cancelled;
    }
    if (is_cancelled) answers_.cancel(id);
  }

  /// The sink may hear from now on, and of what came before first.
  void begin() {
    const std::lock_guard lock(sink_mutex_);
    has_begun_ = true;
    if (!is_over_) sink_->began();
    for (const auto& call : std::exchange(early_, {})) {
      if (!is_over_) call(*sink_);
    }
  }

  /// `call` is made with the sink, now or once it may hear.
  template <class Call>
  void tell(Call call) {
    const std::lock_guard lock(sink_mutex_);
    if (is_over_) return;
    if (has_begun_) {
      call(*sink_);
    } else {
      early_.emplace_back(std::move(call));
    }
  }

  void end(std::size_t choice, const AnswerEnd& end, bool is_first_of_prompt) {
    tell([group = weak_from_this(), choice, end, is_first_of_prompt](AnswerSink& sink) {
      sink.ended(static_cast<int>(choice), end);
      if (const auto self = group.lock()) self->count(end.usage, is_first_of_prompt);
    });
  }

  /// Also of an answer that nobody hears any more.
  void note(const AnswerSummary& summary, AnswerOutcome outcome, std::int64_t reasoning_tokens) {
    if (record_) record_->answered(summary, outcome, reasoning_tokens);
  }

  void fail(const ApiError& error) {
    if (is_over_) return;  // and the engine may be the only one left
    if (record_) record_->failed(error);
    tell([group = weak_from_this(), error](AnswerSink& sink) {
      if (const auto self = group.lock()) self->is_over_ = true;
      sink.failed(error);
    });
    // What the sink has heard is its end: nothing that is still made has a reader.
    for (std::size_t choice = 0; choice < places_.size(); ++choice) cancel(choice);
  }

 private:
  void count(const AnswerUsage& usage, bool is_first_of_prompt) {
    if (is_first_of_prompt) {
      total_.prompt_tokens += usage.prompt_tokens;
      total_.cached_tokens += usage.cached_tokens;
      total_.written_tokens += usage.written_tokens;
      total_.marked_tokens += usage.marked_tokens;
    }
    total_.completion_tokens += usage.completion_tokens;
    total_.reasoning_tokens += usage.reasoning_tokens;
    total_.accepted_drafts += usage.accepted_drafts;
    total_.rejected_drafts += usage.rejected_drafts;
    if (--num_open_ > 0) return;
    is_over_ = true;
    sink_->all_ended(total_);
  }

  struct Place {
    std::optional<RequestId> id;
    bool is_cancelled = false;
  };

  AnswerService& answers_;
  std::mutex places_mutex_;
  std::mutex sink_mutex_;
  std::atomic<bool> is_over_ = false;
  const std::shared_ptr<AnswerSink> sink_;
  const std::shared_ptr<RequestRecord> record_;  // may be null
  std::vector<Place> places_;
  bool has_begun_ = false;
  std::vector<std::function<void(AnswerSink&)>> early_;
  std::size_t num_open_;
  AnswerUsage total_;
  std::optional<std::stop_callback<std::function<void()>>> gone_;
};

/// One answer on its way from the engine to the group: only the engine's thread calls it.
class AnswerFeed : public AnswerListener {
 public:
  AnswerFeed(std::shared_ptr<AnswerGroup> group, std::size_t choice, const ServedModel& model, const AnswerJob& job,
             bool is_first)
      : group_(std::move(group)),
        choice_(choice),
        tokenizer_(*model.tokenizer),
        stop_ids_(job.options.stop_ids),
        stop_(job.options.stop),
        only_first_call_(job.only_first_call),
        is_first_of_prompt_(is_first) {
    if (job.format) parser_.emplace(*job.format, job.reasoning_start, job.tools);
  }

  void prompt_logprobs(std::vector<LogprobEntry> entries) override {
    group_->tell([choice = choice_, entries = std::move(entries)](AnswerSink& sink) {
      sink.prompt_logprobs(static_cast<int>(choice), entries);
    });
  }

  void gained(std::int32_t id, const AnswerStep& step) override {
    guard([&] { take_token(id, step); });
  }

  void ended(const AnswerSummary& summary, std::string_view rest) override {
    guard([&] {
      // What the engine made of a complete answer is no matter.
      group_->note(summary, is_closed_ ? AnswerOutcome::Stop : summary.outcome, usage_.reasoning_tokens);
      finish(summary, rest);
    });
  }

 private:
  /// The engine's thread goes on whatever happens to one answer.
  template <class Body>
  void guard(Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      group_->fail({.status = 500, .message = fmt::format("internal error: {}", error.what())});
    }
  }

  void take_token(std::int32_t id, const AnswerStep& step) {
    if (is_closed_ || group_->is_over()) return;
    ++usage_.completion_tokens;
    const bool is_end = step.finish == FinishReason::Stop && is_stop_id(id);
    if (step.logprobs && !is_end) gain_.logprobs.push_back(*step.logprobs);
    if (stop_.stops().size() > 1) ids_.push_back(id);
    last_id_ = id;
    const bool was_reasoning = parser_ && parser_->in_reasoning();
    take(step.text);
    if (was_reasoning || (parser_ && parser_->in_reasoning())) ++usage_.reasoning_tokens;
    if (!gain_.events.empty()) give_gain();
    if (is_closed_) group_->cancel(choice_);
  }

  void finish(const AnswerSummary& summary, std::string_view rest) {
    if (group_->is_over()) return;
    usage_.prompt_tokens = summary.prompt_tokens;
    usage_.cached_tokens = summary.cached_tokens;
    usage_.written_tokens = std::max<std::int64_t>(0, summary.kept_tokens - summary.cached_tokens);
    usage_.marked_tokens = std::max<std::int64_t>(0, summary.marked_tokens - summary.cached_tokens);
    count_drafts(summary);
    if (!is_closed_) {
      if (const std::optional<ApiError> error = error_of(summary)) return group_->fail(*error);
      take(rest);
      if (parser_ && !is_closed_) add(parser_->finish());
    }
    if (!gain_.events.empty() || !gain_.logprobs.empty()) give_gain();
    AnswerEnd end{.ending = AnswerEnding::Stop, .stop_sequence = {}, .usage = usage_};
    if (!is_closed_ && summary.outcome == AnswerOutcome::Length) {
      end.ending = AnswerEnding::Length;
    } else if (num_calls_ > 0) {
      end.ending = AnswerEnding::ToolCalls;
    } else if (!is_closed_ && !is_stop_id(last_id_) && !stop_.empty()) {
      end.ending = AnswerEnding::StopSequence;
      end.stop_sequence = found_stop();
    }
    group_->end(choice_, end, is_first_of_prompt_);
  }

  /// Where the answer was complete before the engine knew, the step went on: what it made behind the end came of drafts that were right, and are
  /// none of the answer's tokens.
  void count_drafts(const AnswerSummary& summary) {
    const std::int64_t behind_end = summary.made_tokens - usage_.completion_tokens;
    usage_.accepted_drafts = std::max<std::int64_t>(0, summary.accepted_drafts - behind_end);
    usage_.rejected_drafts = summary.accepted_drafts + summary.rejected_drafts - usage_.accepted_drafts;
  }

  static std::optional<ApiError> error_of(const AnswerSummary& summary) {
    switch (summary.outcome) {
      case AnswerOutcome::Cancelled: return ApiError{.status = 503, .message = EngineStopped{}.message(), .code = "overloaded"};
      case AnswerOutcome::TimedOut:
        return ApiError{.status = 504,
                        .message = fmt::format("the answer took longer than it may, {:.1f} s", summary.total_seconds),
                        .code = "timeout"};
      case AnswerOutcome::Failed: return ApiError{.status = 500, .message = summary.error};
      case AnswerOutcome::Stop:
      case AnswerOutcome::Length: break;
    }
    return std::nullopt;
  }

  bool is_stop_id(std::int32_t id) const { return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end(); }

  void take(std::string_view text) {
    text_bytes_ += text.size();
    if (text.empty()) return;
    if (!parser_) {
      gain_.events.push_back({Kind::Content, -1, std::string(text)});
      return;
    }
    add(parser_->push(text));
    if (parser_->ended()) is_closed_ = true;
  }

  /// What follows a call that was to be the only one is no part of the answer.
  void add(std::vector<OutputEvent> events) {
    for (OutputEvent& event : events) {
      if (is_closed_) return;
      if (event.kind == Kind::ToolEnd) {
        ++num_calls_;
        is_closed_ = only_first_call_;
      }
      gain_.events.push_back(std::move(event));
    }
  }

  void give_gain() {
    group_->tell(
        [choice = choice_, gain = std::exchange(gain_, {})](AnswerSink& sink) { sink.gained(static_cast<int>(choice), gain); });
  }

  /// The answer's text ends where the stop string begins in the text of all its tokens: the shortest that fits was the first to be complete.
  std::string found_stop() const {
    if (stop_.stops().size() == 1) return stop_.stops().front().text;
    const std::string text = detokenize(tokenizer_, ids_);
    std::string found;
    for (const StopString& stop : stop_.stops()) {
      const bool fits = text_bytes_ <= text.size() && std::string_view(text).substr(text_bytes_).starts_with(stop.text);
      if (fits && (found.empty() || stop.text.size() < found.size())) found = stop.text;
    }
    return found;
  }

  const std::shared_ptr<AnswerGroup> group_;
  const std::size_t choice_;
  const Tokenizer& tokenizer_;
  const std::vector<std::int32_t> stop_ids_;
  const StopList stop_;
  const bool only_first_call_;
  const bool is_first_of_prompt_;

  std::optional<OutputParser> parser_;
  bool is_closed_ = false;  // the answer is complete, whatever the engine still makes
  AnswerGain gain_;         // not given yet
  AnswerUsage usage_;
  int num_calls_ = 0;
  std::int32_t last_id_ = -1;
  std::vector<std::int32_t> ids_;  // kept to tell several stop strings apart
  std::size_t text_bytes_ = 0;
};

/// Throws RequestError where the engine said no.
RequestId id_of(const AnswerSubmission& submission) {
  if (const auto* id = std::get_if<RequestId>(&submission)) return *id;
  if (const auto* full = std::get_if<QueueFull>(&submission)) {
    throw RequestError({.status = 503, .message = full->message(), .code = "overloaded", .retry_after = full->retry_after});
  }
  if (const auto* large = std::get_if<LargerThanPool>(&submission)) {
    throw RequestError({.status = 400, .message = large->message(), .code = "context_length_exceeded"});
  }
  throw RequestError({.status = 503, .message = EngineStopped{}.message(), .code = "overloaded"});
}

AnswerRequest request_of(const AnswerJob& job, int sample) {
  return {.prompt = job.prompt,
          .options = job.options,
          .sample = static_cast<std::uint32_t>(sample),
          .guide = job.make_guide ? job.make_guide() : nullptr,
          .cache_space = job.cache_space,
          .cache_marks = job.cache_marks,
          .cache_only_marks = job.cache_only_marks,
          .priority = job.priority,
          .client = job.client,
          .time_limit = job.time_limit};
}

}  // namespace

void submit_answers(AnswerService& answers, const ServedModel& model, const std::vector<AnswerJob>& jobs,
                    std::shared_ptr<AnswerSink> sink, std::stop_token gone, std::shared_ptr<RequestRecord> record) {
  std::size_t num_choices = 0;
  for (const AnswerJob& job : jobs) num_choices += static_cast<std::size_t>(job.count);
  if (static_cast<std::int64_t>(num_choices) > model.most_answers) {
    refuse_field("n", fmt::format("asks for {} answers, expected at most {}: so many may wait on this server", num_choices,
                                  model.most_answers));
  }
  if (record) record->asked(model.name(), static_cast<std::int64_t>(num_choices));
  const auto group = std::make_shared<AnswerGroup>(answers, std::move(sink), num_choices, std::move(record));
  group->watch(std::move(gone));
  try {
    std::size_t choice = 0;
    for (const AnswerJob& job : jobs) {
      for (int sample = 0; sample < job.count && !group->is_over(); ++sample, ++choice) {
        auto feed = std::make_shared<AnswerFeed>(group, choice, model, job, sample == 0);
        group->set_id(choice, id_of(answers.submit(request_of(job, sample), std::move(feed))));
      }
    }
  } catch (...) {
    group->abandon();
    throw;
  }
  group->begin();
}

void answer_request(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder,
                    std::vector<AnswerJob> jobs, std::shared_ptr<AnswerSink> sink) {
  const std::string owner = cache_owner_of(context, request);
  for (AnswerJob& job : jobs) {
    job.client = client_of(context, request);
    job.cache_space = cache_space_of(owner, job.cache_salt);
    job.time_limit = context.time_limit;
  }
  submit_answers(context.answers, context.model, jobs, std::move(sink), responder.gone(), request.record);
}

void answer_request(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder, AnswerJob job,
                    std::shared_ptr<AnswerSink> sink) {
  std::vector<AnswerJob> jobs;
  jobs.push_back(std::move(job));
  answer_request(context, request, responder, std::move(jobs), std::move(sink));
}

void AnswerCollector::prompt_logprobs(int choice, std::vector<LogprobEntry> entries) {
  answer(choice).prompt_logprobs = std::move(entries);
}

void AnswerCollector::gained(int choice, const AnswerGain& gain) {
  WholeAnswer& whole = answer(choice);
  whole.output.add(gain.events);
  whole.logprobs.insert(whole.logprobs.end(), gain.logprobs.begin(), gain.logprobs.end());
}

void AnswerCollector::ended(int choice, const AnswerEnd& end) { answer(choice).end = end; }

}  // namespace calandra
