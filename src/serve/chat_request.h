#pragma once
// A request freed from its API: what is asked of the engine, and how the output is to be read. The APIs bring their JSON into
// ChatInput and GenerationOptions; prompts, checks and guides are made here. Every error is a RequestError.

#include "engine/engine.h"
#include "serve/answer_service.h"
#include "serve/http_message.h"
#include "serve/prompt_marks.h"
#include "serve/request_fields.h"
#include "text/chat_template.h"
#include "text/output_parser.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

class Grammar;
struct ApiError;

struct ToolChoice {
  enum class Kind : std::uint8_t {
    Auto,      // the model decides
    None,      // it does not hear of the tools
    Required,  // it must call one
    Named,     // it must call `name`
  };
  Kind kind = Kind::Auto;
  std::string name;
};

/// A conversation to go on with. Messages and tools are in OpenAI's chat shape, whatever API they came by.
struct ChatInput {
  ChatRequest chat;
  ToolChoice tool_choice;
  std::vector<std::optional<bool>> strict = {};  // of each tool, in their order: whether its arguments must fit its schema
  bool parallel_tool_calls = true;
  std::optional<std::int64_t> max_reasoning_tokens;  // then the reasoning is closed for the model; unset: as long as it likes
  std::shared_ptr<const Grammar> grammar;            // of the content, or of a completion's text; null: any text
  bool only_marks = false;                           // AnswerRequest::cache_only_marks
  std::vector<ChatMark> marks = {};                  // where the client expects to come back to
  const char* messages_field = "messages";           // what errors call them
  const char* schema_field = "function.parameters";  // of a tool
};

/// Everything to be answered: `count` answers to one prompt.
struct AnswerJob {
  std::vector<std::int32_t> prompt;
  GenerationOptions options;
  int count = 1;
  Priority priority = Priority::Normal;
  std::uint64_t client = 0;
  std::vector<std::int64_t> cache_marks = {};
  bool cache_only_marks = false;
  std::string cache_salt = {};   // requests of different salts share nothing that was computed
  std::string cache_space = {};  // of the key and the salt
  std::optional<std::chrono::nanoseconds> time_limit;
  std::function<std::shared_ptr<AnswerGuide>()> make_guide;  // for each answer; may be empty

  // How the output is to be read. Without a format it is all content: a plain completion.
  std::optional<OutputFormat> format;
  ReasoningStart reasoning_start = ReasoningStart::Off;
  nlohmann::ordered_json tools;
  bool only_first_call = false;
};

/// Every token of every answer is looked at for them.
inline constexpr std::size_t kMostStops = 256;
inline constexpr std::size_t kMostStopBytes = 4096;  // of one text

/// Of a `cache_salt`: a digest, in whatever letters.
inline constexpr std::size_t kMostSaltBytes = 256;

/// Marks in a conversation that count, in all APIs that have them.
inline constexpr std::size_t kMostMarks = 4;

/// At most so many answers to one prompt.
inline constexpr int kMostAnswers = 128;

/// One that the model can make. `field` is what errors call it.
std::int32_t read_token_id(const nlohmann::ordered_json& json, const std::string& field, const ServedModel& model);

/// The model's, with a seed of its own.
GenerationOptions default_options(const ServedModel& model);

/// Reads what all APIs call by one name: temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty,
/// repetition_penalty, logit_bias, seed, min_tokens, ignore_eos, stop_token_ids.
void read_sampling(RequestFields& fields, const ServedModel& model, GenerationOptions& options);

/// A text, or an array of texts, none of them empty. Absent: none.
std::vector<std::string> read_stop(RequestFields& fields, const char* key);

/// `cache_salt`; absent: empty.
std::string read_cache_salt(RequestFields& fields);

/// 404, for a name that is not served.
ApiError model_not_found(std::string_view name, const ServedModel& model);
/// Refuses `model` unless it is one that is served; absent, whatever is served is meant.
void check_model(RequestFields& fields, const ServedModel& model);

/// Adds a function that another API describes: its name, description, schema (`input.schema_field`) and `strict`.
void add_function(RequestFields& tool, ChatInput& input);

/// The prompt, checked against the context, and how to read what follows it. Refuses tools, choices and template variables that
/// make no sense.
AnswerJob prepare_chat(const ServedModel& model, ChatInput input, GenerationOptions options);

/// The prompt as text: what prepare_chat() encodes, with the tools that the choice leaves.
ChatPrompt render_chat(const ServedModel& model, const ChatInput& input);

/// Of a prompt that needs no template. `field` is what errors call it.
AnswerJob prepare_completion(const ServedModel& model, std::vector<std::int32_t> prompt, GenerationOptions options,
                             const char* field, std::shared_ptr<const Grammar> grammar = nullptr);

/// Who a request is from, for fairness between clients: the API key that was accepted, or without keys the address it came from.
std::uint64_t client_of(const ApiContext& context, const HttpRequest& request);

/// What the spaces of a request's client begin with, if keys are kept apart: the same for a key at any time, on any server. Else empty.
std::string cache_owner_of(const ApiContext& context, const HttpRequest& request);
/// AnswerRequest::cache_space: one for each owner and salt.
std::string cache_space_of(const std::string& owner, const std::string& salt);

}  // namespace calandra
