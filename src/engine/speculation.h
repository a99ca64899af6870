#pragma once
// Speculative decoding, exact. A step computes an answer's last token and, behind it, drafts of what may follow. Then tokens are drawn
// one after another, each from the row before it, as plain decoding draws them; as long as what is drawn is the draft, the next row is
// there already. So drafts change when tokens come, and nothing else: not the tokens, their log probabilities, nor what the memory holds
// afterwards (ForwardPass::commit).
//
// Whoever runs the steps goes round
//
//     room for as many drafts as are wanted behind each memory's position, draft(),
//     the pass with those drafts as tentative slices, tokens drawn,
//     conclude(), note_step().
//
// Two drafters: the model's MTP layer, if its cache is filled, and looking up what came after the same tokens earlier in the text. How many
// drafts pay is DraftPolicy's to say: it predicts tokens per second from what steps have taken and how often drafts were right.

#include "engine/drafter.h"
#include "engine/model.h"
#include "plan/cost.h"
#include "plan/step_time.h"
#include "schedule/draft_policy.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace calandra {

struct SpeculationOptions {
  DraftSetting setting;
  /// In place of those above.
  std::vector<std::shared_ptr<Drafter>> drafters = {};
  /// What is known of how long steps take. All steps are noted there, without drafts too; none: its own, which begins with nothing.
  std::shared_ptr<StepTime> time = {};
};

/// Rows of sequences with drafts in a step. Each takes MemoryLayout::replay_bytes() and a row of logits until it is committed or given up; and
/// where so many sequences decode, drafts hardly pay.
inline constexpr std::int64_t kMostTentativeRows = 64;

/// Of one drafter, since the start.
struct DrafterStatistics {
  std::string name;
  std::int64_t steps = 0;  // of one sequence each, with at least one draft
  // By place of the draft. Those behind a refused one, or behind the end of an answer, are drafted and not looked at.
  std::array<std::int64_t, kMostDrafts> drafted{}, looked_at{}, accepted{};

  std::int64_t num_drafted() const;
  std::int64_t num_accepted() const;
  /// Tokens of a step, the one that is no draft included; 0 without steps.
  double mean_tokens() const;

  /// More of the same drafter.
  DrafterStatistics& operator+=(const DrafterStatistics& more);
};

/// What came of an answer's step.
struct DraftOutcome {
  DraftedAnswer* answer = nullptr;
  std::int64_t made = 0;   // tokens drawn; 0 if it failed
  bool tentative = false;  // its slice was
  bool goes_on = false;    // it will be decoded further
};

class Speculation {
 public:
  Speculation(Model& model, const SpeculationOptions& options);

  bool is_on() const { return !drafters_.empty(); }
  /// An answer begins.
  void begin(DraftedAnswer& answer) const;

  /// Makes the drafts of these answers, at most DraftedAnswer::wanted of each.
  void draft(std::span<DraftedAnswer* const> answers);

  /// Commits what was right, notes what was not, and says of those that go on how many drafts they want next.
  void conclude(std::span<const DraftOutcome> outcomes);

  /// Such a step took so long, from its draft() to its conclude(). Positions as they were before it. `filling` are the slices that fill
  /// the MTP layer's cache at once.
  void note_step(std::span<const StepSlice> slices, std::span<const StepSlice> filling, std::int64_t logit_rows, double seconds);

  std::span<const DrafterStatistics> statistics() const { return statistics_; }
  /// DraftPolicy::predicted_gain() of the last choice.
  double predicted_gain() const { return policy_.predicted_gain(); }

 private:
  void note(DraftedAnswer& answer, std::int64_t made, bool goes_on);
  void choose(std::span<const DraftOutcome> outcomes);
  void commit(std::span<const DraftOutcome> outcomes);
  void spend_on_runs(std::span<DraftedAnswer* const> answers);

  Model& model_;
  std::vector<std::shared_ptr<Drafter>> drafters_;  // none: off
  StepCost spent_;                                  // on drafts and commits, since the last step
  const bool learns_;                               // how long steps take
  CostModel cost_;
  std::shared_ptr<StepTime> time_;
  DraftPolicy policy_;
  std::vector<Acceptance> acceptance_;  // of all answers, by drafter
  std::vector<DrafterStatistics> statistics_;

  // Of one call.
  std::vector<DraftedAnswer*> asked_;
  std::vector<DraftCandidate> candidates_;
  std::vector<DraftedAnswer*> choosing_;
  std::vector<Commit> commits_;
  std::vector<DraftedAnswer*> predicted_;
  std::vector<StepSlice> runs_;
};

}  // namespace calandra
