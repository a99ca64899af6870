#pragma once
// Reads what a model writes: reasoning, content and tool calls (docs/model.md 8.3), as it comes. Works on text alone, so it does
// not matter whether a marker is one token or many. Whole texts go the same way as pieces: what comes out never depends on
// how the text was cut. Every byte of reasoning, content and string arguments is passed through once; nothing here throws on
// bad UTF-8 or malformed calls. If the pieces are whole characters, so are the deltas.

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// Which markers a model's output may hold. Taken from its template: what the template does not know is plain text.
struct OutputFormat {
  bool reasoning = false;                ///< <think>
  bool tool_calls = false;               ///< <tool_call> with <arg_key> and <arg_value>
  bool roles = false;                    ///< <role>
  std::vector<std::string> end_markers;  ///< what ends a turn, should it appear as text

  static OutputFormat of_template(std::string_view source);
};

/// How the output begins; the end of the prompt tells.
enum class ReasoningStart {
  Off,           ///< all is content
  ModelMayOpen,  ///< reasoning if the output begins with <think>
  Open,          ///< the prompt ends inside <think>
};

struct OutputEvent {
  enum class Kind {
    Reasoning,       ///< text: more of the reasoning
    Content,         ///< text: more of the content
    ToolBegin,       ///< text: the name of the call `index`
    ToolArguments,   ///< text: more of its arguments, a JSON object when all are put together
    ToolEnd,         ///< the call is complete
    ToolIncomplete,  ///< the output ended inside the call `index`: what was told of it, if anything, is void
  };
  Kind kind;
  int index = -1;
  std::string text;

  bool operator==(const OutputEvent&) const = default;
};

class OutputParser {
 public:
  /// `tools` as in a request of OpenAI's API, an array or null: their schemas say what type an argument has. Without any
  /// tool there are no calls, and markers of calls are dropped from the text. Throws Error for tools nested too deep.
  OutputParser(const OutputFormat& format, ReasoningStart start, const nlohmann::ordered_json& tools);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  std::vector<OutputEvent> push(std::string_view text);
  /// The output has ended. Nothing may be pushed after it.
  std::vector<OutputEvent> finish();
  /// A marker has ended the turn: what follows is dropped, and generation may stop.
  bool ended() const;
  /// What comes next is reasoning, unless a marker ends it.
  bool in_reasoning() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON text of an object

  bool operator==(const ToolCall&) const = default;
};

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  ///< complete ones only
  bool has_incomplete_call = false;

  void add(const std::vector<OutputEvent>& events);
};

/// push and finish in one.
ParsedOutput parse_output(std::string_view text, const OutputFormat& format, ReasoningStart start,
                          const nlohmann::ordered_json& tools);

}  // namespace calandra
