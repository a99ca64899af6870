#pragma once
// Requests of OpenAI's APIs, and what of them a server takes.

#include "loadtest/http_client.h"
#include "loadtest/load_options.h"

#include <chrono>
#include <string>
#include <vector>

namespace calandra {

struct ChatMessage {
  std::string role;
  std::string content;
};

/// Fields that not every server knows. They are tried out once, before anything is measured.
struct RequestForm {
  bool ignore_eos = true;              ///< answers are as long as they are asked to be
  bool include_usage = true;           ///< tokens are counted by the server
  bool max_completion_tokens = false;  ///< in place of max_tokens
};

/// Of all forms the one that says the most comes first.
std::vector<RequestForm> forms_to_try(LoadApi api);

/// What every header of such a request has.
HttpClient::Fields request_fields(const LoadOptions& options, const std::string& user_agent);
std::chrono::milliseconds request_timeout(const LoadOptions& options);

/// "/v1/chat/completions"
std::string target_of(const LoadOptions& options);

/// Completions get the contents of the messages as one text. `options.model` is sent, and so are the extra fields, which go before ours.
std::string request_body(const LoadOptions& options, const RequestForm& form, const std::vector<ChatMessage>& messages,
                         std::int64_t output_tokens, bool stream);

}  // namespace calandra
