#pragma once
// Before a load: which model a server has, which fields it takes, how it counts tokens. Three requests, or a few more where it
// refuses a field.

#include "loadtest/http_client.h"
#include "loadtest/load_options.h"
#include "loadtest/prompts.h"
#include "loadtest/request_body.h"

#include <functional>
#include <optional>

namespace calandra {

/// What all requests of a load have in common.
struct LoadTarget {
  LoadOptions options;  ///< with the model's name
  RequestForm form;
  PromptScale scale;
};

/// Nothing if `tick` has ended it. Throws Error where the server cannot be asked.
std::optional<LoadTarget> introduce(HttpClient& client, const LoadOptions& options, const std::function<bool()>& tick);

}  // namespace calandra
