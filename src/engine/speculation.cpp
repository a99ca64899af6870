#include "engine/speculation.h"

#include "checkpoint/summary.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

namespace calandra {
namespace {

std::vector<std::shared_ptr<Drafter>> drafters_of(Model& model, const SpeculationOptions& options) {
  if (options.setting.drafts == 0) return {};
  if (!options.drafters.empty()) return options.drafters;
  // Where both are as good, what costs nothing goes first.
  std::vector<std::shared_ptr<Drafter>> drafters{lookup_drafter()};
  if (model.forward().with_mtp()) drafters.push_back(mtp_drafter(model));
  return drafters;
}

}  // namespace

std::int64_t DrafterStatistics::num_drafted() const { return std::accumulate(drafted.begin(), drafted.end(), std::int64_t{0}); }

std::int64_t DrafterStatistics::num_accepted() const {
  return std::accumulate(accepted.begin(), accepted.end(), std::int64_t{0});
}

double DrafterStatistics::mean_tokens() const {
  return steps == 0 ? 0 : 1 + static_cast<double>(num_accepted()) / static_cast<double>(steps);
}

DrafterStatistics& DrafterStatistics::operator+=(const DrafterStatistics& more) {
  name = more.name;
  steps += more.steps;
  for (std::size_t place = 0; place < drafted.size(); ++place) {
    drafted[place] += more.drafted[place];
    looked_at[place] += more.looked_at[place];
    accepted[place] += more.accepted[place];
  }
  return *this;
}

Speculation::Speculation(Model& model, const SpeculationOptions& options)
    : model_(model),
      drafters_(drafters_of(model, options)),
      learns_(is_on() || options.time != nullptr),
      cost_(model.config(), learns_ ? summarize(model.checkpoint()) : ModelSummary(), model.layout()),
      time_(options.time ? options.time : std::make_shared<StepTime>()),
      policy_(cost_, *time_, options.setting),
      acceptance_(drafters_.size()) {
  for (const auto& drafter : drafters_) {
    statistics_.emplace_back();
    statistics_.back().name = drafter->name();
  }
}

void Speculation::begin(DraftedAnswer& answer) const {
  answer.acceptance.clear();
  for (const Acceptance& all : acceptance_) answer.acceptance.push_back(Acceptance::of_request(all));
}

void Speculation::draft(std::span<DraftedAnswer* const> answers) {
  for (std::size_t drafter = 0; drafter < drafters_.size(); ++drafter) {
    asked_.clear();
    std::ranges::copy_if(answers, std::back_inserter(asked_),
                         [&](const DraftedAnswer* answer) { return answer->drafter == drafter && answer->wanted > 0; });
    if (asked_.empty()) continue;
    try {
      drafters_[drafter]->draft(asked_);
    } catch (const std::exception&) {
      for (DraftedAnswer* answer : asked_) answer->drafts.clear();  // an answer can do without
    }
    for (DraftedAnswer* answer : asked_) {
      if (std::ssize(answer->drafts) > answer->wanted) answer->drafts.resize(static_cast<std::size_t>(answer->wanted));
    }
    if (drafters_[drafter]->runs_mtp()) spend_on_runs(asked_);
  }
}

/// The MTP layer and the head have been run for these drafts, once a place.
void Speculation::spend_on_runs(std::span<DraftedAnswer* const> answers) {
  for (std::int64_t place = 0;; ++place) {
    runs_.clear();
    for (const DraftedAnswer* answer : answers) {
      if (place < std::ssize(answer->drafts)) runs_.push_back({answer->memory->position() + place, 1});
    }
    if (runs_.empty()) return;
    spent_ += cost_.cost_of_draft(runs_);
  }
}

void Speculation::conclude(std::span<const DraftOutcome> outcomes) {
  if (!is_on()) return;
  for (const DraftOutcome& outcome : outcomes) {
    note(*outcome.answer, outcome.made, outcome.goes_on);
    outcome.answer->wanted = 0;
  }
  choose(outcomes);
  commit(outcomes);
}

void Speculation::note(DraftedAnswer& answer, std::int64_t made, bool goes_on) {
  const auto drafted = std::ssize(answer.drafts);
  if (made == 0) return answer.drafts.clear();
  for (std::size_t drafter = 0; drafter < drafters_.size(); ++drafter) {
    if (drafted > 0 && drafter == answer.drafter) continue;
    answer.acceptance[drafter].age();
    acceptance_[drafter].age();  // or what begins later would never try, after a bad start of others
  }
  if (drafted == 0) return;
  const std::int64_t accepted = made - 1;
  // The draft behind them was looked at, unless the answer had ended.
  const std::int64_t looked_at = std::min(drafted, goes_on ? made : accepted);
  answer.acceptance[answer.drafter].note(looked_at, accepted);
  acceptance_[answer.drafter].note(looked_at, accepted);
  answer.accepted += accepted;
  answer.rejected += drafted - accepted;
  DrafterStatistics& all = statistics_[answer.drafter];
  ++all.steps;
  for (std::int64_t place = 0; place < drafted; ++place) {
    const auto at = static_cast<std::size_t>(place);
    ++all.drafted[at];
    if (place < looked_at) ++all.looked_at[at];
    if (place < accepted) ++all.accepted[at];
  }
  answer.drafts.clear();
}

/// Each answer's best drafter, and how many of its drafts pay.
void Speculation::choose(std::span<const DraftOutcome> outcomes) {
  candidates_.clear();
  choosing_.clear();
  for (const DraftOutcome& outcome : outcomes) {
    if (!outcome.goes_on) continue;
    DraftedAnswer& answer = *outcome.answer;
    DraftCandidate candidate;
    candidate.position = std::ssize(answer.tokens) - 1;
    candidate.acceptance = &answer.acceptance[answer.drafter];
    const std::int64_t useful = answer.builder.tokens_left() - 1;  // a step makes one in any case
    for (std::size_t drafter = 0; drafter < drafters_.size() && useful > 0; ++drafter) {
      const std::int64_t most = std::min(useful, drafters_[drafter]->look(answer));
      const Acceptance& acceptance = answer.acceptance[drafter];
      if (most == 0 || (candidate.most > 0 && acceptance.probability(1) <= candidate.acceptance->probability(1))) continue;
      candidate.most = most;
      candidate.acceptance = &acceptance;
      candidate.runs_mtp = drafters_[drafter]->runs_mtp();
      answer.drafter = drafter;
    }
    candidates_.push_back(candidate);
    choosing_.push_back(&answer);
  }
  policy_.choose(candidates_);
  std::int64_t left = kMostTentativeRows;
  for (std::size_t i = 0; i < choosing_.size(); ++i) {
    const std::int64_t drafts = std::min(candidates_[i].drafts, left - 1);
    if (drafts <= 0) continue;
    choosing_[i]->wanted = drafts;
    left -= 1 + drafts;
  }
}

/// Memories go where plain decoding would have left them; whoever goes on from a row of the MTP layer gets it.
void Speculation::commit(std::span<const DraftOutcome> outcomes) {
  commits_.clear();
  predicted_.clear();
  for (const DraftOutcome& outcome : outcomes) {
    DraftedAnswer& answer = *outcome.answer;
    Commit commit{answer.memory, outcome.tentative ? outcome.made : 0, std::nullopt};
    if (answer.wanted > 0 && drafters_[answer.drafter]->runs_mtp()) {
      commit.next = answer.tokens.back();
      predicted_.push_back(&answer);
    }
    if (commit.count > 0 || commit.next) commits_.push_back(commit);
    if (commit.count > 0) spent_.state_bytes += cost_.commit_bytes();
  }
  if (commits_.empty()) return;
  const ConstRows u = model_.forward().commit(commits_);
  for (std::size_t i = 0; i < predicted_.size(); ++i) {
    const float* const row = u.row(static_cast<std::int64_t>(i));
    predicted_[i]->mtp_row.assign(row, row + u.cols);
  }
}

void Speculation::note_step(std::span<const StepSlice> slices, std::span<const StepSlice> filling, std::int64_t logit_rows,
                            double seconds) {
  if (!learns_) return;
  std::int64_t rows = 0;
  for (const StepSlice& slice : slices) rows += slice.tokens;
  StepCost cost = cost_.cost_of({slices, logit_rows, cost_.expected_experts(static_cast<double>(rows))});
  cost += cost_.cost_of_mtp(filling);
  cost += std::exchange(spent_, {});
  time_->note(cost, seconds);
}

}  // namespace calandra
