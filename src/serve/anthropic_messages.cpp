#include "serve/anthropic_messages.h"

#include "base/json.h"
#include "checkpoint/config.h"
#include "serve/answer_stream.h"
#include "serve/api_error.h"
#include "serve/chat_request.h"
#include "serve/json_body.h"
#include "serve/request_fields.h"
#include "serve/response_format.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {
namespace {

/// Clients send a thinking block back only with a signature. This one signs nothing and is not looked at.
constexpr std::string_view kThinkingSignature = "calandra";

// Conversations: from blocks to OpenAI's messages.

/// The breakpoints of a request, which are read in the order that the API has them in: tools, system, messages.
class CacheControls {
 public:
  /// The block's, if it has one. It ends at `mark`.
  void read(RequestFields& block, const ChatMark& mark) {
    const std::optional<std::string> ttl = ttl_of(block);
    is_on_last_block_ = ttl.has_value();
    if (!ttl) return;
    const std::string field = block.path_of("cache_control");
    if (marks_.size() == kMostMarks) refuse_field(field, fmt::format("is one too many, expected at most {}", kMostMarks));
    if (*ttl == "1h" && last_ttl_ == "5m")
      refuse_field(field + ".ttl", "found \"1h\" behind a \"5m\", expected the longer before");
    last_ttl_ = *ttl;
    marks_.push_back(mark);
  }
  /// A block that cannot have one.
  void pass() { is_on_last_block_ = false; }

  /// That of the whole request, which goes on its last block.
  void read_automatic(RequestFields& fields, const ChatMark& end) {
    if (!is_on_last_block_) return read(fields, end);
    const std::optional<std::string> ttl = ttl_of(fields);
    if (ttl && *ttl != last_ttl_) fields.refuse("cache_control", "the ttl of the last block's, which has its own");
  }

  std::vector<ChatMark> take() { return std::move(marks_); }

 private:
  /// Absent: there is none.
  static std::optional<std::string> ttl_of(RequestFields& block) {
    std::optional<RequestFields> control = block.fields("cache_control");
    if (!control) return std::nullopt;
    if (!control->word("type", {"ephemeral"})) control->refuse("type", "\"ephemeral\"");
    std::string ttl = control->word("ttl", {"5m", "1h"}).value_or("5m");
    control->finish();
    return ttl;
  }

  std::vector<ChatMark> marks_;
  std::string last_ttl_;
  bool is_on_last_block_ = false;
};

/// The text part that a block of type text is.
Json read_text_block(RequestFields& block, const ChatMark& mark, CacheControls& controls) {
  const std::string text = block.required_text("text");
  if (text.empty() && block.find("cache_control") != nullptr) block.refuse("text", "some text where there is a cache_control");
  controls.read(block, mark);
  block.ignore({"type", "citations"});
  block.finish();
  return {{"type", "text"}, {"text", text}};
}

/// A text, or an array of text blocks, which become the message after `messages` others; null if absent.
Json read_text_or_blocks(RequestFields& fields, const char* key, std::size_t messages, CacheControls& controls) {
  const Json* content = fields.find(key);
  if (content == nullptr) return nullptr;
  if (content->is_string()) {
    controls.pass();
    return *content;
  }
  if (!content->is_array()) fields.refuse(key, "a text or an array of blocks");
  Json parts = Json::array();
  for (std::size_t i = 0; i < content->size(); ++i) {
    RequestFields block((*content)[i], element_path(fields.path_of(key), i));
    if (block.required_text("type") != "text") block.refuse("type", "\"text\"");
    parts.push_back(read_text_block(block, {.messages = messages + 1, .parts = i + 1, .calls = 0}, controls));
  }
  return parts;
}

class MessagesReader {
 public:
  explicit MessagesReader(CacheControls& controls) : controls_(controls) {}

  void read_system(RequestFields& fields) {
    Json content = read_text_or_blocks(fields, "system", 0, controls_);
    if (!content.empty()) messages_.push_back({{"role", "system"}, {"content", std::move(content)}});
  }

  /// The element `index` of messages.
  void read(const Json& message, std::size_t index) {
    RequestFields fields(message, element_path("messages", index));
    const auto role = fields.word("role", {"user", "assistant"});
    if (!role) fields.refuse("role", "\"user\" or \"assistant\"");
    const Json* content = fields.find("content");
    if (content == nullptr || (!content->is_string() && !content->is_array())) {
      fields.refuse("content", "a text or an array of blocks");
    }
    if (content->empty()) fields.refuse("content", "at least one block");
    fields.finish();
    if (content->is_string()) {
      controls_.pass();
      messages_.push_back({{"role", *role}, {"content", *content}});
    } else if (*role == "user") {
      read_user(*content, fields.path_of("content"));
    } else {
      read_assistant(*content, fields.path_of("content"));
    }
  }

  Json take() { return std::move(messages_); }

 private:
  /// Results of tools are messages of their own, texts between them are the user's.
  void read_user(const Json& content, const std::string& path) {
    Json parts = Json::array();
    const auto end_text = [&] {
      if (!parts.empty()) messages_.push_back({{"role", "user"}, {"content", std::exchange(parts, Json::array())}});
    };
    for (std::size_t i = 0; i < content.size(); ++i) {
      RequestFields block(content[i], element_path(path, i));
      const std::string type = block.required_text("type");
      if (type == "text") {
        parts.push_back(read_text_block(block, here(parts.size() + 1, 0), controls_));
      } else if (type == "tool_result") {
        end_text();
        const std::string id = block.required_text("tool_use_id");
        if (!call_ids_.contains(id)) block.refuse("tool_use_id", "the id of a tool_use block before it");
        Json result = read_text_or_blocks(block, "content", messages_.size(), controls_);
        if (result.is_null()) result = "";
        controls_.read(block, here());
        block.ignore({"is_error"});
        block.finish();
        messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(result)}});
      } else {
        block.refuse("type", "\"text\" or \"tool_result\": this model reads nothing but text");
      }
    }
    end_text();
  }

  void read_assistant(const Json& content, const std::string& path) {
    Json message = {{"role", "assistant"}, {"content", Json::array()}};
    std::string reasoning;
    Json calls = Json::array();
    for (std::size_t i = 0; i < content.size(); ++i) {
      RequestFields block(content[i], element_path(path, i));
      const std::string type = block.required_text("type");
      if (type == "text") {
        message["content"].push_back(read_text_block(block, here(message["content"].size() + 1, calls.size()), controls_));
      } else if (type == "thinking") {
        reasoning += block.required_text("thinking");
        controls_.pass();
        block.ignore({"signature"});
        block.finish();
      } else if (type == "tool_use") {
        calls.push_back(read_call(block, here(message["content"].size(), calls.size() + 1)));
      } else if (type == "redacted_thinking") {
        controls_.pass();
      } else {
        block.refuse("type", "\"text\", \"thinking\" or \"tool_use\"");
      }
    }
    if (message["content"].empty()) message["content"] = calls.empty() ? Json("") : Json();
    if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    messages_.push_back(std::move(message));
  }

  Json read_call(RequestFields& block, const ChatMark& mark) {
    const std::string id = block.required_text("id"), name = block.required_text("name");
    const Json* input = block.object("input");
    controls_.read(block, mark);
    block.ignore({"caller"});
    block.finish();
    call_ids_.insert(id);
    return {{"id", id},
            {"type", "function"},
            {"function", {{"name", name}, {"arguments", input != nullptr ? *input : Json::object()}}}};
  }

  /// In the message that is being read.
  ChatMark here(std::size_t parts = ChatMark::kAll, std::size_t calls = ChatMark::kAll) const {
    return {.messages = messages_.size() + 1, .parts = parts, .calls = calls};
  }

  CacheControls& controls_;
  Json messages_ = Json::array();
  std::set<std::string> call_ids_;
};

// Requests.

void read_anthropic_tools(RequestFields& fields, ChatInput& input, CacheControls& controls) {
  input.schema_field = "input_schema";
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return;
  input.chat.tools = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    RequestFields tool((*tools)[i], element_path("tools", i));
    if (tool.text("type").value_or("custom") != "custom") {
      tool.refuse("type", "\"custom\": this server runs no tools of its own");
    }
    add_function(tool, input);
    if (tool.find("input_schema") == nullptr) tool.refuse("input_schema", "an object");
    controls.read(tool, {.tools = i + 1});
    // What is left says how a client streams or forces calls, not what the tool is.
    tool.ignore({"eager_input_streaming", "defer_loading", "allowed_callers", "input_examples"});
    tool.finish();
  }
}

void read_anthropic_choice(RequestFields& fields, ChatInput& input) {
  std::optional<RequestFields> choice = fields.fields("tool_choice");
  if (!choice) return;
  const auto type = choice->word("type", {"auto", "any", "tool", "none"});
  if (!type) choice->refuse("type", "\"auto\", \"any\", \"tool\" or \"none\"");
  if (*type == "any") input.tool_choice.kind = ToolChoice::Kind::Required;
  if (*type == "none") input.tool_choice.kind = ToolChoice::Kind::None;
  if (*type == "tool") input.tool_choice = {ToolChoice::Kind::Named, choice->required_text("name")};
  input.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
  choice->finish();
}

/// Thinking is off unless asked for, as this API has it, also where the model would think by itself.
void read_thinking(RequestFields& fields, const ServedModel& model, std::optional<std::int64_t> max_tokens, ChatInput& input) {
  std::optional<RequestFields> thinking = fields.fields("thinking");
  if (!thinking) {
    if (model.chat_template != nullptr && model.chat_template->can_switch_thinking()) input.chat.thinking = false;
    return;
  }
  const auto type = thinking->word("type", {"enabled", "adaptive", "disabled"});
  if (!type) thinking->refuse("type", "\"enabled\", \"adaptive\" or \"disabled\"");
  input.chat.thinking = *type != "disabled";
  if (*type == "enabled") {
    input.max_reasoning_tokens = thinking->integer("budget_tokens", 1);
    if (max_tokens && input.max_reasoning_tokens.value_or(0) >= *max_tokens) {
      thinking->refuse("budget_tokens", fmt::format("less than max_tokens, which is {}", *max_tokens));
    }
  }
  thinking->ignore({"display"});
  thinking->finish();
}

/// A conversation that the server keeps. The code makes clients that prefer one, as the tool runner of Anthropic's SDK, send it
/// whole instead.
void refuse_thread(RequestFields& fields) {
  if (fields.find("thread") == nullptr) return;
  throw RequestError({.status = 400,
                      .message = "thread: this server keeps no conversations: send all messages",
                      .field = "thread",
                      .code = "thread_unsupported_request"});
}

/// What both paths read: the conversation, and all that becomes a part of the prompt.
ChatInput read_conversation(RequestFields& fields, const ServedModel& model, std::optional<std::int64_t> max_tokens) {
  check_model(fields, model);
  refuse_thread(fields);
  ChatInput input;
  const Json& messages = fields.required_array("messages");
  if (messages.empty()) fields.refuse("messages", "at least one message");
  CacheControls controls;
  read_anthropic_tools(fields, input, controls);
  MessagesReader reader(controls);
  reader.read_system(fields);
  for (std::size_t i = 0; i < messages.size(); ++i) reader.read(messages[i], i);
  input.chat.messages = reader.take();

  // The answer goes on where a last message of the assistant ends.
  if (!input.chat.messages.empty() && input.chat.messages.back()["role"] == "assistant") {
    if (input.chat.messages.back().contains("tool_calls")) {
      fields.refuse("messages", "a tool_result for every tool_use of the last message");
    }
    input.chat.continue_last_message = true;
    input.chat.add_generation_prompt = false;
  }
  controls.read_automatic(fields, {.messages = input.chat.messages.size()});
  input.marks = controls.take();

  read_anthropic_choice(fields, input);
  read_thinking(fields, model, max_tokens, input);

  fields.refuse_if_used({"container", "mcp_servers"}, "this server runs no tools of its own");
  if (std::optional<RequestFields> output = fields.fields("output_config")) {
    if (std::optional<RequestFields> format = output->fields("format")) input.grammar = read_text_format(*format, model);
    output->ignore({"effort"});
    output->refuse_if_used({"task_budget"}, "is not supported");
    output->finish();
  }
  fields.refuse_if_used({"output_format"}, "use output_config.format");
  fields.ignore({"context_management", "speed"});
  return input;
}

// Replies.

/// The blocks of an answer as they grow, and the events that tell of them.
class ContentBlocks {
 public:
  using Emit = std::function<void(const char* type, Json event)>;

  /// `unique` makes the ids of calls. Without `emit` nobody is told.
  ContentBlocks(std::string unique, Emit emit) : unique_(std::move(unique)), emit_(std::move(emit)) {}

  void take(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::Reasoning:
        if (type_ != "thinking") begin("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return add(event.text, "thinking_delta", "thinking");
      case OutputEvent::Kind::Content:
        if (type_ != "text") begin("text", {{"type", "text"}, {"text", ""}});
        return add(event.text, "text_delta", "text");
      case OutputEvent::Kind::ToolBegin:
        return begin("tool_use", {{"type", "tool_use"},
                                  {"id", fmt::format("toolu_{}_{}", unique_, event.index)},
                                  {"name", event.text},
                                  {"input", Json::object()}});
      case OutputEvent::Kind::ToolArguments: return add(event.text, "input_json_delta", "partial_json");
      case OutputEvent::Kind::ToolEnd: return end();
      case OutputEvent::Kind::ToolIncomplete:
        // A whole reply can leave it out; a stream has said the beginning and can only say no more.
        if (type_ == "tool_use") {
          end();
          content_.erase(content_.size() - 1);
        }
        return;
    }
  }

  void end() {
    if (type_.empty()) return;
    Json& block = content_.back();
    if (type_ == "tool_use") {
      block["input"] = try_parse_json(text_).value_or(Json::object());
    } else {
      block[type_] = text_;
    }
    if (type_ == "thinking") {
      block["signature"] = kThinkingSignature;
      emit_delta({{"type", "signature_delta"}, {"signature", kThinkingSignature}});
    }
    if (emit_) emit_("content_block_stop", {{"index", index_}});
    type_.clear();
    text_.clear();
  }

  Json take_content() { return std::move(content_); }

 private:
  void begin(const char* type, Json block) {
    end();
    type_ = type;
    ++index_;
    if (emit_) emit_("content_block_start", {{"index", index_}, {"content_block", block}});
    content_.push_back(std::move(block));
  }

  void add(const std::string& text, const char* delta_type, const char* key) {
    text_ += text;
    emit_delta({{"type", delta_type}, {key, text}});
  }

  void emit_delta(Json delta) {
    if (emit_) emit_("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
  }

  std::string unique_;
  Emit emit_;
  Json content_ = Json::array();
  int index_ = -1;
  std::string type_;  // of the block that is open; empty: none
  std::string text_;  // what it holds so far
};

const char* stop_reason_of(AnswerEnding ending) {
  switch (ending) {
    case AnswerEnding::Stop: return "end_turn";
    case AnswerEnding::StopSequence: return "stop_sequence";
    case AnswerEnding::Length: return "max_tokens";
    case AnswerEnding::ToolCalls: return "tool_use";
  }
  return "end_turn";
}

/// In this API input_tokens are those behind the last breakpoint, or behind what was found if there is none.
Json messages_usage(const AnswerUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens - usage.marked_tokens},
          {"cache_creation_input_tokens", usage.marked_tokens},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

/// One answer, as a stream or whole.
class MessagesReply final : public AnswerSink {
 public:
  MessagesReply(HttpResponder responder, const HttpRequest& request, const std::string& model, std::int64_t prompt_tokens,
                bool is_stream)
      : responder_(std::move(responder)),
        is_stream_(is_stream),
        blocks_(reply_id("", request),
                is_stream ? ContentBlocks::Emit([this](const char* type, const Json& event) { send(type, event); }) : nullptr) {
    AnswerUsage usage;
    usage.prompt_tokens = prompt_tokens;
    message_ = {{"id", reply_id("msg_", request)},
                {"type", "message"},
                {"role", "assistant"},
                {"model", model},
                {"content", Json::array()},
                {"stop_reason", nullptr},
                {"stop_sequence", nullptr},
                {"usage", messages_usage(usage)}};
  }

  void began() override {
    if (!is_stream_) return;
    responder_.start_events();
    send("message_start", {{"message", message_}});
  }

  void gained(int /*choice*/, const AnswerGain& gain) override {
    for (const OutputEvent& event : gain.events) blocks_.take(event);
  }

  void ended(int /*choice*/, const AnswerEnd& end) override {
    blocks_.end();
    const Json stop_sequence = end.ending == AnswerEnding::StopSequence ? Json(end.stop_sequence) : Json();
    if (is_stream_) {
      send("message_delta", {{"delta", {{"stop_reason", stop_reason_of(end.ending)}, {"stop_sequence", stop_sequence}}},
                             {"usage", messages_usage(end.usage)}});
      send("message_stop", Json::object());
      responder_.finish();
      return;
    }
    message_["content"] = blocks_.take_content();
    message_["stop_reason"] = stop_reason_of(end.ending);
    message_["stop_sequence"] = stop_sequence;
    message_["usage"] = messages_usage(end.usage);
    responder_.reply(json_response(200, message_));
  }

  void all_ended(const AnswerUsage& /*usage*/) override {}

  void failed(const ApiError& error) override {
    if (is_stream_) {
      responder_.send_event(dump_json(anthropic_error_json(error)), "error");
      responder_.finish();
    } else {
      responder_.reply(anthropic_error(error));
    }
  }

 private:
  void send(const char* type, const Json& event) {
    Json whole = {{"type", type}};
    whole.update(event);
    responder_.send_event(dump_json(whole), type);
  }

  HttpResponder responder_;
  bool is_stream_;
  ContentBlocks blocks_;
  Json message_;
};

}  // namespace

void anthropic_messages(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  const Json body = parse_body(request);
  RequestFields fields(body);
  GenerationOptions options = default_options(context.model);
  const auto max_tokens = fields.integer("max_tokens", 1, kMaxContext);
  if (!max_tokens) fields.refuse("max_tokens", "how many tokens the answer may have");
  options.max_tokens = *max_tokens;
  options.stop = read_stop(fields, "stop_sequences");
  read_sampling(fields, context.model, options);
  ChatInput input = read_conversation(fields, context.model, max_tokens);
  const bool is_stream = fields.boolean("stream").value_or(false);
  std::string cache_salt = read_cache_salt(fields);
  fields.ignore({"metadata", "service_tier", "inference_geo"});
  fields.finish();

  AnswerJob job = prepare_chat(context.model, std::move(input), std::move(options));
  job.cache_salt = std::move(cache_salt);
  auto reply = std::make_shared<MessagesReply>(responder, request, context.model.name(), std::ssize(job.prompt), is_stream);
  answer_request(context, request, responder, std::move(job), std::move(reply));
}

void anthropic_count_tokens(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  const Json body = parse_body(request);
  RequestFields fields(body);
  const ChatInput input = read_conversation(fields, context.model, std::nullopt);
  fields.finish();
  const ChatPrompt prompt = render_chat(context.model, input);
  HttpResponder(responder).reply(
      json_response(200, {{"input_tokens", std::ssize(context.model.tokenizer->encode(prompt.text))}}));
}

}  // namespace calandra
