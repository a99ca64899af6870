#pragma once
// What the stream of an answer has told so far, in OpenAI's chats and completions and the dialects of other servers: first chunks
// that hold a role alone, reasoning in "reasoning_content" or "reasoning", tool calls, several tokens in one chunk, usage in
// every chunk, in the last or in none.

#include "loadtest/event_reader.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

using LoadClock = std::chrono::steady_clock;

/// Tokens as the server counts them.
struct TokenUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::optional<std::int64_t> cached_tokens;  ///< of the prompt; unset: the server does not say
};

class StreamedAnswer {
 public:
  /// An event that came at `when`. Throws Error if it cannot belong to such a stream.
  void take(const ServerEvent& event, LoadClock::time_point when);

  /// When chunks came that had a piece of the answer.
  const std::vector<LoadClock::time_point>& chunks() const { return chunks_; }
  const std::optional<TokenUsage>& usage() const { return usage_; }
  /// What was said, without reasoning and calls.
  const std::string& text() const { return text_; }
  /// The server has said that it failed.
  const std::optional<std::string>& error() const { return error_; }
  /// "[DONE]" has come, or at least why the answer ended.
  bool is_done() const { return is_done_ || has_finished_; }

 private:
  std::vector<LoadClock::time_point> chunks_;
  std::optional<TokenUsage> usage_;
  std::string text_;
  std::optional<std::string> error_;
  bool is_done_ = false;
  bool has_finished_ = false;
};

/// The "usage" of a reply; nothing if it has none.
std::optional<TokenUsage> usage_of(std::string_view reply);

/// What the body of an error says to a person: the message, if it has the shape of one, or its beginning.
std::string error_message(std::string_view body);

}  // namespace calandra
