#pragma once
// One answer in the making, whoever computes its logits: what is sampled next, and given that token, the text that is certain by
// now, its log probabilities, and whether it was the last. A value of its own for every answer; answers to one prompt share nothing.

#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "engine/stop_strings.h"
#include "engine/token_counts.h"
#include "text/detokenizer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct GenerationOptions {
  SamplingOptions sampling = {};
  std::int64_t max_tokens = 0;  // 0: as many as the context holds
  std::int64_t min_tokens = 0;  // so many come before a stop id can, and no stop string is looked for in their text
  // End the answer; their text is not part of it. To go on behind the model's own end, leave stop_ids_of(model) out.
  std::vector<std::int32_t> stop_ids = {};
  StopList stop = {};                       // the same for texts, wherever the borders of tokens fall
  std::optional<int> logprobs = {};         // of every token made, with so many alternatives: 0 to kMostTopLogprobs
  std::optional<int> prompt_logprobs = {};  // the same of every token of the prompt but the first: all of it is computed
};

/// Throws Error that names the option, the value and the range. Ids must be below `num_tokens`.
void check(const GenerationOptions& options, std::int64_t num_tokens = std::numeric_limits<std::int32_t>::max());

/// Whether an answer can follow so many tokens.
inline bool leaves_room(std::int64_t prompt_tokens, std::int64_t context) { return prompt_tokens < context; }

/// Throws Error for an empty prompt, and for one that leaves no room.
void check_prompt(std::int64_t tokens, std::int64_t context);

enum class FinishReason : std::uint8_t {
  Stop,    // a stop id, a stop string, or the listener; also if the last token that may be made has it
  Length,  // max_tokens, or the context is full
  Cancelled,
};

/// "stop", "length", "cancelled"
std::string_view name_of(FinishReason reason);

/// What an answer has gained by a token.
struct AnswerStep {
  std::string text;                      // whole characters, nothing of a stop string; often empty
  std::optional<LogprobEntry> logprobs;  // of the token, if asked for
  std::optional<FinishReason> finish;    // why it was the last
};

class AnswerBuilder {
 public:
  /// Of an answer to `prompt`, at most until prompt and answer have `context` tokens. `sample` counts answers to one prompt. Tokenizer and
  /// options, which check() has seen, must outlive this.
  AnswerBuilder(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                std::int64_t context, std::uint32_t sample = 0)
      : AnswerBuilder(&tokenizer, prompt, options, context, sample) {}
  /// Without a tokenizer the answer has tokens and no text.
  AnswerBuilder(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                std::int64_t context, std::uint32_t sample = 0);

  /// The token after all that were pushed, and after `drafts` if a drafter asks: then as if these had been pushed too. Changes nothing.
  /// `logits` are those of the tokens that can be sampled; `allowed` is Draw::allowed. Throws Error as calandra::sample() does.
  std::int32_t sample(std::span<const float> logits, std::span<const std::int32_t> drafts = {},
                      std::span<const std::uint64_t> allowed = {}) const;

  /// Adds the token that was sampled from `logits`. With the last token comes all text that had waited: of a character that it
  /// leaves incomplete, U+FFFD. Once the answer is finished, further tokens of a step with several are no part of it: nothing is counted, and the
  /// reason stays.
  AnswerStep push(std::int32_t id, std::span<const float> logits);

  /// Ends the answer from outside; the text that had waited. Nothing if it is finished.
  std::string cancel();

  bool is_stop_id(std::int32_t id) const;

  /// As sampled, a final stop id included.
  const std::vector<std::int32_t>& ids() const { return ids_; }
  std::optional<FinishReason> finish_reason() const { return finish_; }
  /// Why Length.
  bool context_full() const { return position() >= context_; }
  /// Tokens of prompt and answer.
  std::int64_t position() const { return num_prompt_ + std::ssize(ids_); }
  /// How many more it may have.
  std::int64_t tokens_left() const {
    const std::int64_t room = context_ - position();
    return options_.max_tokens > 0 ? std::min(room, options_.max_tokens - std::ssize(ids_)) : room;
  }

 private:
  std::optional<FinishReason> reason_after(std::int32_t id, std::string& text);
  std::string text_of(std::int32_t id);
  std::string waiting_text();

  const GenerationOptions& options_;
  std::int64_t num_prompt_;
  std::int64_t context_;
  std::uint32_t sample_;
  TokenCounts counts_;  // only kept if there are penalties
  Detokenizer detokenizer_;
  StopStrings stops_;
  std::vector<std::int32_t> ids_;
  std::optional<FinishReason> finish_;
};

}  // namespace calandra
