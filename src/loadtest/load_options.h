#pragma once
// What a load is: which server, what is asked, how often.

#include "loadtest/draws.h"
#include "loadtest/trace_file.h"
#include "loadtest/url.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace calandra {

enum class LoadApi : std::uint8_t { Chat, Completions };

/// One point of the curve.
struct LoadLevel {
  enum class Kind : std::uint8_t {
    Users,  ///< closed loop: so many users, each of whom sends the next request when the last one is answered
    Rate,   ///< open loop: so many Poisson arrivals a second, which wait for nobody's answer
    Trace,  ///< open loop: arrivals and lengths of a recording
  };
  Kind kind = Kind::Users;
  double amount = 1;  ///< users, or arrivals a second; of a trace: 1

  bool is_open() const { return kind != Kind::Users; }
};

struct LoadOptions {
  ServerUrl url;
  LoadApi api = LoadApi::Chat;
  std::string model;         ///< empty: the first that the server lists
  std::string api_key;       ///< empty: none is sent
  std::string extra_fields;  ///< a JSON object whose fields every request gets; empty: none

  std::vector<LoadLevel> levels;
  std::vector<TraceEntry> trace;           ///< of a level of that kind
  std::optional<std::int64_t> requests;    ///< of a level; unset: default_requests(), unless there is a duration
  std::optional<double> duration_seconds;  ///< of a level: after it nothing is sent; what is under way is waited for

  LengthRange prompt_tokens = {.least = 512, .most = 512};
  LengthRange output_tokens = {.least = 128, .most = 128};
  std::int64_t shared_prefix_tokens = 0;  ///< at the beginning of every prompt, beside prompt_tokens
  std::int64_t turns = 1;                 ///< requests of a conversation, each of which has all that was said before
  std::int64_t warmup = 2;                ///< requests that are sent first and not counted
  double timeout_seconds = 600;           ///< of a request
  std::uint64_t seed = 0;                 ///< of lengths, words and arrivals
};

/// Enough for percentiles: 10 for every user, or a minute of arrivals, and 20 at least.
std::int64_t default_requests(const LoadLevel& level);

}  // namespace calandra
