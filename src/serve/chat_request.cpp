#include "serve/chat_request.h"

#include "base/digest.h"
#include "base/json.h"
#include "checkpoint/generation.h"
#include "checkpoint/key_reader.h"
#include "serve/api_error.h"
#include "serve/api_keys.h"
#include "serve/grammar_cache.h"
#include "serve/opening_guide.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace calandra {
namespace {

std::vector<TokenBias> read_logit_bias(RequestFields& fields, const ServedModel& model) {
  const Json* json = fields.object("logit_bias");
  if (json == nullptr) return {};
  std::map<std::int32_t, float> biases;
  for (const auto& [key, bias] : json->items()) {
    const std::string field = fmt::format("{}.{}", fields.path_of("logit_bias"), printable(key));
    std::int32_t id = -1;
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || stop != key.data() + key.size() || id < 0 || id >= model.num_samplable)
      refuse_field(field, fmt::format("expected a token id from 0 to {}", model.num_samplable - 1));
    const bool is_in_range = bias.is_number() && bias >= -kMostBias && bias <= kMostBias;
    if (!is_in_range) {
      refuse_field(field, fmt::format("found {}, expected a number from {} to {}", describe(bias), -kMostBias, kMostBias));
    }
    biases[id] = bias.get<float>();
  }
  std::vector<TokenBias> ascending;
  ascending.reserve(biases.size());
  for (const auto& [id, bias] : biases) ascending.push_back({id, bias});
  return ascending;
}

bool has_tools(const Json& tools) { return tools.is_array() && !tools.empty(); }

/// The names of the tools, which must be functions.
std::vector<std::string> names_of_tools(const Json& tools) {
  std::vector<std::string> names;
  if (tools.is_null()) return names;
  if (!tools.is_array()) refuse_field("tools", fmt::format("found {}, expected an array", describe(tools)));
  for (std::size_t i = 0; i < tools.size(); ++i) {
    RequestFields tool(tools[i], element_path("tools", i));
    tool.word("type", {"function"});
    std::optional<RequestFields> function = tool.fields("function");
    if (!function) tool.refuse("function", "an object");
    names.push_back(function->required_text("name"));
    if (names.back().empty()) function->refuse("name", "a name");
    function->object("parameters");
    function->text("description");
    function->boolean("strict");
  }
  return names;
}

bool must_call(const ToolChoice& choice) {
  return choice.kind == ToolChoice::Kind::Required || choice.kind == ToolChoice::Kind::Named;
}

void check_choice(const ToolChoice& choice, const std::vector<std::string>& names) {
  if (must_call(choice) && names.empty()) refuse_field("tool_choice", "asks for a call, but there are no tools");
  if (choice.kind == ToolChoice::Kind::Named && std::find(names.begin(), names.end(), choice.name) == names.end())
    refuse_field("tool_choice", fmt::format("found \"{}\", expected the name of one of the tools", printable(choice.name)));
}

/// Templates pass over roles that they do not know; here nothing that somebody said is passed over. A tool's result answers a call:
/// by its id, or, since templates go by the order, without one.
void check_roles(Json& messages, const std::string& field) {
  bool has_called = false;
  std::set<std::string> call_ids;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    RequestFields message(messages[i], element_path(field, i));
    const auto role = message.word("role", {"system", "developer", "user", "assistant", "tool"});
    if (!role) message.refuse("role", "a role");
    if (role != "assistant" && message.find("content") == nullptr) message.refuse("content", "a text or an array of text parts");
    if (role == "assistant") {
      for (const Json& call : messages[i].value("tool_calls", Json::array())) {
        has_called = true;
        if (call.is_object() && call.contains("id") && call["id"].is_string()) call_ids.insert(call["id"].get<std::string>());
      }
    }
    if (role == "tool") {
      if (!has_called) message.refuse("role", "a result only after a message of the assistant with tool_calls");
      const std::optional<std::string> id = message.text("tool_call_id");
      if (id && !call_ids.contains(*id)) message.refuse("tool_call_id", "the id of a call before it");
    }
    if (role == "developer") messages[i]["role"] = "system";  // OpenAI's newer word
  }
}

/// Template errors begin with the place in the conversation: "messages[2].content: found ...".
std::string field_of(std::string_view message, const char* messages_field) {
  for (const char* field : {"messages", "tools", "chat_template_kwargs"}) {
    if (!message.starts_with(field)) continue;
    const std::string_view place = message.substr(0, message.find(':'));
    return std::string_view(field) == "messages" ? messages_field + std::string(place.substr(8)) : std::string(place);
  }
  return messages_field;
}

std::optional<std::int32_t> single_token(const ServedModel& model, std::string_view text) {
  const std::vector<std::int32_t> ids = model.tokenizer->encode(text);
  return ids.size() == 1 ? std::optional(ids.front()) : std::nullopt;
}

/// What calls may be where one must come, or where the arguments of some tools must fit; null: as the model likes. Where a call
/// must come, the schemas of all tools are kept to as far as they can be.
std::shared_ptr<const Grammar> grammar_of_calls(const ServedModel& model, const ChatInput& input, const Json& tools,
                                                const std::vector<std::string>& names) {
  const auto strict = [&](std::size_t i) { return i < input.strict.size() ? input.strict[i] : std::nullopt; };
  const bool is_forced = must_call(input.tool_choice);
  CallRules rules;
  rules.several = input.parallel_tool_calls;
  bool is_any_strict = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (input.tool_choice.kind == ToolChoice::Kind::Named && names[i] != input.tool_choice.name) continue;
    CallRules::Tool& tool = rules.tools.emplace_back();
    tool.name = names[i];
    tool.must_fit = strict(i).value_or(false);
    tool.where = fmt::format("{}.{} of '{}'", element_path("tools", i), input.schema_field, printable(names[i]));
    is_any_strict = is_any_strict || tool.must_fit;
    if (!strict(i).value_or(is_forced)) continue;
    const Json& function = tools[i]["function"];
    tool.parameters = function.contains("parameters") && !function["parameters"].is_null() ? dump_json(function["parameters"])
                                                                                           : R"({"type":"object"})";
  }
  if (!is_forced && !is_any_strict) return nullptr;
  if (model.grammars == nullptr) refuse_field("tools", "this server does not constrain output");
  try {
    return model.grammars->find_or_compile(rules);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    throw RequestError(
        {.status = 400, .message = error.what(), .field = std::string(message.substr(0, message.find_first_of(" :")))});
  }
}

/// Calls that are forced or checked, a reasoning with an end, or a grammar.
std::shared_ptr<const OpeningPlan> opening_plan(const ServedModel& model, const ChatInput& input, const AnswerJob& job) {
  using ToolCallMark = OpeningPlan::ToolCallMark;
  const ReasoningStart start = job.reasoning_start;
  const std::vector<std::string> names = names_of_tools(job.tools);
  auto plan = std::make_shared<OpeningPlan>();
  plan->reasoning_start = start;
  plan->tokenizer = model.tokenizer;
  plan->num_samplable = model.num_samplable;
  plan->max_reasoning_tokens = start == ReasoningStart::Off ? std::nullopt : input.max_reasoning_tokens;
  plan->reasoning_end = model.tokenizer->encode("</think>");
  plan->calls = grammar_of_calls(model, input, job.tools, names);
  plan->tool_call_mark = !job.format->tool_calls ? ToolCallMark::Text
                         : names.empty()         ? ToolCallMark::ReasoningEnd
                                                 : ToolCallMark::CallBegin;
  plan->must_call = must_call(input.tool_choice);
  if (input.grammar) {
    if (plan->must_call) refuse_field("tool_choice", "a call that must come leaves no room for a response_format");
    plan->grammar = input.grammar;
    if (start == ReasoningStart::ModelMayOpen) plan->alternatives.think = single_token(model, "<think>");
    if (!names.empty()) plan->alternatives.tool_call = single_token(model, "<tool_call>");
  }
  if (!plan->calls && !plan->max_reasoning_tokens && !plan->grammar) return nullptr;
  return plan;
}

/// Whether none of the model's own tokens ends an answer.
bool ignores_eos(const GenerationOptions& options, const ServedModel& model) {
  const auto& own = model.defaults.stop_ids;
  return !own.empty() && std::none_of(own.begin(), own.end(), [&](std::int32_t id) {
    return std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
  });
}

/// A grammar says when an answer may end: what else moves its end would leave nothing that may come.
void check_grammar_options(const GenerationOptions& options, const ServedModel& model) {
  const auto& bias = options.sampling.logit_bias;
  if (std::any_of(bias.begin(), bias.end(), [](const TokenBias& one) { return static_cast<double>(one.bias) <= -kMostBias; }))
    refuse_field("logit_bias", "no bans together with a constrained output, which may need what they ban");
  if (options.min_tokens > 0) refuse_field("min_tokens", "not together with a constrained output, which says when it may end");
  if (ignores_eos(options, model))
    refuse_field("ignore_eos", "not together with a constrained output, which says when it may end");
}

/// The mark that closes a reasoning must be able to come: nothing else may then.
void check_reasoning_end(const OpeningPlan& plan, const GenerationOptions& options) {
  for (const std::int32_t id : plan.reasoning_end) {
    for (const TokenBias& one : options.sampling.logit_bias) {
      if (one.token == id && static_cast<double>(one.bias) <= -kMostBias)
        refuse_field(fmt::format("logit_bias.{}", id), "bans what closes a reasoning, which has a limit of its tokens");
    }
    const bool ends_answer = std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
    if (ends_answer && options.min_tokens > 0) {
      refuse_field("min_tokens",
                   "forbids stop_token_ids at first, among them what closes a reasoning, which has a limit of its tokens");
    }
  }
}

void check_room(std::size_t tokens, const ServedModel& model, const char* field) {
  if (tokens == 0) refuse_field(field, "no tokens, expected at least 1");
  if (leaves_room(static_cast<std::int64_t>(tokens), model.context)) return;
  throw RequestError(
      {.status = 400,
       .message = fmt::format("{}: {} tokens, expected at most {}, which leaves room for an answer in the context of {}", field,
                              tokens, model.context - 1, model.context),
       .field = field,
       .code = "context_length_exceeded"});
}

void check_options(const GenerationOptions& options, const ServedModel& model) {
  try {
    check(options, model.num_samplable);
  } catch (const Error& error) {
    throw RequestError({.status = 400, .message = error.what()});
  }
}

/// What the template gets: the conversation with the tools that the choice leaves, once it makes sense.
ChatRequest checked_chat(const ServedModel& model, const ChatInput& input) {
  if (model.chat_template == nullptr) {
    throw RequestError(
        {.status = 400, .message = "this model has no chat template that can be used: only texts can be completed"});
  }
  const std::vector<std::string> names = names_of_tools(input.chat.tools);
  check_choice(input.tool_choice, names);
  ChatRequest chat = input.chat;
  if (input.tool_choice.kind == ToolChoice::Kind::None) chat.tools = nullptr;
  if (!chat.messages.is_array() || chat.messages.empty()) refuse_field(input.messages_field, "expected at least one message");
  check_roles(chat.messages, input.messages_field);
  return chat;
}

ChatPrompt rendered(const ServedModel& model, const ChatInput& input, const ChatRequest& chat) {
  ChatPrompt prompt;
  try {
    prompt = model.chat_template->render(chat);
  } catch (const Error& error) {
    throw RequestError({.status = 400, .message = error.what(), .field = field_of(error.what(), input.messages_field)});
  }
  if (!prompt.unused_kwargs.empty()) {
    refuse_field("chat_template_kwargs." + printable(prompt.unused_kwargs.front()),
                 "this model's chat template does not read it");
  }
  return prompt;
}

}  // namespace

std::int32_t read_token_id(const Json& json, const std::string& field, const ServedModel& model) {
  const bool is_id = json.is_number_integer() && json >= 0 && json < model.num_samplable;
  if (!is_id) {
    refuse_field(field, fmt::format("found {}, expected a token id from 0 to {}", describe(json), model.num_samplable - 1));
  }
  return json.get<std::int32_t>();
}

GenerationOptions default_options(const ServedModel& model) {
  GenerationOptions options = model.defaults;
  std::random_device random;
  options.sampling.seed = (std::uint64_t{random()} << 32) | random();
  return options;
}

void read_sampling(RequestFields& fields, const ServedModel& model, GenerationOptions& options) {
  SamplingOptions& sampling = options.sampling;
  sampling.temperature = fields.number("temperature", 0, kMostTemperature).value_or(sampling.temperature);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(sampling.top_p);
  // 0 keeps the likeliest token alone, as does whatever is next to it.
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<double>::min();
  // -1 is how vLLM's clients say "off".
  sampling.top_k = static_cast<int>(std::max<std::int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(sampling.top_k)));
  sampling.min_p = fields.number("min_p", 0, 1).value_or(sampling.min_p);
  sampling.presence_penalty = fields.number("presence_penalty", -kMostPenalty, kMostPenalty).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -kMostPenalty, kMostPenalty).value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty", kLeastRepetitionPenalty, kMostRepetitionPenalty).value_or(1);
  sampling.logit_bias = read_logit_bias(fields, model);
  if (const Json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) fields.refuse("seed", "an integer");
    sampling.seed =
        seed->is_number_unsigned() ? seed->get<std::uint64_t>() : static_cast<std::uint64_t>(seed->get<std::int64_t>());
  }
  options.min_tokens = fields.integer("min_tokens", 0, kMaxContext).value_or(0);
  if (fields.boolean("ignore_eos").value_or(false)) options.stop_ids.clear();
  if (const Json* ids = fields.array("stop_token_ids")) {
    if (ids->size() > kMostStops) fields.refuse("stop_token_ids", fmt::format("at most {} ids", kMostStops));
    for (std::size_t i = 0; i < ids->size(); ++i) {
      options.stop_ids.push_back(read_token_id((*ids)[i], element_path(fields.path_of("stop_token_ids"), i), model));
    }
  }
}

std::vector<std::string> read_stop(RequestFields& fields, const char* key) {
  const Json* json = fields.find(key);
  if (json == nullptr) return {};
  std::vector<std::string> stop;
  const auto add = [&](const Json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      fields.refuse(key, "a text, or an array of texts, none of them empty");
    }
    stop.push_back(text.get<std::string>());
    if (stop.back().size() > kMostStopBytes) fields.refuse(key, fmt::format("texts of at most {} bytes", kMostStopBytes));
  };
  if (json->is_array()) {
    if (json->size() > kMostStops) fields.refuse(key, fmt::format("at most {} texts", kMostStops));
    for (const Json& text : *json) add(text);
  } else {
    add(*json);
  }
  return stop;
}

std::string read_cache_salt(RequestFields& fields) {
  std::optional<std::string> salt = fields.text("cache_salt");
  if (salt && (salt->empty() || salt->size() > kMostSaltBytes))
    fields.refuse("cache_salt", fmt::format("a text of 1 to {} bytes", kMostSaltBytes));
  return std::move(salt).value_or("");
}

ApiError model_not_found(std::string_view name, const ServedModel& model) {
  return {.status = 404,
          .message = fmt::format("model: found \"{}\", expected \"{}\"", printable(name), model.name()),
          .field = "model",
          .code = "model_not_found"};
}

void check_model(RequestFields& fields, const ServedModel& model) {
  const std::optional<std::string> name = fields.text("model");
  if (!name || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return;
  throw RequestError(model_not_found(*name, model));
}

void add_function(RequestFields& tool, ChatInput& input) {
  Json function = {{"name", tool.required_text("name")}};
  if (auto description = tool.text("description")) function["description"] = *std::move(description);
  if (const Json* schema = tool.object(input.schema_field)) function["parameters"] = *schema;
  input.strict.push_back(tool.boolean("strict"));
  input.chat.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
}

ChatPrompt render_chat(const ServedModel& model, const ChatInput& input) {
  return rendered(model, input, checked_chat(model, input));
}

AnswerJob prepare_chat(const ServedModel& model, ChatInput input, GenerationOptions options) {
  const ChatRequest chat = checked_chat(model, input);
  const ChatPrompt prompt = rendered(model, input, chat);
  AnswerJob job;
  job.prompt = model.tokenizer->encode(prompt.text);
  check_room(job.prompt.size(), model, input.messages_field);
  check_options(options, model);
  job.cache_only_marks = input.only_marks;
  job.cache_marks = positions_of(input.marks, chat, job.prompt, prompt, *model.chat_template, *model.tokenizer);
  job.format = model.chat_template->output_format();
  if (ignores_eos(options, model)) {
    // Nor do the marks of a turn's end, which are text then.
    job.format->end_markers.clear();
    job.format->roles = false;
  }
  job.options = std::move(options);
  job.reasoning_start = prompt.reasoning_start;
  if (input.tool_choice.kind != ToolChoice::Kind::None && has_tools(input.chat.tools)) job.tools = std::move(input.chat.tools);
  job.only_first_call = !input.parallel_tool_calls;
  if (const auto plan = opening_plan(model, input, job)) {
    if (plan->grammar || plan->calls) check_grammar_options(job.options, model);
    if (plan->max_reasoning_tokens) check_reasoning_end(*plan, job.options);
    job.make_guide = [plan] { return std::make_shared<OpeningGuide>(plan); };
  }
  return job;
}

AnswerJob prepare_completion(const ServedModel& model, std::vector<std::int32_t> prompt, GenerationOptions options,
                             const char* field, std::shared_ptr<const Grammar> grammar) {
  check_room(prompt.size(), model, field);
  check_options(options, model);
  AnswerJob job;
  if (grammar) {
    check_grammar_options(options, model);
    auto plan = std::make_shared<OpeningPlan>();
    plan->tokenizer = model.tokenizer;
    plan->num_samplable = model.num_samplable;
    plan->grammar = std::move(grammar);
    job.make_guide = [plan = std::shared_ptr<const OpeningPlan>(std::move(plan))] {
      return std::make_shared<OpeningGuide>(plan);
    };
  }
  job.prompt = std::move(prompt);
  job.options = std::move(options);
  return job;
}

std::uint64_t client_of(const ApiContext& context, const HttpRequest& request) {
  if (const auto key = key_of(request, context.api_keys)) return *key;
  return std::hash<std::string_view>()(std::string_view(request.peer).substr(0, request.peer.rfind(':')));
}

std::string cache_owner_of(const ApiContext& context, const HttpRequest& request) {
  const auto key = context.isolates_keys ? key_of(request, context.api_keys) : std::nullopt;
  return key ? Sha256().update_text(context.api_keys[*key]).digest().hex() : std::string();
}

std::string cache_space_of(const std::string& owner, const std::string& salt) {
  // Whatever they say, no two pairs make one name: digests have no dots.
  return salt.empty() ? owner : fmt::format("{}.{}", owner, Sha256().update_text(salt).digest().hex());
}

}  // namespace calandra
