#pragma once
// How an answer must begin: a reasoning that is closed when it has had its tokens, and then one of some texts, such as the beginning of a
// call of a tool that must be called. What comes after is the model's own.

#include "engine/engine.h"
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
  const Tokenizer* tokenizer = nullptr;
  std::int64_t num_samplable = 0;
};

class OpeningGuide : public AnswerGuide {
 public:
  explicit OpeningGuide(std::shared_ptr<const OpeningPlan> plan);

  std::span<const std::uint64_t> allowed() override;
  void push(std::int32_t id) override;

 private:
  enum class Phase : std::uint8_t { Start, Reasoning, Closing, Opening, Free };

  void end_reasoning();
  void allow(std::int32_t id);
  void watch_reasoning(std::int32_t id);
  void take_opening(std::int32_t id);

  std::shared_ptr<const OpeningPlan> plan_;
  Phase phase_ = Phase::Free;
  std::int64_t num_reasoning_tokens_ = 0;
  std::string tail_;        // of the text, where a mark may have begun
  std::size_t index_ = 0;   // of the next token of what is forced
  std::vector<bool> fits_;  // for each opening: the tokens since its phase began are its first ones
  std::vector<std::uint64_t> mask_;
};

}  // namespace calandra
