#pragma once
// What two models say of one text: how far apart their predictions are. To see what a conversion has cost.

#include "engine/perplexity.h"

#include <cstdint>
#include <functional>
#include <span>

namespace calandra {

struct ModelComparison {
  PerplexityResult before, after;
  double divergence = 0;            // sum over the predicted tokens of KL(before || after) of the next token, in nats
  double worst_divergence = 0;      // the largest of them
  std::int64_t worst_position = 0;  // and which token of the text it is about
  double mean_divergence() const { return divergence / static_cast<double>(before.predicted_tokens); }
};

/// Throws Error as measure_perplexity() does, and if the two have not one vocabulary. `progress` gets (tokens done, in all).
ModelComparison compare_models(Model& before, Model& after, std::span<const std::int32_t> tokens,
                               const PerplexityOptions& options = {},
                               const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace calandra
