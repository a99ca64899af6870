#include "kernels/router.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

namespace calandra {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// The first `kept` indices of `scores` by falling score, the lower index first on ties.
std::vector<std::size_t> largest_indices(std::span<const float> scores, std::size_t kept) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  kept = std::min(kept, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](std::size_t a, std::size_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
  order.resize(kept);
  return order;
}

/// Sum of the two largest scores, or the only one.
float group_score(std::span<const float> scores) {
  float first = kMinusInfinity;
  float second = kMinusInfinity;
  for (const float score : scores) {
    second = std::max(second, std::min(first, score));
    first = std::max(first, score);
  }
  return scores.size() == 1 ? first : first + second;
}

/// Closed groups fall to minus infinity, not to 0: biased scores may be negative.
void close_groups(std::span<float> scores, const RouterParameters& parameters) {
  const auto num_groups = static_cast<std::size_t>(parameters.num_groups);
  const std::size_t group_size = scores.size() / num_groups;
  std::vector<float> group_scores;
  for (std::size_t g = 0; g < num_groups; ++g) group_scores.push_back(group_score(scores.subspan(g * group_size, group_size)));
  std::vector<bool> open(num_groups, false);
  for (const std::size_t g : largest_indices(group_scores, static_cast<std::size_t>(parameters.kept_groups))) open[g] = true;
  for (std::size_t g = 0; g < num_groups; ++g) {
    if (!open[g]) std::ranges::fill(scores.subspan(g * group_size, group_size), kMinusInfinity);
  }
}

}  // namespace

void route_with(SigmoidFunction sigmoid, std::span<const float> logits, std::span<const float> bias,
                const RouterParameters& parameters, std::span<std::int32_t> ids, std::span<float> weights) {
  std::vector<float> activations(logits.size());
  sigmoid(logits, activations);
  std::vector<float> scores(logits.size());
  for (std::size_t e = 0; e < scores.size(); ++e) {
    scores[e] = activations[e] + bias[e];
    if (std::isnan(scores[e])) scores[e] = kMinusInfinity;
  }
  close_groups(scores, parameters);

  const std::vector<std::size_t> chosen = largest_indices(scores, static_cast<std::size_t>(parameters.top_k));
  float sum = 0.0f;
  for (const std::size_t e : chosen) sum += activations[e];
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(chosen[i]);
    weights[i] = activations[chosen[i]] / (sum + 1e-20f) * parameters.scaling;
  }
}

}  // namespace calandra
