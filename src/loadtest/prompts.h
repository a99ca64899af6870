#pragma once
// Prompts of about so many tokens: common words in random order, since nearly all of these are one token in any vocabulary. How many tokens
// they really are is measured with the server's own counts.

#include "loadtest/draws.h"

#include <cstdint>
#include <string>

namespace calandra {

/// What a server counts for so many words.
struct PromptScale {
  double tokens_per_word = 1.1;
  double tokens_beside = 0;  ///< of a request: marks of the chat template
  bool is_measured = false;

  /// From two requests of different length. Counts that make no sense leave it as it was.
  static PromptScale measured(std::int64_t words, std::int64_t tokens, std::int64_t more_words, std::int64_t more_tokens);

  /// Words of a message that is to be so many tokens, one at least.
  std::int64_t words_of_message(std::int64_t tokens) const;
};

/// So many words, the first as any other: no two prompts begin with the same text.
std::string random_words(Draws& draws, std::int64_t count);

}  // namespace calandra
