#include "cli/chat.h"

#include "base/mapped_file.h"
#include "cache/file_store.h"
#include "checkpoint/summary.h"
#include "cli/answer.h"
#include "cli/conversation.h"
#include "cli/line_reader.h"
#include "cli/open_model.h"
#include "cli/settings.h"
#include "cli/terminal.h"
#include "engine/session.h"

#include <algorithm>
#include <array>
#include <exception>

namespace calandra {
namespace {

using Json = Conversation::Json;

constexpr std::string_view kBlockMark = "\"\"\"";
constexpr std::string_view kBlanks = " \t\n";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

class Chat {
 public:
  Chat(const RunArguments& arguments, Model& model)
      : raw_(arguments.raw),
        verbose_(arguments.verbose),
        model_(model),
        session_(model),
        speculation_(model, {.setting = arguments.drafts}),
        options_(generation_options(arguments, model)),
        conversation_(conversation_for(arguments, model)),
        watch_(InterruptWatch::Second::Ignored),
        reader_(default_history_file()) {}

  int run() {
    write_out(fmt::format("{}{}{}, {} parameters. /help lists the commands, Ctrl-D leaves.\n", style_.bold,
                          short_name(model_.name()), style_.reset, short_count(parameters())));
    std::string text;
    while (!left_ && read_message(text)) {
      try {
        if (is_command(text)) {
          obey(text);
        } else if (text.empty() && conversation_.awaited_tool()) {
          write_note("/tool gives an empty result\n");
        } else if (!trim(text).empty()) {
          answer(text);
        }
      } catch (const std::exception& error) {
        write_note(message_of(error) + "\n");  // ends a turn, not the chat
      }
    }
    return kExitSuccess;
  }

 private:
  struct Command {
    std::string_view name;
    std::string_view argument;
    std::string_view help;
    void (Chat::*action)(std::string_view argument);
  };
  static const std::array<Command, 10> kCommands;

  std::int64_t parameters() const { return summarize(model_.checkpoint()).parameters; }

  // ---- reading

  /// A line that was typed, not a block; where a tool's result is awaited it may begin with / and be none.
  bool is_command(std::string_view text) const {
    if (is_block_ || !text.starts_with('/')) return false;
    return !conversation_.awaited_tool() || command_of(text) != kCommands.end();
  }

  /// One message, of several lines if a line ends with a backslash or if """ opens it. False at the end of input.
  bool read_message(std::string& text) {
    const std::optional<std::string> tool = conversation_.awaited_tool();
    std::string prompt = tool ? fmt::format("result of {}> ", for_terminal(*tool)) : "> ";
    text.clear();
    is_block_ = false;
    bool in_block = false;
    for (bool more = true; more; prompt = "... ") {
      std::string line;
      switch (reader_.read(prompt, line)) {
        case LineReader::Result::End: write_out("\n"); return false;
        case LineReader::Result::Interrupted:
          write_out("\n");
          text.clear();
          return true;
        case LineReader::Result::Line: break;
      }
      const bool opens = text.empty() && !in_block && line.starts_with(kBlockMark);
      if (opens) line.erase(0, kBlockMark.size());
      in_block = in_block || opens;
      is_block_ = is_block_ || opens;
      const bool closes = in_block && line.ends_with(kBlockMark);
      if (closes) line.erase(line.size() - kBlockMark.size());
      const bool continued = !in_block && line.ends_with('\\');
      if (continued) line.pop_back();
      more = in_block ? !closes : continued;
      text += line;
      if (more) text += '\n';
    }
    if (!trim(text).empty()) reader_.remember(text);
    return true;
  }

  // ---- answering

  void answer(const std::string& text) {
    if (conversation_.awaited_tool()) {
      conversation_.add_tool_result(text);
      if (conversation_.awaited_tool()) return;  // another call waits for its result
    } else {
      conversation_.add_user(text);
    }
    try {
      make_answer();
    } catch (...) {
      conversation_.drop_last();
      throw;
    }
  }

  void make_answer() {
    InterruptWatch::clear();
    ChatTurn turn = conversation_.next_turn(model_);
    if (!leaves_room(std::ssize(turn.tokens), session_.context())) {
      fail(
          "the conversation has {} tokens, which leaves no room for an answer in the context of {}: /reset begins another, or "
          "/save it and start again with a larger --context",
          with_commas(std::ssize(turn.tokens)), with_commas(session_.context()));
    }
    AnswerPrinter printer(raw_ ? AnswerPrinter::Show::Raw : AnswerPrinter::Show::Parsed, std::move(turn.parser));
    last_ = generate_and_print(model_, session_, turn.tokens, options_, printer, speculation_);
    const ParsedOutput answer = printer.finish();
    if (last_.ids.empty()) {
      conversation_.drop_last();
      write_note("[stopped before the answer began: the message is dropped]\n");
      return;
    }
    turn.tokens.insert(turn.tokens.end(), last_.ids.begin(), last_.ids.end());
    conversation_.add_answer(answer, std::move(turn.tokens));
    if (const std::string why = ending_line(last_); !why.empty()) write_note(fmt::format("[{}]\n", why));
    if (answer.has_incomplete_call) write_note("[a tool call is cut off and left out]\n");
    if (verbose_ || stderr_is_terminal()) write_note(fmt::format("[{}]\n", speed_line(last_)));
    if (verbose_) write_note(fmt::format("[{}]\n", settings_line(options_, model_)));
  }

  // ---- commands

  void obey(std::string_view text) {
    const auto command = command_of(text);
    if (command == kCommands.end()) fail("{}: no such command; /help lists them", first_word(text));
    const std::size_t space = text.find_first_of(kBlanks);
    const std::string_view argument = space == std::string_view::npos ? std::string_view() : trim(text.substr(space + 1));
    if (command->argument.empty() && !argument.empty())
      fail("{}: found '{}', expected nothing after it", command->name, argument);
    (this->*command->action)(argument);
  }

  static std::string_view first_word(std::string_view text) { return text.substr(0, text.find_first_of(kBlanks)); }

  static std::array<Command, 10>::const_iterator command_of(std::string_view text) {
    const auto is_it = [name = first_word(text)](const Command& command) { return command.name == name; };
    return std::find_if(kCommands.begin(), kCommands.end(), is_it);
  }

  void help(std::string_view) {
    std::string text;
    for (const Command& command : kCommands)
      text += fmt::format("  {:<16}{}\n", fmt::format("{} {}", command.name, command.argument), command.help);
    write_out(text +
              "A line that ends with \\ goes on in the next; \"\"\" begins and ends a text of several lines.\n"
              "Ctrl-C stops an answer or clears the line.\n");
  }

  void set_system(std::string_view argument) {
    conversation_.set_system(std::string(argument));
    write_out(argument.empty() ? "no system text\n" : "system text set\n");
  }

  void set_think(std::string_view argument) {
    if (argument != "on" && argument != "off") fail("/think: expected on or off");
    check_can_switch_thinking(model_);
    conversation_.set_think(argument == "on");
    write_out(fmt::format("thinking is {}\n", argument));
  }

  void set_tools(std::string_view argument) {
    argument.empty() ? conversation_.clear_tools() : conversation_.load_tools(argument);
    std::string names;
    for (const Json& tool : conversation_.tools()) {
      names += fmt::format(" {}", for_terminal(tool["function"]["name"].get<std::string>()));
    }
    write_out(names.empty() ? "no tools\n" : "tools:" + names + "\n");
  }

  void give_result(std::string_view argument) {
    const std::optional<std::string> tool = conversation_.awaited_tool();
    if (!tool) fail("/tool: no tool was called");
    answer(std::string(argument));
  }

  /// Where what was computed of a saved chat lies.
  static std::filesystem::path computed_beside(std::string_view file) { return std::string(file) + ".cache"; }

  void save(std::string_view argument) {
    if (argument.empty()) fail("/save: expected a file name");
    conversation_.save(argument, settings_as_json(options_, model_));
    write_out(fmt::format("{} messages saved\n", conversation_.num_messages()));
    if (!conversation_.tokens().empty())
      session_.save(std::make_shared<FileStore>(computed_beside(argument)), conversation_.tokens());
  }

  void load(std::string_view argument) {
    if (argument.empty()) fail("/load: expected a file name");
    Conversation loaded;
    const Json settings = loaded.load(argument);
    options_ = with_saved_settings(options_, settings, std::string(argument));
    conversation_ = std::move(loaded);
    if (const Json& model = settings.value("model", Json()); model.is_string() && model != short_name(model_.name()))
      write_note(fmt::format("note: saved with the model {}, this is {}\n", one_line(model.get<std::string>()),
                             short_name(model_.name())));
    write_out(fmt::format("{} messages loaded\n", conversation_.num_messages()));
    const std::int64_t tokens = std::ssize(conversation_.tokens());
    if (const auto folder = computed_beside(argument); tokens > 0 && tokens <= session_.context() && is_there(folder))
      session_.load(std::make_shared<FileStore>(folder), conversation_.tokens());
  }

  void reset(std::string_view) {
    conversation_.reset();
    write_out("the conversation is empty; system text, tools and settings stay\n");
  }

  void stats(std::string_view) {
    write_out(fmt::format("{}\nthinking {}, {} tools, {} messages, {} of {} tokens of context in use\n",
                          settings_line(options_, model_),
                          !conversation_.think()   ? "as the model does"
                          : *conversation_.think() ? "on"
                                                   : "off",
                          conversation_.tools().size(), conversation_.num_messages(),
                          with_commas(std::ssize(conversation_.tokens())), with_commas(session_.context())));
    if (last_.prompt_tokens > 0) write_out("last answer: " + speed_line(last_) + "\n");
  }

  void leave(std::string_view) { left_ = true; }

  const bool raw_, verbose_;
  Model& model_;
  Session session_;
  Speculation speculation_;
  GenerationOptions options_;
  Conversation conversation_;
  Generation last_;
  bool left_ = false;
  bool is_block_ = false;  // the message just read
  Style style_ = Style::of_stdout();
  InterruptWatch watch_;
  LineReader reader_;
};

const std::array<Chat::Command, 10> Chat::kCommands = {{
    {"/system", "[TEXT]", "set the system text, or remove it", &Chat::set_system},
    {"/think", "on|off", "whether the model reasons before it answers", &Chat::set_think},
    {"/tools", "[FILE]", "tools the model may call, a JSON array; without FILE none", &Chat::set_tools},
    {"/tool", "TEXT", "the result of a tool call; a plain line does the same", &Chat::give_result},
    {"/save", "FILE", "write messages, settings and token ids; beside it, in FILE.cache, what was computed", &Chat::save},
    {"/load", "FILE", "go on from a saved chat", &Chat::load},
    {"/reset", "", "forget the messages", &Chat::reset},
    {"/stats", "", "settings, context in use, speeds", &Chat::stats},
    {"/help", "", "this list", &Chat::help},
    {"/exit", "", "leave; so does Ctrl-D", &Chat::leave},
}};

}  // namespace

int chat(const RunArguments& arguments, Model& model) { return Chat(arguments, model).run(); }

}  // namespace calandra
