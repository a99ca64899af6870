#include "loadtest/request_body.h"

#include "base/json.h"

#include <nlohmann/json.hpp>

namespace calandra {
namespace {

Json as_json(const std::vector<ChatMessage>& messages) {
  Json array = Json::array();
  for (const ChatMessage& message : messages) array.push_back({{"role", message.role}, {"content", message.content}});
  return array;
}

std::string joined(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) text += (text.empty() ? "" : " ") + message.content;
  return text;
}

}  // namespace

std::vector<RequestForm> forms_to_try(LoadApi api) {
  std::vector<RequestForm> forms;
  for (const bool include_usage : {true, false}) {
    for (const bool ignore_eos : {true, false}) {
      forms.push_back({.ignore_eos = ignore_eos, .include_usage = include_usage});
    }
    if (api == LoadApi::Chat) {
      forms.push_back({.ignore_eos = false, .include_usage = include_usage, .max_completion_tokens = true});
    }
  }
  return forms;
}

HttpClient::Fields request_fields(const LoadOptions& options, const std::string& user_agent) {
  HttpClient::Fields fields = {{"User-Agent", user_agent}, {"Accept", "application/json, text/event-stream"}};
  if (!options.api_key.empty()) fields.emplace_back("Authorization", "Bearer " + options.api_key);
  return fields;
}

std::chrono::milliseconds request_timeout(const LoadOptions& options) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(options.timeout_seconds));
}

std::string target_of(const LoadOptions& options) {
  return options.url.base + (options.api == LoadApi::Chat ? "/chat/completions" : "/completions");
}

std::string request_body(const LoadOptions& options, const RequestForm& form, const std::vector<ChatMessage>& messages,
                         std::int64_t output_tokens, bool stream) {
  Json body = {{"model", options.model}};
  if (options.api == LoadApi::Chat) {
    body["messages"] = as_json(messages);
  } else {
    body["prompt"] = joined(messages);
  }
  body[form.max_completion_tokens ? "max_completion_tokens" : "max_tokens"] = output_tokens;
  if (form.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = stream;
  if (stream && form.include_usage) body["stream_options"] = {{"include_usage", true}};
  if (!options.extra_fields.empty()) body.update(parse_json(options.extra_fields, "--extra"));
  return dump_json(body);
}

}  // namespace calandra
