#include "engine/logit_row.h"

#include "base/error.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace calandra {
namespace {

constexpr std::size_t kMaximumLanes = 16;
constexpr std::size_t kMostTerms = 64;

// A term of e^-45 is lost in a sum of 1 or more, even if all of a vocabulary are: 200,000 x e^-45 < 2^-47.
constexpr double kLeastExponent = -45;

// Taken for what is less, which adds nothing either; e^-709 is no normal number.
constexpr double kLeastPower = -700;

/// e^x for x from kLeastPower to 0, within 1e-11 of its size. Plain arithmetic, which compilers turn into vector code; a call of the C library is not.
inline double exp_of_power(double x) {
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kShift = 0x1.8p52;  // added, it leaves a rounded integer in the lowest bits
  const double shifted = x * kLog2E + kShift;
  const double n = shifted - kShift;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // at most ln 2 / 2
  double p = 1.0 / 362880;                            // the series: r^10 / 10! < 1e-11
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  p = p * r + 1;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(p) + (std::bit_cast<std::uint64_t>(shifted) << 52));  // x 2^n
}

struct Maximum {
  float value = -std::numeric_limits<float>::infinity();
  bool all_numbers = true;
};

Maximum maximum_of(std::span<const float> values) {
  std::array<float, kMaximumLanes> largest;
  std::array<std::int32_t, kMaximumLanes> no_number{};
  largest.fill(-std::numeric_limits<float>::infinity());
  const auto take = [&](const float* from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      largest[i] = from[i] > largest[i] ? from[i] : largest[i];
      no_number[i] |= static_cast<std::int32_t>(from[i] != from[i]);
    }
  };
  std::size_t at = 0;
  for (; at + kMaximumLanes <= values.size(); at += kMaximumLanes) take(values.data() + at, kMaximumLanes);
  take(values.data() + at, values.size() - at);
  return {*std::max_element(largest.begin(), largest.end()),
          std::all_of(no_number.begin(), no_number.end(), [](std::int32_t flag) { return flag == 0; })};
}

/// Sum of exp((value - largest) x scale) of the values from `least` on; at most a chunk of them.
double sum_of(std::span<const float> values, float largest, double scale, float least) {
  std::array<double, kMostTerms> terms{};
  // In steps that compilers turn into vector code: one with all of it has a branch in its middle.
  for (std::size_t i = 0; i < values.size(); ++i) terms[i] = (static_cast<double>(values[i]) - largest) * scale;
  for (double& term : terms) term = term > kLeastPower ? term : kLeastPower;
  for (double& term : terms) term = exp_of_power(term);
  for (std::size_t i = 0; i < values.size(); ++i) terms[i] = values[i] >= least ? terms[i] : 0.0;
  std::fill(terms.begin() + std::ssize(values), terms.end(), 0.0);
  for (std::size_t half = kMostTerms / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) terms[i] += terms[i + half];
  return terms[0];
}

}  // namespace

LogitRow::LogitRow(std::span<const float> logits, std::int64_t position)
    : logits_(logits),
      group_size_(kChunk * std::max<std::size_t>(1, (logits.size() + kChunk * kMostGroups - 1) / (kChunk * kMostGroups))),
      num_groups_((logits.size() + group_size_ - 1) / group_size_) {
  if (logits.empty()) fail("logits after {} tokens: found none, expected at least 1", position);
  std::size_t best_group = 0;
  for (std::size_t g = 0; g < num_groups_; ++g) {
    const Maximum maximum = maximum_of(group(g));
    if (!maximum.all_numbers) {
      const auto found = std::find_if(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); });
      fail("logit of token {} after {} tokens is not a number", found - logits.begin(), position);
    }
    maxima_[g] = maximum.value;
    if (maximum.value > maxima_[best_group]) best_group = g;
  }
  best_.logit = maxima_[best_group];
  if (!std::isfinite(best_.logit))
    fail("logits after {} tokens: found {} as the largest, expected a finite number", position, best_.logit);
  const std::span<const float> all = group(best_group);
  const auto within = std::find(all.begin(), all.end(), best_.logit) - all.begin();
  best_.token = static_cast<std::int32_t>(best_group * group_size_) + static_cast<std::int32_t>(within);
}

std::span<const float> LogitRow::group(std::size_t index) const {
  const std::size_t begin = index * group_size_;
  return logits_.subspan(begin, std::min(group_size_, logits_.size() - begin));
}

std::vector<Candidate> LogitRow::largest(std::int64_t count) const {
  std::vector<Candidate> kept;
  if (count <= 0) return kept;
  // As many groups have a logit at least as large as this, so nothing below it is among the first `count`.
  float least = -std::numeric_limits<float>::max();
  if (count < static_cast<std::int64_t>(num_groups_)) {
    std::array<float, kMostGroups> maxima;
    const auto end = std::copy_n(maxima_.begin(), num_groups_, maxima.begin());
    std::nth_element(maxima.begin(), maxima.begin() + (count - 1), end, std::greater<>());
    least = std::max(least, maxima[static_cast<std::size_t>(count - 1)]);
  }
  for_each_chunk([&](float maximum) { return maximum >= least; },
                 [&](std::int32_t first, std::span<const float> chunk) {
                   for (std::size_t i = 0; i < chunk.size(); ++i)
                     if (chunk[i] >= least) kept.push_back({first + static_cast<std::int32_t>(i), chunk[i]});
                 });
  if (std::ssize(kept) > count) {
    std::nth_element(kept.begin(), kept.begin() + count, kept.end(), before);
    kept.resize(static_cast<std::size_t>(count));
  }
  std::sort(kept.begin(), kept.end(), before);
  return kept;
}

double LogitRow::sum_exp(double scale) const {
  double sum = 0;
  for_each_chunk([&](float maximum) { return (static_cast<double>(maximum) - best_.logit) * scale > kLeastExponent; },
                 [&](std::int32_t, std::span<const float> chunk) {
                   sum += sum_of(chunk, best_.logit, scale, -std::numeric_limits<float>::infinity());
                 });
  return sum;
}

double LogitRow::sum_exp_before(const Candidate& end, double scale) const {
  const float next = std::nextafter(end.logit, std::numeric_limits<float>::infinity());
  double sum = 0;
  for_each_chunk([&](float maximum) { return maximum >= end.logit; },
                 [&](std::int32_t first, std::span<const float> chunk) {
                   // Of equal logits, lower ids are before it.
                   const auto size = static_cast<std::int32_t>(chunk.size());
                   const auto lower = static_cast<std::size_t>(std::clamp(end.token - first, 0, size));
                   if (lower > 0) sum += sum_of(chunk.first(lower), best_.logit, scale, end.logit);
                   if (lower < chunk.size()) sum += sum_of(chunk.subspan(lower), best_.logit, scale, next);
                 });
  return sum;
}

double LogitRow::log_sum_exp() const { return std::log(sum_exp()) + best_.logit; }

double log_sum_exp(std::span<const float> logits) { return LogitRow(logits, 0).log_sum_exp(); }

}  // namespace calandra
