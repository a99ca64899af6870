#include "engine/sampler.h"

#include "base/error.h"
#include "checkpoint/generation.h"
#include "engine/philox.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace calandra {
namespace {

struct Candidate {
  std::int32_t token;
  float logit;
};

/// Falling logit, lower id first: a total order, so every filter is deterministic.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

/// Standard Gumbel noise of one candidate.
double gumbel(std::uint64_t seed, std::int64_t position, std::uint32_t sample, std::int32_t token) {
  const auto where = static_cast<std::uint64_t>(position);
  const auto bits = philox(
      {static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(where), static_cast<std::uint32_t>(where >> 32), sample},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t word = (static_cast<std::uint64_t>(bits[0]) << 32) | bits[1];
  const double uniform = (static_cast<double>(word >> 11) + 0.5) * 0x1.0p-53;  // inside (0, 1)
  return -std::log(-std::log(uniform));
}

/// Candidates that survive top_k, in falling order if top_k cut anything.
std::vector<Candidate> top_k_of(std::span<const float> logits, int top_k) {
  std::vector<Candidate> kept;
  kept.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) kept.push_back({static_cast<std::int32_t>(i), logits[i]});
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= kept.size()) return kept;
  std::partial_sort(kept.begin(), kept.begin() + top_k, kept.end(), before);
  kept.resize(static_cast<std::size_t>(top_k));
  return kept;
}

/// Keeps the fewest largest candidates whose probabilities reach top_p, and those of at least min_p of the largest.
void keep_nucleus(std::vector<Candidate>& kept, const SamplingOptions& options, float largest) {
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - largest) / options.temperature);
  };
  if (options.top_p < 1.0) {
    double total = 0;
    for (const Candidate& c : kept) total += weight(c);
    // A heap gives the largest one after the other without sorting a whole vocabulary.
    const auto after = [](const Candidate& a, const Candidate& b) { return before(b, a); };
    std::make_heap(kept.begin(), kept.end(), after);
    double mass = 0;
    auto end = kept.end();
    while (end != kept.begin() && (end == kept.end() || mass < options.top_p * total)) {
      std::pop_heap(kept.begin(), end, after);
      --end;
      mass += weight(*end);
    }
    kept.erase(kept.begin(), end);
  }
  if (options.min_p > 0.0) std::erase_if(kept, [&](const Candidate& c) { return weight(c) < options.min_p; });
}

}  // namespace

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0 && options.temperature <= kMostTemperature))
    fail("temperature {}: expected 0 to {}", options.temperature, kMostTemperature);
  if (options.top_k < 0) fail("top_k {}: expected 0 (off) or more", options.top_k);
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) fail("top_p {}: expected more than 0, at most 1", options.top_p);
  if (!(options.min_p >= 0.0 && options.min_p <= 1.0)) fail("min_p {}: expected 0 to 1", options.min_p);
}

std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, std::int64_t position, std::uint32_t sample) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) fail("logit of token {} after {} tokens is not a number", i, position);
    if (logits[i] > logits[best]) best = i;
  }
  // -inf means never; the largest cannot be.
  if (!std::isfinite(logits[best]))
    fail("logits after {} tokens: found {} as the largest, expected a finite number", position, logits[best]);
  if (options.temperature == 0.0) return static_cast<std::int32_t>(best);
  std::vector<Candidate> kept = top_k_of(logits, options.top_k);
  keep_nucleus(kept, options, logits[best]);
  std::int32_t chosen = static_cast<std::int32_t>(best);
  double highest = -HUGE_VAL;
  for (const Candidate& c : kept) {
    const double score =
        (static_cast<double>(c.logit) - logits[best]) / options.temperature + gumbel(options.seed, position, sample, c.token);
    if (score > highest || (score == highest && c.token < chosen)) {
      highest = score;
      chosen = c.token;
    }
  }
  return chosen;
}

}  // namespace calandra
