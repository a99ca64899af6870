#include "serve/cors.h"

#include <algorithm>
#include <cstddef>

namespace calandra {

bool is_origin(std::string_view text) {
  if (text == "null") return true;
  constexpr std::string_view kAfterScheme = "://";
  const std::size_t at = text.find(kAfterScheme);
  if (at == text.npos || at == 0) return false;
  const std::string_view address = text.substr(at + kAfterScheme.size());
  return !address.empty() && address.find_first_of("/?# ") == address.npos;
}

HttpHeaders cors_headers(const HttpRequest& request, const std::vector<std::string>& origins) {
  const auto origin = request.headers.find("Origin");
  if (!origin) return {};
  const bool is_open = std::find(origins.begin(), origins.end(), "*") != origins.end();
  if (!is_open && std::find(origins.begin(), origins.end(), *origin) == origins.end()) return {};
  HttpHeaders headers = {{"Access-Control-Allow-Origin", is_open ? "*" : std::string(*origin)},
                         {"Access-Control-Expose-Headers", "x-request-id, request-id"}};
  if (!is_open) headers.add("Vary", "Origin");  // or a cache gives one origin the answer for another
  return headers;
}

std::optional<HttpResponse> cors_preflight(const HttpRequest& request, const std::vector<std::string>& origins) {
  const auto method = request.headers.find("Access-Control-Request-Method");
  if (request.method != "OPTIONS" || !method) return std::nullopt;
  const HttpHeaders allowed = cors_headers(request, origins);
  if (allowed.begin() == allowed.end()) return std::nullopt;
  HttpResponse response = {.status = 204, .headers = {{"Access-Control-Allow-Methods", std::string(*method)}}, .body = {}};
  if (const auto names = request.headers.find("Access-Control-Request-Headers")) {
    response.headers.add("Access-Control-Allow-Headers", std::string(*names));
  }
  response.headers.add("Access-Control-Max-Age", "86400");
  return response;
}

}  // namespace calandra
