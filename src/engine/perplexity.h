#pragma once
// How well a model predicts a text.

#include "engine/model.h"

#include <cstdint>
#include <functional>
#include <span>

namespace calandra {

struct PerplexityOptions {
  std::int64_t window = 0;  // tokens seen at a time; 0: the model's context. Windows do not overlap.
};

struct PerplexityResult {
  std::int64_t predicted_tokens = 0;  // every token of a window but its first
  std::int64_t predicted_bytes = 0;   // of their text
  double nats = 0;                    // sum of -ln p
  /// Counts one more token, which these logits predicted.
  void add(std::span<const float> logits, std::int32_t next, const Tokenizer& tokenizer);
  double mean_nats() const { return nats / static_cast<double>(predicted_tokens); }
  double perplexity() const;
  double bits_per_byte() const;
};

/// Throws Error for a text of fewer than 2 tokens. `progress` gets (tokens done, tokens in all).
PerplexityResult measure_perplexity(Model& model, std::span<const std::int32_t> tokens, const PerplexityOptions& options = {},
                                    const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace calandra
