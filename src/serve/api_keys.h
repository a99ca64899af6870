#pragma once
// Who may ask. Which paths need no key (health checks) is the caller's decision.

#include "serve/http_message.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace calandra {

/// Which of the keys the request has, as `Authorization: Bearer KEY` (OpenAI's clients) or `x-api-key: KEY`
/// (Anthropic's). Takes the same time for every wrong key of a length.
std::optional<std::size_t> key_of(const HttpRequest& request, const std::vector<std::string>& keys);

/// Whether it has one. Without any key to have, everyone may ask.
bool authorised(const HttpRequest& request, const std::vector<std::string>& keys);

}  // namespace calandra
