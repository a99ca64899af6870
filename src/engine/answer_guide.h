#pragma once
// What may come next in an answer.

#include <cstdint>
#include <memory>
#include <span>

namespace calandra {

/// Says which tokens may come next in one answer: constrained decoding, or the end of a reasoning that has taken too long. A function of
/// the tokens it has been told, in their order.
class AnswerGuide {
 public:
  virtual ~AnswerGuide() = default;
  /// Draw::allowed for the next token; empty: all may come. Valid until the next call. May be called from any thread, not at the same time
  /// as another call to this guide or to one that was forked from it.
  virtual std::span<const std::uint64_t> allowed() = 0;
  /// A token of the answer.
  virtual void push(std::int32_t id) = 0;
  /// A guide that has been told the same, for whoever looks ahead: what is pushed to it, this one does not hear.
  virtual std::unique_ptr<AnswerGuide> fork() const = 0;
};

}  // namespace calandra
