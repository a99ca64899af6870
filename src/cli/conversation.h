#pragma once
// A chat as data: messages, tools, whether to think, and the tokens computed so far. Knows how to become a prompt and a file.

#include "cli/commands.h"
#include "engine/model.h"
#include "text/output_parser.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace calandra {

/// As messages hold them: {"type": "function", "function": {"name", "arguments": {}}}.
nlohmann::ordered_json as_json(const std::vector<ToolCall>& calls);

/// What a model is to go on with, and who reads what it then writes.
struct ChatTurn {
  std::vector<std::int32_t> tokens;
  OutputParser parser;
};

class Conversation {
 public:
  using Json = nlohmann::ordered_json;

  /// Empty: no system text.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }
  /// Unset: as the model's template does by itself.
  void set_think(std::optional<bool> think) { think_ = think; }
  std::optional<bool> think() const { return think_; }
  /// Throws Error that names the file, unless it holds an array of {"type": "function", "function": {"name": ...}}.
  void load_tools(const std::filesystem::path& file);
  /// Throws Error that names `where` unless it is an array of tools.
  void set_tools(Json tools, const std::string& where);
  void clear_tools() { tools_ = Json::array(); }
  const Json& tools() const { return tools_; }

  void add_user(const std::string& text);
  /// The result of the first call of the last answer that has none yet.
  void add_tool_result(const std::string& text);
  /// `tokens` is all that was computed: the prompt and what the model made.
  void add_answer(const ParsedOutput& answer, std::vector<std::int32_t> tokens);
  /// Takes the last message back.
  void drop_last();
  /// Forgets the messages.
  void reset();

  std::size_t num_messages() const { return messages_.size(); }
  /// Name of the tool whose result is to come next; nothing if none is waited for.
  std::optional<std::string> awaited_tool() const;
  std::span<const std::int32_t> tokens() const { return tokens_; }

  /// Asks for the next answer. The history keeps the tokens that were computed, as far as the template agrees with their text.
  ChatTurn next_turn(const Model& model) const;

  /// A file that load() takes; `settings` comes back from it. Throws Error that names the file.
  void save(const std::filesystem::path& file, const Json& settings) const;
  /// Replaces everything here; on an error nothing changes.
  Json load(const std::filesystem::path& file);

 private:
  Json all_messages() const;

  std::string system_;
  std::optional<bool> think_;
  Json tools_ = Json::array();
  Json messages_ = Json::array();     // without the system text
  std::vector<std::int32_t> tokens_;  // computed so far
};

/// Without messages; system text, thinking and tools as the command line says.
Conversation conversation_for(const RunArguments& arguments, const Model& model);

/// Throws Error if the model's template has no switch for thinking.
void check_can_switch_thinking(const Model& model);

}  // namespace calandra
