#pragma once
// How an answer must go: a reasoning that is closed when it has had its tokens, and then what a grammar allows, to its end; or
// calls of tools that another grammar allows, at once where one must come, or from where the model begins one.
//
// Marks in the text, such as </think>, need not be the tokens that stand for them. A token that completes one may go on with what
// comes after it: it does not come if that would break a grammar, and otherwise the grammar has it.

#include "engine/engine.h"
#include "text/grammar.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// What all answers to a request have in common.
struct OpeningPlan {
  ReasoningStart reasoning_start = ReasoningStart::Off;
  std::optional<std::int64_t> max_reasoning_tokens;  // the mark that ends it not counted; unset: as many as the model likes
  std::vector<std::int32_t> reasoning_end;           // of "</think>"
  std::shared_ptr<const Grammar> grammar;            // of what comes after the reasoning; null: anything
  std::shared_ptr<const Grammar> calls;              // of all from a first "<tool_call>" on; null: anything
  bool must_call = false;                            // then they come after the reasoning, in place of the grammar
  /// What a "<tool_call>" in the reasoning is, as whoever reads the output has it (OutputParser).
  enum class ToolCallMark : std::uint8_t { Text, ReasoningEnd, CallBegin };
  ToolCallMark tool_call_mark = ToolCallMark::CallBegin;
  /// What may come in place of the grammar's first token: a reasoning, a call of a tool.
  struct Alternatives {
    std::optional<std::int32_t> think, tool_call;
  } alternatives;
  const Tokenizer* tokenizer = nullptr;
  std::int64_t num_samplable = 0;
};

class OpeningGuide : public AnswerGuide {
 public:
  explicit OpeningGuide(std::shared_ptr<const OpeningPlan> plan);

  std::span<const std::uint64_t> allowed() override;
  void push(std::int32_t id) override;
  std::unique_ptr<AnswerGuide> fork() const override { return std::make_unique<OpeningGuide>(*this); }

 private:
  enum class Phase : std::uint8_t { Start, Reasoning, Closing, Grammar, Calls, Free };

  void begin_answer(std::string_view text);
  void begin_call(std::string_view text);
  void end_reasoning(std::string_view text);
  void watch_reasoning(std::int32_t id);
  void watch_text(std::string_view text);
  void take_of_grammar(std::int32_t id);
  void keep_tail();
  std::span<const std::uint64_t> all_but_overlaps();
  void find_overlaps(std::string_view mark, const GrammarState* after, bool skips_newlines, std::vector<std::int32_t>& ids) const;

  std::shared_ptr<const OpeningPlan> plan_;
  Phase phase_ = Phase::Free;
  std::int64_t num_reasoning_tokens_ = 0;
  std::string tail_;       // of the text, where a mark may have begun
  std::size_t index_ = 0;  // of the next token of what closes the reasoning
  TokenMask mask_;
  std::optional<GrammarState> state_, calls_;
  std::optional<GrammarState> begun_call_;  // calls_ after the first "<tool_call>"
  OpeningPlan::Alternatives alternatives_;  // that still may come
};

}  // namespace calandra
