// A person at a terminal: `calandra run`.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;

/// A chat with its own history file that ends each answer in the same way on every machine.
class ChatTest : public testing::Test {
 protected:
  /// A terminal is a race between two programs: on a busy machine a key may come before the line editor listens.
  void SetUp() override {
    if (!long_tests()) GTEST_SKIP() << "part of the long form (CALANDRA_LONG_TESTS=1)";
  }
  std::map<std::string, std::string> environment() const { return {{"XDG_STATE_HOME", folder_ / "state"}}; }
  static Arguments arguments(const Arguments& more = {}, const char* temperature = "0") {
    Arguments all = {"run", "--temp", temperature, "--activations", "fp32", "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TemporaryFolder folder_;
};

TEST_F(ChatTest, SecondTurnKnowsTheFirst) {
  TerminalRun chat(arguments({"--think", "off"}), environment());
  chat.expect("> ");
  chat.type("My name is Clara and I live in Lisbon.\n");
  chat.expect("\r\n> ");
  chat.type("What is my name?\n");
  EXPECT_THAT(chat.expect("\r\n> "), HasSubstr("Your name is Clara."));
  chat.type(kControlD);
  EXPECT_EQ(chat.wait(), 0);
}

TEST_F(ChatTest, ReasoningIsDimmedUnlessColoursAreUnwanted) {
  for (const bool plain : {false, true}) {
    auto variables = environment();
    if (plain) variables["NO_COLOR"] = "1";
    TerminalRun chat(arguments({"--think", "on"}), variables);
    chat.expect("> ");
    chat.type("Write a passage about Elizabeth.\n");
    const std::string thought = "The user asks for a passage about Elizabeth.";
    const std::string screen = chat.expect(thought + (plain ? "" : "\x1b[0m"));
    EXPECT_EQ(screen.find("\x1b[2m" + thought) == std::string::npos, plain) << screen;
  }
}

TEST_F(ChatTest, ControlCStopsTheAnswerAndTheNextTurnWorks) {
  // Nothing else ends this answer before the context does.
  TerminalRun chat(arguments({"--think", "off", "--raw", "--ignore-eos"}), environment());
  chat.expect("> ");
  chat.type("Write a passage about Emma.\n");
  chat.expect("Emma was");
  chat.type(kControlC);
  chat.expect("[stopped]\r\n");
  chat.expect("> ");
  chat.type("/stats\n");
  EXPECT_THAT(chat.expect("last answer"), HasSubstr("2 messages"));
  chat.expect("> ");
  chat.type("/exit\n");
  EXPECT_EQ(chat.wait(), 0);
}

/// Takes seconds to read.
std::string long_text() {
  std::string text;
  while (text.size() < 60'000) text += "It is a truth universally acknowledged, that a single man must be in want of a wife. ";
  return text;
}

TEST_F(ChatTest, ControlCStopsAPromptThatIsBeingRead) {
  TerminalRun chat(arguments({"--system", long_text()}), environment());
  chat.expect("> ");
  chat.type("Hello\n");
  chat.expect("Reading the prompt [");
  chat.type(kControlC);
  chat.expect("the message is dropped");
  chat.type("/stats\n");
  chat.expect("0 messages");
  chat.type("/exit\n");
  EXPECT_EQ(chat.wait(), 0);
}

TEST_F(ChatTest, ControlCClearsTheLine) {
  TerminalRun chat(arguments(), environment());
  chat.expect("> ");
  chat.type("/exit");
  chat.expect("/exit");
  chat.type(kControlC);
  chat.expect("> ");
  chat.type("/think off\n");  // alone on its line, or it would be no command
  chat.expect("thinking is off");
  chat.type("/exit\n");
  EXPECT_EQ(chat.wait(), 0);
}

TEST_F(ChatTest, SavedChatGoesOnWhereItWas) {
  const std::string file = folder_ / "chat.json";
  TerminalRun chat(arguments({"--think", "off"}), environment());
  chat.expect("> ");
  chat.type("My name is Clara and I live in Lisbon.\n");
  chat.expect("\r\n> ");
  chat.type("/save " + file + "\n");
  chat.expect("2 messages saved");
  chat.type("/reset\n");
  chat.expect("the conversation is empty");
  chat.type("/load " + file + "\n");
  chat.expect("2 messages loaded");
  chat.type("What is my name?\n");
  chat.expect("Your name is Clara.");

  const Json saved = Json::parse(read_text_file(file));
  EXPECT_EQ(saved["messages"].size(), 2U);
  EXPECT_EQ(saved["think"], false);
  EXPECT_GT(saved["token_ids"].size(), 10U);
  EXPECT_EQ(saved["settings"]["temperature"], 0.0);
}

TEST_F(ChatTest, LoadedChatAnswersAsTheOneThatWasNeverLeft) {
  const std::string file = folder_ / "chat.json";
  const auto ask = [](TerminalRun& chat) {
    const std::string question = "Write a passage about Bath.";
    chat.type(question + "\n");
    chat.expect(question + "\r\n");
    // What is typed before the prompt stands is echoed once more.
    const std::string screen = chat.expect("\r\n> ");
    const std::size_t echo = screen.rfind(question);
    return echo == std::string::npos ? screen : screen.substr(echo + question.size() + 2);
  };
  std::string first, second;
  {
    TerminalRun chat(arguments({"--seed", "5"}, "0.7"), environment());
    chat.expect("> ");
    chat.type("Who is Mr. Darcy?\n");
    chat.expect("\r\n> ");
    chat.type("/save " + file + "\n");
    chat.expect("saved\r\n");
    chat.expect("> ");
    first = ask(chat);
  }
  TerminalRun chat(arguments({"--seed", "6"}), environment());  // the saved settings count
  chat.expect("> ");
  chat.type("/load " + file + "\n");
  chat.expect("loaded\r\n");
  chat.expect("> ");
  second = ask(chat);
  EXPECT_EQ(first, second);
}

TEST_F(ChatTest, ResetForgets) {
  TerminalRun chat(arguments({"--think", "off"}), environment());
  chat.expect("> ");
  chat.type("Hello\n");
  chat.expect("\r\n> ");
  chat.type("/reset\n");
  chat.expect("> ");
  chat.type("/stats\n");
  EXPECT_THAT(chat.expect("context in use"), HasSubstr("0 messages, 0 of"));
}

TEST_F(ChatTest, TypedLineAfterAToolCallIsItsResult) {
  const std::string tools = folder_ / "tools.json";
  write_file(tools, R"([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
  TerminalRun chat(arguments({"--think", "off"}), environment());
  chat.expect("> ");
  chat.type("/tools " + tools + "\n");
  chat.expect("tools: get_weather");
  chat.type("What is the weather in Paris?\n");
  chat.expect("[call] get_weather");
  chat.expect("result of get_weather> ");
  chat.type("{\"temperature\": 22, \"condition\": \"sunny\"}\n");
  EXPECT_THAT(chat.expect("\r\n> "), HasSubstr("Paris"));
}

TEST_F(ChatTest, LinesThatGoOnAreOneMessage) {
  const std::string file = folder_ / "chat.json";
  TerminalRun chat(arguments({"--think", "off", "--max-tokens", "2"}), environment());
  chat.expect("> ");
  chat.type("one\\\n");
  chat.expect("... ");
  chat.type("two\n");
  chat.expect("\r\n> ");
  chat.type("\"\"\"three\n");
  chat.expect("... ");
  chat.type("\n");
  chat.expect("... ");
  chat.type("four\"\"\"\n");
  chat.expect("\r\n> ");
  chat.type("/save " + file + "\n");
  chat.expect("saved");
  const Json messages = Json::parse(read_text_file(file))["messages"];
  EXPECT_EQ(messages.at(0)["content"], "one\ntwo");
  EXPECT_EQ(messages.at(2)["content"], "three\n\nfour");
}

TEST_F(ChatTest, MistakesAreOneLineAndTheChatGoesOn) {
  TerminalRun chat(arguments(), environment());
  chat.expect("> ");
  chat.type("/fly\n");
  chat.expect("/fly: no such command");
  chat.type("/load /no/such/file\n");
  chat.expect("/no/such/file: ");
  chat.type("/think maybe\n");
  chat.expect("expected on or off");
  chat.type("/tools " CALANDRA_SOURCE_DIR "/models/austen-5m/config.json\n");
  chat.expect("expected an array of tools");
  chat.type("/save /no/such/folder/file\n");
  chat.expect("/no/such/folder/file");
  chat.type("/help\n");
  chat.expect("/reset");
  chat.type("/exit\n");
  EXPECT_EQ(chat.wait(), 0);
}

TEST_F(ChatTest, HistoryOutlivesTheProgramAndIsPrivate) {
  {
    TerminalRun chat(arguments({"--max-tokens", "1"}), environment());
    chat.expect("> ");
    chat.type("Who is Mr. Knightley?\n");
    chat.expect("\r\n> ");
    chat.type(kControlD);
    EXPECT_EQ(chat.wait(), 0);
  }
  const std::filesystem::path file = folder_ / "state/calandra/history";
  EXPECT_EQ(
      std::filesystem::status(file).permissions() & (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
      std::filesystem::perms::none);
  TerminalRun chat(arguments({"--max-tokens", "1"}), environment());
  chat.expect("> ");
  chat.type("\x1b[A");  // the arrow up
  chat.expect("Knightley?");
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
