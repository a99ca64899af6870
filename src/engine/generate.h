#pragma once
// The loop that makes an answer: prompt, sample, stop. Prints nothing and knows nothing of chats; a caller listens.

#include "engine/answer_builder.h"
#include "engine/model.h"
#include "engine/session.h"
#include "engine/speculation.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// All may be empty. Called between tokens, never at the same time.
struct GenerationListener {
  /// (tokens done, tokens to do) of the prompt; not called when nothing is to be computed.
  std::function<void(std::int64_t done, std::int64_t total)> prompt;
  /// Text that the answer has gained: whole characters, nothing of a stop string. False: the answer is complete with it.
  std::function<bool(std::string_view text)> text;
  /// Asked between tokens and between pieces of a long prompt; true ends the answer.
  std::function<bool()> cancelled;
};

struct Generation {
  std::vector<std::int32_t> ids;  // as sampled, a final stop id included
  std::string text;               // without the stop id or string that ended it
  // If asked for: one entry an id, and one a token of the prompt but the first.
  std::vector<LogprobEntry> logprobs, prompt_logprobs;
  FinishReason finish_reason = FinishReason::Stop;
  bool context_full = false;  // why Length
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;    // of the prompt, that did not have to be computed
  std::int64_t accepted_drafts = 0;  // of the ids, those that a step made beyond its first
  std::int64_t rejected_drafts = 0;  // that were verified beside them in vain
  double prompt_seconds = 0;         // until the first token could be sampled
  double generation_seconds = 0;     // from then on

  double prompt_tokens_per_second() const;
  double generation_tokens_per_second() const;
};

/// Answers `prompt`, the whole history of the session's timeline. Throws Error if it is empty, leaves no room in the context for a token,
/// or holds ids outside the vocabulary, and for options out of range. With `speculation`, of the same model, the answer is the same and may come
/// sooner.
Generation generate(Model& model, Session& session, std::span<const std::int32_t> prompt, const GenerationOptions& options,
                    const GenerationListener& listener = {}, Speculation* speculation = nullptr);

/// Every id that ends an answer of this model: those of generation_config.json and config.json, and the tokens <|role_end|> and
/// <|endoftext|> if the tokenizer has them, whatever the configs say.
std::vector<std::int32_t> stop_ids_of(const Model& model);

/// The tokens of `text`. If it begins with the text of `known`, tokens computed before, they are kept as they are (a model need not
/// spell a text the way the tokenizer does) and only the rest is encoded, so that a session can go on.
std::vector<std::int32_t> extend_tokens(const Tokenizer& tokenizer, std::span<const std::int32_t> known, std::string_view text);

}  // namespace calandra
