#include "serve/api_error.h"

#include "base/json.h"
#include "serve/json_body.h"

#include <nlohmann/json.hpp>

namespace calandra {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503:
    case 529: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

HttpResponse response_of(const ApiError& error, const Json& json) {
  HttpResponse response = json_response(error.status, json);
  if (error.retry_after) response.headers.add("Retry-After", std::to_string(error.retry_after->count()));
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace

void refuse_field(const std::string& field, std::string_view message) {
  throw RequestError({.status = 400, .message = fmt::format("{}: {}", field, message), .field = field});
}

ApiError api_error_of(const std::exception& error) {
  if (const auto* refused = dynamic_cast<const RequestError*>(&error)) return refused->error();
  if (dynamic_cast<const Error*>(&error) != nullptr) return {.status = 400, .message = error.what()};
  return {.status = 500, .message = fmt::format("internal error: {}", error.what())};
}

Json openai_error_json(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", openai_type(error.status)},
            {"param", text_or_null(error.field)},
            {"code", text_or_null(error.code)}}}};
}

Json anthropic_error_json(const ApiError& error) {
  Json json = {{"type", "error"}, {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}};
  // Of the codes that Anthropic's clients look at, the one that this server has a use for.
  if (error.code == "thread_unsupported_request") {
    json["error"]["details"] = {{"error_code", error.code}, {"unsupported", Json::array({error.field})}};
  }
  return json;
}

HttpResponse openai_error(const ApiError& error) { return response_of(error, openai_error_json(error)); }
HttpResponse anthropic_error(const ApiError& error) { return response_of(error, anthropic_error_json(error)); }

bool is_anthropic_path(std::string_view path) { return path == "/v1/messages" || path.starts_with("/v1/messages/"); }

HttpResponse error_response(const ApiError& error, std::string_view path) {
  return is_anthropic_path(path) ? anthropic_error(error) : openai_error(error);
}

HttpResponse format_api_error(int status, std::string_view message, std::string_view path) {
  return error_response({.status = status, .message = std::string(message), .code = status == 503 ? "overloaded" : ""}, path);
}

}  // namespace calandra
