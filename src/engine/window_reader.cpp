#include "engine/window_reader.h"

#include "base/error.h"
#include "engine/session.h"

#include <algorithm>
#include <cmath>

namespace calandra {
namespace {

std::int64_t checked_window(const Model& model, std::int64_t tokens, std::int64_t window) {
  if (tokens < 2) fail("text of {} tokens: expected at least 2", tokens);
  const std::int64_t context = model.config().context;
  check_window(window, context);
  return std::min(window == 0 ? context : window, tokens);
}

}  // namespace

void check_window(std::int64_t window, std::int64_t context) {
  const std::int64_t actual = window == 0 ? context : window;
  if (actual < 2 || actual > context) fail("window of {} tokens: expected 2 to the context of {}", actual, context);
}

WindowReader::WindowReader(Model& model, std::span<const std::int32_t> tokens, std::int64_t window)
    : model_(model),
      tokens_(tokens),
      window_(checked_window(model, std::ssize(tokens), window)),
      pool_(model.layout(), model.layout().sequence_blocks(window_)),
      memory_(SequenceMemory::create(pool_)),
      logits_(static_cast<std::size_t>(kLogitRows * model.config().vocab)) {}

bool WindowReader::step() {
  begin_ += rows_;
  rows_ = 0;
  // The last token of a window is predicted and predicts nothing: the next window begins with what follows it.
  if (begin_ + 1 >= std::min(window_begin_ + window_, num_tokens())) {
    window_begin_ += window_;
    if (window_begin_ + 1 >= num_tokens()) return false;
    begin_ = window_begin_;
    memory_.reset();
    memory_ = SequenceMemory::create(pool_);
  }
  rows_ = std::min(kLogitRows, std::min(window_begin_ + window_, num_tokens()) - 1 - begin_);
  compute();
  return true;
}

void WindowReader::compute() {
  const Slice slice{memory_.get(), tokens_.subspan(static_cast<std::size_t>(begin_), static_cast<std::size_t>(rows_))};
  if (!memory_->reserve(begin_ - window_begin_ + rows_)) fail("memory pool is full at {} tokens", begin_ - window_begin_);
  const std::int64_t vocab = model_.config().vocab;
  model_.forward().head(model_.forward().run(std::span(&slice, 1)), Rows{logits_.data(), rows_, vocab, vocab});
  for (std::int64_t row = 0; row < rows_; ++row) {
    if (std::ranges::all_of(logits(row), [](float logit) { return std::isfinite(logit); })) continue;
    fail("logits after {} tokens of a window: found infinities or no numbers, expected finite numbers",
         position(row) - window_begin_);
  }
}

std::span<const float> WindowReader::logits(std::int64_t row) const {
  const std::size_t at = static_cast<std::size_t>(row * model_.config().vocab);
  return std::span(logits_).subspan(at, static_cast<std::size_t>(model_.num_samplable()));
}

}  // namespace calandra
