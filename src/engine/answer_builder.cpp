#include "engine/answer_builder.h"

#include "base/error.h"

#include <algorithm>

namespace calandra {

void check(const GenerationOptions& options, std::int64_t num_tokens) {
  check(options.sampling, num_tokens);
  if (options.max_tokens < 0) fail("max tokens {}: expected 0 or more", options.max_tokens);
  if (options.min_tokens < 0) fail("min tokens {}: expected 0 or more", options.min_tokens);
  if (options.max_tokens > 0 && options.min_tokens > options.max_tokens)
    fail("min tokens {}: expected at most the {} of max tokens", options.min_tokens, options.max_tokens);
  if (options.logprobs) check_top_logprobs("logprobs", *options.logprobs);
  if (options.prompt_logprobs) check_top_logprobs("prompt logprobs", *options.prompt_logprobs);
}

void check_prompt(std::int64_t tokens, std::int64_t context) {
  if (tokens == 0) fail("prompt: no tokens, expected at least 1");
  if (leaves_room(tokens, context)) return;
  fail(
      "prompt of {} tokens: expected at most {}, which leaves room for an answer in the context of {} (--context N asks for another)",
      tokens, context - 1, context);
}

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop: return "stop";
    case FinishReason::Length: return "length";
    case FinishReason::Cancelled: return "cancelled";
  }
  return "";
}

AnswerBuilder::AnswerBuilder(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                             std::int64_t context, std::uint32_t sample)
    : options_(options),
      num_prompt_(std::ssize(prompt)),
      context_(context),
      sample_(sample),
      counts_(options.sampling.has_penalties() ? TokenCounts(prompt) : TokenCounts()),
      detokenizer_(tokenizer),
      stops_(options.stop) {}

std::int32_t AnswerBuilder::sample(std::span<const float> logits, std::span<const std::int32_t> drafts,
                                   std::span<const std::uint64_t> allowed) const {
  Draw draw{.position = position() + std::ssize(drafts),
            .sample = sample_,
            .counts = &counts_,
            .drafts = drafts,
            .banned = {},
            .allowed = allowed};
  if (draw.position - num_prompt_ < options_.min_tokens) draw.banned = options_.stop_ids;
  return calandra::sample(logits, options_.sampling, draw);
}

AnswerStep AnswerBuilder::push(std::int32_t id, std::span<const float> logits) {
  AnswerStep step;
  if (!finish_) {
    if (options_.logprobs) step.logprobs = logprobs_of(logits, position(), id, *options_.logprobs);
    ids_.push_back(id);
    if (options_.sampling.has_penalties()) counts_.add(id);
    finish_ = reason_after(id, step.text);
  }
  step.finish = finish_;
  return step;
}

std::string AnswerBuilder::cancel() {
  if (finish_) return {};
  finish_ = FinishReason::Cancelled;
  return waiting_text();
}

bool AnswerBuilder::is_stop_id(std::int32_t id) const {
  return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) != options_.stop_ids.end();
}

/// Adds the text that `id` completes. Stop comes before Length: a token may be both.
std::optional<FinishReason> AnswerBuilder::reason_after(std::int32_t id, std::string& text) {
  const bool ends = is_stop_id(id);
  if (!ends) text += text_of(id);
  if (stops_.found()) return FinishReason::Stop;
  const bool is_last = std::ssize(ids_) == options_.max_tokens || context_full();
  if (!ends && !is_last) return std::nullopt;
  text += waiting_text();
  return ends || stops_.found() ? FinishReason::Stop : FinishReason::Length;
}

std::string AnswerBuilder::text_of(std::int32_t id) {
  const std::string text = detokenizer_.push(id);
  return std::ssize(ids_) <= options_.min_tokens ? text : stops_.push(text);
}

std::string AnswerBuilder::waiting_text() {
  std::string text = stops_.push(detokenizer_.finish());
  return text + stops_.finish();
}

}  // namespace calandra
