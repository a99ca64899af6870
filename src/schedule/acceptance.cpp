#include "schedule/acceptance.h"

#include <algorithm>

namespace calandra {
namespace {

constexpr double kPriorTries = 8;

// A text changes its nature, code after prose, within some dozens of steps; what all requests have in common changes slowly.
constexpr double kRememberedOfRequest = 1 - 1.0 / 32;
constexpr double kRememberedOfAll = 1 - 1.0 / 1024;

// Of the weight of what was seen that a step without drafts leaves.
constexpr double kUnfaded = 0.998;

}  // namespace

Acceptance::Acceptance(double prior) : remembered_(kRememberedOfAll) {
  for (Place& place : places_) place.prior = std::clamp(prior, 0.0, 1.0);
}

Acceptance Acceptance::of_request(const Acceptance& all) {
  Acceptance mine;
  mine.remembered_ = kRememberedOfRequest;
  for (std::int64_t place = 1; place <= kMostDrafts; ++place)
    mine.places_[static_cast<std::size_t>(place - 1)].prior = all.probability(place);
  return mine;
}

void Acceptance::note(std::int64_t drafted, std::int64_t accepted) {
  const std::int64_t looked_at = std::min({drafted, accepted + 1, kMostDrafts});
  for (std::int64_t i = 0; i < looked_at; ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    place.tries = place.tries * remembered_ + 1;
    place.accepted = place.accepted * remembered_ + (i < accepted ? 1 : 0);
  }
}

void Acceptance::age() {
  for (Place& place : places_) {
    place.tries *= kUnfaded;
    place.accepted *= kUnfaded;
  }
}

double Acceptance::probability(std::int64_t place) const {
  const Place& seen = places_[static_cast<std::size_t>(place - 1)];
  return (seen.prior * kPriorTries + seen.accepted) / (kPriorTries + seen.tries);
}

double Acceptance::expected_tokens(std::int64_t drafts) const {
  double tokens = 1, all_accepted = 1;
  for (std::int64_t place = 1; place <= drafts; ++place) {
    all_accepted *= probability(place);
    tokens += all_accepted;
  }
  return tokens;
}

}  // namespace calandra
