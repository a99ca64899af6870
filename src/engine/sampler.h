#pragma once
// One token from one row of logits. Gumbel-max after the filters, with noise from a counter generator: the draw is a
// function of (logits, settings, seed, position, sample) and of nothing that happened before, so neighbours, cuts and
// speculation cannot change it.

#include <cstdint>
#include <span>

namespace calandra {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the largest logit, the lower id on ties
  int top_k = 0;             // 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off
  std::uint64_t seed = 0;
};

/// Throws Error that names the setting, the value and the range.
void check(const SamplingOptions& options);

/// The token that follows `position` tokens. Filters in the order temperature, top_k, top_p (of what top_k left), min_p
/// (relative to the largest). `sample` counts answers to one prompt. Throws Error if a logit is not a
/// number, or the largest is not finite.
std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, std::int64_t position,
                    std::uint32_t sample = 0);

}  // namespace calandra
