#include "checkpoint/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace calandra {
namespace {

/// YaRN's growth of attention logits with the length factor.
double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

/// What multiplies cos and sin.
double yarn_rotation_factor(const YarnScaling& yarn) {
  if (yarn.attention_factor) return *yarn.attention_factor;
  if (yarn.mscale && yarn.mscale_all_dim) {
    return yarn_mscale(yarn.factor, *yarn.mscale) / yarn_mscale(yarn.factor, *yarn.mscale_all_dim);
  }
  return yarn_mscale(yarn.factor, 1.0);
}

/// Number of the pair that turns `rotations` times within the original context.
double pair_of_rotations(const Config& config, double rotations) {
  const auto original = static_cast<double>(config.yarn->original_context);
  return static_cast<double>(config.rope_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_theta));
}

}  // namespace

RopeParameters rope_parameters(const Config& config) {
  RopeParameters parameters;
  const std::int64_t pairs = config.rope_dim / 2;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    parameters.inverse_frequencies.push_back(
        std::pow(config.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(config.rope_dim)));
  }
  if (!config.yarn) return parameters;

  // Pairs that turn often within the original context keep their speed, slow ones are stretched by the factor; a ramp
  // lies between the two.
  const YarnScaling& yarn = *config.yarn;
  const double low = std::max(std::floor(pair_of_rotations(config, yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of_rotations(config, yarn.beta_slow)), static_cast<double>(config.rope_dim - 1));
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const double stretched = std::clamp((static_cast<double>(pair) - low) / std::max(high - low, 0.001), 0.0, 1.0);
    double& frequency = parameters.inverse_frequencies[static_cast<std::size_t>(pair)];
    frequency = frequency / yarn.factor * stretched + frequency * (1 - stretched);
  }
  parameters.factor = yarn_rotation_factor(yarn);
  return parameters;
}

void rotation_at(const RopeParameters& rope, std::int64_t position, std::span<float> cos, std::span<float> sin) {
  for (std::size_t pair = 0; pair < rope.inverse_frequencies.size(); ++pair) {
    // In double: at position 10^6 a float angle would be off by 0.05.
    const double angle = static_cast<double>(position) * rope.inverse_frequencies[pair];
    cos[pair] = static_cast<float>(std::cos(angle) * rope.factor);
    sin[pair] = static_cast<float>(std::sin(angle) * rope.factor);
  }
}

float Config::attention_scale() const {
  double scale = 1.0 / std::sqrt(static_cast<double>(nope_dim + rope_dim));
  if (yarn && yarn->mscale_all_dim) {
    const double mscale = yarn_mscale(yarn->factor, *yarn->mscale_all_dim);
    scale *= mscale * mscale;
  }
  return static_cast<float>(scale);
}

}  // namespace calandra
