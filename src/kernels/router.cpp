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

/// Kept from token to token, so that a choice allocates nothing.
struct Lists {
  std::vector<float> activations, scores, group_scores;
  std::vector<std::size_t> order;
};

/// All indices of `scores` in `order`: the first `kept` by falling score, the lower index first on ties; then the others.
void order_largest(std::span<const float> scores, std::size_t kept, std::vector<std::size_t>& order) {
  order.resize(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](std::size_t a, std::size_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
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
void close_groups(Lists& lists, const RouterParameters& parameters) {
  const auto num_groups = static_cast<std::size_t>(parameters.num_groups),
             kept = static_cast<std::size_t>(parameters.kept_groups);
  const std::size_t group_size = lists.scores.size() / num_groups;
  const auto group = [&](std::size_t g) { return std::span(lists.scores).subspan(g * group_size, group_size); };
  lists.group_scores.clear();
  for (std::size_t g = 0; g < num_groups; ++g) lists.group_scores.push_back(group_score(group(g)));
  order_largest(lists.group_scores, kept, lists.order);
  for (const std::size_t closed : std::span(lists.order).subspan(kept)) std::ranges::fill(group(closed), kMinusInfinity);
}

}  // namespace

void route_with(SigmoidFunction sigmoid, std::span<const float> logits, std::span<const float> bias,
                const RouterParameters& parameters, std::span<std::int32_t> ids, std::span<float> weights) {
  thread_local Lists lists;
  lists.activations.resize(logits.size());
  sigmoid(logits, lists.activations);
  lists.scores.resize(logits.size());
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const float score = lists.activations[e] + bias[e];
    lists.scores[e] = std::isnan(score) ? kMinusInfinity : score;
  }
  close_groups(lists, parameters);

  const auto top_k = static_cast<std::size_t>(parameters.top_k);
  order_largest(lists.scores, top_k, lists.order);
  float sum = 0.0f;
  for (const std::size_t e : std::span(lists.order).first(top_k)) sum += lists.activations[e];
  for (std::size_t i = 0; i < top_k; ++i) {
    const std::size_t e = lists.order[i];
    ids[i] = static_cast<std::int32_t>(e);
    weights[i] = lists.activations[e] / (sum + 1e-20f) * parameters.scaling;
  }
}

}  // namespace calandra
