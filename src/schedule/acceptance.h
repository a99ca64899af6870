#pragma once
// How likely drafts are accepted: of one request and drafter, or of all requests of a drafter, from which a request starts. A draft is
// looked at only if all before it were accepted, so there is one probability for every place of a draft, given those before it.
//
// The estimate is a share of tries, old ones forgotten, beside a few that nobody made: the prior. While nothing is drafted nothing is
// learned, so what was seen fades (age()) until enough of the prior is left to draft again. If that draft is refused, it takes some dozens
// to hundreds of steps until as much has faded. This costs little. Say that drafts pay from a probability p on; then a try costs about p of
// a step. At p the prior outweighs T = kPriorTries x (prior / p - 1) refused tries, of which one fades in 1 / (T (1 - kUnfaded)) steps.
// So tries take less than kPriorTries x prior x (1 - kUnfaded) of the time, 1%, for each draft of a try.

#include <array>
#include <cstddef>
#include <cstdint>

namespace calandra {

/// Drafts of a sequence in one step.
inline constexpr std::int64_t kMostDrafts = 8;

/// Before anything was seen. The 2.13 tokens a step that are reported of this family's MTP layer are 0.68 a draft if there were two, 0.59
/// if there were three.
inline constexpr double kUnseenAcceptance = 0.6;

class Acceptance {
 public:
  /// Of all requests. `prior` is the probability of every place before anything was seen; within [0, 1].
  explicit Acceptance(double prior = kUnseenAcceptance);
  /// Of a request that begins: its prior is what has been seen of all.
  static Acceptance of_request(const Acceptance& all);

  /// A step had `drafted` drafts, of which the first `accepted` were. Those behind the first refused one tell nothing.
  void note(std::int64_t drafted, std::int64_t accepted);
  /// A step had none.
  void age();

  /// That draft `place`, from 1 to kMostDrafts, is accepted if those before it are.
  double probability(std::int64_t place) const;
  /// Tokens of a step with so many drafts: the accepted ones, and the one that follows them whatever they are.
  double expected_tokens(std::int64_t drafts) const;

 private:
  struct Place {
    double prior = 0;
    double tries = 0;
    double accepted = 0;
  };
  std::array<Place, kMostDrafts> places_{};
  double remembered_ = 0;  // of the weight of a try, when there is a newer one of its place
};

}  // namespace calandra
