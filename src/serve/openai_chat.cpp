#include "serve/openai_chat.h"

#include "base/json.h"
#include "serve/answer_stream.h"
#include "serve/chat_request.h"
#include "serve/json_body.h"
#include "serve/openai_shapes.h"

#include <memory>
#include <utility>

namespace calandra {
namespace {

using Kind = OutputEvent::Kind;

/// What a reply says beside the answer.
struct ReplyHead {
  std::string id;       // "chatcmpl-..."
  std::string call_id;  // "call_...": calls are counted behind it
  std::string model;
  std::int64_t created = 0;

  /// Of call `index` of an answer: the same in streams and whole replies.
  std::string id_of_call(int choice, int index) const { return fmt::format("{}-{}-{}", call_id, choice, index); }
};

void read_length(RequestFields& fields, GenerationOptions& options) {
  const auto newer = fields.integer("max_completion_tokens", 1, kMaxContext),
             older = fields.integer("max_tokens", 1, kMaxContext);
  if (newer && older && *newer != *older) {
    fields.refuse("max_tokens", fmt::format("as many as max_completion_tokens, which is {}, or none beside it", *newer));
  }
  options.max_tokens = newer.value_or(older.value_or(0));
}

void read_logprobs(RequestFields& fields, GenerationOptions& options) {
  const bool wants_logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMostTopLogprobs);
  if (top && !wants_logprobs) fields.refuse("top_logprobs", "none without \"logprobs\": true");
  if (wants_logprobs) options.logprobs = static_cast<int>(top.value_or(0));
}

Json calls_of(const std::vector<ToolCall>& calls, int choice, const ReplyHead& head) {
  Json json = Json::array();
  for (const ToolCall& call : calls) {
    json.push_back({{"id", head.id_of_call(choice, static_cast<int>(json.size()))},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

Json whole_choice(const WholeAnswer& answer, int index, const ReplyHead& head, const Tokenizer& tokenizer, bool with_logprobs) {
  const ParsedOutput& output = answer.output;
  Json message = {{"role", "assistant"},
                  {"content", output.content.empty() && !output.tool_calls.empty() ? Json() : Json(output.content)},
                  {"refusal", nullptr}};
  if (!output.reasoning.empty()) message["reasoning_content"] = output.reasoning;
  if (!output.tool_calls.empty()) message["tool_calls"] = calls_of(output.tool_calls, index, head);
  return {{"index", index},
          {"message", std::move(message)},
          {"logprobs", with_logprobs ? openai_logprobs(answer.logprobs, tokenizer) : Json()},
          {"finish_reason", openai_finish_reason(answer.end.ending)}};
}

Json whole_reply(const std::vector<WholeAnswer>& answers, const AnswerUsage& usage, const ReplyHead& head,
                 const Tokenizer& tokenizer, bool with_logprobs) {
  Json choices = Json::array();
  for (const WholeAnswer& answer : answers)
    choices.push_back(whole_choice(answer, static_cast<int>(choices.size()), head, tokenizer, with_logprobs));
  return {{"id", head.id},       {"object", "chat.completion"},   {"created", head.created},
          {"model", head.model}, {"choices", std::move(choices)}, {"usage", openai_usage(usage)}};
}

/// Sends every piece as a chunk.
class ChatStream : public AnswerSink {
 public:
  ChatStream(ReplyHead head, int count, bool include_usage, bool with_logprobs, const Tokenizer& tokenizer,
             HttpResponder responder)
      : head_(std::move(head)),
        count_(count),
        include_usage_(include_usage),
        with_logprobs_(with_logprobs),
        tokenizer_(tokenizer),
        responder_(std::move(responder)) {}

  void began() override {
    responder_.start_events();
    for (int choice = 0; choice < count_; ++choice) send(choice, {{"role", "assistant"}, {"content", ""}});
  }

  void gained(int choice, const AnswerGain& gain) override {
    Json logprobs = with_logprobs_ ? openai_logprobs(gain.logprobs, tokenizer_) : Json();
    // The tokens belong to all pieces that they made; the first one carries them.
    for (const OutputEvent& event : gain.events) {
      Json delta = delta_of(choice, event);
      if (!delta.empty()) send(choice, std::move(delta), std::exchange(logprobs, {}));
    }
    if (logprobs.is_object()) send(choice, {{"content", ""}}, std::move(logprobs));
  }

  void ended(int choice, const AnswerEnd& end) override {
    send(choice, Json::object(), nullptr, openai_finish_reason(end.ending));
  }

  void all_ended(const AnswerUsage& usage) override {
    if (include_usage_) {
      Json json = chunk(Json::array());
      json["usage"] = openai_usage(usage);
      responder_.send_event(dump_json(json));
    }
    responder_.send_event(kOpenAiDone);
    responder_.finish();
  }

  void failed(const ApiError& error) override { fail_openai_stream(responder_, error); }

 private:
  /// Nothing where there is nothing to say: the end of a call shows in what follows.
  Json delta_of(int choice, const OutputEvent& event) const {
    switch (event.kind) {
      case Kind::Reasoning: return {{"reasoning_content", event.text}};
      case Kind::Content: return {{"content", event.text}};
      case Kind::ToolBegin:
        return call_delta({{"index", event.index},
                           {"id", head_.id_of_call(choice, event.index)},
                           {"type", "function"},
                           {"function", {{"name", event.text}, {"arguments", ""}}}});
      case Kind::ToolArguments: return call_delta({{"index", event.index}, {"function", {{"arguments", event.text}}}});
      case Kind::ToolEnd:
      case Kind::ToolIncomplete: break;
    }
    return Json::object();
  }

  static Json call_delta(Json call) { return {{"tool_calls", Json::array({std::move(call)})}}; }

  Json chunk(Json choices) const {
    Json json = {{"id", head_.id},
                 {"object", "chat.completion.chunk"},
                 {"created", head_.created},
                 {"model", head_.model},
                 {"choices", std::move(choices)}};
    if (include_usage_) json["usage"] = nullptr;
    return json;
  }

  void send(int choice, Json delta, Json logprobs = nullptr, std::string_view finish_reason = {}) {
    Json one = {{"index", choice},
                {"delta", std::move(delta)},
                {"logprobs", std::move(logprobs)},
                {"finish_reason", finish_reason.empty() ? Json() : Json(finish_reason)}};
    responder_.send_event(dump_json(chunk(Json::array({std::move(one)}))));
  }

  const ReplyHead head_;
  const int count_;
  const bool include_usage_, with_logprobs_;
  const Tokenizer& tokenizer_;
  HttpResponder responder_;
};

}  // namespace

void openai_chat(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  const ServedModel& model = context.model;
  const Json body = parse_body(request);
  RequestFields fields(body);
  OpenAiRequest asked = read_openai_request(fields, model);
  read_length(fields, asked.options);
  read_logprobs(fields, asked.options);
  ChatInput input = read_openai_chat(fields);
  input.grammar = std::move(asked.grammar);
  read_prompt_cache(fields, input);
  fields.ignore({"user", "metadata", "store", "safety_identifier", "prediction", "verbosity"});
  fields.refuse_if_used({"audio", "web_search_options"}, "not supported by this server");
  fields.refuse_if_used({"functions", "function_call"}, "not supported, use \"tools\" and \"tool_choice\"");
  if (const Json* modalities = fields.array("modalities"); modalities != nullptr && *modalities != Json::array({"text"}))
    fields.refuse("modalities", "[\"text\"]");
  fields.finish();

  const bool with_logprobs = asked.options.logprobs.has_value();
  AnswerJob job = prepare_chat(model, std::move(input), std::move(asked.options));
  job.count = asked.count;
  job.priority = asked.priority;
  job.cache_salt = std::move(asked.cache_salt);

  const ReplyHead head{.id = reply_id("chatcmpl-", request),
                       .call_id = reply_id("call_", request),
                       .model = model.name(),
                       .created = unix_seconds()};
  const Tokenizer& tokenizer = *model.tokenizer;
  std::shared_ptr<AnswerSink> sink;
  if (asked.is_stream) {
    sink = std::make_shared<ChatStream>(head, asked.count, asked.include_usage, with_logprobs, tokenizer, responder);
  } else {
    sink = openai_whole_reply(asked.count, responder,
                              [=, &tokenizer](const std::vector<WholeAnswer>& answers, const AnswerUsage& usage) {
                                return whole_reply(answers, usage, head, tokenizer, with_logprobs);
                              });
  }
  answer_request(context, request, responder, std::move(job), std::move(sink));
}

}  // namespace calandra
