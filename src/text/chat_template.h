#pragma once
// Turns a conversation into the prompt that a checkpoint was trained on: its own chat template, or Ling's where it has none
// (docs/model.md 8.2). A request is checked and brought into one shape here; an error names the message and the field.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja.h"
#include "text/output_parser.h"

namespace calandra {

struct ChatRequest {
  /// As in OpenAI's API: role, content (text, null or an array of text parts, which are joined by newlines),
  /// reasoning_content (or reasoning), tool_calls with arguments as an object or as JSON text, tool_call_id.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;  ///< array or null
  std::optional<bool> thinking;  ///< unset: as the template does by itself
  bool add_generation_prompt = true;
  /// The answer goes on where the last message, of the assistant, ends. Excludes add_generation_prompt, which is ignored.
  bool continue_last_message = false;
  /// More variables for the template. enable_thinking and thinking are the same switch: templates read the one or the other. Refused:
  /// values of it that contradict each other or `thinking`, and names that the fields above make.
  nlohmann::ordered_json template_kwargs = nlohmann::ordered_json::object();
};

struct ChatPrompt {
  std::string text;
  ReasoningStart reasoning_start = ReasoningStart::Off;
  std::vector<std::string> unused_kwargs;  ///< keys of template_kwargs that the template never reads
};

class ChatTemplate {
 public:
  /// chat_template.jinja of a checkpoint's folder, else chat_template of its tokenizer_config.json, else Ling's.
  /// Throws Error for a file that cannot be read, is no JSON, or holds a template that cannot be parsed.
  static ChatTemplate load(const std::filesystem::path& folder);
  /// Throws Error for a template that cannot be parsed.
  static ChatTemplate from_source(std::string_view source, const std::string& where);
  static ChatTemplate built_in();

  /// Throws Error for a request that is malformed or nested deeper than 500, and for all that the template throws.
  ChatPrompt render(const ChatRequest& request, const JinjaOptions& options = {}) const;

  const OutputFormat& output_format() const { return output_format_; }
  /// True if the template reads a switch for thinking.
  bool can_switch_thinking() const;
  /// Where it came from: a file, or "built-in".
  const std::string& where() const { return where_; }

 private:
  nlohmann::ordered_json make_context(const ChatRequest& request, std::vector<std::string>& unused_kwargs) const;
  std::string render_text(const nlohmann::ordered_json& context, const JinjaOptions& options) const;
  void render_continuation(ChatPrompt& prompt, nlohmann::ordered_json context, const JinjaOptions& options) const;
  void read_tokenizer_config(const std::filesystem::path& file);
  bool reads(const std::string& variable) const;

  std::string where_ = "built-in";
  std::optional<JinjaTemplate> template_;           ///< unset: the built-in one
  std::optional<JinjaTemplate> tool_use_template_;  ///< what is used instead where there are tools
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();
  OutputFormat output_format_;
};

/// The conversation in the shape that templates expect: content text or null, arguments objects. A message
/// without content stays without. Throws Error.
nlohmann::ordered_json normalize_messages(const nlohmann::ordered_json& messages);

/// Ling's format (docs/model.md 8.2). `context` as a template gets it: messages, tools, enable_thinking or thinking,
/// add_generation_prompt.
std::string render_ling(const nlohmann::ordered_json& context);

}  // namespace calandra
