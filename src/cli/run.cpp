#include "base/json.h"
#include "cli/answer.h"
#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/open_model.h"
#include "cli/settings.h"
#include "cli/terminal.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <memory>

namespace calandra {
namespace {

/// The one text. A file's last line end is not part of it.
std::string read_text(const RunArguments& arguments) {
  const std::filesystem::path read_from = arguments.prompt_file.value_or("-");
  std::string text = arguments.prompt ? *arguments.prompt : read_input(read_from);
  if (!arguments.prompt && text.ends_with('\n')) text.pop_back();
  if (text.empty()) {
    fail("{}: found no text, expected a prompt", arguments.prompt ? "--prompt" : input_name(read_from));
  }
  return text;
}

void check_usage(const RunArguments& arguments) {
  if (arguments.json && arguments.is_interactive)
    throw UsageError("--json prints one answer: give a text with -p, -f or standard input");
  if (arguments.ignore_eos && arguments.uses_template() && !arguments.raw)
    throw UsageError("--ignore-eos goes on after the answer: in a chat it needs --raw");
  if (arguments.json && arguments.raw) throw UsageError("--raw and --json exclude each other; --json has the raw text too");
}

/// All about one answer, as --json prints it.
Json as_json(std::span<const std::int32_t> prompt, const Generation& made, const ParsedOutput& answer) {
  return {{"text", answer.content},
          {"reasoning", answer.reasoning},
          {"tool_calls", as_json(answer.tool_calls)},
          {"incomplete_tool_call", answer.has_incomplete_call},
          {"raw_text", made.text},
          {"finish_reason", name_of(made.finish_reason)},
          {"prompt_ids", prompt},
          {"ids", made.ids},
          {"usage",
           {{"prompt_tokens", made.prompt_tokens},
            {"reused_tokens", made.reused_tokens},
            {"completion_tokens", made.ids.size()},
            {"accepted_draft_tokens", made.accepted_drafts},
            {"rejected_draft_tokens", made.rejected_drafts}}},
          {"timings",
           {{"prompt_seconds", made.prompt_seconds},
            {"prompt_tokens_per_second", made.prompt_tokens_per_second()},
            {"generation_seconds", made.generation_seconds},
            {"generation_tokens_per_second", made.generation_tokens_per_second()}}}};
}

/// For those who watch, on standard error; and for those who would wonder where the text is.
void tell(const Generation& made, const GenerationOptions& options, const Model& model, bool verbose, bool printed_nothing) {
  const std::string why = ending_line(made);
  if (!verbose && !stderr_is_terminal() && !(printed_nothing && !why.empty())) return;
  std::string text = fmt::format("[{}{}{}]\n", why, why.empty() ? "" : "; ", speed_line(made));
  if (verbose) text += fmt::format("[{}]\n", settings_line(options, model));
  write_note(text);
}

int answer_once(const RunArguments& arguments, Model& model, const std::string& text, double load_seconds) {
  const GenerationOptions options = generation_options(arguments, model);
  std::vector<std::int32_t> prompt;
  std::optional<OutputParser> parser;
  if (arguments.uses_template()) {
    Conversation conversation = conversation_for(arguments, model);
    conversation.add_user(text);
    ChatTurn turn = conversation.next_turn(model);
    prompt = std::move(turn.tokens);
    parser = std::move(turn.parser);
  } else {
    prompt = model.tokenizer().encode(text);
  }

  Session session(model);
  Speculation speculation(model, {.setting = arguments.drafts});
  const InterruptWatch watch(InterruptWatch::Second::EndsProgram);
  AnswerPrinter printer(arguments.json  ? AnswerPrinter::Show::Nothing
                        : arguments.raw ? AnswerPrinter::Show::Raw
                                        : AnswerPrinter::Show::Parsed,
                        std::move(parser));
  const Generation made = generate_and_print(model, session, prompt, options, printer, speculation);
  const ParsedOutput answer = printer.finish();

  if (arguments.json) {
    Json json = as_json(prompt, made, answer);
    json["timings"]["load_seconds"] = load_seconds;
    json["seed"] = options.sampling.seed;
    json["settings"] = settings_as_json(options, model);
    write_out(dump_json(json) + "\n");
  }
  tell(made, options, model, arguments.verbose,
       !arguments.json && !arguments.raw && answer.content.empty() && answer.tool_calls.empty());
  return made.finish_reason == FinishReason::Cancelled ? kExitInterrupted : kExitSuccess;
}

}  // namespace

int run_command(RunArguments arguments) {
  arguments.is_interactive = !arguments.prompt && !arguments.prompt_file && stdin_is_terminal();
  check_usage(arguments);
  const std::string text = arguments.is_interactive ? std::string() : read_text(arguments);
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Model> model = open_model(arguments.model, arguments.drafts.drafts > 0);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return arguments.is_interactive ? chat(arguments, *model) : answer_once(arguments, *model, text, load_seconds);
}

}  // namespace calandra
