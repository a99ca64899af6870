#pragma once
// Any server that has OpenAI's API, beside itself: the same requests at temperature 0, first as they come, then again, as turns of a
// conversation, among others, and after others have taken the place of what it may have kept. Whatever happens inside, text and log
// probabilities are to be those of the first time.
//
// All prompts are new: random words of a seed that no run had before. So the first answer to each cannot come from a cache, but for
// what all prompts of a chat template share.

#include "loadtest/load_options.h"
#include "verify/server_answer.h"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct ServerCheckOptions {
  LoadOptions server;  ///< url, API, model, key, further fields, time limit and seed; nothing of a load
  std::int64_t prompt_tokens = 2048;
  std::int64_t answer_tokens = 32;
  std::int64_t rounds = 3;        ///< conversations
  std::int64_t concurrency = 8;   ///< other requests at a time
  std::int64_t evict_tokens = 0;  ///< of other prompts before the last time; 0: kEvictPrompts times prompt_tokens
};

inline constexpr std::int64_t kEvictPrompts = 32;

/// One way of asking.
struct ServerStep {
  std::string_view name, about;
  std::int64_t requests = 0;
  std::int64_t failed = 0;
  std::string first_failure;
  std::int64_t prompt_tokens = 0;
  std::optional<std::int64_t> cached_tokens;  ///< of these; unset: the server does not say
  // Of answers that have one before to be compared with.
  std::int64_t compared = 0;
  std::int64_t other_text = 0, other_logprobs = 0;
  double largest = 0;                     ///< of log probabilities
  std::optional<AnswerDifference> first;  ///< and in which answer it was
  std::string first_request;

  std::int64_t differing() const { return other_text + other_logprobs; }
};

enum class ServerVerdict : std::uint8_t { Same, Different, Untested };

struct ServerReport {
  std::string model;
  bool has_logprobs = false;
  std::string no_logprobs;  ///< why not, in the server's words
  std::vector<ServerStep> steps;
  bool is_interrupted = false;

  /// Of the tokens of these steps' prompts; nothing where the server does not say.
  std::optional<double> cached_share(std::initializer_list<std::string_view> names) const;
  /// A difference is one whatever else happened. Without one: untested where an answer is missing, or log probabilities are.
  ServerVerdict verdict() const;
  /// Whether fewer tokens were cached after other prompts than when the same was asked again before; nothing where the server does not say.
  std::optional<bool> saw_eviction() const;
};

/// `progress` gets the part of all that is done, 0 to 1; false ends it. Throws Error where the server cannot be asked at all.
ServerReport check_server(const ServerCheckOptions& options, const std::function<bool(double done)>& progress);

}  // namespace calandra
