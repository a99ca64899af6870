#include "serve/opening_guide.h"

#include "base/error.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace calandra {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kToolCall = "<tool_call>";

}  // namespace

OpeningGuide::OpeningGuide(std::shared_ptr<const OpeningPlan> plan) : plan_(std::move(plan)), alternatives_(plan_->alternatives) {
  fits_.assign(plan_->openings.size(), true);
  if (plan_->grammar) state_.emplace(plan_->grammar);
  begin_answer();
  if (plan_->reasoning_start == ReasoningStart::Open) phase_ = Phase::Reasoning;
  // What must come is not put off by a reasoning that need not.
  if (plan_->reasoning_start == ReasoningStart::ModelMayOpen && phase_ == Phase::Free) phase_ = Phase::Start;
}

void OpeningGuide::begin_answer() {
  phase_ = !plan_->openings.empty() ? Phase::Opening : state_ ? Phase::Grammar : Phase::Free;
  index_ = 0;
}

std::span<const std::uint64_t> OpeningGuide::allowed() {
  if (phase_ == Phase::Reasoning && num_reasoning_tokens_ >= plan_->max_reasoning_tokens.value_or(INT64_MAX)) {
    phase_ = Phase::Closing;
    index_ = 0;
  }
  if (phase_ == Phase::Start || phase_ == Phase::Reasoning || phase_ == Phase::Free) return {};
  mask_.clear(static_cast<std::int32_t>(plan_->num_samplable));
  if (phase_ == Phase::Closing) mask_.set(plan_->reasoning_end[index_]);
  for (std::size_t i = 0; phase_ == Phase::Opening && i < fits_.size(); ++i) {
    if (fits_[i]) mask_.set(plan_->openings[i][index_]);
  }
  if (phase_ == Phase::Grammar) {
    state_->allowed(mask_);
    for (const auto& alternative : {alternatives_.think, alternatives_.tool_call}) {
      if (alternative) mask_.set(*alternative);
    }
  }
  return mask_.words();
}

void OpeningGuide::push(std::int32_t id) {
  switch (phase_) {
    case Phase::Start: {
      tail_ += plan_->tokenizer->token_bytes(id);
      const std::string_view word = std::string_view(tail_).substr(std::min(tail_.find_first_not_of(" \t\r\n"), tail_.size()));
      if (word.starts_with(kThink)) {
        tail_.clear();
        phase_ = Phase::Reasoning;
      } else if (!kThink.starts_with(word)) {
        phase_ = Phase::Free;
      }
      break;
    }
    case Phase::Reasoning: watch_reasoning(id); break;
    case Phase::Closing:
      if (++index_ == plan_->reasoning_end.size()) end_reasoning();
      break;
    case Phase::Opening: take_opening(id); break;
    case Phase::Grammar: take_of_grammar(id); break;
    case Phase::Free: break;
  }
}

void OpeningGuide::end_reasoning() {
  alternatives_.think.reset();
  begin_answer();
}

/// The marks are looked for in the text, since a model need not write them as the tokens that stand for them. A call ends the reasoning too.
void OpeningGuide::watch_reasoning(std::int32_t id) {
  ++num_reasoning_tokens_;
  tail_ += plan_->tokenizer->token_bytes(id);
  if (tail_.find(kThinkEnd) != tail_.npos) return end_reasoning();
  if (tail_.find(kToolCall) != tail_.npos) {
    end_reasoning();
    // With the mark as the one token that openings have, the call that has begun is the one that must come.
    const auto begins = [&](const std::vector<std::int32_t>& opening) { return opening.size() > 1 && opening.front() == id; };
    if (std::any_of(plan_->openings.begin(), plan_->openings.end(), begins)) take_opening(id);
    if (phase_ == Phase::Grammar) phase_ = Phase::Free;
    return;
  }
  constexpr std::size_t kKept = std::max(kThinkEnd.size(), kToolCall.size()) - 1;
  if (tail_.size() > kKept) tail_.erase(0, tail_.size() - kKept);
}

void OpeningGuide::take_of_grammar(std::int32_t id) {
  if (id == alternatives_.think) {
    phase_ = Phase::Reasoning;
    return;
  }
  if (id == alternatives_.tool_call) {
    phase_ = Phase::Free;
    return;
  }
  alternatives_ = {};
  if (!state_->accept(id)) fail("token {} came, which the grammar does not allow", id);
}

void OpeningGuide::take_opening(std::int32_t id) {
  bool is_complete = false;
  for (std::size_t i = 0; i < fits_.size(); ++i) {
    fits_[i] = fits_[i] && plan_->openings[i][index_] == id;
    is_complete = is_complete || (fits_[i] && index_ + 1 == plan_->openings[i].size());
  }
  ++index_;
  if (is_complete || std::find(fits_.begin(), fits_.end(), true) == fits_.end()) phase_ = Phase::Free;
}

}  // namespace calandra
