// One text in, one text out: `calandra run -p`.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace calandra {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;
using testing::Not;

const Arguments kGreedy = {"run", "--temp", "0", "--activations", "fp32", "--threads", "1"};

Arguments greedy(const Arguments& more) {
  Arguments arguments = kGreedy;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// Greedy texts that another implementation made, in float64.
Json reference() { return read_json(kBundledModel + "/reference.json"); }

Json reference_case(const std::string& name) {
  const Json all = reference();
  for (const Json& one : all["cases"]) {
    if (one["name"] == name) return one;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(Run, GreedyTextAndTokensAreThoseOfTheReference) {
  const Json all = reference();
  const std::string count = std::to_string(all["count"].get<int>());
  for (const Json& one : all["cases"]) {
    const Json json = run_program(greedy({"--ignore-eos", "-n", count, "--json", "-p", one["prompt"]})).json();
    EXPECT_EQ(json["prompt_ids"], one["prompt_ids"]) << one["name"];
    EXPECT_EQ(json["ids"], one["greedy_ids"]) << one["name"];
    EXPECT_EQ(json["text"], one["greedy_text"]) << one["name"];
    EXPECT_EQ(json["finish_reason"], "length");
  }
}

TEST(Run, AnswerStopsAtTheEndOfItsRole) {
  const Json one = reference_case("recall");
  const Json json = run_program(greedy({"--json", "-p", one["prompt"]})).json();
  EXPECT_EQ(json["text"], "The secret number is 4827.");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["ids"].size(), one["tokens_until_stop"].get<std::size_t>());
}

TEST(Run, TextFromOptionFileAndStandardInputIsTheSame) {
  const TemporaryFolder folder;
  write_file(folder / "text", "Elizabeth was\n");
  const Outcome option = run_program(greedy({"-n", "12", "-p", "Elizabeth was"}));
  EXPECT_EQ(option.code, 0);
  EXPECT_THAT(option.out, AllOf(Not(IsEmpty()), testing::EndsWith("\n")));
  EXPECT_THAT(option.err, IsEmpty());
  EXPECT_EQ(run_program(greedy({"-n", "12", "-f", folder / "text"})).out, option.out);
  EXPECT_EQ(run_program(greedy({"-n", "12"}), "Elizabeth was\n").out, option.out);
  EXPECT_EQ(run_program(greedy({"-n", "12", "-f", "-"}), "Elizabeth was").out, option.out);
}

TEST(Run, SameSeedMakesTheSameTextAndAnotherSeedAnother) {
  const auto ids = [](const std::string& seed, const std::string& threads) {
    return run_program({"run", "-p", "Elizabeth was", "-n", "24", "--seed", seed, "--threads", threads, "--json"}).json()["ids"];
  };
  const Json first = ids("7", "1");
  EXPECT_EQ(first, ids("7", "2"));
  EXPECT_NE(first, ids("8", "1"));
}

TEST(Run, RandomSeedIsToldAndRepeatsTheText) {
  const Arguments arguments = {"run", "-p", "Elizabeth was", "-n", "16", "--json"};
  const Json first = run_program(arguments).json();
  Arguments again = arguments;
  again.insert(again.end(), {"--seed", std::to_string(first["seed"].get<std::uint64_t>())});
  EXPECT_EQ(run_program(again).json()["ids"], first["ids"]);
  EXPECT_NE(run_program(arguments).json()["seed"], first["seed"]);
}

TEST(Run, SettingsComeFromTheCheckpointUnlessAskedFor) {
  const Json suggested = run_program({"run", "-p", "x", "-n", "1", "--json"}).json()["settings"];
  EXPECT_EQ(suggested["temperature"], 0.7);
  EXPECT_EQ(suggested["top_p"], 0.95);
  EXPECT_EQ(suggested["top_k"], 20);
  const Json asked =
      run_program({"run", "-p", "x", "-n", "1", "--json", "--temp", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1"})
          .json()["settings"];
  EXPECT_EQ(asked["temperature"], 0.5);
  EXPECT_EQ(asked["top_p"], 0.9);
  EXPECT_EQ(asked["top_k"], 3);
  EXPECT_EQ(asked["min_p"], 0.1);
}

TEST(Run, EverySamplingOptionReachesTheSampler) {
  const Json one = reference_case("prose");
  const auto run = [&](Arguments more) {
    more.insert(more.begin(), {"-n", "24", "--json", "-p", one["prompt"]});
    return run_program(greedy(more)).json();
  };
  const Json plain = run({});
  const auto ids = plain["ids"].get<std::vector<int>>();
  const auto count = [](const Json& json, int id) { return std::count(json["ids"].begin(), json["ids"].end(), id); };
  // The first token is banned; the last of two biases for one token counts.
  const std::string first = std::to_string(ids[0]);
  const Json banned = run({"--logit-bias", first + ":5", "--logit-bias", "7:-1.5", "--logit-bias", first + ":-100"});
  EXPECT_EQ(count(banned, ids[0]), 0);
  EXPECT_EQ(banned["settings"]["logit_bias"], (Json{{"7", -1.5}, {first, -100.0}}));
  // As much as a bias can: one token only.
  const Json only = run({"--logit-bias", first + ":100"});
  EXPECT_EQ(count(only, ids[0]), std::ssize(only["ids"]));
  // Words that come again cost something; the settings have their own names.
  const std::map<std::string, std::string> penalties = {{"--repeat-penalty", "repetition_penalty"},
                                                        {"--frequency-penalty", "frequency_penalty"},
                                                        {"--presence-penalty", "presence_penalty"}};
  for (const auto& [option, name] : penalties) {
    const Json json = run({option, "1.75"});
    EXPECT_NE(json["ids"], plain["ids"]) << option;
    EXPECT_EQ(json["settings"][name], 1.75);
  }
}

TEST(Run, AnAnswerDoesNotEndBeforeMinTokens) {
  const Json plain = run_program(greedy({"--json", "--chat", "--think", "off", "-p", "Hello"})).json();
  ASSERT_EQ(plain["finish_reason"], "stop");
  const std::size_t more = plain["ids"].size() + 3;
  const Json longer =
      run_program(greedy({"--json", "--chat", "--think", "off", "-p", "Hello", "--min-tokens", std::to_string(more)})).json();
  EXPECT_GT(longer["ids"].size(), more);
  EXPECT_EQ(longer["settings"]["min_tokens"], more);
}

// Every word of the text, cut at both ends, so that stop strings begin and end inside tokens.
TEST(Run, StopStringEndsTheTextBeforeItWhereverTokensEnd) {
  const Json one = reference_case("prose");
  const std::string prompt = one["prompt"], text = one["greedy_text"];
  for (const char* stop : {"very good", "ood sor", "t of man, is a gr", "t"}) {
    const std::size_t at = text.find(stop);
    ASSERT_NE(at, std::string::npos);
    const Json json =
        run_program(greedy({"-n", "48", "--json", "-p", prompt, "--stop", "not there", "--stop", stop, "--stop", "nor this"}))
            .json();
    EXPECT_EQ(json["text"], text.substr(0, at)) << stop;
    EXPECT_EQ(json["finish_reason"], "stop");
  }
}

TEST(Run, LastOfRepeatedOptionsCounts) {
  const Json json = run_program({"run", "-p", "x", "-n", "9", "--temp", "0.5", "-n", "1", "--temp", "0.25", "--json"}).json();
  EXPECT_EQ(json["ids"].size(), 1U);
  EXPECT_EQ(json["settings"]["temperature"], 0.25);
}

TEST(Run, PartOfAStopStringThatNeverCompletesIsPrinted) {
  const Json one = reference_case("prose");
  const Json json =
      run_program(greedy({"-n", "48", "--json", "-p", one["prompt"], "--stop", "and hasn't", "--stop", "very goods"})).json();
  EXPECT_EQ(json["text"], one["greedy_text"]);
}

TEST(Run, FullContextEndsTheTextAndSaysSo) {
  const Outcome outcome = run_program(greedy({"-p", "Elizabeth was", "--ignore-eos", "-n", "0", "--context", "24", "-v"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the context is full"));
  const Json json = run_program(greedy({"-p", "Elizabeth was", "--ignore-eos", "-n", "0", "--context", "24", "--json"})).json();
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"].get<int>() + json["usage"]["completion_tokens"].get<int>(), 24);
}

TEST(Run, ChatPromptIsTheTemplatesAndReasoningIsApart) {
  const Json one = reference_case("chat");
  const Json json = run_program(greedy({"--chat", "--json", "-p", "Write a passage about Elizabeth."})).json();
  EXPECT_EQ(json["prompt_ids"], one["prompt_ids"]);
  const std::string text = one["greedy_text"];
  const std::size_t end_of_thought = text.find("</think>");
  EXPECT_EQ(json["reasoning"], text.substr(0, end_of_thought));
  EXPECT_EQ(json["raw_text"], text.substr(0, text.find("<|role_end|>")));
  const std::string answer = json["text"];
  EXPECT_THAT(answer, AllOf(Not(IsEmpty()), Not(HasSubstr("think"))));
  EXPECT_EQ(text.substr(end_of_thought + 8, answer.size()), answer);

  // On a pipe: the answer alone; with --raw all that the model wrote.
  EXPECT_EQ(run_program(greedy({"--chat", "-p", "Write a passage about Elizabeth."})).out, answer + "\n");
  EXPECT_EQ(run_program(greedy({"--chat", "--raw", "-p", "Write a passage about Elizabeth."})).out,
            json["raw_text"].get<std::string>() + "\n");
}

TEST(Run, ThinkingCanBeSwitchedOff) {
  const Json json = run_program(greedy({"--think", "off", "--json", "-p", "Hello"})).json();
  EXPECT_EQ(json["reasoning"], "");
  EXPECT_THAT(json["text"].get<std::string>(), Not(IsEmpty()));
}

TEST(Run, ToolCallIsShownAsABlockAndInJson) {
  const TemporaryFolder folder;
  write_file(folder / "tools.json",
             R"([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
  const Arguments arguments = greedy({"--think", "off", "--tools", folder / "tools.json", "-p", "What is the weather in Paris?"});
  const Outcome outcome = run_program(arguments);
  EXPECT_THAT(outcome.out, HasSubstr("[call] get_weather\n  city: \"Paris\"\n"));
  Arguments as_json = arguments;
  as_json.push_back("--json");
  const Json call = run_program(as_json).json()["tool_calls"].at(0)["function"];
  EXPECT_EQ(call["name"], "get_weather");
  EXPECT_EQ(call["arguments"]["city"], "Paris");
}

TEST(Run, JsonTellsUsageAndTimings) {
  const Json json = run_program(greedy({"-n", "8", "--json", "-p", "Elizabeth was"})).json();
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  EXPECT_EQ(json["usage"]["prompt_tokens"], json["prompt_ids"].size());
  for (const auto& [name, value] : json["timings"].items()) EXPECT_GT(value.get<double>(), 0) << name;
}

/// The bundled model with another head: whatever it reads, greedily it says one of the two bytes, each a token of its own.
class TwoByteModel {
 public:
  TwoByteModel(std::string_view one, std::string_view other) {
    std::filesystem::copy(kBundledModel, folder_.path(), std::filesystem::copy_options::recursive);
    const Json vocabulary = read_json(folder_ / "tokenizer.json")["model"]["vocab"];
    std::string file = read_text_file(kBundledModel + "/model.safetensors");
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
    const Json head = json_of(file.substr(8, header_bytes))["lm_head.weight"];
    const auto first = 8 + header_bytes + head["data_offsets"][0].get<std::size_t>();
    const auto end = 8 + header_bytes + head["data_offsets"][1].get<std::size_t>();
    const std::size_t row_bytes = (end - first) / head["shape"][0].get<std::size_t>();
    std::fill(file.begin() + static_cast<std::ptrdiff_t>(first), file.begin() + static_cast<std::ptrdiff_t>(end), '\0');
    // One row is the negative of the other, 1 against -1 in every third column: one of the two has a positive logit, all other
    // tokens have 0.
    for (const auto& [token, high_byte] : {std::pair{one, '\x3F'}, {other, '\xBF'}}) {
      const std::size_t row = first + vocabulary.at(token).get<std::size_t>() * row_bytes;
      for (std::size_t at = 0; at < row_bytes; at += 2)
        file.replace(row + at, 2, {at % 6 == 0 ? '\x80' : '\0', at % 6 == 0 ? high_byte : '\0'});
    }
    write_file(folder_ / "model.safetensors", file);
  }
  std::string path() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

TEST(Run, AContextBeyondTheModelsIsRemarked) {
  const Outcome beyond = run_program(greedy({"-p", "Z", "-n", "1", "--context", "40000"}));
  EXPECT_EQ(beyond.code, 0);
  EXPECT_EQ(beyond.err, "note: context 40000 as asked for; positions from 32768 on were never trained\n");
  EXPECT_THAT(run_program(greedy({"-p", "Z", "-n", "1", "--context", "40000", "--rope-scaling", "yarn:2"})).err, IsEmpty());
}

TEST(Run, StrayBytesComeOutAsReplacementCharacters) {
  const TwoByteModel model("Ã", "ä");  // the bytes C3 and E4, which begin characters that never come
  std::string expected;
  for (int i = 0; i < 5; ++i) expected += "\uFFFD";
  EXPECT_EQ(run_program(greedy({model.path(), "--raw", "-p", "Z", "-n", "5"})).out, expected + "\n");
  EXPECT_EQ(run_program(greedy({model.path(), "--json", "-p", "Z", "-n", "5"})).json()["text"], expected);
}

TEST(Run, ControlCharactersDoNotReachATerminal) {
  const TwoByteModel model("ě", "ć");  // the bytes 1B and 07: escape and bell
  TerminalRun run(greedy({model.path(), "--raw", "-p", "Z", "-n", "3"}));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.rest(), testing::ContainsRegex("(.x1b|.x07){3}"));
  EXPECT_THAT(run.rest(), Not(HasSubstr("\x07")));
}

}  // namespace
}  // namespace calandra
