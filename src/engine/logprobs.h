#pragma once
// Log probabilities: what the model itself thought of a token. Of the softmax over all tokens that can be sampled, of the logits as they
// come from the model: temperature, filters, bias, penalties and masks are choices of the caller and do not show in it. A
// function of the row alone, in float64.

#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

/// As in OpenAI's API: what is even less likely, or impossible, has this. No infinity gets out, which JSON could not say.
inline constexpr double kLeastLogprob = -9999;
inline constexpr int kMostTopLogprobs = 20;

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct LogprobEntry {
  TokenLogprob chosen;
  std::vector<TokenLogprob>
      top;  // the likeliest, in order, lower id first on ties; `chosen` is among them only if it is one of them
  friend bool operator==(const LogprobEntry&, const LogprobEntry&) = default;
};

/// Of `token`, and of the `top` likeliest (fewer if the others cannot come). `logits` follow `position` tokens. Throws Error as
/// LogitRow does, and if the token has no logit.
LogprobEntry logprobs_of(std::span<const float> logits, std::int64_t position, std::int32_t token, int top);

/// Throws Error that names `setting` unless so many can be asked for.
void check_top_logprobs(const char* setting, int top);

}  // namespace calandra
