#pragma once
// Who may ask. Which paths need no key (health checks) is the caller's decision.

#include "serve/http_message.h"

#include <string>
#include <vector>

namespace calandra {

/// Whether the request has one of the keys, as `Authorization: Bearer KEY` (OpenAI's clients) or `x-api-key: KEY`
/// (Anthropic's). Without any key to have, everyone may ask. Takes the same time for every wrong key of a length.
bool authorised(const HttpRequest& request, const std::vector<std::string>& keys);

}  // namespace calandra
