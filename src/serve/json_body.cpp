#include "serve/json_body.h"

#include "base/json.h"
#include "serve/api_error.h"

#include <nlohmann/json.hpp>

#include <chrono>

namespace calandra {

Json parse_body(const HttpRequest& request) {
  Json body;
  try {
    body = parse_json(request.body, "request body");
  } catch (const Error& error) {
    throw RequestError({.status = 400, .message = error.what()});
  }
  if (!body.is_object()) {
    throw RequestError({.status = 400, .message = fmt::format("request body: found {}, expected an object", body.type_name())});
  }
  return body;
}

HttpResponse json_response(int status, const Json& json) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = dump_json(json)};
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

std::string reply_id(std::string_view prefix, const HttpRequest& request) {
  constexpr std::string_view kRequest = "req-";
  std::string_view own = request.id;
  if (own.starts_with(kRequest)) own.remove_prefix(kRequest.size());
  return fmt::format("{}{}", prefix, own);
}

std::int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace calandra
