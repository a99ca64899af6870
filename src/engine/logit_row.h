#pragma once
// One row of logits, and what sampling and log probabilities ask of it. One pass over the row (4 bytes a token) finds the largest logit of
// every 64 tokens; whatever concerns the likeliest tokens then skips the chunks that have none of them. Sums run in one fixed
// order, so they depend on the row and on nothing else. Makes no copy of the row.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

struct Candidate {
  std::int32_t token = 0;
  float logit = 0;
};

/// Falling logit, the lower id first: a total order, so that every cut of it is certain.
inline bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

class LogitRow {
 public:
  /// `logits`, at least one, follow `position` tokens and must outlive this. -inf stands for a token that never comes. Throws Error if one
  /// is not a number or the largest is not finite.
  LogitRow(std::span<const float> logits, std::int64_t position);

  std::span<const float> logits() const { return logits_; }
  Candidate at(std::int32_t token) const { return {token, logits_[static_cast<std::size_t>(token)]}; }
  /// The first of all.
  Candidate best() const { return best_; }
  /// The first `count`, in order; fewer if the others never come.
  std::vector<Candidate> largest(std::int64_t count) const;

  /// Sum of exp((logit - best's) x scale), relative to which it is within 1e-10.
  double sum_exp(double scale = 1) const;
  /// The same of all tokens before `end`.
  double sum_exp_before(const Candidate& end, double scale) const;
  /// log of the sum of exp(logits).
  double log_sum_exp() const;

  /// visit(first token, logits) for chunks of at most 64 tokens, without those that wants(largest logit of some chunks) refuses.
  template <class Wants, class Visit>
  void for_each_chunk(Wants&& wants, Visit&& visit) const;

 private:
  static constexpr std::size_t kChunk = 64;
  static constexpr std::size_t kMostGroups = 4096;  // one chunk each up to a vocabulary of 262,144

  std::span<const float> group(std::size_t index) const;

  std::span<const float> logits_;
  std::size_t group_size_;  // a multiple of kChunk
  std::size_t num_groups_;
  std::array<float, kMostGroups> maxima_;  // by group; only the first num_groups_ are set
  Candidate best_;
};

/// log of the sum of exp(logits), all finite.
double log_sum_exp(std::span<const float> logits);

template <class Wants, class Visit>
void LogitRow::for_each_chunk(Wants&& wants, Visit&& visit) const {
  for (std::size_t g = 0; g < num_groups_; ++g) {
    if (!wants(maxima_[g])) continue;
    const std::span<const float> all = group(g);
    for (std::size_t at = 0; at < all.size(); at += kChunk)
      visit(static_cast<std::int32_t>(g * group_size_ + at), all.subspan(at, std::min(kChunk, all.size() - at)));
  }
}

}  // namespace calandra
