#pragma once
// How an answer must go: a reasoning that is closed when it has had its tokens, and then either one of some texts, such as the beginning of a
// call of a tool that must be called, after which the model goes on as it likes; or what a grammar allows, to its end.

#include "engine/engine.h"
#include "text/grammar.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace calandra {

/// What all answers to a request have in common.
struct OpeningPlan {
  ReasoningStart reasoning_start = ReasoningStart::Off;
  std::optional<std::int64_t> max_reasoning_tokens;  // the mark that ends it not counted; unset: as many as the model likes
  std::vector<std::vector<std::int32_t>> openings;   // the tokens of the texts; none: the model begins as it likes
  std::vector<std::int32_t> reasoning_end;           // of "</think>"
  std::shared_ptr<const Grammar> grammar;            // of what comes after the reasoning; null: anything
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

 private:
  enum class Phase : std::uint8_t { Start, Reasoning, Closing, Opening, Grammar, Free };

  void begin_answer();
  void end_reasoning();
  void watch_reasoning(std::int32_t id);
  void take_opening(std::int32_t id);
  void take_of_grammar(std::int32_t id);

  std::shared_ptr<const OpeningPlan> plan_;
  Phase phase_ = Phase::Free;
  std::int64_t num_reasoning_tokens_ = 0;
  std::string tail_;        // of the text, where a mark may have begun
  std::size_t index_ = 0;   // of the next token of what is forced
  std::vector<bool> fits_;  // for each opening: the tokens since its phase began are its first ones
  TokenMask mask_;
  std::optional<GrammarState> state_;
  OpeningPlan::Alternatives alternatives_;  // that still may come
};

}  // namespace calandra
