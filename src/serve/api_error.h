#pragma once
// What a client is told when its request fails: one error, in the shape of the API that it asked.

#include "base/error.h"
#include "serve/http_message.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

struct ApiError {
  int status = 400;
  std::string message;
  std::string field = {};  // of the request's JSON, which is at fault: "messages[0].content"; may be empty
  std::string code = {};   // the API's word for it where there is one: "context_length_exceeded"
  std::optional<std::chrono::seconds> retry_after = {};
};

/// Thrown while a request is read or submitted, before anything is replied.
class RequestError : public Error {
 public:
  explicit RequestError(ApiError error) : Error(error.message), error_(std::move(error)) {}
  const ApiError& error() const { return error_; }

 private:
  ApiError error_;
};

/// 400, with "FIELD: MESSAGE" as its message.
[[noreturn]] void refuse_field(const std::string& field, std::string_view message);

/// What to tell about whatever a handler threw: a RequestError as it is, any other Error as the request's fault (400), all else
/// as ours (500).
ApiError api_error_of(const std::exception& error);

/// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json openai_error_json(const ApiError& error);
/// {"type": "error", "error": {"type", "message"}}, with "details" where a client acts on them
nlohmann::ordered_json anthropic_error_json(const ApiError& error);

HttpResponse openai_error(const ApiError& error);
HttpResponse anthropic_error(const ApiError& error);

/// Whether a path belongs to Anthropic's API: all others answer in OpenAI's shape.
bool is_anthropic_path(std::string_view path);

/// The error in the shape of the path's API.
HttpResponse error_response(const ApiError& error, std::string_view path);
/// The same as an ErrorFormat, for what the transport and the router find.
HttpResponse format_api_error(int status, std::string_view message, std::string_view path);

}  // namespace calandra
