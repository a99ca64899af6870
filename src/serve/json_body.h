#pragma once
// JSON in and out of HTTP messages.

#include "serve/http_message.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace calandra {

/// The object that a request's body is. Throws RequestError: no JSON, bad UTF-8, nested too deep, no object.
nlohmann::ordered_json parse_body(const HttpRequest& request);

HttpResponse json_response(int status, const nlohmann::ordered_json& json);

/// Null for an empty one.
nlohmann::ordered_json text_or_null(const std::string& text);

/// "chatcmpl-3f1c9a02-17": the prefix, and what tells this request from all others.
std::string reply_id(std::string_view prefix, const HttpRequest& request);

/// Seconds since 1970, as replies say when they were made.
std::int64_t unix_seconds();

}  // namespace calandra
