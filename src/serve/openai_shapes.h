#pragma once
// What several of OpenAI's APIs say in the same JSON.

#include "serve/answer_stream.h"
#include "serve/chat_request.h"
#include "serve/http_responder.h"
#include "serve/request_fields.h"
#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// The conversation of a request: messages, tools, tool_choice, parallel_tool_calls, reasoning_effort, max_reasoning_tokens,
/// chat_template_kwargs, continue_final_message, add_generation_prompt.
ChatInput read_openai_chat(RequestFields& fields);

/// What says that a conversation comes back: `prompt_cache_key`, `prompt_cache_retention`, `prompt_cache_options`, and the
/// `prompt_cache_breakpoint`s in its parts. After all else of the input.
void read_prompt_cache(RequestFields& fields, ChatInput& input);
/// Of a part; refused unless it is one.
void check_breakpoint(RequestFields& part);

/// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
nlohmann::ordered_json openai_usage(const AnswerUsage& usage);

/// "stop", "length", "tool_calls"
std::string_view openai_finish_reason(AnswerEnding ending);

/// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
nlohmann::ordered_json openai_logprobs(const std::vector<LogprobEntry>& entries, const Tokenizer& tokenizer);

/// `service_tier`: "flex" waits for others, "priority" goes before them.
Priority read_service_tier(RequestFields& fields);

/// How hard to think, which comes to whether: "none" is not at all, every other one is. Absent: as the model likes.
std::optional<std::string> read_effort(RequestFields& fields, const char* key, ChatInput& input);

/// What chats and completions ask for in the same words.
struct OpenAiRequest {
  GenerationOptions options;  // sampling and stop; not how many tokens
  int count = 1;              // `n`
  Priority priority = Priority::Normal;
  std::string cache_salt;
  std::shared_ptr<const Grammar> grammar;  // of `response_format` or `grammar`
  bool is_stream = false;
  bool include_usage = false;  // of `stream_options`
};
/// Refuses a `model` that is not served.
OpenAiRequest read_openai_request(RequestFields& fields, const ServedModel& model);

/// Hears of `count` answers that make one reply, of which `json_of` makes the JSON.
std::shared_ptr<AnswerSink> openai_whole_reply(
    int count, const HttpResponder& responder,
    std::function<nlohmann::ordered_json(const std::vector<WholeAnswer>& answers, const AnswerUsage& usage)> json_of);

/// The last event of a stream.
inline constexpr std::string_view kOpenAiDone = "[DONE]";

/// Tells of a failure in the middle of a stream, and ends it.
void fail_openai_stream(const HttpResponder& responder, const ApiError& error);

}  // namespace calandra
