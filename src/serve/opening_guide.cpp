#include "serve/opening_guide.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kToolCall = "<tool_call>";

void take_text(GrammarState& state, std::string_view text) {
  if (!state.accept_text(text)) fail("the text '{}' came, which the grammar does not allow", text);
}

/// Newlines between a reasoning and what follows are no part of either.
std::string_view without_newlines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

/// How much of `mark` the text ends with. Only the first character of a mark is a <.
std::size_t begun(std::string_view text, std::string_view mark) {
  const std::size_t begin = text.rfind('<');
  if (begin == std::string_view::npos) return 0;
  const std::string_view end = text.substr(begin);
  return mark.starts_with(end) ? end.size() : 0;
}

}  // namespace

OpeningGuide::OpeningGuide(std::shared_ptr<const OpeningPlan> plan) : plan_(std::move(plan)), alternatives_(plan_->alternatives) {
  if (plan_->grammar) state_.emplace(plan_->grammar);
  if (plan_->calls) {
    calls_.emplace(plan_->calls);
    begun_call_ = calls_;
    begun_call_->accept_mark(kToolCall);
  }
  begin_answer("");
  if (plan_->reasoning_start == ReasoningStart::Open) phase_ = Phase::Reasoning;
  // What must come is not put off by a reasoning that need not.
  if (plan_->reasoning_start == ReasoningStart::ModelMayOpen && phase_ == Phase::Free) phase_ = Phase::Start;
}

/// `text` is what the token has that ended the reasoning.
void OpeningGuide::begin_answer(std::string_view text) {
  phase_ = calls_ && plan_->must_call ? Phase::Calls : state_ ? Phase::Grammar : Phase::Free;
  if (phase_ == Phase::Calls) take_text(*calls_, text);
  if (phase_ == Phase::Grammar && !text.empty()) {
    alternatives_ = {};
    take_text(*state_, text);
  }
  if (phase_ == Phase::Free) watch_text(text);
}

/// `text` is what the token has after the mark.
void OpeningGuide::begin_call(std::string_view text) {
  phase_ = calls_ ? Phase::Calls : Phase::Free;
  if (!calls_) return;
  calls_ = begun_call_;
  take_text(*calls_, text);
}

std::span<const std::uint64_t> OpeningGuide::allowed() {
  if (phase_ == Phase::Reasoning && num_reasoning_tokens_ >= plan_->max_reasoning_tokens.value_or(INT64_MAX)) {
    phase_ = Phase::Closing;
    index_ = 0;
  }
  if (phase_ == Phase::Reasoning || phase_ == Phase::Free) return all_but_overlaps();
  if (phase_ == Phase::Start) return {};
  mask_.clear(static_cast<std::int32_t>(plan_->num_samplable));
  if (phase_ == Phase::Closing) mask_.set(plan_->reasoning_end[index_]);
  if (phase_ == Phase::Calls) calls_->allowed(mask_);
  if (phase_ == Phase::Grammar) {
    state_->allowed(mask_);
    for (const auto& alternative : {alternatives_.think, alternatives_.tool_call}) {
      if (alternative) mask_.set(*alternative);
    }
  }
  return mask_.words();
}

/// All tokens but those that would take a text over a mark into what a grammar does not allow; most often that is no mask.
std::span<const std::uint64_t> OpeningGuide::all_but_overlaps() {
  std::vector<std::int32_t> ids;
  if (phase_ == Phase::Reasoning) {
    const bool calls = calls_ && plan_->must_call;
    const GrammarState* const answer = calls ? &*calls_ : state_ ? &*state_ : nullptr;
    find_overlaps(kThinkEnd, answer, true, ids);
    if (plan_->tool_call_mark == OpeningPlan::ToolCallMark::ReasoningEnd) find_overlaps(kToolCall, answer, true, ids);
  }
  find_overlaps(kToolCall, begun_call_ ? &*begun_call_ : nullptr, false, ids);
  if (ids.empty()) return {};
  mask_.clear(static_cast<std::int32_t>(plan_->num_samplable));
  for (std::int32_t id = 0; id < mask_.size(); ++id) mask_.set(id);
  for (const std::int32_t id : ids) mask_.reset(id);
  return mask_.words();
}

/// Tokens that complete `mark` and go on with what `after` does not take.
void OpeningGuide::find_overlaps(std::string_view mark, const GrammarState* after, bool skips_newlines,
                                 std::vector<std::int32_t>& ids) const {
  if (after == nullptr) return;
  const GrammarVocabulary& vocabulary = (plan_->grammar ? plan_->grammar : plan_->calls)->vocabulary();
  const std::string_view missing = mark.substr(begun(tail_, mark));
  const std::optional<std::uint32_t> node = vocabulary.trie().find(missing);
  if (!node) return;
  for (const std::int32_t id : vocabulary.trie().tokens_below(*node)) {
    std::string_view rest = vocabulary.bytes(id).substr(missing.size());
    if (skips_newlines) rest = without_newlines(rest);
    GrammarState state = *after;
    if (!state.accept_text(rest)) ids.push_back(id);
  }
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
        watch_text("");
      }
      break;
    }
    case Phase::Reasoning: watch_reasoning(id); break;
    case Phase::Closing:
      if (++index_ == plan_->reasoning_end.size()) end_reasoning("");
      break;
    case Phase::Grammar: take_of_grammar(id); break;
    case Phase::Calls:
      if (!calls_->accept(id)) fail("token {} came, which the tools do not allow", id);
      break;
    case Phase::Free: watch_text(plan_->tokenizer->token_bytes(id)); break;
  }
}

void OpeningGuide::end_reasoning(std::string_view text) {
  const std::string rest(without_newlines(text));
  tail_.clear();
  alternatives_.think.reset();
  begin_answer(rest);
}

/// The marks are looked for in the text, since a model need not write them as the tokens that stand for them. "<tool_call>"
/// ends the reasoning too.
void OpeningGuide::watch_reasoning(std::int32_t id) {
  ++num_reasoning_tokens_;
  tail_ += plan_->tokenizer->token_bytes(id);
  using ToolCallMark = OpeningPlan::ToolCallMark;
  const std::size_t end = tail_.find(kThinkEnd);
  const std::size_t call = plan_->tool_call_mark == ToolCallMark::Text ? tail_.npos : tail_.find(kToolCall);
  if (end < call) return end_reasoning(tail_.substr(end + kThinkEnd.size()));
  if (call == tail_.npos) return keep_tail();
  const std::string rest = tail_.substr(call + kToolCall.size());
  if (plan_->tool_call_mark == ToolCallMark::ReasoningEnd) return end_reasoning(rest);
  begin_call(rest);
}

/// Looks for the beginning of a call in what the model says as it likes.
void OpeningGuide::watch_text(std::string_view text) {
  if (!calls_) return;
  tail_ += text;
  if (const std::size_t call = tail_.find(kToolCall); call != tail_.npos)
    return begin_call(tail_.substr(call + kToolCall.size()));
  keep_tail();
}

void OpeningGuide::keep_tail() {
  constexpr std::size_t kKept = std::max(kThinkEnd.size(), kToolCall.size()) - 1;
  if (tail_.size() > kKept) tail_.erase(0, tail_.size() - kKept);
}

void OpeningGuide::take_of_grammar(std::int32_t id) {
  if (id == alternatives_.think) {
    tail_.clear();
    phase_ = Phase::Reasoning;
    return;
  }
  if (id == alternatives_.tool_call) return begin_call("");
  alternatives_ = {};
  if (!state_->accept(id)) fail("token {} came, which the grammar does not allow", id);
}

}  // namespace calandra
