#include "engine/generate.h"

#include "base/error.h"
#include "engine/stop_strings.h"
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

void check_prompt(std::int64_t length, std::int64_t context) {
  if (length == 0) fail("prompt: no tokens, expected at least 1");
  if (!leaves_room(length, context)) {
    fail(
        "prompt of {} tokens: expected at most {}, which leaves room for an answer in the context of {} (--context N asks for another)",
        length, context - 1, context);
  }
}

/// One answer in the making.
class Generator {
 public:
  Generator(Model& model, Session& session, const GenerationOptions& options, const GenerationListener& listener)
      : session_(session),
        options_(options),
        listener_(listener),
        samplable_(static_cast<std::size_t>(model.num_samplable())),
        detokenizer_(model.tokenizer()),
        stops_(options.stop) {}

  Generation run(std::span<const std::int32_t> prompt) {
    history_.assign(prompt.begin(), prompt.end());
    result_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    const auto prompt_start = Clock::now();
    std::span<const float> logits = next_logits(true);
    result_.prompt_seconds = seconds_since(prompt_start);
    result_.reused_tokens = session_.num_reused_tokens();
    if (logits.empty()) {
      result_.finish_reason = FinishReason::Cancelled;
      return std::move(result_);
    }
    session_.keep_boundary();

    const auto start = Clock::now();
    std::optional<FinishReason> end;
    while (!(end = take(logits))) {
      logits = next_logits(false);
      if (logits.empty()) {
        end = FinishReason::Cancelled;
        break;
      }
    }
    result_.finish_reason = *end;
    if (!complete_ && !stops_.found()) {
      give_out(stops_.push(detokenizer_.finish()));
      give_out(stops_.finish());
    }
    result_.generation_seconds = seconds_since(start);
    return std::move(result_);
  }

 private:
  std::span<const float> next_logits(bool is_prompt) {
    return session_.logits(history_, [&](std::int64_t done, std::int64_t total) {
      if (is_prompt && listener_.prompt) listener_.prompt(done, total);
      return !listener_.cancelled || !listener_.cancelled();
    });
  }

  /// Samples the next token; says why it is the last one, if it is.
  std::optional<FinishReason> take(std::span<const float> logits) {
    const auto position = static_cast<std::int64_t>(history_.size());
    const std::int32_t id = sample(logits.first(samplable_), options_.sampling, position);
    history_.push_back(id);
    result_.ids.push_back(id);
    if (contains(options_.stop_ids, id)) return FinishReason::Stop;
    give_out(stops_.push(detokenizer_.push(id)));
    if (complete_ || stops_.found()) return FinishReason::Stop;
    result_.context_full = position + 1 == session_.context();
    const bool enough = static_cast<std::int64_t>(result_.ids.size()) == options_.max_tokens;
    return enough || result_.context_full ? std::optional(FinishReason::Length) : std::nullopt;
  }

  void give_out(const std::string& text) {
    if (text.empty()) return;
    result_.text += text;
    if (listener_.text && !listener_.text(text)) complete_ = true;
  }

  Session& session_;
  const GenerationOptions& options_;
  const GenerationListener& listener_;
  std::size_t samplable_;
  Detokenizer detokenizer_;
  StopStrings stops_;
  bool complete_ = false;  // says the listener
  std::vector<std::int32_t> history_;
  Generation result_;
};

}  // namespace

void check(const GenerationOptions& options) {
  check(options.sampling);
  if (options.max_tokens < 0) fail("max tokens {}: expected 0 or more", options.max_tokens);
  const StopStrings checked(options.stop);
}

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop: return "stop";
    case FinishReason::Length: return "length";
    case FinishReason::Cancelled: return "cancelled";
  }
  return "";
}

double Generation::prompt_tokens_per_second() const { return rate(prompt_tokens - reused_tokens, prompt_seconds); }

// The first token comes from the prompt's own logits.
double Generation::generation_tokens_per_second() const { return rate(std::ssize(ids) - 1, generation_seconds); }

Generation generate(Model& model, Session& session, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                    const GenerationListener& listener) {
  check(options);
  check_prompt(std::ssize(prompt), session.context());
  return Generator(model, session, options, listener).run(prompt);
}

std::vector<std::int32_t> stop_ids_of(const Model& model) {
  std::vector<std::int32_t> ids;
  for (const std::int64_t id : model.checkpoint().generation().eos_ids) ids.push_back(static_cast<std::int32_t>(id));
  for (const char* mark : {"<|role_end|>", "<|endoftext|>"}) {
    const std::optional<std::int32_t> id = model.tokenizer().id_of(mark);
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
