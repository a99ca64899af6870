#pragma once
// An answer as a server tells it: text, and what it says of its tokens. Two of them are compared.

#include "loadtest/load_options.h"
#include "loadtest/streamed_answer.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

struct ScoredToken {
  std::string text;
  double logprob = 0;
  std::vector<std::pair<std::string, double>> others;  ///< the likeliest, as many as the server gives
};

struct ServerAnswer {
  std::string text;                 ///< reasoning, then content
  std::vector<ScoredToken> tokens;  ///< empty: the server does not say
  std::optional<TokenUsage> usage;
};

/// Of a whole reply of either API. Throws Error that says what was found where the answer should be.
ServerAnswer read_answer(LoadApi api, std::string_view body);

/// How an answer differs from another one to the same request.
struct AnswerDifference {
  bool in_text = false;
  /// The first token whose text or log probability differs; unset where only what is not scored does.
  std::optional<std::size_t> token;
  std::string expected, found;  ///< that token's text and log probability
  double largest = 0;           ///< of two log probabilities of one token, as far as the tokens before are the same
};

/// Nothing where they are the same: text, tokens, log probabilities, to the last digit that the server sends.
std::optional<AnswerDifference> difference_of(const ServerAnswer& expected, const ServerAnswer& found);

}  // namespace calandra
