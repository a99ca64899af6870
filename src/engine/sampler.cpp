#include "engine/sampler.h"

#include "base/error.h"
#include "checkpoint/generation.h"
#include "engine/gumbel_noise.h"
#include "engine/logit_row.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace calandra {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr std::size_t kMaskBits = 64;

void check_logit_bias(const std::vector<TokenBias>& biases, std::int64_t num_tokens) {
  std::int32_t before = -1;
  for (const auto& [token, bias] : biases) {
    if (token < 0 || token >= num_tokens) fail("logit_bias: token {}: expected 0 to {}", token, num_tokens - 1);
    if (token <= before) fail("logit_bias: token {} after {}: expected ascending ids, each once", token, before);
    if (!(std::abs(bias) <= kMostBias)) fail("logit_bias: {} for token {}: expected -100 to 100", bias, token);
    before = token;
  }
}

// ---- what changes logits

void add_bias(std::span<float> logits, const std::vector<TokenBias>& biases) {
  for (const auto& [token, bias] : biases) {
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = bias == -kMostBias ? kNever : logit + bias;
  }
}

void penalize(std::span<float> logits, const SamplingOptions& options, const Draw& draw) {
  const TokenCounts none;
  (draw.counts == nullptr ? none : *draw.counts).for_each_with(draw.drafts, [&](std::int32_t token, std::int32_t made) {
    if (static_cast<std::size_t>(token) >= logits.size()) return;  // a prompt may have tokens that cannot be sampled
    float& kept = logits[static_cast<std::size_t>(token)];
    double logit = kept;
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    if (made > 0) logit -= options.frequency_penalty * made + options.presence_penalty;
    kept = static_cast<float>(logit);
  });
}

void apply_mask(std::span<float> logits, std::span<const std::uint64_t> allowed) {
  const std::size_t words = (logits.size() + kMaskBits - 1) / kMaskBits;
  if (allowed.size() != words) fail("mask of allowed tokens: found {} words of 64, expected {}", allowed.size(), words);
  for (std::size_t word = 0; word < words; ++word) {
    const std::size_t first = word * kMaskBits;
    const auto part = logits.subspan(first, std::min(kMaskBits, logits.size() - first));
    if (allowed[word] == 0) {
      std::fill(part.begin(), part.end(), kNever);
    } else if (~allowed[word] != 0) {
      for (std::size_t bit = 0; bit < part.size(); ++bit)
        if ((allowed[word] >> bit & 1) == 0) part[bit] = kNever;
    }
  }
}

/// The logits after bias, penalties, mask and bans, valid until the thread's next call. They are only copied where something changes.
std::span<const float> changed(std::span<const float> logits, const SamplingOptions& options, const Draw& draw) {
  if (options.logit_bias.empty() && !options.has_penalties() && draw.allowed.empty() && draw.banned.empty()) return logits;
  thread_local std::vector<float> row;  // memory, kept from call to call; nothing is read before it is written
  row.assign(logits.begin(), logits.end());
  add_bias(row, options.logit_bias);
  if (options.has_penalties()) penalize(row, options, draw);
  if (!draw.allowed.empty()) apply_mask(row, draw.allowed);
  for (const std::int32_t token : draw.banned)
    if (static_cast<std::size_t>(token) < row.size()) row[static_cast<std::size_t>(token)] = kNever;
  const bool none_left = std::all_of(row.begin(), row.end(), [](float logit) { return logit == kNever; });
  if (none_left) fail("after {} tokens: logit_bias, mask and min_tokens leave no token, expected at least 1", draw.position);
  return row;
}

// ---- the draw

/// The token with the largest sum of logit / temperature and noise so far.
class Winner {
 public:
  Winner(const LogitRow& row, double temperature, const GumbelNoise& noise)
      : row_(row), temperature_(temperature), noise_(noise) {
    add(row.best());
  }
  void add(const Candidate& c) {
    const double sum = (static_cast<double>(c.logit) - row_.best().logit) / temperature_ + noise_.of(c.token);
    if (sum < sum_ || (sum == sum_ && c.token > winner_.token)) return;
    sum_ = sum;
    winner_ = c;
  }
  double sum() const { return sum_; }
  const Candidate& candidate() const { return winner_; }

 private:
  const LogitRow& row_;
  double temperature_;
  const GumbelNoise& noise_;
  double sum_ = -HUGE_VAL;
  Candidate winner_;
};

/// Of all tokens before `end`. Noise is only made of those whose upper word leaves them a chance.
Candidate winner_before(const Candidate& end, const LogitRow& row, double temperature, const GumbelNoise& noise) {
  Winner winner(row, temperature, noise);
  const float best = row.best().logit;
  const auto scale = static_cast<float>(1 / temperature);
  std::array<std::uint32_t, 64> words;
  row.for_each_chunk(
      [&](float maximum) {
        const double most = (static_cast<double>(maximum) - best) / temperature + GumbelNoise::kMost;
        return maximum >= end.logit && !(most < winner.sum());
      },
      [&](std::int32_t first, std::span<const float> chunk) {
        noise.upper_words(first, words);
        const auto least = static_cast<float>(winner.sum());
        // Written so that a sum that is no number counts as a chance.
        const auto has_chance = [&](std::size_t i) {
          return !((chunk[i] - best) * scale + GumbelNoise::most_for(words[i]) < least);
        };
        std::int32_t any = 0;
        for (std::size_t i = 0; i < chunk.size(); ++i) any |= static_cast<std::int32_t>(has_chance(i));
        if (any == 0) return;
        for (std::size_t i = 0; i < chunk.size(); ++i) {
          const Candidate c{first + static_cast<std::int32_t>(i), chunk[i]};
          if (has_chance(i) && before(c, end)) winner.add(c);
        }
      });
  return winner.candidate();
}

/// The place behind every token that min_p keeps; without min_p, behind every token that may come.
Candidate end_of_min_p(const SamplingOptions& options, float best) {
  Candidate end{std::numeric_limits<std::int32_t>::max(), -std::numeric_limits<float>::max()};
  if (options.min_p == 0.0) return end;
  const double least = best + options.temperature * std::log(options.min_p);
  end.logit = static_cast<float>(least);
  if (end.logit < least) end.logit = std::nextafter(end.logit, best);
  return end;
}

/// All filters keep a beginning of the falling order. So a winner that they keep has also won among those they keep; and if
/// they do not, nor do they keep anything behind it. Nothing is sorted.
std::int32_t draw_from_all(const LogitRow& row, const SamplingOptions& options, const GumbelNoise& noise) {
  const double scale = 1 / options.temperature;
  const double enough = options.top_p < 1.0 ? options.top_p * row.sum_exp(scale) : HUGE_VAL;
  Candidate end = end_of_min_p(options, row.best().logit);
  while (true) {
    const Candidate winner = winner_before(end, row, options.temperature, noise);
    if (winner.token == row.best().token || options.top_p == 1.0 || row.sum_exp_before(winner, scale) < enough)
      return winner.token;
    end = winner;
  }
}

std::int32_t draw_from_top_k(const LogitRow& row, const SamplingOptions& options, const GumbelNoise& noise) {
  std::vector<Candidate> kept = row.largest(options.top_k);
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - row.best().logit) / options.temperature);
  };
  double all = 0, mass = 0;
  if (options.top_p < 1.0)
    for (const Candidate& c : kept) all += weight(c);
  const Candidate end = end_of_min_p(options, row.best().logit);
  Winner winner(row, options.temperature, noise);
  for (const Candidate& c : kept) {
    if (!before(c, end)) break;
    if (options.top_p < 1.0) {
      if (mass >= options.top_p * all) break;
      mass += weight(c);
    }
    winner.add(c);
  }
  return winner.candidate().token;
}

}  // namespace

void check(const SamplingOptions& options, std::int64_t num_tokens) {
  const auto check_penalty = [](const char* name, double value) {
    if (!(std::abs(value) <= kMostPenalty)) fail("{} {}: expected -{} to {}", name, value, kMostPenalty, kMostPenalty);
  };
  check_logit_bias(options.logit_bias, num_tokens);
  if (!(options.repetition_penalty >= kLeastRepetitionPenalty && options.repetition_penalty <= kMostRepetitionPenalty)) {
    fail("repetition_penalty {}: expected {} to {}", options.repetition_penalty, kLeastRepetitionPenalty, kMostRepetitionPenalty);
  }
  check_penalty("frequency_penalty", options.frequency_penalty);
  check_penalty("presence_penalty", options.presence_penalty);
  if (!(options.temperature >= 0.0 && options.temperature <= kMostTemperature))
    fail("temperature {}: expected 0 to {}", options.temperature, kMostTemperature);
  if (options.top_k < 0) fail("top_k {}: expected 0 (off) or more", options.top_k);
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) fail("top_p {}: expected more than 0, at most 1", options.top_p);
  if (!(options.min_p >= 0.0 && options.min_p <= 1.0)) fail("min_p {}: expected 0 to 1", options.min_p);
}

std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, const Draw& draw) {
  const LogitRow row(changed(logits, options, draw), draw.position);
  if (options.temperature == 0.0 || options.top_k == 1) return row.best().token;
  const GumbelNoise noise(options.seed, draw.position, draw.sample);
  const bool cuts = options.top_k > 0 && static_cast<std::size_t>(options.top_k) < logits.size();
  return cuts ? draw_from_top_k(row, options, noise) : draw_from_all(row, options, noise);
}

}  // namespace calandra
