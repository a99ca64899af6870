#include "engine/perplexity.h"

#include "engine/logit_row.h"
#include "engine/window_reader.h"

#include <cmath>
#include <numbers>

namespace calandra {

void PerplexityResult::add(std::span<const float> logits, std::int32_t next, const Tokenizer& tokenizer) {
  ++predicted_tokens;
  predicted_bytes += std::ssize(tokenizer.token_bytes(next));
  nats += log_sum_exp(logits) - static_cast<double>(logits[static_cast<std::size_t>(next)]);
}

double PerplexityResult::perplexity() const { return std::exp(mean_nats()); }

double PerplexityResult::bits_per_byte() const { return nats / std::numbers::ln2 / static_cast<double>(predicted_bytes); }

PerplexityResult measure_perplexity(Model& model, std::span<const std::int32_t> tokens, const PerplexityOptions& options,
                                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  WindowReader reader(model, tokens, options.window);
  PerplexityResult sum;
  while (reader.step()) {
    for (std::int64_t row = 0; row < reader.num_rows(); ++row)
      sum.add(reader.logits(row), reader.next_token(row), model.tokenizer());
    if (progress) progress(reader.num_read(), reader.num_tokens());
  }
  return sum;
}

}  // namespace calandra
