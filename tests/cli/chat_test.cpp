// A person at a terminal: `calandra run`.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A chat with its own history file that ends each answer in the same way on every machine.
class ChatTest : public testing::Test {
 protected:
  std::map<std::string, std::string> environment() const { return {{"XDG_STATE_HOME", folder_ / "state"}}; }
  static Arguments arguments(const Arguments& more = {}, const char* temperature = "0") {
    Arguments all = {"run", "--temp", temperature, "--activations", "fp32", "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Types a line once the line editor asks for it, which it does when the terminal is set up: a terminal echoes what comes
  /// earlier in its own way. Returns what was on the screen until then.
  static std::string say(TerminalRun& chat, const std::string& line, const std::string& prompt = "\r\n> ") {
    std::string before = chat.expect(prompt);
    chat.type(line + "\n");
    return before;
  }

  /// Leaves once asked for a line; returns what was on the screen until then.
  static std::string leave(TerminalRun& chat) {
    std::string before = say(chat, "/exit");
    EXPECT_EQ(chat.wait(), 0);
    return before;
  }

  /// What was on the screen, without progress bars and times.
  static std::string lasting(const std::string& screen) {
    static const std::regex passing("\r\x1b\\[K[^\r\n]*|\\[[^\r\n\\]]*tokens/s\\]\r\n");
    return std::regex_replace(screen, passing, "");
  }

  TemporaryFolder folder_;
};

TEST_F(ChatTest, SecondTurnKnowsTheFirst) {
  TerminalRun chat(arguments({"--think", "off"}), environment());
  say(chat, "My name is Clara and I live in Lisbon.");
  say(chat, "What is my name?");
  EXPECT_THAT(chat.expect("\r\n> "), HasSubstr("Your name is Clara."));
  chat.type(kControlD);
  EXPECT_EQ(chat.wait(), 0);
}

TEST_F(ChatTest, ReasoningIsDimmedUnlessColoursAreUnwanted) {
  for (const bool plain : {false, true}) {
    auto variables = environment();
    if (plain) variables["NO_COLOR"] = "1";
    TerminalRun chat(arguments({"--think", "on"}), variables);
    say(chat, "Write a passage about Elizabeth.");
    const std::string thought = "The user asks for a passage about Elizabeth.";
    const std::string screen = chat.expect(thought + (plain ? "" : "\x1b[0m"));
    EXPECT_EQ(screen.find("\x1b[2m" + thought) == std::string::npos, plain) << screen;
  }
}

TEST_F(ChatTest, ControlCStopsTheAnswerAndTheNextTurnWorks) {
  // Nothing else ends this answer before the context does.
  TerminalRun chat(arguments({"--think", "off", "--raw", "--ignore-eos"}), environment());
  say(chat, "Write a passage about Emma.");
  chat.expect("Emma was");
  chat.type(kControlC);
  chat.expect("[stopped]");
  say(chat, "Write a passage about Bath.");
  chat.expect("<|role_end|>");
  chat.type(kControlC);
  say(chat, "/stats");
  EXPECT_THAT(leave(chat), HasSubstr("4 messages"));
}

/// Takes seconds to read.
std::string long_text() {
  std::string text;
  while (text.size() < 60'000) text += "It is a truth universally acknowledged, that a single man must be in want of a wife. ";
  return text;
}

TEST_F(ChatTest, ControlCStopsAPromptThatIsBeingRead) {
  TerminalRun chat(arguments({"--system", long_text()}), environment());
  say(chat, "Hello");
  chat.expect("Reading the prompt [");
  chat.type(kControlC);
  chat.expect("the message is dropped");
  say(chat, "/stats");
  EXPECT_THAT(leave(chat), HasSubstr("0 messages"));
}

TEST_F(ChatTest, ControlCClearsTheLine) {
  TerminalRun chat(arguments(), environment());
  chat.expect("\r\n> ");
  chat.type("/exit");
  chat.expect("/exit");
  chat.type(kControlC);
  say(chat, "/think off");  // alone on its line, or it would be no command
  EXPECT_THAT(leave(chat), HasSubstr("thinking is off"));
}

TEST_F(ChatTest, SavedChatGoesOnWhereItWas) {
  const std::string file = folder_ / "chat.json";
  TerminalRun chat(arguments({"--think", "off"}), environment());
  say(chat, "My name is Clara and I live in Lisbon.");
  say(chat, "/save " + file);
  chat.expect("2 messages saved");
  say(chat, "/reset");
  chat.expect("the conversation is empty");
  say(chat, "/load " + file);
  chat.expect("2 messages loaded");
  say(chat, "What is my name?");
  EXPECT_THAT(leave(chat), HasSubstr("Your name is Clara."));

  const Json saved = read_json(file);
  EXPECT_EQ(saved["messages"].size(), 2U);
  EXPECT_EQ(saved["think"], false);
  EXPECT_GT(saved["token_ids"].size(), 10U);
  EXPECT_EQ(saved["settings"]["temperature"], 0.0);
}

TEST_F(ChatTest, LoadedChatAnswersAsTheOneThatWasNeverLeft) {
  const std::string file = folder_ / "chat.json";
  const std::string question = "Write a passage about Bath.";
  TerminalRun stayed(arguments({"--seed", "5"}, "0.7"), environment());
  say(stayed, "Who is Mr. Darcy?");
  say(stayed, "/save " + file);
  stayed.expect("saved");
  say(stayed, question);
  const std::string first = lasting(leave(stayed));

  TerminalRun loaded(arguments({"--seed", "6"}), environment());  // the saved settings count
  say(loaded, "/load " + file);
  loaded.expect("loaded");
  say(loaded, question);
  const std::string screen = leave(loaded);
  EXPECT_EQ(lasting(screen), first);
  EXPECT_GT(first.size(), question.size() + 20);
  EXPECT_THAT(screen, testing::ContainsRegex("[0-9]+ prompt tokens \\([0-9]+ reused\\)"))
      << "what was computed is beside the file";
}

TEST_F(ChatTest, SpeedsAreToldAfterEachAnswer) {
  TerminalRun chat(arguments({"--think", "off"}), environment());
  say(chat, "Hello");
  EXPECT_THAT(
      leave(chat),
      testing::ContainsRegex(
          "[0-9]+ prompt tokens at [0-9.]+ tokens/s, [0-9]+ made( \\([0-9]+ of [0-9]+ drafts accepted\\))? at [0-9.]+ tokens/s"));
}

TEST_F(ChatTest, ABlockMayBeginWithASlash) {
  TerminalRun chat(arguments({"--think", "off"}), environment());
  say(chat, "\"\"\"/no/such/command\"\"\"");
  say(chat, "/stats");
  EXPECT_THAT(leave(chat), HasSubstr("2 messages"));
}

TEST_F(ChatTest, ResetForgets) {
  TerminalRun chat(arguments({"--think", "off"}), environment());
  say(chat, "Hello");
  say(chat, "/reset");
  say(chat, "/stats");
  EXPECT_THAT(leave(chat), HasSubstr("0 messages, 0 of"));
}

TEST_F(ChatTest, TypedLineAfterAToolCallIsItsResult) {
  const std::string tools = folder_ / "tools.json";
  write_file(tools, R"([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
  TerminalRun chat(arguments({"--think", "off"}), environment());
  say(chat, "/tools " + tools);
  chat.expect("tools: get_weather");
  say(chat, "What is the weather in Paris?");
  chat.expect("[call] get_weather");
  say(chat, R"({"temperature": 22, "condition": "sunny"})", "result of get_weather> ");
  EXPECT_THAT(leave(chat), HasSubstr("Paris"));
}

TEST_F(ChatTest, LinesThatGoOnAreOneMessage) {
  const std::string file = folder_ / "chat.json";
  TerminalRun chat(arguments({"--think", "off", "--max-tokens", "2"}), environment());
  say(chat, "one\\");
  say(chat, "two", "... ");
  say(chat, "\"\"\"three");
  say(chat, "", "... ");
  say(chat, "four\"\"\"", "... ");
  say(chat, "/save " + file);
  chat.expect("saved");
  const Json messages = read_json(file)["messages"];
  EXPECT_EQ(messages.at(0)["content"], "one\ntwo");
  EXPECT_EQ(messages.at(2)["content"], "three\n\nfour");
}

TEST_F(ChatTest, MistakesAreOneLineAndTheChatGoesOn) {
  const std::string half = folder_ / "half.json";
  write_file(half, R"({"format": "calandra chat 1", "system": "", "think": null, "tools": [], "messages": [], "token_ids": [],
    "settings": {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 2, "stop": []}})");
  const std::string biased = folder_ / "biased.json";
  write_file(biased, R"({"format": "calandra chat 1", "system": "", "think": null, "tools": [], "messages": [], "token_ids": [],
    "settings": {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1, "logit_bias": {"x": 1}, "max_tokens": 2, "stop": []}})");
  const std::map<std::string, std::string> mistakes = {
      {"/load " + biased, "logit_bias: "},
      {"/load " + half, "settings: seed is missing"},
      {"/reset it", "found 'it', expected nothing after it"},
      {"/fly", "/fly: no such command"},
      {"/load /no/such/file", "/no/such/file: "},
      {"/think maybe", "expected on or off"},
      {"/tools " CALANDRA_SOURCE_DIR "/models/austen-5m/config.json", "expected an array of tools"},
      {"/save /no/such/folder/file", "/no/such/folder/file"},
  };
  TerminalRun chat(arguments(), environment());
  for (const auto& [line, answer] : mistakes) {
    say(chat, line);
    chat.expect("\r\n");
    chat.expect(answer);
  }
  say(chat, "/help");
  EXPECT_THAT(leave(chat), HasSubstr("/reset"));
}

TEST_F(ChatTest, HistoryOutlivesTheProgramAndIsPrivate) {
  {
    TerminalRun chat(arguments({"--max-tokens", "1"}), environment());
    say(chat, "Who is Mr. Knightley?");
    leave(chat);
  }
  const std::filesystem::path file = folder_ / "state/calandra/history";
  EXPECT_EQ(
      std::filesystem::status(file).permissions() & (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
      std::filesystem::perms::none);
  TerminalRun chat(arguments({"--max-tokens", "1"}), environment());
  chat.expect("\r\n> ");
  chat.type("\x1b[A\x1b[A");  // the arrow up, twice: past /exit
  chat.expect("Knightley?");
}

TEST_F(ChatTest, AChatWithAnotherModelIsRemarked) {
  const std::string file = folder_ / "chat.json";
  write_file(file, R"({"format": "calandra chat 1", "system": "", "think": null, "tools": [], "messages": [], "token_ids": [],
    "settings": {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1, "max_tokens": 2, "stop": [], "model": "austen-5b"}})");
  TerminalRun chat(arguments(), environment());
  say(chat, "/load " + file);
  EXPECT_THAT(leave(chat), HasSubstr("note: saved with the model austen-5b, this is austen-5m"));
}

TEST_F(ChatTest, ChatsAtTheSameTimeKeepEachOthersHistory) {
  TerminalRun first(arguments({"--max-tokens", "1"}), environment());
  say(first, "Emma");
  {
    TerminalRun second(arguments({"--max-tokens", "1"}), environment());
    say(second, "Persuasion");
    leave(second);
  }
  say(first, "Sanditon");
  leave(first);
  const std::string history = read_text_file(folder_ / "state/calandra/history");
  for (const char* line : {"Emma", "Persuasion", "Sanditon"}) {
    const std::size_t at = history.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    EXPECT_EQ(history.find(line, at + 1), std::string::npos) << line << " twice";
  }
}

TEST_F(ChatTest, OneShotAtATerminalIsInterruptedWithItsOwnExitCode) {
  TerminalRun run(arguments({"-p", "It is a truth", "--ignore-eos", "-n", "0"}), environment());
  run.expect(" the ");
  run.type(kControlC);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_THAT(run.rest(), HasSubstr("[stopped; "));
}

}  // namespace
}  // namespace calandra
