#include "engine/logprobs.h"

#include "base/error.h"
#include "engine/logit_row.h"

#include <algorithm>

namespace calandra {

LogprobEntry logprobs_of(std::span<const float> logits, std::int64_t position, std::int32_t token, int top) {
  if (token < 0 || token >= std::ssize(logits))
    fail("log probability of token {} after {} tokens: expected 0 to {}", token, position, std::ssize(logits) - 1);
  const LogitRow row(logits, position);
  const double all = row.log_sum_exp();
  const auto logprob_of = [&](const Candidate& c) {
    return TokenLogprob{c.token, std::max(static_cast<double>(c.logit) - all, kLeastLogprob)};
  };
  LogprobEntry entry{logprob_of(row.at(token)), {}};
  for (const Candidate& c : row.largest(top)) entry.top.push_back(logprob_of(c));
  return entry;
}

void check_top_logprobs(const char* setting, int top) {
  if (top < 0 || top > kMostTopLogprobs) fail("{} {}: expected 0 to {}", setting, top, kMostTopLogprobs);
}

}  // namespace calandra
