#include "cli/answer.h"

#include "base/error.h"
#include "base/json.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <utility>

namespace calandra {
namespace {

using Kind = OutputEvent::Kind;

}  // namespace

AnswerPrinter::AnswerPrinter(Show show, std::optional<OutputParser> parser)
    : show_(show), parser_(std::move(parser)), on_terminal_(stdout_is_terminal()), style_(Style::of_stdout()) {}

bool AnswerPrinter::push(std::string_view text) {
  if (show_ == Show::Raw) print(text);
  if (!parser_) {
    take({{.kind = Kind::Content, .text = std::string(text)}});
    return true;
  }
  take(parser_->push(text));
  return show_ == Show::Raw || !parser_->ended();
}

AnswerPrinter::~AnswerPrinter() {
  if (part_ == Kind::Reasoning) std::fwrite(style_.reset.data(), 1, style_.reset.size(), stdout);  // an error in mid-thought
}

ParsedOutput AnswerPrinter::finish() {
  if (parser_) take(parser_->finish());
  if (part_ == Kind::Reasoning) write_out(style_.reset);
  part_.reset();
  if (!at_line_start_) write_out("\n");
  return std::move(output_);
}

void AnswerPrinter::take(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    output_.add({event});
    if (show_ == Show::Parsed) show(event);
  }
}

void AnswerPrinter::show(const OutputEvent& event) {
  switch (event.kind) {
    case Kind::Reasoning:
      if (!on_terminal_) return;
      [[fallthrough]];
    case Kind::Content:
      enter(event.kind);
      print(event.text);
      return;
    case Kind::ToolEnd: show_call(output_.tool_calls.back()); return;
    case Kind::ToolBegin:
    case Kind::ToolArguments:
    case Kind::ToolIncomplete: return;
  }
}

/// Reasoning and content are a line apart and of different brightness.
void AnswerPrinter::enter(Kind part) {
  if (part_ == part) return;
  if (part_ == Kind::Reasoning) write_out(style_.reset);
  if (!at_line_start_) print("\n");
  if (part == Kind::Reasoning) write_out(style_.dim);
  part_ = part;
}

void AnswerPrinter::show_call(const ToolCall& call) {
  enter(Kind::Content);
  if (!at_line_start_) print("\n");
  std::string text = fmt::format("[call] {}\n", call.name);
  if (const std::optional<Json> arguments = try_parse_json(call.arguments)) {
    for (const auto& [name, value] : arguments->items()) text += fmt::format("  {}: {}\n", name, dump_json(value));
  } else {
    text += fmt::format("  {}\n", call.arguments);  // of text that is no UTF-8
  }
  print(text);
}

void AnswerPrinter::print(std::string_view text) {
  if (text.empty()) return;
  write_out(on_terminal_ ? for_terminal(text) : std::string(text));
  at_line_start_ = text.back() == '\n';
}

Generation generate_and_print(Model& model, Session& session, std::span<const std::int32_t> prompt,
                              const GenerationOptions& options, AnswerPrinter& printer, Speculation& speculation) {
  ProgressBar bar("Reading the prompt");
  return generate(model, session, prompt, options,
                  {.prompt = [&](std::int64_t done, std::int64_t total) { bar.update(done, total); },
                   .text =
                       [&](std::string_view text) {
                         bar.clear();
                         return printer.push(text);
                       },
                   .cancelled = InterruptWatch::pending},
                  &speculation);
}

}  // namespace calandra
