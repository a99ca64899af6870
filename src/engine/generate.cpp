#include "engine/generate.h"

#include "text/detokenizer.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double rate(std::int64_t count, double seconds) { return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0; }

bool contains(std::span<const std::int32_t> ids, std::int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

/// Computes what an answer needs, and passes on what it gains.
class Generator {
 public:
  Generator(Model& model, Session& session, std::span<const std::int32_t> prompt, const GenerationOptions& options,
            const GenerationListener& listener, Speculation* speculation)
      : session_(session),
        options_(options),
        listener_(listener),
        speculation_(speculation != nullptr && speculation->is_on() ? speculation : nullptr),
        samplable_(static_cast<std::size_t>(model.num_samplable())),
        answer_(model.tokenizer(), prompt, options, session.context()),
        history_(prompt.begin(), prompt.end()),
        drafted_(answer_, history_) {
    if (speculation_ != nullptr) speculation_->begin(drafted_);
  }

  Generation run() {
    result_.prompt_tokens = std::ssize(history_);
    const auto prompt_start = Clock::now();
    std::span<const float> logits = prompt_logits();
    result_.prompt_seconds = seconds_since(prompt_start);
    result_.reused_tokens = session_.num_reused_tokens();
    const auto start = Clock::now();
    if (!logits.empty()) {
      session_.keep_boundary();
      const auto vocab = std::ssize(logits);
      ConstRows rows{logits.data(), 1, vocab, vocab};
      while (take(rows) && goes_on()) rows = next_rows();
      result_.generation_seconds = seconds_since(start);
    }
    if (!complete_) give_out(answer_.cancel());
    result_.finish_reason = complete_ ? FinishReason::Stop : *answer_.finish_reason();
    result_.context_full = result_.finish_reason == FinishReason::Length && answer_.context_full();
    result_.ids = answer_.ids();
    result_.accepted_drafts = drafted_.accepted;
    result_.rejected_drafts = drafted_.rejected;
    return std::move(result_);
  }

 private:
  bool goes_on() const { return !listener_.cancelled || !listener_.cancelled(); }

  std::span<const float> prompt_logits() {
    const auto progress = [this](std::int64_t done, std::int64_t total) {
      if (listener_.prompt) listener_.prompt(done, total);
      return goes_on();
    };
    if (!options_.prompt_logprobs) return session_.logits(history_, progress);
    return session_.all_logits(history_, progress, [this](std::int64_t position, std::span<const float> logits) {
      const std::int32_t next = history_[static_cast<std::size_t>(position)];
      result_.prompt_logprobs.push_back(logprobs_of(logits.first(samplable_), position, next, *options_.prompt_logprobs));
    });
  }

  /// Samples as many tokens as the rows are for; whether another is to follow.
  bool take(ConstRows rows) {
    const std::vector<std::int32_t>& drafts = drafted_.drafts;
    const bool tentative = !drafts.empty();
    bool goes_on = true;
    std::int64_t made = 0;
    for (bool next_is_there = true; next_is_there;) {
      goes_on = take_one({rows.row(made), samplable_});
      next_is_there = goes_on && made < std::ssize(drafts) && history_.back() == drafts[static_cast<std::size_t>(made)];
      ++made;
    }
    if (speculation_ == nullptr) return goes_on;
    drafted_.memory = &session_.memory();
    const DraftOutcome outcome{&drafted_, made, tentative, goes_on};
    const auto start = Clock::now();
    speculation_->conclude(std::span(&outcome, 1));
    if (tentative) session_.follow(history_);
    // Not what listeners take, who may wait for a person.
    const StepSlice slice{std::ssize(history_) - made - 1, rows.rows};
    if (step_seconds_) speculation_->note_step(std::span(&slice, 1), {}, rows.rows, *step_seconds_ + seconds_since(start));
    return goes_on;
  }

  /// Logits after the history, and after drafts of what may follow.
  ConstRows next_rows() {
    const auto start = Clock::now();
    if (drafted_.wanted > 0) {
      session_.reserve_drafts(drafted_.wanted);
      DraftedAnswer* const drafted = &drafted_;
      speculation_->draft(std::span(&drafted, 1));
    }
    const std::vector<std::int32_t>& drafts = drafted_.drafts;
    ConstRows rows;
    if (drafts.empty()) {
      const std::span<const float> logits = session_.logits(history_);
      rows = {logits.data(), 1, std::ssize(logits), std::ssize(logits)};
    } else {
      rows = session_.verify(history_, drafts);
    }
    step_seconds_ = seconds_since(start);
    return rows;
  }

  /// Samples the next token; whether another is to follow.
  bool take_one(std::span<const float> logits) {
    history_.push_back(answer_.sample(logits));
    AnswerStep step = answer_.push(history_.back(), logits);
    if (step.logprobs) result_.logprobs.push_back(*std::move(step.logprobs));
    give_out(step.text);
    return !step.finish && !complete_;
  }

  void give_out(const std::string& text) {
    if (text.empty()) return;
    result_.text += text;
    if (listener_.text && !listener_.text(text)) complete_ = true;
  }

  Session& session_;
  const GenerationOptions& options_;
  const GenerationListener& listener_;
  Speculation* speculation_;  // null: none
  std::size_t samplable_;
  AnswerBuilder answer_;
  bool complete_ = false;  // says the listener
  std::vector<std::int32_t> history_;
  DraftedAnswer drafted_;
  std::optional<double> step_seconds_;  // of drafting and computing the rows at hand; none while they are the prompt's
  Generation result_;
};

}  // namespace

double Generation::prompt_tokens_per_second() const { return rate(prompt_tokens - reused_tokens, prompt_seconds); }

// The first token comes from the prompt's own logits.
double Generation::generation_tokens_per_second() const { return rate(std::ssize(ids) - 1, generation_seconds); }

Generation generate(Model& model, Session& session, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                    const GenerationListener& listener, Speculation* speculation) {
  check(options, model.num_samplable());
  check_prompt(std::ssize(prompt), session.context());
  return Generator(model, session, prompt, options, listener, speculation).run();
}

std::vector<std::int32_t> stop_ids_of(const Model& model) {
  std::vector<std::int32_t> ids;
  for (const std::int64_t id : model.checkpoint().generation().eos_ids) ids.push_back(static_cast<std::int32_t>(id));
  const Tokenizer* const tokenizer = model.tokenizer_if_any();
  if (tokenizer == nullptr) return ids;
  for (const char* mark : {"<|role_end|>", "<|endoftext|>"}) {
    const std::optional<std::int32_t> id = tokenizer->id_of(mark);
    if (id && !contains(ids, *id)) ids.push_back(*id);
  }
  return ids;
}

std::vector<std::int32_t> extend_tokens(const Tokenizer& tokenizer, std::span<const std::int32_t> known, std::string_view text) {
  const bool in_vocabulary =
      std::all_of(known.begin(), known.end(), [&](std::int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); });
  const std::string known_text = in_vocabulary ? detokenize(tokenizer, known) : std::string();
  if (!in_vocabulary || !text.starts_with(known_text)) return tokenizer.encode(text);
  std::vector<std::int32_t> ids(known.begin(), known.end());
  const std::vector<std::int32_t> rest = tokenizer.encode(text.substr(known_text.size()));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

}  // namespace calandra
