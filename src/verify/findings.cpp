#include "verify/findings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace calandra {

void RowTally::compare(const VerifyCase& alone, std::int64_t i, std::span<const float> logits) {
  ++rows_;
  const std::span<const float> expected = alone.row(i);
  if (expected.size() == logits.size() && std::memcmp(expected.data(), logits.data(), expected.size_bytes()) == 0) return;
  ++different_;
  RowDifference difference;
  difference.position = alone.num_prompt() + i;
  float largest = expected.size() == logits.size() ? -1 : std::numeric_limits<float>::infinity();
  for (std::size_t token = 0; token < std::min(expected.size(), logits.size()); ++token) {
    if (std::memcmp(&expected[token], &logits[token], sizeof(float)) == 0) continue;
    float apart = std::fabs(expected[token] - logits[token]);
    if (std::isnan(apart)) apart = std::numeric_limits<float>::infinity();
    if (apart <= largest) continue;
    largest = apart;
    difference.token = static_cast<std::int32_t>(token);
    difference.expected = expected[token];
    difference.found = logits[token];
  }
  largest_ = std::max(largest_, largest);
  if (first_) return;
  difference.request = alone.name;
  first_ = std::move(difference);
}

void RowTally::add(const RowTally& other) {
  rows_ += other.rows_;
  different_ += other.different_;
  largest_ = std::max(largest_, other.largest_);
  if (!first_) first_ = other.first_;
}

void PathFindings::add(const PathFindings& other) {
  requests += other.requests;
  prompt_tokens += other.prompt_tokens;
  cached_tokens += other.cached_tokens;
  rows.add(other.rows);
  other_tokens += other.other_tokens;
  if (!failure) failure = other.failure;
  if (!not_taken) not_taken = other.not_taken;
}

}  // namespace calandra
