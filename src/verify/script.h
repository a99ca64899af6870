#pragma once
// What is asked along every path, and what each answer is alone: conversations that grow, forks, edits in the middle, several answers to
// one prompt, prompts of one token and of the longest length. Tokens are drawn over the whole vocabulary, so that any checkpoint
// will do, also one without a tokenizer.

#include "engine/model.h"
#include "engine/sampler.h"
#include "loadtest/draws.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace calandra {

struct VerifyOptions {
  std::int64_t prompt_tokens = 512;  // of the longest prompt, but for those that have to fill a block of memory
  std::int64_t answer_tokens = 8;    // of every answer
  int rounds = 1;                    // each with requests of its own
  std::uint64_t seed = 0;
};

inline constexpr std::int64_t kLeastVerifyPrompt = 64;
inline constexpr std::int64_t kLeastVerifyAnswer = 4;

/// An answer, and what it is alone: a session of its own computes the prompt, then token by token.
struct VerifyCase {
  enum class Kind : std::uint8_t {
    Plain,
    Sample,   // one of several answers to the same prompt
    Growing,  // its answer grows over the border of a block of memory
  };
  std::string name;  // "turn 2 of conversation 1"
  Kind kind = Kind::Plain;
  std::vector<std::int32_t> prompt;
  SamplingOptions sampling;
  std::uint32_t sample = 0;

  std::vector<std::int32_t> ids;
  std::vector<float> logits;  // [ids][tokens that can be sampled]: what each was drawn from

  std::int64_t num_prompt() const { return std::ssize(prompt); }
  /// Tokens of prompt and answer.
  std::int64_t length() const { return num_prompt() + std::ssize(ids); }
  std::span<const float> row(std::int64_t i) const {
    const std::size_t width = logits.size() / ids.size();
    return std::span(logits).subspan(static_cast<std::size_t>(i) * width, width);
  }
};

struct VerifyScript {
  std::vector<VerifyCase> cases;  // in the order in which clients would ask
  std::int64_t longest = 0;       // tokens of prompt and answer
  std::int64_t block_border = 0;  // so many tokens fill the blocks that a Growing case begins with
};

/// Throws Error for lengths that the model's context does not hold, or that are below the least.
void check(const VerifyOptions& options, const Model& model);

/// The script of round `round`, of which seed and number decide everything. Computes every answer. `tick` is called between them.
VerifyScript make_script(Model& model, const VerifyOptions& options, std::uint64_t round, const std::function<void()>& tick);

/// So many tokens that can be sampled.
std::vector<std::int32_t> random_tokens(const Model& model, Draws& draws, std::int64_t count);

}  // namespace calandra
