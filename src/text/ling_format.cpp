// Ling's prompt format, for checkpoints that come without a template. The bundled model's template says the same in Jinja.

#include "base/json.h"
#include "text/chat_template.h"
#include "text/jinja_value.h"

#include <algorithm>

namespace calandra {
namespace {

constexpr std::string_view kTurnEnd = "<|role_end|>";
constexpr std::string_view kThinkingOn = "detailed thinking on";
constexpr std::string_view kThinkingOff = "detailed thinking off";

constexpr std::string_view kBeforeTools =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kAfterTools =
    "\n</tools>\n\nIf none of the functions can be used, point it out. If the given question lacks the parameters required by "
    "the function, also point it out.\nIf you need to use a function, for each function call, output the function name and "
    "arguments within the following XML format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n"
    "<arg_value>{arg-value-1}</arg_value>\n<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n"
    "</tool_call>\n";

std::string_view text_of(const Json& message, const char* key) {
  const auto field = message.find(key);
  return field != message.end() && field->is_string() ? std::string_view(field->get_ref<const std::string&>())
                                                      : std::string_view();
}

std::string_view strip_front(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}
std::string_view strip_back(std::string_view text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

/// Arguments and tools are written as the template's tojson does.
std::string json_text(const Json& value) {
  jinja::Budget budget = jinja::Budget::unlimited();
  return jinja::to_json(budget, jinja::Value::from_json(value));
}

void append_header(std::string& out, const Json& messages, const Json& tools, bool thinking) {
  std::string_view system;
  if (!messages.empty() && text_of(messages[0], "role") == "system") system = text_of(messages[0], "content");
  const bool has_directive = system.find(kThinkingOn) != system.npos || system.find(kThinkingOff) != system.npos;
  out.append("<role>SYSTEM</role>").append(system);
  if (!tools.empty()) {
    if (!system.empty()) out += '\n';
    out += kBeforeTools;
    for (const Json& tool : tools) out.append("\n").append(json_text(tool));
    out += kAfterTools;
  } else if (!has_directive && !system.empty()) {
    out += '\n';
  }
  if (!has_directive) out += thinking ? kThinkingOn : kThinkingOff;
  out += kTurnEnd;
}

void append_tool_calls(std::string& out, const Json& calls, bool after_content) {
  for (const Json& call : calls) {
    const Json& function = call.contains("function") ? call["function"] : call;
    if (after_content) out += '\n';
    after_content = true;
    out.append("<tool_call>").append(text_of(function, "name"));
    if (const auto arguments = function.find("arguments"); arguments != function.end()) {
      for (const auto& [key, value] : arguments->items()) {
        out.append("<arg_key>").append(key).append("</arg_key>\n<arg_value>");
        out.append(value.is_string() ? value.get<std::string>() : json_text(value)).append("</arg_value>");
      }
    }
    out += "\n</tool_call>";
  }
}

void append_assistant(std::string& out, const Json& message) {
  std::string_view content = text_of(message, "content");
  std::string_view reasoning = text_of(message, "reasoning_content");
  constexpr std::string_view kEnd = "</think>", kBegin = "<think>";
  if (const std::size_t end = content.find(kEnd); reasoning.empty() && end != content.npos) {
    reasoning = strip_back(content.substr(0, end));
    if (const std::size_t begin = reasoning.rfind(kBegin); begin != reasoning.npos)
      reasoning.remove_prefix(begin + kBegin.size());
    reasoning = strip_front(reasoning);
    content = strip_front(content.substr(content.rfind(kEnd) + kEnd.size()));
  }
  out += "<role>ASSISTANT</role>\n<think>";
  if (!reasoning.empty()) {
    out += strip_front(strip_back(reasoning));
    content = strip_front(content);
  }
  out.append("</think>").append(content);
  if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array()) {
    append_tool_calls(out, *calls, !content.empty());
  }
  out += kTurnEnd;
}

/// The switch is off for false and for what counts as false in a template.
bool thinking_of(const Json& context) {
  for (const char* key : {"enable_thinking", "thinking"}) {
    if (const auto value = context.find(key); value != context.end()) return jinja::Value::from_json(*value).truth();
  }
  return true;
}

}  // namespace

std::string render_ling(const Json& context) {
  const Json& messages = context.at("messages");
  const bool thinking = thinking_of(context);
  std::string out;
  append_header(out, messages, context.value("tools", Json()), thinking);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string_view role = text_of(message, "role");
    const std::string_view content = text_of(message, "content");
    const auto is_tool = [&](std::size_t k) { return k < messages.size() && text_of(messages[k], "role") == "tool"; };
    if (role == "system" && i > 0) out.append("<role>SYSTEM</role>").append(content).append(kTurnEnd);
    if (role == "user") out.append("<role>HUMAN</role>").append(content).append(kTurnEnd);
    if (role == "assistant") append_assistant(out, message);
    if (role == "tool") {
      if (i == 0 || !is_tool(i - 1)) out += "<role>OBSERVATION</role>";
      out.append("\n<tool_response>\n").append(content).append("\n</tool_response>");
      if (!is_tool(i + 1)) out += kTurnEnd;
    }
  }
  if (context.value("add_generation_prompt", false)) {
    out.append("<role>ASSISTANT</role>\n<think>").append(thinking ? "" : "</think>");
  }
  return out;
}

}  // namespace calandra
