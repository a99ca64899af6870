#pragma once
// A text read by a model in windows that do not overlap: what it expects at every token. One step of rows at a time, so that several
// models can read along.

#include "engine/model.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace calandra {

class WindowReader {
 public:
  /// `window` tokens are seen at a time; 0: the model's context. `tokens` must outlive the reader. Throws Error for a text of fewer than 2
  /// tokens and a window that is not 2 to the context.
  WindowReader(Model& model, std::span<const std::int32_t> tokens, std::int64_t window);

  /// Computes the next rows; false at the end of the text. All models make the same steps. Throws Error if a logit is not finite.
  bool step();

  std::int64_t num_rows() const { return rows_; }
  /// Position in the text of what row `row` predicts, and that token.
  std::int64_t position(std::int64_t row) const { return begin_ + row + 1; }
  std::int32_t next_token(std::int64_t row) const { return tokens_[static_cast<std::size_t>(position(row))]; }
  /// Logits of all tokens that can be sampled.
  std::span<const float> logits(std::int64_t row) const;
  /// Tokens read, of all.
  std::int64_t num_read() const { return begin_ + rows_; }
  std::int64_t num_tokens() const { return std::ssize(tokens_); }

 private:
  void compute();

  Model& model_;
  std::span<const std::int32_t> tokens_;
  std::int64_t window_;
  MemoryPool pool_;
  std::unique_ptr<SequenceMemory> memory_;
  std::vector<float> logits_;      // [rows, vocab]
  std::int64_t window_begin_ = 0;  // of the window at hand
  std::int64_t begin_ = 0;         // token of the first row
  std::int64_t rows_ = 0;
};

/// Throws Error unless a window of so many tokens, 0 for all of the context, is 2 to the context.
void check_window(std::int64_t window, std::int64_t context);

}  // namespace calandra
