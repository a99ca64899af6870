#include "cli/conversation.h"

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/new_file.h"
#include "cli/open_model.h"
#include "engine/generate.h"

#include <algorithm>
#include <limits>

namespace calandra {
namespace {

using Json = Conversation::Json;

constexpr const char* kFormat = "calandra chat 1";

Json parse_file(const std::filesystem::path& file) { return parse_json(read_text_file(file), file.string()); }

bool is_tool(const Json& tool) {
  const auto function = tool.is_object() ? tool.find("function") : tool.end();
  return tool.is_object() && function != tool.end() && function->is_object() && function->value("name", Json()).is_string();
}

/// Throws Error unless it is an array of tools.
void check_tools(const Json& tools, const std::string& where) {
  bool good = tools.is_array();
  for (const Json& tool : tools) good = good && is_tool(tool);
  if (!good) fail(R"({}: expected an array of tools such as {{"type": "function", "function": {{"name": ...}}}})", where);
}

bool is_message(const Json& message) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) return false;
  for (const char* key : {"content", "reasoning_content"}) {
    if (message.contains(key) && !message[key].is_string()) return false;
  }
  if (!message.contains("tool_calls")) return true;
  bool good = message["tool_calls"].is_array();
  for (const Json& call : message["tool_calls"])
    good = good && is_tool(call) && call["function"].value("arguments", Json()).is_object();
  return good;
}

template <class Predicate>
const Json& expect(const Json& object, const char* key, const std::filesystem::path& file, const char* what, Predicate&& good) {
  const auto found = object.find(key);
  if (found == object.end() || !good(*found)) fail("{}: {}: expected {}", file.string(), key, what);
  return *found;
}

bool are_token_ids(const Json& ids) {
  bool good = ids.is_array();
  for (const Json& id : ids) good = good && id.is_number_integer() && id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
  return good;
}

}  // namespace

Json as_json(const std::vector<ToolCall>& calls) {
  Json json = Json::array();
  for (const ToolCall& call : calls) {
    Json arguments = try_parse_json(call.arguments).value_or(Json());
    if (!arguments.is_object()) arguments = Json::object();  // of text that is no UTF-8
    json.push_back({{"type", "function"}, {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
  }
  return json;
}

void Conversation::set_tools(Json tools, const std::string& where) {
  check_tools(tools, where);
  tools_ = std::move(tools);
}

void Conversation::load_tools(const std::filesystem::path& file) { set_tools(parse_file(file), file.string()); }

void Conversation::add_user(const std::string& text) { messages_.push_back({{"role", "user"}, {"content", text}}); }

void Conversation::add_tool_result(const std::string& text) { messages_.push_back({{"role", "tool"}, {"content", text}}); }

void Conversation::add_answer(const ParsedOutput& answer, std::vector<std::int32_t> tokens) {
  Json message = {{"role", "assistant"}, {"content", answer.content}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  if (!answer.tool_calls.empty()) message["tool_calls"] = as_json(answer.tool_calls);
  messages_.push_back(std::move(message));
  tokens_ = std::move(tokens);
}

void Conversation::drop_last() {
  if (!messages_.empty()) messages_.erase(messages_.size() - 1);
}

void Conversation::reset() {
  messages_ = Json::array();
  tokens_.clear();
}

std::optional<std::string> Conversation::awaited_tool() const {
  std::size_t results = 0;
  for (auto message = messages_.rbegin(); message != messages_.rend(); ++message) {
    if ((*message)["role"] == "tool") {
      ++results;
      continue;
    }
    const Json& calls = message->value("tool_calls", Json::array());
    if (results >= calls.size()) return std::nullopt;
    return calls[results]["function"]["name"].get<std::string>();
  }
  return std::nullopt;
}

Json Conversation::all_messages() const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  messages.insert(messages.end(), messages_.begin(), messages_.end());
  return messages;
}

ChatTurn Conversation::next_turn(const Model& model) const {
  const ChatPrompt prompt = model.chat_template().render({.messages = all_messages(), .tools = tools_, .thinking = think_});
  return {extend_tokens(model.tokenizer(), tokens_, prompt.text),
          OutputParser(model.chat_template().output_format(), prompt.reasoning_start, tools_)};
}

void Conversation::save(const std::filesystem::path& file, const Json& settings) const {
  const Json json = {{"format", kFormat},   {"system", system_},     {"think", think_ ? Json(*think_) : Json()},
                     {"tools", tools_},     {"messages", messages_}, {"settings", settings},
                     {"token_ids", tokens_}};
  write_text_file(file, dump_json(json, 1) + "\n");
}

Json Conversation::load(const std::filesystem::path& file) {
  const Json json = parse_file(file);
  if (!json.is_object() || json.value("format", Json()) != kFormat)
    fail("{}: expected a chat saved by /save ({})", file.string(), kFormat);
  Conversation loaded;
  loaded.system_ = expect(json, "system", file, "text", [](const Json& value) { return value.is_string(); });
  const Json& think =
      expect(json, "think", file, "true, false or null", [](const Json& value) { return value.is_boolean() || value.is_null(); });
  if (think.is_boolean()) loaded.think_ = think.get<bool>();
  loaded.tools_ = expect(json, "tools", file, "an array", [](const Json& value) { return value.is_array(); });
  check_tools(loaded.tools_, file.string());
  loaded.messages_ = expect(json, "messages", file, "an array of messages", [](const Json& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is_message);
  });
  loaded.tokens_ = expect(json, "token_ids", file, "an array of token ids", are_token_ids).get<std::vector<std::int32_t>>();
  Json settings = expect(json, "settings", file, "an object", [](const Json& value) { return value.is_object(); });
  *this = std::move(loaded);
  return settings;
}

void check_can_switch_thinking(const Model& model) {
  if (!model.chat_template().can_switch_thinking())
    fail("{}: this chat template has no switch for thinking", model.chat_template().where());
}

Conversation conversation_for(const RunArguments& arguments, const Model& model) {
  Conversation conversation;
  conversation.set_system(arguments.system.value_or(""));
  if (arguments.think) check_can_switch_thinking(model);
  conversation.set_think(arguments.think);
  if (const auto& file = arguments.tools_file)
    conversation.set_tools(parse_json(read_input(*file), input_name(*file)), input_name(*file));
  return conversation;
}

}  // namespace calandra
