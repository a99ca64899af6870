#include "text/chat_template.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace calandra {
namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxConfigBytes = std::size_t{64} << 20;

/// Stands at the end of the message to be continued while the template runs, and tells where to cut.
const std::string kContinueHere =
    "\xEE\x80\x80"
    "continue here"
    "\xEE\x80\x81";  // between private characters

const std::set<std::string> kLingVariables = {"add_generation_prompt", "enable_thinking", "messages", "thinking", "tools"};

/// Variables that are made of the fields of a request.
constexpr const char* kFieldsOfTheRequest[] = {"messages", "tools", "add_generation_prompt"};
/// Two names of one switch: templates read the one or the other.
constexpr const char* kThinkingSwitches[] = {"enable_thinking", "thinking"};

std::string join_parts(const Json& parts, const std::string& where) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") || !part["text"].is_string()) {
      const Json type = part.is_object() ? part.value("type", Json()) : part;
      fail("{}[{}]: found {}, expected a part of type \"text\"", where, i, dump_json(type).substr(0, 80));
    }
    if (i > 0) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

void normalize_call(Json& call, const std::string& where) {
  if (!call.is_object()) fail("{}: expected an object", where);
  Json& function = call.contains("function") ? call["function"] : call;
  if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
    fail("{}: expected a function with a name", where);
  Json& arguments = function["arguments"];
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    arguments = trim_json_space(text).empty() ? Json::object() : parse_json(text, where + ".arguments");
  }
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object()) fail("{}.arguments: expected a JSON object, or its text", where);
}

void normalize_message(Json& message, const std::string& where) {
  if (!message.is_object()) fail("{}: expected an object", where);
  if (!message.contains("role") || !message["role"].is_string()) fail("{}.role: expected a text", where);
  if (const auto content = message.find("content"); content != message.end()) {  // where there is none, there stays none
    if (content->is_array()) *content = join_parts(*content, where + ".content");
    if (!content->is_string() && !content->is_null()) fail("{}.content: expected a text, null or an array of parts", where);
  }
  if (message.contains("reasoning") && message["reasoning"].is_string() && !message.contains("reasoning_content")) {
    message["reasoning_content"] = message["reasoning"];
  }
  const auto reasoning = message.find("reasoning_content");
  if (reasoning != message.end() && !reasoning->is_string() && !reasoning->is_null())
    fail("{}.reasoning_content: expected a text", where);
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) fail("{}.tool_calls: expected an array", where);
  for (std::size_t i = 0; i < calls->size(); ++i) normalize_call((*calls)[i], fmt::format("{}.tool_calls[{}]", where, i));
}

void check_tools(const Json& tools) {
  if (tools.is_null()) return;
  if (!tools.is_array()) fail("tools: expected an array");
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) fail("tools[{}]: expected an object", i);
  }
}

/// Variables that would be passed over in silence, or that contradict each other or the request.
void check_kwargs(const ChatRequest& request) {
  const Json& kwargs = request.template_kwargs;
  if (!kwargs.is_object()) fail("chat_template_kwargs: expected an object");
  for (const char* key : kFieldsOfTheRequest) {
    if (kwargs.contains(key))
      fail("chat_template_kwargs.{}: found a value, expected none: it is what the request's own fields say", key);
  }
  std::optional<bool> wanted = request.thinking;
  for (const char* key : kThinkingSwitches) {
    const auto value = kwargs.find(key);
    if (value == kwargs.end() || value->is_null()) continue;
    if (!value->is_boolean() || value->get<bool>() != wanted.value_or(value->get<bool>())) {
      fail("chat_template_kwargs.{}: found {}, expected {}", key, dump_json(*value).substr(0, 80),
           !wanted   ? "true or false"
           : *wanted ? "true, as another field of the request says"
                     : "false, as another field of the request says");
    }
    wanted = value->get<bool>();
  }
}

/// How the answer to a prompt begins, from the prompt's last characters.
ReasoningStart reasoning_start(std::string_view prompt, const OutputFormat& format) {
  if (!format.reasoning) return ReasoningStart::Off;
  prompt = prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1);
  if (prompt.ends_with("<think>")) return ReasoningStart::Open;
  return prompt.ends_with("</think>") ? ReasoningStart::Off : ReasoningStart::ModelMayOpen;
}

std::string text_or_empty(const Json& message, const char* key) {
  const auto field = message.find(key);
  return field != message.end() && field->is_string() ? field->get<std::string>() : std::string();
}

}  // namespace

Json normalize_messages(const Json& messages) {
  if (!messages.is_array()) fail("messages: expected an array");
  Json result = messages;
  for (std::size_t i = 0; i < result.size(); ++i) normalize_message(result[i], fmt::format("messages[{}]", i));
  return result;
}

ChatTemplate ChatTemplate::built_in() {
  ChatTemplate result;
  result.output_format_ = {true, true, true, {"<|role_end|>", "<|endoftext|>"}};
  return result;
}

ChatTemplate ChatTemplate::from_source(std::string_view source, const std::string& where) {
  ChatTemplate result;
  result.where_ = where;
  result.template_ = JinjaTemplate::parse(source, where);
  result.output_format_ = OutputFormat::of_template(source);
  return result;
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& folder) {
  ChatTemplate result = built_in();
  const auto file = folder / "chat_template.jinja";
  if (is_there(file)) result = from_source(read_text_file(file, kMaxTemplateBytes), file.string());
  const auto config = folder / "tokenizer_config.json";
  if (is_there(config)) result.read_tokenizer_config(config);
  return result;
}

void ChatTemplate::read_tokenizer_config(const std::filesystem::path& file) {
  const Json config = parse_json(read_text_file(file, kMaxConfigBytes), file.string());
  if (!config.is_object()) fail("{}: no JSON object", file.string());
  const std::string where = file.string() + ": chat_template";
  if (const auto own = config.find("chat_template"); !template_ && own != config.end() && !own->is_null()) {
    if (own->is_string()) {
      *this = from_source(own->get_ref<const std::string&>(), where);
    } else if (own->is_array()) {
      for (const Json& entry : *own) {
        const std::string name = text_or_empty(entry, "name"), source = text_or_empty(entry, "template");
        if (name == "default") {
          auto tool_use = std::move(tool_use_template_);
          *this = from_source(source, where);
          tool_use_template_ = std::move(tool_use);
        } else if (name == "tool_use") {
          tool_use_template_ = JinjaTemplate::parse(source, where + "[tool_use]");
        }
      }
      if (!template_) fail("{}: none of the templates is named \"default\"", where);
    } else {
      fail("{}: expected a text or an array", where);
    }
  }
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto token = config.find(name);
    if (token == config.end()) continue;
    if (token->is_string()) special_tokens_[name] = *token;
    if (token->is_object() && token->contains("content")) special_tokens_[name] = (*token)["content"];
  }
  const std::string end = text_or_empty(special_tokens_, "eos_token");
  auto& markers = output_format_.end_markers;
  if (!end.empty() && std::find(markers.begin(), markers.end(), end) == markers.end()) markers.push_back(end);
}

bool ChatTemplate::reads(const std::string& variable) const {
  if (!template_) return kLingVariables.contains(variable);
  return template_->variables().contains(variable) || (tool_use_template_ && tool_use_template_->variables().contains(variable));
}

bool ChatTemplate::can_switch_thinking() const { return reads("enable_thinking") || reads("thinking"); }

std::string ChatTemplate::render_text(const Json& context, const JinjaOptions& options) const {
  if (!template_) return render_ling(context);
  const bool has_tools = context.contains("tools") && !context["tools"].empty();
  return (has_tools && tool_use_template_ ? *tool_use_template_ : *template_).render(context, options);
}

Json ChatTemplate::make_context(const ChatRequest& request, std::vector<std::string>& unused_kwargs) const {
  Json context = special_tokens_;
  if (request.thinking) context["enable_thinking"] = context["thinking"] = *request.thinking;
  for (const char* key : kThinkingSwitches) {
    const auto value = request.template_kwargs.find(key);
    if (value != request.template_kwargs.end() && value->is_boolean()) context["enable_thinking"] = context["thinking"] = *value;
  }
  for (const auto& [key, value] : request.template_kwargs.items()) {
    const bool is_switch = key == "enable_thinking" || key == "thinking";
    if (!reads(key) && !(is_switch && can_switch_thinking())) unused_kwargs.push_back(key);
    if (!is_switch || !value.is_null()) context[key] = value;
  }
  context["messages"] = normalize_messages(request.messages);
  // As Hugging Face's renderer has them: always there, and none rather than empty.
  context["tools"] = request.tools.is_array() && !request.tools.empty() ? request.tools : Json();
  if (!context.contains("documents")) context["documents"] = nullptr;
  context["add_generation_prompt"] = request.add_generation_prompt;
  return context;
}

ChatPrompt ChatTemplate::render(const ChatRequest& request, const JinjaOptions& options) const {
  // Before anything is copied: copying recurses.
  check_nesting(request.messages, "messages");
  check_nesting(request.tools, "tools");
  check_nesting(request.template_kwargs, "chat_template_kwargs");
  check_tools(request.tools);
  check_kwargs(request);
  ChatPrompt prompt;
  Json context = make_context(request, prompt.unused_kwargs);
  if (request.continue_last_message) {
    render_continuation(prompt, std::move(context), options);
  } else {
    prompt.text = render_text(context, options);
    prompt.reasoning_start = reasoning_start(prompt.text, output_format_);
  }
  return prompt;
}

void ChatTemplate::render_continuation(ChatPrompt& prompt, Json context, const JinjaOptions& options) const {
  Json& messages = context["messages"];
  if (messages.empty() || messages.back()["role"] != "assistant")
    fail("messages: the last one must be the assistant's to be continued");
  const std::string content = text_or_empty(messages.back(), "content");
  const std::string reasoning = text_or_empty(messages.back(), "reasoning_content");
  const bool is_empty = content.empty() && reasoning.empty();
  context["add_generation_prompt"] = is_empty;
  if (is_empty) {
    messages.erase(messages.size() - 1);
    prompt.text = render_text(context, options);
    prompt.reasoning_start = reasoning_start(prompt.text, output_format_);
    return;
  }
  const char* const field = content.empty() ? "reasoning_content" : "content";
  messages.back()[field] = (content.empty() ? reasoning : content) + kContinueHere;
  prompt.text = render_text(context, options);
  const std::size_t cut = prompt.text.rfind(kContinueHere);
  if (cut == std::string::npos) fail("{}: the template does not show the {} of the last message", where_, field);
  prompt.text.resize(cut);
  if (content.empty() && output_format_.reasoning) prompt.reasoning_start = ReasoningStart::Open;
}

}  // namespace calandra
