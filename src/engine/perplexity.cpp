#include "engine/perplexity.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace calandra {
namespace {

// Rows of logits held at a time: 157,184 floats each in the released models.
constexpr std::int64_t kRowsPerStep = 64;

/// -ln of the softmax probability of `token`.
double negative_log_probability(std::span<const float> logits, std::int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) + largest - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

/// One window from an empty memory.
PerplexityResult measure_window(Model& model, std::span<const std::int32_t> tokens, MemoryPool& pool,
                                const std::function<void(std::int64_t)>& advanced) {
  PerplexityResult result;
  const auto memory = SequenceMemory::create(pool);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t vocab = model.config().vocab;
  std::vector<float> logits(static_cast<std::size_t>(kRowsPerStep * vocab));
  for (std::int64_t begin = 0; begin + 1 < count; begin += kRowsPerStep) {
    const std::int64_t rows = std::min(kRowsPerStep, count - 1 - begin);
    const Slice slice{memory.get(), tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows))};
    if (!memory->reserve(begin + rows)) fail("memory pool is full at {} tokens", begin);
    const Rows out{logits.data(), rows, vocab, vocab};
    model.forward().head(model.forward().run(std::span(&slice, 1)), out);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::span row{out.row(r), static_cast<std::size_t>(model.num_samplable())};
      const std::int32_t next = tokens[static_cast<std::size_t>(begin + r + 1)];
      const double nats = negative_log_probability(row, next);
      if (!std::isfinite(nats))
        fail("logits after {} tokens of a window: found infinities or no numbers, expected finite numbers", begin + r + 1);
      result.nats += nats;
      result.predicted_bytes += std::ssize(model.tokenizer().token_bytes(next));
    }
    result.predicted_tokens += rows;
    advanced(rows);
  }
  return result;
}

}  // namespace

double PerplexityResult::perplexity() const { return std::exp(mean_nats()); }

double PerplexityResult::bits_per_byte() const { return nats / std::numbers::ln2 / static_cast<double>(predicted_bytes); }

PerplexityResult measure_perplexity(Model& model, std::span<const std::int32_t> tokens, const PerplexityOptions& options,
                                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  if (total < 2) fail("text of {} tokens: expected at least 2", total);
  const std::int64_t limit = model.config().context;
  const std::int64_t window = options.window == 0 ? limit : options.window;
  if (window < 2 || window > limit) fail("window of {} tokens: expected 2 to the context of {}", window, limit);
  const MemoryLayout layout = model.layout();
  MemoryPool pool(layout, layout.sequence_blocks(std::min(window, total)));
  PerplexityResult sum;
  std::int64_t done = 0;
  for (std::int64_t begin = 0; begin + 1 < total; begin += window) {
    const std::int64_t count = std::min(window, total - begin);
    const auto part = measure_window(model, tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                                     pool, [&](std::int64_t rows) {
                                       done += rows;
                                       if (progress) progress(done, total);
                                     });
    sum.predicted_tokens += part.predicted_tokens;
    sum.predicted_bytes += part.predicted_bytes;
    sum.nats += part.nats;
  }
  return sum;
}

}  // namespace calandra
