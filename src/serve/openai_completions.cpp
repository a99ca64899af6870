#include "serve/openai_completions.h"

#include "base/json.h"
#include "checkpoint/key_reader.h"
#include "serve/answer_stream.h"
#include "serve/chat_request.h"
#include "serve/json_body.h"
#include "serve/openai_shapes.h"
#include "text/detokenizer.h"
#include "text/unicode.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace calandra {
namespace {

constexpr std::int64_t kDefaultTokens = 16;  // the API's

/// What every reply needs to know of its request.
struct Completion {
  std::string id;
  std::int64_t created = 0;
  std::string model;
  const Tokenizer* tokenizer = nullptr;
  int count = 1;  // answers to one prompt
  std::vector<std::vector<std::int32_t>> prompts = {};
  bool is_echo = false;
  bool has_no_answer = false;  // max_tokens 0: the prompt is all that is wanted
  bool with_logprobs = false;
  bool include_usage = false;

  int num_choices() const { return static_cast<int>(prompts.size()) * count; }
  const std::vector<std::int32_t>& prompt_of(int choice) const { return prompts[static_cast<std::size_t>(choice / count)]; }
  /// What a choice's text begins with.
  std::string echoed(int choice) const { return is_echo ? detokenize(*tokenizer, prompt_of(choice)) : std::string(); }
};

bool is_id_list(const Json& json) {
  return json.is_array() && !json.empty() &&
         std::all_of(json.begin(), json.end(), [](const Json& id) { return id.is_number_integer(); });
}

std::vector<std::int32_t> read_prompt(const Json& json, const std::string& field, const ServedModel& model) {
  if (json.is_string()) return model.tokenizer->encode(json.get_ref<const std::string&>());
  if (!is_id_list(json)) refuse_field(field, fmt::format("found {}, expected a text or an array of token ids", describe(json)));
  std::vector<std::int32_t> ids;
  ids.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) ids.push_back(read_token_id(json[i], element_path(field, i), model));
  return ids;
}

/// A prompt, or an array of prompts.
std::vector<std::vector<std::int32_t>> read_prompts(RequestFields& fields, const ServedModel& model) {
  const Json* json = fields.find("prompt");
  if (json == nullptr) fields.refuse("prompt", "a text, token ids, or an array of these");
  if (!json->is_array() || is_id_list(*json)) return {read_prompt(*json, "prompt", model)};
  if (json->empty() || json->size() > static_cast<std::size_t>(kMostAnswers))
    fields.refuse("prompt", fmt::format("1 to {} prompts", kMostAnswers));
  std::vector<std::vector<std::int32_t>> prompts;
  prompts.reserve(json->size());
  for (std::size_t i = 0; i < json->size(); ++i) prompts.push_back(read_prompt((*json)[i], element_path("prompt", i), model));
  return prompts;
}

/// Lists that run beside the tokens. Offsets count characters from the beginning of the choice's text.
class LogprobLists {
 public:
  explicit LogprobLists(const Tokenizer& tokenizer) : tokenizer_(tokenizer), detokenizer_(tokenizer) {}

  /// The first token of a prompt, which nothing comes before.
  void add_first(std::int32_t id) { add(id, nullptr, nullptr); }

  void add(const LogprobEntry& entry) {
    Json top = Json::object();
    for (const TokenLogprob& other : entry.top) top[text_of(other.token)] = other.logprob;
    if (!entry.top.empty()) top[text_of(entry.chosen.token)] = entry.chosen.logprob;
    add(entry.chosen.token, entry.chosen.logprob, std::move(top));
  }

  /// What has been added since the last call; offsets go on.
  Json take() {
    return {{"tokens", std::exchange(tokens_, Json::array())},
            {"token_logprobs", std::exchange(logprobs_, Json::array())},
            {"top_logprobs", std::exchange(top_, Json::array())},
            {"text_offset", std::exchange(offsets_, Json::array())}};
  }

  bool empty() const { return tokens_.empty(); }

 private:
  std::string text_of(std::int32_t id) const { return lossy_utf8(tokenizer_.token_bytes(id)); }

  void add(std::int32_t id, Json logprob, Json top) {
    tokens_.push_back(text_of(id));
    logprobs_.push_back(std::move(logprob));
    top_.push_back(std::move(top));
    offsets_.push_back(offset_);
    const std::string text = detokenizer_.push(id);
    const auto begins_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
    offset_ += std::count_if(text.begin(), text.end(), begins_character);
  }

  const Tokenizer& tokenizer_;
  Detokenizer detokenizer_;
  std::int64_t offset_ = 0;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
};

std::string text_of(const std::vector<OutputEvent>& events) {
  std::string text;
  for (const OutputEvent& event : events) text += event.text;  // without a parser all is content
  return text;
}

Json choice_json(int index, std::string text, Json logprobs, Json finish_reason) {
  return {{"index", index},
          {"text", std::move(text)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish_reason)}};
}

Json reply_json(const Completion& completion, Json choices) {
  return {{"id", completion.id},
          {"object", "text_completion"},
          {"created", completion.created},
          {"model", completion.model},
          {"choices", std::move(choices)}};
}

AnswerUsage usage_of(const Completion& completion, AnswerUsage usage) {
  if (completion.has_no_answer) usage.completion_tokens = 0;
  return usage;
}

/// Every piece as a chunk, of which the first of a choice has the echoed prompt. A whole reply is made of the same pieces.
class CompletionPieces {
 public:
  explicit CompletionPieces(const Completion& completion) : completion_(completion) {
    for (int choice = 0; choice < completion.num_choices(); ++choice) lists_.emplace_back(*completion.tokenizer);
  }

  void take_prompt_logprobs(int choice, const std::vector<LogprobEntry>& entries) {
    LogprobLists& lists = lists_[static_cast<std::size_t>(choice)];
    lists.add_first(completion_.prompt_of(choice).front());
    for (const LogprobEntry& entry : entries) lists.add(entry);
  }

  void take_logprobs(int choice, const std::vector<LogprobEntry>& entries) {
    if (completion_.has_no_answer) return;
    for (const LogprobEntry& entry : entries) lists_[static_cast<std::size_t>(choice)].add(entry);
  }

  Json logprobs(int choice) {
    LogprobLists& lists = lists_[static_cast<std::size_t>(choice)];
    return completion_.with_logprobs && !lists.empty() ? lists.take() : Json();
  }

 private:
  const Completion& completion_;
  std::vector<LogprobLists> lists_;
};

Json whole_reply(const Completion& completion, const std::vector<WholeAnswer>& answers, const AnswerUsage& usage) {
  CompletionPieces pieces(completion);
  Json choices = Json::array();
  for (const WholeAnswer& answer : answers) {
    const int choice = static_cast<int>(choices.size());
    if (completion.is_echo && completion.with_logprobs) pieces.take_prompt_logprobs(choice, answer.prompt_logprobs);
    pieces.take_logprobs(choice, answer.logprobs);
    const std::string made = completion.has_no_answer ? std::string() : answer.output.content;
    choices.push_back(
        choice_json(choice, completion.echoed(choice) + made, pieces.logprobs(choice), openai_finish_reason(answer.end.ending)));
  }
  Json reply = reply_json(completion, std::move(choices));
  reply["usage"] = openai_usage(usage_of(completion, usage));
  return reply;
}

class CompletionStream : public AnswerSink {
 public:
  CompletionStream(Completion completion, HttpResponder responder)
      : completion_(std::move(completion)), pieces_(completion_), responder_(std::move(responder)) {}

  void began() override {
    responder_.start_events();
    if (!completion_.is_echo || completion_.with_logprobs) return;
    for (int choice = 0; choice < completion_.num_choices(); ++choice) send(choice, completion_.echoed(choice));
  }

  /// The prompt waits for these, which belong to it.
  void prompt_logprobs(int choice, std::vector<LogprobEntry> entries) override {
    pieces_.take_prompt_logprobs(choice, entries);
    send(choice, completion_.echoed(choice));
  }

  void gained(int choice, const AnswerGain& gain) override {
    pieces_.take_logprobs(choice, gain.logprobs);
    if (!completion_.has_no_answer) send(choice, text_of(gain.events));
  }

  void ended(int choice, const AnswerEnd& end) override { send(choice, {}, openai_finish_reason(end.ending)); }

  void all_ended(const AnswerUsage& usage) override {
    if (completion_.include_usage) {
      Json json = reply_json(completion_, Json::array());
      json["usage"] = openai_usage(usage_of(completion_, usage));
      responder_.send_event(dump_json(json));
    }
    responder_.send_event(kOpenAiDone);
    responder_.finish();
  }

  void failed(const ApiError& error) override { fail_openai_stream(responder_, error); }

 private:
  void send(int choice, std::string text, std::string_view finish_reason = {}) {
    Json json = reply_json(completion_, Json::array({choice_json(choice, std::move(text), pieces_.logprobs(choice),
                                                                 finish_reason.empty() ? Json() : Json(finish_reason))}));
    if (completion_.include_usage) json["usage"] = nullptr;
    responder_.send_event(dump_json(json));
  }

  const Completion completion_;
  CompletionPieces pieces_;
  HttpResponder responder_;
};

}  // namespace

void openai_completions(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder) {
  const ServedModel& model = context.model;
  const Json body = parse_body(request);
  RequestFields fields(body);
  OpenAiRequest asked = read_openai_request(fields, model);
  GenerationOptions& options = asked.options;
  options.max_tokens = fields.integer("max_tokens", 0, kMaxContext).value_or(kDefaultTokens);

  Completion completion{
      .id = reply_id("cmpl-", request), .created = unix_seconds(), .model = model.name(), .tokenizer = model.tokenizer};
  completion.prompts = read_prompts(fields, model);
  completion.count = asked.count;
  completion.include_usage = asked.include_usage;
  completion.is_echo = fields.boolean("echo").value_or(false);
  completion.has_no_answer = options.max_tokens == 0;
  if (completion.has_no_answer && !completion.is_echo) fields.refuse("max_tokens", "1 or more, or \"echo\": true");
  if (completion.num_choices() > kMostAnswers)
    fields.refuse("n", fmt::format("at most {} answers to all prompts together", kMostAnswers));
  if (const auto logprobs = fields.integer("logprobs", 0, kMostTopLogprobs)) {
    completion.with_logprobs = true;
    options.logprobs = static_cast<int>(*logprobs);
    if (completion.is_echo) options.prompt_logprobs = options.logprobs;
  }
  if (fields.integer("best_of", 1).value_or(completion.count) != completion.count)
    fields.refuse("best_of", "the same as \"n\": all that is made is returned");
  fields.refuse_if_used({"suffix"}, "not supported: the model goes on with texts, it does not fill them");
  fields.text("prompt_cache_key");  // a text has no part that is told apart from what changes
  fields.ignore({"user", "metadata", "store"});
  fields.finish();

  // One token is made in any case: the prompt is computed with it.
  options.max_tokens = std::max<std::int64_t>(options.max_tokens, 1);
  std::vector<AnswerJob> jobs;
  for (const auto& prompt : completion.prompts) {
    AnswerJob& job = jobs.emplace_back(prepare_completion(model, prompt, options, "prompt", asked.grammar));
    job.count = asked.count;
    job.priority = asked.priority;
    job.cache_salt = asked.cache_salt;
  }

  std::shared_ptr<AnswerSink> sink;
  if (asked.is_stream) {
    sink = std::make_shared<CompletionStream>(std::move(completion), responder);
  } else {
    const int num_choices = completion.num_choices();
    sink = openai_whole_reply(
        num_choices, responder,
        [completion = std::move(completion)](const std::vector<WholeAnswer>& answers, const AnswerUsage& usage) {
          return whole_reply(completion, answers, usage);
        });
  }
  answer_request(context, request, responder, std::move(jobs), std::move(sink));
}

}  // namespace calandra
