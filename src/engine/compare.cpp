#include "engine/compare.h"

#include "base/error.h"
#include "engine/logit_row.h"
#include "engine/window_reader.h"

#include <cmath>

namespace calandra {
namespace {

/// KL(softmax(p) || softmax(q)) in nats.
double divergence_of(std::span<const float> p, std::span<const float> q) {
  const double log_p = log_sum_exp(p), log_q = log_sum_exp(q);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double own = static_cast<double>(p[i]) - log_p;
    sum += std::exp(own) * (own - (static_cast<double>(q[i]) - log_q));
  }
  return sum;
}

}  // namespace

ModelComparison compare_models(Model& before, Model& after, std::span<const std::int32_t> tokens,
                               const PerplexityOptions& options,
                               const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (before.num_samplable() != after.num_samplable()) {
    fail("{}: found {} tokens in the vocabulary, expected the {} of {}", after.name(), after.num_samplable(),
         before.num_samplable(), before.name());
  }
  WindowReader old_reader(before, tokens, options.window), new_reader(after, tokens, options.window);
  ModelComparison result;
  while (old_reader.step() && new_reader.step()) {
    for (std::int64_t row = 0; row < old_reader.num_rows(); ++row) {
      const std::int32_t next = old_reader.next_token(row);
      result.before.add(old_reader.logits(row), next, before.tokenizer());
      result.after.add(new_reader.logits(row), next, after.tokenizer());
      const double divergence = divergence_of(old_reader.logits(row), new_reader.logits(row));
      result.divergence += divergence;
      if (divergence <= result.worst_divergence) continue;
      result.worst_divergence = divergence;
      result.worst_position = old_reader.position(row);
    }
    if (progress) progress(old_reader.num_read(), old_reader.num_tokens());
  }
  return result;
}

}  // namespace calandra
