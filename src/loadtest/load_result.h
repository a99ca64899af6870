#pragma once
// What a load has shown: every request, and the figures of a level.

#include "loadtest/load_options.h"
#include "loadtest/percentiles.h"
#include "loadtest/prompts.h"
#include "loadtest/request_body.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

enum class Failure : std::uint8_t { None, Refused, ServerError, Timeout, Connection, Malformed };
/// As tables and JSON call them.
inline constexpr std::array<std::string_view, 6> kFailureNames = {"ok", "4xx", "5xx", "timeout", "connection", "malformed"};

/// Times are seconds from the beginning of the level.
struct RequestResult {
  double scheduled = 0;    ///< when it was to be sent: what a user has waited counts from here
  double sent = 0;         ///< when it was
  double first_token = 0;  ///< as far as a chunk shows it
  double last_token = 0;
  double ended = 0;
  std::vector<float> gaps;  ///< between chunks
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::optional<std::int64_t> cached_tokens;
  bool is_counted = false;  ///< by the server; else tokens are estimated: chunks, and words of the prompt
  Failure failure = Failure::None;
  std::string message;  ///< of a failure
};

struct LevelResult {
  LoadLevel level;
  std::vector<RequestResult> records;  ///< in the order they ended
  std::int64_t num_unfinished = 0;     ///< sent and cut off when the measurement was ended
  double seconds = 0;                  ///< from the beginning of the level to its last end

  bool is_complete = true;
};

struct LevelFigures {
  std::int64_t ok = 0;
  std::array<std::int64_t, kFailureNames.size()> by_failure = {};
  std::int64_t failed() const;
  // Of requests that went well, all that follows.
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  std::int64_t estimated = 0;  ///< requests whose tokens the server has not counted
  double requests_per_second = 0, output_tokens_per_second = 0, total_tokens_per_second = 0;
  std::optional<double> cached_share;  ///< of the tokens of prompts; unset: the server does not say
  double tokens_per_chunk = 0;
  // Seconds.
  Percentiles first_token;            ///< from the scheduled time
  Percentiles first_token_from_send;  ///< from the real one
  Percentiles token_pace;             ///< of a request, the mean time between two tokens
  Percentiles gap;                    ///< between two chunks, of all requests together
  Percentiles end_to_end;             ///< from the scheduled time
  Percentiles lateness;               ///< of all requests: how long after its time one was sent
  double in_flight = 0;               ///< requests under way, on average, failed ones included
};

LevelFigures figures_of(const LevelResult& result);

struct LoadResult {
  std::string model;
  RequestForm form;
  PromptScale scale;
  std::vector<LevelResult> levels;  ///< those that were begun
  std::optional<std::string> gone;  ///< why the server is given up
  bool is_interrupted = false;
};

}  // namespace calandra
