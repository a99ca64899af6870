#include "serve/openai_responses.h"

#include "base/json.h"
#include "checkpoint/config.h"
#include "checkpoint/key_reader.h"
#include "serve/answer_stream.h"
#include "serve/api_error.h"
#include "serve/chat_request.h"
#include "serve/json_body.h"
#include "serve/openai_shapes.h"
#include "serve/request_fields.h"
#include "serve/response_format.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

// Conversations: from items to chat messages.

class InputReader {
 public:
  explicit InputReader(const std::optional<std::string>& instructions) {
    if (instructions) add_message("system", *instructions);
  }

  void read(const Json& item, const std::string& path) {
    RequestFields fields(item, path);
    const std::string type = fields.text("type").value_or("message");
    if (type == "message") {
      read_message(fields);
    } else if (type == "reasoning") {
      read_reasoning(fields);
    } else if (type == "function_call") {
      read_call(fields);
    } else if (type == "function_call_output") {
      read_call_output(fields);
    } else if (type == "item_reference") {
      fields.refuse("type", "the item itself: this server keeps none that could be referred to");
    } else {
      fields.refuse("type", "\"message\", \"reasoning\", \"function_call\" or \"function_call_output\"");
    }
    fields.ignore({"id", "status", "phase"});
    fields.finish();
  }

  void read_text(const std::string& text) { add_message("user", text); }

  Json take() {
    end_turn();
    return std::move(messages_);
  }

 private:
  void read_message(RequestFields& fields) {
    const auto role = fields.word("role", {"user", "assistant", "system", "developer"});
    if (!role) fields.refuse("role", "\"user\", \"assistant\", \"system\" or \"developer\"");
    Json content = read_content(fields, "content", "input_text", "output_text");
    if (content.is_null()) fields.refuse("content", "a text or an array of parts");
    if (*role == "assistant") {
      // After these a turn says nothing more.
      if (turn_.contains("content") || turn_.contains("tool_calls")) end_turn();
      turn_["content"] = std::move(content);
    } else {
      add_message(*role == "user" ? "user" : "system", std::move(content));
    }
  }

  /// A text, or an array of parts that hold text; null if absent.
  static Json read_content(RequestFields& fields, const char* key, std::string_view type, std::string_view other_type) {
    const Json* content = fields.find(key);
    if (content == nullptr) return nullptr;
    if (content->is_string()) return *content;
    if (!content->is_array()) fields.refuse(key, "a text or an array of parts");
    Json parts = Json::array();
    for (std::size_t i = 0; i < content->size(); ++i) {
      RequestFields part((*content)[i], element_path(fields.path_of(key), i));
      const std::string found = part.required_text("type");
      const bool is_refusal = found == "refusal";
      if (!is_refusal && found != type && found != other_type) {
        part.refuse("type", fmt::format("\"{}\": this model reads nothing but text", type));
      }
      parts.push_back({{"type", "text"}, {"text", part.required_text(is_refusal ? "refusal" : "text")}});
      check_breakpoint(part);
      if (const Json* end = part.find("prompt_cache_breakpoint")) parts.back()["prompt_cache_breakpoint"] = *end;
      part.ignore({"annotations", "logprobs"});
      part.finish();
    }
    return parts;
  }

  /// The text itself, or where a client kept only a summary, that.
  void read_reasoning(RequestFields& fields) {
    std::string text;
    for (const auto& [key, type] : {std::pair{"content", "reasoning_text"}, std::pair{"summary", "summary_text"}}) {
      const Json parts = read_content(fields, key, type, type);
      if (!text.empty() || !parts.is_array()) continue;
      for (const Json& part : parts) text += part["text"].get_ref<const std::string&>();
    }
    fields.ignore({"encrypted_content"});
    if (!turn_.empty()) end_turn();
    if (!text.empty()) turn_["reasoning_content"] = std::move(text);
  }

  void read_call(RequestFields& fields) {
    const std::string id = fields.required_text("call_id"), name = fields.required_text("name");
    call_ids_.insert(id);
    turn_["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", fields.required_text("arguments")}}}});
  }

  void read_call_output(RequestFields& fields) {
    const std::string id = fields.required_text("call_id");
    if (!call_ids_.contains(id)) fields.refuse("call_id", "the call_id of a function_call before it");
    Json output = read_content(fields, "output", "input_text", "output_text");
    if (output.is_null()) fields.refuse("output", "a text or an array of parts");
    end_turn();
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(output)}});
  }

  /// Instructions and what follows of the kind are one message: templates look for the system's at the front only.
  void add_message(const char* role, Json content) {
    end_turn();
    if (std::string_view(role) == "system" && !messages_.empty() && messages_.back()["role"] == "system") {
      append(messages_.back()["content"], content);
    } else {
      messages_.push_back({{"role", role}, {"content", std::move(content)}});
    }
  }

  static void append(Json& content, const Json& more) {
    const auto as_parts = [](const Json& text) {
      return text.is_array() ? text : Json::array({Json{{"type", "text"}, {"text", text}}});
    };
    content = as_parts(content);
    for (const Json& part : as_parts(more)) content.push_back(part);
  }

  /// Adds what the assistant has said since anybody else spoke: its items are one message.
  void end_turn() {
    if (turn_.empty()) return;
    Json message = {{"role", "assistant"}};
    if (!turn_.contains("content")) message["content"] = turn_.contains("tool_calls") ? Json() : Json("");
    message.update(turn_);
    messages_.push_back(std::move(message));
    turn_ = Json::object();
  }

  Json messages_ = Json::array();
  Json turn_ = Json::object();  // of the assistant, open: reasoning_content, content, tool_calls
  std::set<std::string> call_ids_;
};

// Requests.

void read_responses_tools(const Json* tools, ChatInput& input) {
  input.schema_field = "parameters";
  if (tools == nullptr) return;
  input.chat.tools = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    RequestFields tool((*tools)[i], element_path("tools", i));
    if (tool.required_text("type") != "function") tool.refuse("type", "\"function\": this server runs no tools of its own");
    add_function(tool, input);
    tool.ignore({"defer_loading"});
    tool.finish();
  }
}

void read_responses_choice(RequestFields& fields, ChatInput& input) {
  constexpr std::string_view kExpected = "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\"}";
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    RequestFields named(*choice, "tool_choice");
    if (named.required_text("type") != "function") named.refuse("type", "\"function\"");
    input.tool_choice = {ToolChoice::Kind::Named, named.required_text("name")};
    named.finish();
  } else if (*choice == "required") {
    input.tool_choice.kind = ToolChoice::Kind::Required;
  } else if (*choice == "none") {
    input.tool_choice.kind = ToolChoice::Kind::None;
  } else if (*choice != "auto") {
    fields.refuse("tool_choice", kExpected);
  }
}

/// What would need a memory of earlier requests, or go on behind this one.
void refuse_stored(RequestFields& fields) {
  fields.refuse_if_used({"previous_response_id", "conversation", "prompt"},
                        "this server keeps no responses, conversations or prompts: send all items of the conversation as input");
  fields.refuse_if_used({"store"}, "this server keeps no responses");
  fields.refuse_if_used({"background"}, "this server keeps no responses that could be asked for later");
}

void read_include(RequestFields& fields) {
  const Json* include = fields.array("include");
  for (std::size_t i = 0; include != nullptr && i < include->size(); ++i) {
    // Reasoning is always there, as plain text. Clients that keep conversations themselves ask for it by this name.
    if ((*include)[i] == "reasoning.encrypted_content") continue;
    refuse_field(element_path("include", i),
                 fmt::format("found {}, expected \"reasoning.encrypted_content\"", describe((*include)[i])));
  }
}

std::optional<std::string> read_reasoning(RequestFields& fields, ChatInput& input) {
  std::optional<RequestFields> reasoning = fields.fields("reasoning");
  if (!reasoning) return std::nullopt;
  auto effort = read_effort(*reasoning, "effort", input);
  reasoning->ignore({"summary", "generate_summary"});
  reasoning->finish();
  return effort;
}

/// What constrains the text; null: nothing.
std::shared_ptr<const Grammar> read_text_settings(RequestFields& fields, const ServedModel& model) {
  std::optional<RequestFields> text = fields.fields("text");
  if (!text) return nullptr;
  std::shared_ptr<const Grammar> grammar;
  if (std::optional<RequestFields> format = text->fields("format")) grammar = read_text_format(*format, model);
  text->ignore({"verbosity"});
  text->finish();
  return grammar;
}

struct ResponsesRequest {
  ChatInput input;
  GenerationOptions options;
  bool is_stream = false;
  Priority priority = Priority::Normal;
  std::string cache_salt;
  Json echo;  // the fields of a response that say what was asked
};

ResponsesRequest read_responses_request(const Json& body, const ServedModel& model) {
  RequestFields fields(body);
  ResponsesRequest request;
  check_model(fields, model);
  refuse_stored(fields);

  const auto instructions = fields.text("instructions");
  InputReader reader(instructions);
  const Json* items = fields.find("input");
  if (items == nullptr || !(items->is_string() || (items->is_array() && !items->empty()))) {
    fields.refuse("input", "a text or an array of at least one item");
  }
  if (items->is_string()) {
    reader.read_text(items->get<std::string>());
  } else {
    for (std::size_t i = 0; i < items->size(); ++i) reader.read((*items)[i], element_path("input", i));
  }
  ChatInput& input = request.input;
  input.chat.messages = reader.take();
  input.messages_field = "input";

  const Json* tools = fields.array("tools");
  read_responses_tools(tools, input);
  read_responses_choice(fields, input);
  input.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const auto effort = read_reasoning(fields, input);
  input.max_reasoning_tokens = fields.integer("max_reasoning_tokens", 0, kMaxContext);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) input.chat.template_kwargs = *kwargs;
  input.grammar = read_text_settings(fields, model);
  read_include(fields);
  fields.word("truncation", {"disabled"});

  GenerationOptions& options = request.options;
  options = default_options(model);
  const auto max_tokens = fields.integer("max_output_tokens", 1, kMaxContext);
  options.max_tokens = max_tokens.value_or(0);
  options.stop = read_stop(fields, "stop");
  read_sampling(fields, model, options);
  if (fields.integer("top_logprobs", 0, kMostTopLogprobs).value_or(0) > 0) {
    fields.refuse("top_logprobs", "0: log probabilities are only in /v1/chat/completions and /v1/completions");
  }

  request.is_stream = fields.boolean("stream").value_or(false);
  request.priority = read_service_tier(fields);
  request.cache_salt = read_cache_salt(fields);
  const Json* metadata = fields.object("metadata");
  read_prompt_cache(fields, input);
  fields.ignore({"stream_options", "user", "safety_identifier", "max_tool_calls", "client_metadata"});
  fields.finish();

  const Json* tool_choice = fields.find("tool_choice");
  Json text = {{"format", {{"type", "text"}}}};
  if (const Json* given = fields.find("text")) text.update(*given);
  request.echo = {{"instructions", instructions ? Json(*instructions) : Json()},
                  {"max_output_tokens", max_tokens ? Json(*max_tokens) : Json()},
                  {"metadata", metadata != nullptr ? *metadata : Json::object()},
                  {"parallel_tool_calls", input.parallel_tool_calls},
                  {"previous_response_id", nullptr},
                  {"reasoning", {{"effort", effort ? Json(*effort) : Json()}, {"summary", nullptr}}},
                  {"store", false},
                  {"temperature", options.sampling.temperature},
                  {"text", std::move(text)},
                  {"tool_choice", tool_choice != nullptr ? *tool_choice : Json("auto")},
                  {"tools", tools != nullptr ? *tools : Json::array()},
                  {"top_p", options.sampling.top_p},
                  {"truncation", "disabled"}};
  return request;
}

// Replies.

/// The items of an answer as they grow, and the events that tell of them. An item is the same, id included, in all of its events
/// and in the response at the end, since all are made of one.
class OutputItems {
 public:
  using Emit = std::function<void(const char* type, Json event)>;

  /// `unique` makes the ids of items and calls. Without `emit` nobody is told.
  OutputItems(std::string unique, Emit emit) : unique_(std::move(unique)), emit_(std::move(emit)) {}

  void take(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::Reasoning:
        if (kind_ != Kind::Reasoning) begin(Kind::Reasoning, new_item("reasoning", "rs", {{"summary", Json::array()}}));
        return add(event.text, "response.reasoning_text.delta");
      case OutputEvent::Kind::Content:
        if (kind_ != Kind::Message) begin(Kind::Message, new_item("message", "msg", {{"role", "assistant"}}));
        return add(event.text, "response.output_text.delta");
      case OutputEvent::Kind::ToolBegin:
        return begin(
            Kind::Call,
            new_item("function_call", "fc",
                     {{"call_id", fmt::format("call_{}_{}", unique_, event.index)}, {"name", event.text}, {"arguments", ""}}));
      case OutputEvent::Kind::ToolArguments: return add(event.text, "response.function_call_arguments.delta");
      case OutputEvent::Kind::ToolEnd: return end("completed");
      case OutputEvent::Kind::ToolIncomplete:
        if (kind_ == Kind::Call) end("incomplete");
        return;
    }
  }

  /// Completes the item that is open, if there is one.
  void end(const char* status) {
    if (kind_ == Kind::None) return;
    Json& item = items_.back();
    item["status"] = status;
    switch (kind_) {
      case Kind::Reasoning:
      case Kind::Message: {
        const char* done = kind_ == Kind::Message ? "response.output_text.done" : "response.reasoning_text.done";
        const Json part = text_part(text_);
        item["content"] = Json::array({part});
        emit(done, with_logprobs({{"content_index", 0}, {"text", text_}}));
        emit("response.content_part.done", {{"content_index", 0}, {"part", part}});
        break;
      }
      case Kind::Call:
        item["arguments"] = text_;
        emit("response.function_call_arguments.done", {{"name", item["name"]}, {"arguments", text_}});
        break;
      case Kind::None: break;
    }
    emit_item("response.output_item.done");
    kind_ = Kind::None;
    text_.clear();
  }

  const Json& items() const { return items_; }

 private:
  enum class Kind { None, Reasoning, Message, Call };

  Json new_item(const char* type, const char* prefix, const Json& more) const {
    Json item = {{"id", fmt::format("{}_{}_{}", prefix, unique_, items_.size())}, {"type", type}, {"status", "in_progress"}};
    item.update(more);
    return item;
  }

  void begin(Kind kind, Json item) {
    end("completed");
    kind_ = kind;
    if (kind != Kind::Call) item["content"] = Json::array();
    items_.push_back(std::move(item));
    emit_item("response.output_item.added");
    if (kind != Kind::Call) emit("response.content_part.added", {{"content_index", 0}, {"part", text_part("")}});
  }

  void add(const std::string& text, const char* type) {
    text_ += text;
    if (kind_ == Kind::Call) return emit(type, {{"delta", text}});
    emit(type, with_logprobs({{"content_index", 0}, {"delta", text}}));
  }

  Json text_part(const std::string& text) const {
    if (kind_ == Kind::Reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"annotations", Json::array()}, {"logprobs", Json::array()}, {"text", text}};
  }

  /// Clients expect the field in what tells of content, though there is nothing in it.
  Json with_logprobs(Json event) const {
    if (kind_ == Kind::Message) event["logprobs"] = Json::array();
    return event;
  }

  void emit_item(const char* type) {
    if (emit_) emit_(type, {{"output_index", items_.size() - 1}, {"item", items_.back()}});
  }
  /// Of the item that is open.
  void emit(const char* type, const Json& fields) {
    if (!emit_) return;
    Json event = {{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
    event.update(fields);
    emit_(type, std::move(event));
  }

  std::string unique_;
  Emit emit_;
  Json items_ = Json::array();
  Kind kind_ = Kind::None;  // of the item that is open
  std::string text_;        // what it holds so far
};

Json responses_usage(const AnswerUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", usage.written_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

/// One answer, as a stream or whole.
class ResponsesReply final : public AnswerSink {
 public:
  ResponsesReply(HttpResponder responder, const HttpRequest& request, const std::string& model, const Json& echo, bool is_stream)
      : responder_(std::move(responder)),
        is_stream_(is_stream),
        items_(reply_id("", request),
               is_stream ? OutputItems::Emit([this](const char* type, const Json& event) { send(type, event); }) : nullptr) {
    response_ = {{"id", reply_id("resp_", request)},
                 {"object", "response"},
                 {"created_at", unix_seconds()},
                 {"status", "in_progress"},
                 {"background", false},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"model", model},
                 {"output", Json::array()},
                 {"usage", nullptr}};
    response_.update(echo);
  }

  void began() override {
    if (!is_stream_) return;
    responder_.start_events();
    send("response.created", {{"response", response_}});
    send("response.in_progress", {{"response", response_}});
  }

  void gained(int /*choice*/, const AnswerGain& gain) override {
    for (const OutputEvent& event : gain.events) items_.take(event);
  }

  void ended(int /*choice*/, const AnswerEnd& end) override {
    const bool is_complete = end.ending != AnswerEnding::Length;
    items_.end(is_complete ? "completed" : "incomplete");
    if (!is_complete) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["usage"] = responses_usage(end.usage);
    finish(is_complete ? "completed" : "incomplete");
  }

  void all_ended(const AnswerUsage& /*usage*/) override {}

  void failed(const ApiError& error) override {
    if (!is_stream_) {
      responder_.reply(openai_error(error));
      return;
    }
    items_.end("incomplete");
    response_["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
    finish("failed");
  }

 private:
  void finish(const std::string& status) {
    response_["status"] = status;
    response_["output"] = items_.items();
    if (is_stream_) {
      send(("response." + status).c_str(), {{"response", response_}});
      responder_.finish();
    } else {
      responder_.reply(json_response(200, response_));
    }
  }

  void send(const char* type, const Json& fields) {
    Json event = {{"type", type}, {"sequence_number", num_events_++}};
    event.update(fields);
    responder_.send_event(dump_json(event), type);
  }

  HttpResponder responder_;
  bool is_stream_;
  OutputItems items_;
  Json response_;
  std::int64_t num_events_ = 0;
};

}  // namespace

void openai_responses(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  ResponsesRequest read = read_responses_request(parse_body(request), context.model);
  AnswerJob job = prepare_chat(context.model, std::move(read.input), std::move(read.options));
  job.priority = read.priority;
  job.cache_salt = std::move(read.cache_salt);
  auto reply = std::make_shared<ResponsesReply>(responder, request, context.model.name(), std::move(read.echo), read.is_stream);
  answer_request(context, request, responder, std::move(job), std::move(reply));
}

}  // namespace calandra
