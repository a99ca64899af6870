#include "serve/openai_shapes.h"

#include "base/json.h"
#include "serve/json_body.h"
#include "serve/response_format.h"
#include "text/unicode.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

Json token_logprob(const TokenLogprob& entry, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(entry.token);
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", lossy_utf8(bytes)}, {"logprob", entry.logprob}, {"bytes", std::move(numbers)}};
}

ToolChoice read_tool_choice(RequestFields& fields) {
  const Json* json = fields.find("tool_choice");
  if (json == nullptr) return {};
  if (json->is_string()) {
    const auto word = fields.word("tool_choice", {"none", "auto", "required"});
    return {.kind = word == "none"       ? ToolChoice::Kind::None
                    : word == "required" ? ToolChoice::Kind::Required
                                         : ToolChoice::Kind::Auto,
            .name = {}};
  }
  RequestFields choice(*json, fields.path_of("tool_choice"));
  if (!choice.word("type", {"function"})) choice.refuse("type", "\"function\"");
  std::optional<RequestFields> function = choice.fields("function");
  if (!function) choice.refuse("function", "an object");
  ToolChoice named{.kind = ToolChoice::Kind::Named, .name = function->required_text("name")};
  function->finish();
  choice.finish();
  return named;
}

/// What is no tool is refused later.
std::vector<std::optional<bool>> strict_of_tools(const Json& tools) {
  std::vector<std::optional<bool>> strict(tools.size());
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json::json_pointer place("/function/strict");
    if (tools[i].contains(place) && tools[i][place].is_boolean()) strict[i] = tools[i][place].get<bool>();
  }
  return strict;
}

/// The end of what the conversations of one application begin with, as far as it can be seen in one: tools and system messages.
std::optional<ChatMark> end_of_instructions(const ChatInput& input) {
  const Json& messages = input.chat.messages;
  const auto is_instruction = [](const Json& message) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    return role == "system" || role == "developer";
  };
  const auto count =
      static_cast<std::size_t>(std::find_if_not(messages.begin(), messages.end(), is_instruction) - messages.begin());
  if (count > 0) return ChatMark{.messages = count};
  if (input.chat.tools.empty()) return std::nullopt;
  return ChatMark{.tools = input.chat.tools.size()};
}

void add_breakpoints(ChatInput& input) {
  const Json& messages = input.chat.messages;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object() || !messages[i].contains("content") || !messages[i]["content"].is_array()) continue;
    const Json& content = messages[i]["content"];
    for (std::size_t j = 0; j < content.size(); ++j) {
      if (!content[j].is_object() || !content[j].contains("prompt_cache_breakpoint")) continue;
      RequestFields part(content[j], element_path(element_path(input.messages_field, i) + ".content", j));
      check_breakpoint(part);
      if (part.find("prompt_cache_breakpoint") == nullptr) continue;
      // The latest ones count, as in OpenAI's API.
      if (input.marks.size() == kMostMarks) input.marks.erase(input.marks.begin());
      input.marks.push_back({.messages = i + 1, .parts = j + 1, .calls = 0});
    }
  }
}

}  // namespace

void check_breakpoint(RequestFields& part) {
  std::optional<RequestFields> breakpoint = part.fields("prompt_cache_breakpoint");
  if (!breakpoint) return;
  if (!breakpoint->word("mode", {"explicit"})) breakpoint->refuse("mode", "\"explicit\"");
  breakpoint->finish();
}

void read_prompt_cache(RequestFields& fields, ChatInput& input) {
  add_breakpoints(input);
  if (fields.text("prompt_cache_key")) {
    if (const auto end = end_of_instructions(input)) input.marks.push_back(*end);
  }
  fields.word("prompt_cache_retention", {"in_memory", "in-memory", "24h"});
  if (std::optional<RequestFields> options = fields.fields("prompt_cache_options")) {
    input.only_marks = options->word("mode", {"implicit", "explicit"}) == "explicit";
    options->word("ttl", {"30m"});
    options->finish();
  }
}

ChatInput read_openai_chat(RequestFields& fields) {
  ChatInput input;
  ChatRequest& chat = input.chat;
  chat.messages = fields.required_array("messages");
  if (const Json* tools = fields.array("tools")) {
    chat.tools = *tools;
    input.strict = strict_of_tools(*tools);
  }
  input.tool_choice = read_tool_choice(fields);
  input.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  read_effort(fields, "reasoning_effort", input);
  input.max_reasoning_tokens = fields.integer("max_reasoning_tokens", 0, kMaxContext);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) chat.template_kwargs = *kwargs;
  chat.continue_last_message = fields.boolean("continue_final_message").value_or(false);
  chat.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(!chat.continue_last_message);
  if (chat.continue_last_message && chat.add_generation_prompt)
    fields.refuse("add_generation_prompt", "false beside \"continue_final_message\": true");
  return input;
}

Json openai_usage(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", usage.written_tokens}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_drafts},
            {"rejected_prediction_tokens", usage.rejected_drafts}}}};
}

std::string_view openai_finish_reason(AnswerEnding ending) {
  switch (ending) {
    case AnswerEnding::Length: return "length";
    case AnswerEnding::ToolCalls: return "tool_calls";
    case AnswerEnding::Stop:
    case AnswerEnding::StopSequence: break;
  }
  return "stop";
}

Json openai_logprobs(const std::vector<LogprobEntry>& entries, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const LogprobEntry& entry : entries) {
    Json token = token_logprob(entry.chosen, tokenizer);
    Json top = Json::array();
    for (const TokenLogprob& other : entry.top) top.push_back(token_logprob(other, tokenizer));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Priority read_service_tier(RequestFields& fields) {
  const auto tier = fields.word("service_tier", {"auto", "default", "flex", "scale", "priority"});
  if (tier == "flex") return Priority::Low;
  return tier == "priority" ? Priority::High : Priority::Normal;
}

std::optional<std::string> read_effort(RequestFields& fields, const char* key, ChatInput& input) {
  auto effort = fields.word(key, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (effort) input.chat.thinking = *effort != "none";
  return effort;
}

OpenAiRequest read_openai_request(RequestFields& fields, const ServedModel& model) {
  check_model(fields, model);
  OpenAiRequest request;
  request.options = default_options(model);
  read_sampling(fields, model, request.options);
  request.options.stop = read_stop(fields, "stop");
  request.count = static_cast<int>(fields.integer("n", 1, kMostAnswers).value_or(1));
  request.priority = read_service_tier(fields);
  request.cache_salt = read_cache_salt(fields);
  request.grammar = read_response_format(fields, model);
  request.is_stream = fields.boolean("stream").value_or(false);
  if (std::optional<RequestFields> more = fields.fields("stream_options")) {
    if (!request.is_stream) fields.refuse("stream_options", "none without \"stream\": true");
    request.include_usage = more->boolean("include_usage").value_or(false);
    more->ignore({"include_obfuscation"});
    more->finish();
  }
  return request;
}

std::shared_ptr<AnswerSink> openai_whole_reply(
    int count, const HttpResponder& responder,
    std::function<Json(const std::vector<WholeAnswer>& answers, const AnswerUsage& usage)> json_of) {
  return std::make_shared<AnswerCollector>(
      count,
      [json_of = std::move(json_of), whole = responder](const std::vector<WholeAnswer>& answers,
                                                        const AnswerUsage& usage) mutable {
        whole.reply(json_response(200, json_of(answers, usage)));
      },
      [whole = responder](const ApiError& error) mutable { whole.reply(openai_error(error)); });
}

void fail_openai_stream(const HttpResponder& responder, const ApiError& error) {
  HttpResponder stream = responder;
  stream.send_event(dump_json(openai_error_json(error)));
  stream.finish();
}

}  // namespace calandra
