#pragma once
// One token from one row of logits. Gumbel-max after the filters, with noise from a counter generator: the draw is a
// function of (logits, settings, tokens before, seed, position, sample) and of nothing else, so neighbours, cuts and
// speculation cannot change it. docs/numerics.md compares the order of the stages with that of other engines.

#include "engine/token_counts.h"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace calandra {

inline constexpr double kMostPenalty = 2;  // presence and frequency; also the least, negative
inline constexpr double kLeastRepetitionPenalty = 0.1, kMostRepetitionPenalty = 10;  // far to both sides of any use
inline constexpr double kMostBias = 100;

struct TokenBias {
  std::int32_t token = 0;
  float bias = 0;  // -100 to 100, added to the logit; -100 bans the token
  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

/// In the order in which they take effect. Every stage sees what those before it left.
struct SamplingOptions {
  std::vector<TokenBias> logit_bias = {};  // ascending ids, each once
  // A token of the prompt or the answer: its logit is divided by this if positive, else multiplied by it (Keskar et al., CTRL, 2019).
  double repetition_penalty = 1.0;  // 1: off
  // A token of the answer, prompt not counted: its logit is less by frequency x times it was made, and by presence if it was made at all.
  double frequency_penalty = 0.0;  // 0: off
  double presence_penalty = 0.0;   // 0: off
  // Here a Draw's mask and banned tokens take effect.
  double temperature = 1.0;  // divides the logits; 0: the largest, the lower id on ties
  int top_k = 0;             // the K likeliest; 0: off
  double top_p = 1.0;        // of these, the fewest likeliest that reach P of their probability; 1: off
  double min_p = 0.0;        // of these, those at least P times as likely as the likeliest; 0: off
  std::uint64_t seed = 0;

  bool has_penalties() const { return repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0; }
};

/// Throws Error that names the setting, the value and the range. Ids must be below `num_tokens`.
void check(const SamplingOptions& options, std::int64_t num_tokens = std::numeric_limits<std::int32_t>::max());

/// What a draw depends on beside logits and settings.
struct Draw {
  std::int64_t position = 0;                    // tokens before it
  std::uint32_t sample = 0;                     // counts answers to one prompt
  const TokenCounts* counts = nullptr;          // of the tokens before it, without drafts; may be null if there are no penalties
  std::span<const std::int32_t> drafts = {};    // tokens before it that are not certain yet: they count as made
  std::span<const std::int32_t> banned = {};    // cannot come
  std::span<const std::uint64_t> allowed = {};  // bit id % 64 of word id / 64: it may come; empty: all may
};

/// Throws Error if a logit is not a number, the largest is not finite, nothing is left that may come, or the mask has not one bit a logit.
std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, const Draw& draw);

}  // namespace calandra
