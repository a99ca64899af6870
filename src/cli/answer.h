#pragma once
// Shows an answer while it is made.

#include "cli/terminal.h"
#include "engine/generate.h"
#include "text/output_parser.h"

#include <optional>
#include <string>
#include <string_view>

namespace calandra {

/// Takes a model's text as it comes and writes to standard output what a person or a pipe should see of it: reasoning only on a
/// terminal, dimmed; tool calls as blocks. Ends with a line end.
class AnswerPrinter {
 public:
  enum class Show : std::uint8_t {
    Parsed,  // what the parser makes of the text
    Raw,     // the text as it is
    Nothing,
  };

  /// Without a parser all text is content.
  AnswerPrinter(Show show, std::optional<OutputParser> parser);
  ~AnswerPrinter();
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;

  /// False once the text has come to its end by a mark of the chat's; raw text has none.
  bool push(std::string_view text);
  ParsedOutput finish();

 private:
  void take(const std::vector<OutputEvent>& events);
  void show(const OutputEvent& event);
  void show_call(const ToolCall& call);
  void enter(OutputEvent::Kind part);
  void print(std::string_view text);

  Show show_;
  std::optional<OutputParser> parser_;
  ParsedOutput output_;
  bool on_terminal_;
  Style style_;
  std::optional<OutputEvent::Kind> part_;  // reasoning or content, whichever is being printed
  bool at_line_start_ = true;
};

/// Calls generate() and shows the answer on `printer`; a long prompt gets a progress bar, Ctrl-C ends the answer. An
/// InterruptWatch must be in place.
Generation generate_and_print(Model& model, Session& session, std::span<const std::int32_t> prompt,
                              const GenerationOptions& options, AnswerPrinter& printer, Speculation& speculation);

}  // namespace calandra
