#include "schedule/draft_policy.h"

#include "base/error.h"
#include "memory/sequence_memory.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace calandra {
namespace {

// Gains that rounding can make are none.
constexpr double kLeastGain = 1 + 1e-9;

}  // namespace

DraftPolicy::Load& DraftPolicy::Load::operator+=(const Load& other) {
  bytes += other.bytes;
  operations += other.operations;
  return *this;
}

DraftPolicy::Load DraftPolicy::Load::operator-(const Load& other) const {
  return {bytes - other.bytes, operations - other.operations};
}

DraftPolicy::DraftPolicy(const CostModel& cost, const StepTime& time, DraftSetting setting)
    : cost_(cost), time_(time), setting_(setting) {
  if (setting.drafts < 0 || setting.drafts > kMostDrafts) fail("drafts: found {}, expected 0 to {}", setting.drafts, kMostDrafts);
}

void DraftPolicy::choose(std::span<DraftCandidate> candidates) {
  predicted_gain_ = 1;
  list_offers(candidates);
  Outlook outlook;
  for (DraftCandidate& candidate : candidates) {
    candidate.drafts = 0;
    outlook.load += rows_of_sequence(candidate.position, 1);
  }
  if (candidates.empty()) return;
  outlook.rows = std::ssize(candidates);
  outlook.tokens = static_cast<double>(outlook.rows);

  const double without = tokens_per_second(outlook);  // and without the MTP layer
  outlook.filled = outlook.rows;
  double most = tokens_per_second(outlook);
  std::size_t taken = 0;
  for (std::size_t i = 0; i < offers_.size(); ++i) {
    accept(offers_[i], candidates[offers_[i].candidate], outlook);
    const bool last = i + 1 == offers_.size();
    if (!setting_.automatic && !last) continue;
    const double now = tokens_per_second(outlook);
    if (setting_.automatic && now <= most * kLeastGain) continue;
    most = now;
    taken = i + 1;
  }
  for (std::size_t i = 0; i < taken; ++i) ++candidates[offers_[i].candidate].drafts;
  predicted_gain_ = most / without;
}

/// Likelihoods of a sequence never rise with the depth, and of equal ones the shallower comes first: so whatever is taken from the
/// beginning of the line is a number of drafts for each.
void DraftPolicy::list_offers(std::span<const DraftCandidate> candidates) {
  offers_.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const std::int64_t most = std::min(candidates[i].most, setting_.drafts);
    double likelihood = 1;
    for (std::int64_t depth = 1; depth <= most; ++depth) {
      likelihood *= candidates[i].acceptance->probability(depth);
      offers_.push_back({likelihood, i, depth});
    }
  }
  std::sort(offers_.begin(), offers_.end(), [](const Offer& a, const Offer& b) {
    return std::tuple(-a.likelihood, a.depth, a.candidate) < std::tuple(-b.likelihood, b.depth, b.candidate);
  });
}

void DraftPolicy::accept(const Offer& offer, const DraftCandidate& candidate, Outlook& outlook) {
  outlook.rows += 1;
  outlook.tokens += offer.likelihood;
  outlook.load += rows_of_sequence(candidate.position, offer.depth + 1) - rows_of_sequence(candidate.position, offer.depth);
  if (offer.depth == 1) outlook.load.bytes += static_cast<double>(cost_.commit_bytes());
  if (!candidate.runs_mtp) return;
  std::int64_t& runs = outlook.runs[static_cast<std::size_t>(offer.depth - 1)];
  const StepSlice slice{candidate.position + offer.depth - 1, 1};
  if (offer.depth == 1) --outlook.filled;                                                 // it is the row that the cache wants
  outlook.load += load_of(cost_.cost_of_draft(std::span(&slice, 1))) - draft_weights(1);  // latents and attention
  outlook.load += draft_weights(runs + 1) - draft_weights(runs);
  ++runs;
}

double DraftPolicy::tokens_per_second(const Outlook& outlook) {
  const Load together = mtp_weights(kMostMtpRowsPutOff);
  const double share = static_cast<double>(outlook.filled) / static_cast<double>(kMostMtpRowsPutOff);
  return outlook.tokens / time_.seconds(weight_bytes(outlook.rows) + outlook.load.bytes + share * together.bytes,
                                        outlook.load.operations + share * together.operations);
}

DraftPolicy::Load DraftPolicy::load_of(const StepCost& cost) {
  return {static_cast<double>(cost.bytes()), static_cast<double>(cost.operations())};
}

double DraftPolicy::weight_bytes(std::int64_t rows) {
  for (std::int64_t n = std::ssize(weight_bytes_); n <= rows; ++n)
    weight_bytes_.push_back(load_of(cost_.cost_of({{}, 1, cost_.expected_experts(static_cast<double>(n))})).bytes);
  return weight_bytes_[static_cast<std::size_t>(rows)];
}

/// What they add to a step that reads its weights anyway.
DraftPolicy::Load DraftPolicy::rows_of_sequence(std::int64_t position, std::int64_t rows) {
  const StepSlice slice{position, rows};
  Load load = load_of(cost_.cost_of({std::span(&slice, 1), rows, 0}));
  load.bytes -= weight_bytes(0);
  return load;
}

DraftPolicy::Load DraftPolicy::draft_weights(std::int64_t rows) {
  for (std::int64_t n = std::ssize(draft_weights_); n <= rows; ++n) {
    no_context_.assign(static_cast<std::size_t>(n), StepSlice{});
    draft_weights_.push_back(load_of(cost_.cost_of_draft(no_context_)));
  }
  return draft_weights_[static_cast<std::size_t>(rows)];
}

DraftPolicy::Load DraftPolicy::mtp_weights(std::int64_t rows) {
  for (std::int64_t n = std::ssize(mtp_weights_); n <= rows; ++n) {
    no_context_.assign(static_cast<std::size_t>(n), StepSlice{});
    mtp_weights_.push_back(load_of(cost_.cost_of_mtp(no_context_)));
  }
  return mtp_weights_[static_cast<std::size_t>(rows)];
}

}  // namespace calandra
