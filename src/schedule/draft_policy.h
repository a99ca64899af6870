#pragma once
// How many drafts each sequence gets in the next step. Drafts are verified by the pass that computes the next token anyway and change no
// answer; they are to make it come sooner. On a mixture of experts they need not: every further row reads experts that no other row has
// chosen. So drafts are given out only as far as tokens per second are expected to rise.
//
// All drafts of all sequences stand in one line, the likeliest first: how likely it is that a draft and all those before it are accepted.
// A step of the first n of them is expected to bring
//
//     tokens   one for each sequence, and of every draft its likelihood,
//     seconds  StepTime of: the pass over all rows, all of whose logits are needed, with the experts to be expected of so many rows;
//              one more read of the state of each sequence with drafts (CostModel::commit_bytes); for each depth one run of the MTP
//              layer and of the head over those sequences whose MTP layer drafts to there. Looking drafts up in a text takes nothing.
//              A sequence whose MTP layer drafts nothing still has a row of it, for its cache, made with others of its rows (kMostMtpRowsPutOff).
//
// and the n with the most tokens per second is taken, the smallest of equal ones. Looking at all n matters: the first draft pays for what
// the others share. Rows of prompts in the same step are left out: they make it longer and its experts more, so drafts pay more than they
// seem to, never less.
//
// A choice is O(drafts log drafts): 64 sequences of 8 drafts took 0.12 ms of a busy core. One thread at a time. Knows lengths, no
// tokens.

#include "plan/cost.h"
#include "plan/step_time.h"
#include "schedule/acceptance.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

/// At most `drafts` a sequence and step: as many of them as pay, or all of them, always.
struct DraftSetting {
  bool automatic = true;
  std::int64_t drafts = kMostDrafts;  // 0: off
};

/// A sequence that decodes in the next step.
struct DraftCandidate {
  std::int64_t position = 0;  // of the row that it computes in any case
  std::int64_t most = 0;      // drafts that its own room allows, or its drafter has
  const Acceptance* acceptance = nullptr;
  bool runs_mtp = false;    // each of its drafts is a run of the MTP layer; else they cost nothing
  std::int64_t drafts = 0;  // the choice
};

class DraftPolicy {
 public:
  /// Both must outlive the policy. Throws Error for a setting beyond kMostDrafts.
  DraftPolicy(const CostModel& cost, const StepTime& time, DraftSetting setting);

  /// Sets `drafts` of every candidate: all that decode in the next step.
  void choose(std::span<DraftCandidate> candidates);

  /// Tokens per second as chosen last, over those of decoding without drafts on a model whose MTP layer does not run. Less than 1 where nothing
  /// pays and the layer runs all the same, or where a fixed number costs more than it brings.
  double predicted_gain() const { return predicted_gain_; }

 private:
  /// What a step takes, as far as StepTime asks.
  struct Load {
    double bytes = 0;
    double operations = 0;
    Load& operator+=(const Load& other);
    Load operator-(const Load& other) const;
  };
  struct Offer {
    double likelihood = 0;  // that it and all before it are accepted
    std::size_t candidate = 0;
    std::int64_t depth = 0;  // from 1
  };
  struct Outlook {
    std::int64_t rows = 0;
    double tokens = 0;
    Load load;                                     // without the weights that the rows read
    std::int64_t filled = 0;                       // rows of the MTP layer that are no drafts, and wait for others
    std::array<std::int64_t, kMostDrafts> runs{};  // and those that are, by depth
  };

  static Load load_of(const StepCost& cost);
  void list_offers(std::span<const DraftCandidate> candidates);
  void accept(const Offer& offer, const DraftCandidate& candidate, Outlook& outlook);
  double tokens_per_second(const Outlook& outlook);
  double weight_bytes(std::int64_t rows);
  Load rows_of_sequence(std::int64_t position, std::int64_t rows);
  Load draft_weights(std::int64_t rows);
  Load mtp_weights(std::int64_t rows);

  const CostModel& cost_;
  const StepTime& time_;
  const DraftSetting setting_;
  double predicted_gain_ = 1;
  std::vector<Offer> offers_;
  // By number of rows, made when first asked for: what does not depend on the sequences.
  std::vector<double> weight_bytes_;
  std::vector<Load> draft_weights_, mtp_weights_;
  std::vector<StepSlice> no_context_;
};

}  // namespace calandra
