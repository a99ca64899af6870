#pragma once
// JSON in and out of HTTP messages.

#include "serve/http_message.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace calandra {

/// The object that a request's body is. Throws RequestError: no JSON, bad UTF-8, nested too deep, no object.
nlohmann::ordered_json parse_body(const HttpRequest& request);

/// In one line; bad UTF-8, which nothing here should make, becomes U+FFFD instead of an exception.
std::string json_text(const nlohmann::ordered_json& json);

HttpResponse json_response(int status, const nlohmann::ordered_json& json);

}  // namespace calandra
