#pragma once
// Which pages of other origins may read our answers in a browser (the WHATWG's Fetch standard, 3.2). None, unless they are listed.

#include "serve/http_message.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// Whether a browser may send the text as Origin: "null", or a scheme and an address without a path, as in https://chat.example.org.
bool is_origin(std::string_view text);

/// The fields that let the request's origin read the reply: none without an Origin that is listed. "*" lists all.
HttpHeaders cors_headers(const HttpRequest& request, const std::vector<std::string>& origins);

/// The reply to a browser that asks beforehand, if the request is that and its origin is listed. It needs no key: browsers send none.
std::optional<HttpResponse> cors_preflight(const HttpRequest& request, const std::vector<std::string>& origins);

}  // namespace calandra
