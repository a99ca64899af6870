#pragma once
// Where drafts come from: tokens that an answer may go on with, to be verified together in one pass. A drafter decides how many of them
// are right and never what the answer is: tokens are drawn after a pass as if there were no drafts (engine/speculation.h).

#include "engine/answer_builder.h"
#include "engine/answer_guide.h"
#include "engine/model.h"
#include "engine/suffix_index.h"
#include "memory/sequence_memory.h"
#include "schedule/acceptance.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace calandra {

/// Drafter::name() of the two below.
inline constexpr std::string_view kMtpDrafter = "mtp", kLookupDrafter = "lookup";

/// One answer, as speculation knows it. Lives as long as the answer.
struct DraftedAnswer {
  DraftedAnswer(const AnswerBuilder& of, const std::vector<std::int32_t>& prompt_and_made, const AnswerGuide* guided_by = nullptr)
      : builder(of), tokens(prompt_and_made), guide(guided_by) {}

  const AnswerBuilder& builder;
  const std::vector<std::int32_t>& tokens;  // of prompt and answer; those that are certain
  const AnswerGuide* guide;                 // may be null
  SequenceMemory* memory = nullptr;         // one token behind, while it is decoded

  // Of the next step.
  std::size_t drafter = 0;           // who makes the drafts
  std::int64_t wanted = 0;           // how many would pay
  std::vector<float> mtp_row;        // [h] what the MTP layer says after the last token, if the drafter runs it
  std::int64_t match_end = 0;        // where what comes next may be found in the tokens, if the drafter looks it up
  std::vector<std::int32_t> drafts;  // once they are made

  // Since its beginning.
  std::vector<Acceptance> acceptance;  // by drafter
  SuffixIndex suffixes;
  std::int64_t accepted = 0;  // drafts that became tokens
  std::int64_t rejected = 0;  // that did not, those behind the end of the answer included
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string_view name() const = 0;
  /// Whether it goes on from DraftedAnswer::mtp_row, with a run of the MTP layer for each further draft.
  virtual bool runs_mtp() const { return false; }
  /// How many drafts it could make for this answer as it stands; 0: none.
  virtual std::int64_t look(DraftedAnswer& answer) = 0;
  /// Adds at most `wanted` drafts to each, whose memory has room for as many behind its position and one more. It may find fewer.
  virtual void draft(std::span<DraftedAnswer* const> answers) = 0;
};

/// The model's own MTP layer, fed with its own rows (docs/model.md, MTP). It draws with the answer's settings and noise: what it finds is what
/// the answer would draw from the layer's logits.
std::unique_ptr<Drafter> mtp_drafter(Model& model);

/// What came after the same tokens earlier in the text: prompts that are quoted, code that is edited, arguments that are repeated.
std::unique_ptr<Drafter> lookup_drafter();

}  // namespace calandra
