#include "loadtest/streamed_answer.h"

#include "base/error.h"
#include "base/json.h"
#include "loadtest/reply_json.h"

#include <nlohmann/json.hpp>

namespace calandra {
namespace {

std::optional<TokenUsage> usage_in(const Json& json) {
  const Json* usage = member(json, "usage");
  if (usage == nullptr) return std::nullopt;
  const auto prompt = count_in(*usage, "prompt_tokens"), output = count_in(*usage, "completion_tokens");
  if (!prompt || (!output && member(*usage, "completion_tokens") != nullptr)) return std::nullopt;
  TokenUsage found = {.prompt_tokens = *prompt, .output_tokens = output.value_or(0), .cached_tokens = {}};
  if (const Json* details = member(*usage, "prompt_tokens_details")) found.cached_tokens = count_in(*details, "cached_tokens");
  return found;
}

/// {"error": {"message": TEXT}}, {"error": TEXT}, {"message": TEXT}, {"detail": TEXT}; empty if it is none of these.
std::string message_in(const Json& json) {
  if (const Json* error = member(json, "error")) {
    if (error->is_string()) return error->get<std::string>();
    if (std::string text = text_in(*error, "message"); !text.empty()) return text;
  }
  for (const std::string_view key : {"message", "detail"}) {
    if (std::string text = text_in(json, key); !text.empty()) return text;
  }
  return {};
}

}  // namespace

void StreamedAnswer::take(const ServerEvent& event, LoadClock::time_point when) {
  if (event.data == "[DONE]") {
    is_done_ = true;
    return;
  }
  const std::optional<Json> json = try_parse_json(event.data);
  if (!json || !json->is_object()) fail("event stream: found '{}', expected a JSON object or [DONE]", printable(event.data));
  if (event.name == "error" || member(*json, "error") != nullptr) {
    error_ = error_message(event.data);
    return;
  }
  if (auto usage = usage_in(*json)) usage_ = usage;
  const Json* choices = member(*json, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;
  const Json& choice = choices->front();
  std::string text = text_in(choice, "text");
  bool has_piece = !text.empty();
  if (const Json* delta = member(choice, "delta")) {
    text = text_in(*delta, "content");
    const Json* calls = member(*delta, "tool_calls");
    has_piece = !text.empty() || !text_in(*delta, "reasoning_content").empty() || !text_in(*delta, "reasoning").empty() ||
                (calls != nullptr && !calls->empty());
  }
  if (has_piece) chunks_.push_back(when);
  text_ += text;
  if (member(choice, "finish_reason") != nullptr) has_finished_ = true;
}

std::optional<TokenUsage> usage_of(std::string_view reply) {
  const std::optional<Json> json = try_parse_json(reply);
  return json ? usage_in(*json) : std::nullopt;
}

std::string error_message(std::string_view body) {
  if (const std::optional<Json> json = try_parse_json(body)) {
    if (std::string message = message_in(*json); !message.empty()) return message;
  }
  return printable(trim_json_space(body));
}

}  // namespace calandra
