// What the program says, and with which exit code, when something is wrong: one line on standard error, nothing on standard output.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

struct Mistake {
  std::string name;
  Arguments arguments;
  int code;
  std::string says;
};

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreToldInOneLineWithTheirExitCode) {
  const Mistake& mistake = GetParam();
  const Outcome outcome = run_program(mistake.arguments);
  EXPECT_EQ(outcome.code, mistake.code);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, AllOf(StartsWith("calandra: "), HasSubstr(mistake.says)));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.err.back(), '\n');
}

INSTANTIATE_TEST_SUITE_P(
    All, Mistakes,
    testing::Values(
        Mistake{"NoCommand", {}, 2, "calandra --help"}, Mistake{"UnknownCommand", {"fly"}, 2, "fly"},
        Mistake{"UnknownOption", {"run", "--warp", "9"}, 2, "--warp"},
        Mistake{"NumberExpected", {"run", "-p", "x", "--top-k", "many"}, 2, "--top-k"},
        Mistake{"NegativeTemperature", {"run", "-p", "x", "--temp", "-1"}, 2, "--temp -1: expected a number from 0 to 100"},
        Mistake{"TopPAboveOne", {"run", "-p", "x", "--top-p", "1.5"}, 2, "--top-p 1.5: expected a number above 0 and up to 1"},
        Mistake{"TopPOfNothing", {"run", "-p", "x", "--top-p", "0"}, 2, "--top-p 0: expected a number above 0"},
        Mistake{"HelpOfNothing", {"help", "fly"}, 2, "help fly: no such command"},
        Mistake{"EmptyStopString", {"run", "-p", "x", "--stop="}, 2, "stop"},
        Mistake{"WrongWordForThink", {"run", "-p", "x", "--think", "maybe"}, 2, "--think"},
        Mistake{"WrongRopeScaling", {"run", "-p", "x", "--rope-scaling", "linear:2"}, 2, "yarn:FACTOR"},
        Mistake{"WrongKv", {"run", "-p", "x", "--kv", "fp4"}, 2, "--kv fp4: expected bf16|fp8"},
        Mistake{"WrongActivations", {"run", "-p", "x", "--activations", "fp8"}, 2, "--activations"},
        Mistake{"TextGivenTwice", {"run", "-p", "x", "-f", "y"}, 2, "--file"},
        Mistake{"RawAndJson", {"run", "-p", "x", "--raw", "--json"}, 2, "--raw"},
        Mistake{"EndIgnoredInAChat", {"run", "-p", "x", "--chat", "--ignore-eos"}, 2, "--raw"},
        Mistake{
            "BiasWithoutToken", {"run", "-p", "x", "--logit-bias", "5"}, 2, "--logit-bias 5: expected a token id and a number"},
        Mistake{"BiasTooLarge", {"run", "-p", "x", "--logit-bias", "5:101"}, 2, "--logit-bias 5:101"},
        Mistake{"BiasOfNoToken", {"run", "-p", "x", "--logit-bias", "99999:1"}, 2, "logit_bias: token 99999: expected 0 to"},
        Mistake{"PenaltyTooLarge", {"run", "-p", "x", "--presence-penalty", "2.5"}, 2, "a number from -2 to 2"},
        Mistake{"MoreAtLeastThanAtMost",
                {"run", "-p", "x", "-n", "3", "--min-tokens", "4"},
                2,
                "min tokens 4: expected at most the 3"},
        Mistake{"NegativeSeed", {"run", "-p", "x", "--seed", "-1"}, 2, "--seed -1"},
        Mistake{"SeedThatWouldWrap",
                {"run", "-p", "x", "--seed", "18446744073709551616"},
                2,
                "--seed 18446744073709551616: expected an integer from 0 to 18446744073709551615"},
        Mistake{"SyntheticSeedThatWouldWrap",
                {"make-checkpoint", "--like", "ling-3.0-tiny", "--seed", "-1", "/no/such/folder/x"},
                2,
                "--seed -1"},
        Mistake{"TokensThatWouldBeCut", {"run", "-p", "x", "-n", "99999999999999999999"}, 2, "--max-tokens 99999999999999999999"},
        Mistake{"NumberAndMore", {"run", "-p", "x", "--context", "4k"}, 2, "--context 4k"},
        Mistake{"ContextOfNone", {"run", "-p", "x", "--context", "0"}, 2, "--context 0"},
        Mistake{"SizeInNoUnit",
                {"make-checkpoint", "--like", "ling-3.0-tiny", "--shard-size", "5XB", "/no/such/folder/x"},
                2,
                "--shard-size 5XB"},
        Mistake{"BatchOfNone", {"bench", "--batch", "0"}, 2, "--batch 0: expected integers from 1 to 65536, separated by commas"},
        Mistake{"GapInBatches", {"bench", "--batch", "1,,4"}, 2, "--batch 1,,4"},
        Mistake{"DepthInWords", {"bench", "--depth", "deep"}, 2, "--depth deep"},
        Mistake{"NegativeDepth", {"bench", "--depth", "-1"}, 2, "--depth -1"},
        Mistake{"NoPromptsAmongPrompts", {"bench", "-p", "0,512"}, 2, "--prompt: found 0 among other lengths"},
        Mistake{"NothingToMeasure", {"bench", "-p", "0", "-n", "0"}, 2, "nothing is left to measure"},
        Mistake{"TwoFormsOfFigures", {"bench", "--json", "--csv"}, 2, "--json and --csv"},
        Mistake{"RoundsOfNone", {"bench", "--rounds", "0"}, 2, "--rounds 0"},
        Mistake{"PromptBeyondTheContext",
                {"bench", "-p", "32769"},
                1,
                "a prompt of 32769 tokens: expected 1 to the model's context of 32768"},
        Mistake{"DepthBeyondTheContext", {"bench", "--depth", "32768"}, 1, "a depth of 32768 and 64 tokens to decode"},
        Mistake{"BatchBeyondTheMemory", {"bench", "--depth", "32000", "--batch", "65536"}, 1, "depth 32000, batch 65536: needs"},
        Mistake{"EmptyIds", {"trace", kBundledModel, "--ids", "", "--dump", "x"}, 2, "--ids"},
        Mistake{"GapInIds", {"trace", kBundledModel, "--ids", "1,,2", "--dump", "x"}, 2, "1,,2"},
        Mistake{"DumpOntoADevice", {"trace", kBundledModel, "--ids", "1", "--dump", "/dev/null"}, 1, "/dev/null"},
        Mistake{"NoIds", {"trace", kBundledModel, "--dump", "x"}, 2, "--ids"},
        Mistake{"UnknownModelToImitate", {"make-checkpoint", "--like", "ling-9", "/tmp/x"}, 2, "ling-3.1-flash"},
        Mistake{"UnknownFormat", {"make-checkpoint", "--like", "ling-3.0-tiny", "--format", "int3", "/tmp/x"}, 2, "fp8-ue8m0"},
        Mistake{"NoSuchModel", {"run", "/no/such/model", "-p", "x"}, 1, "/no/such/model"},
        Mistake{"ModelIsAFile", {"inspect", kBundledModel + "/config.json"}, 1, "config.json"},
        Mistake{"FolderWithoutConfig", {"inspect", std::string(CALANDRA_SOURCE_DIR) + "/tests"}, 1, "config.json"},
        Mistake{"NoSuchFile", {"run", "-f", "/no/such/file"}, 1, "/no/such/file"},
        Mistake{"FileIsAFolder", {"perplexity", kBundledModel, "/"}, 1, "/"},
        Mistake{"EmptyPrompt", {"run", "-p", ""}, 1, "--prompt: found no text"},
        Mistake{"EmptyStandardInput", {"run"}, 1, "standard input: found no text"},
        Mistake{"NoNameToDump", {"trace", kBundledModel, "--ids", "1", "--dump", ""}, 1, "empty file name"},
        Mistake{"PromptFillsTheContext",
                {"run", "-p", "one two three four five six seven eight", "--context", "4"},
                1,
                "context of 4"},
        Mistake{"IdOutsideTheVocabulary", {"trace", kBundledModel, "--ids", "1,2048", "--dump", "/tmp/x"}, 1, "2048"},
        Mistake{"SplitOutsideThePrompt",
                {"trace", kBundledModel, "--ids", "1,2,3", "--split", "3", "--dump", "/tmp/x"},
                1,
                "split 3"},
        Mistake{
            "NowhereToDump", {"trace", kBundledModel, "--ids", "1,2,3", "--dump", "/no/such/folder/x"}, 1, "/no/such/folder/x"},
        Mistake{"TextTooShort", {"perplexity", kBundledModel, "-"}, 1, "at least 2"},
        Mistake{"NoSuchTools", {"run", "-p", "x", "--tools", "/no/such/tools"}, 1, "/no/such/tools"},
        Mistake{"FolderInUse", {"make-checkpoint", "--like", "ling-3.0-tiny", kBundledModel}, 1, "austen-5m"}),
    [](const auto& test) { return test.param.name; });

TEST(Errors, FullDiskIsToldAndNotIgnored) {
  const Outcome outcome = run_shell("\"$CALANDRA\" run -p x --max-tokens 4 > /dev/full");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, StartsWith("calandra: standard output: "));
}

TEST(Errors, AFileAtTheSizeLimitIsToldAndLeavesNothing) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run_shell(fmt::format("cd '{}' && ulimit -f 100 && \"$CALANDRA\" trace '{}' --ids 1,2,3 --dump x.safetensors",
                            folder.path().string(), kBundledModel));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("x.safetensors: cannot write: File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Errors, BrokenCheckpointsAreToldInOneLine) {
  const TemporaryFolder folder;
  const auto run_with = [&](const std::string& file, const std::string& text) {
    using Options = std::filesystem::copy_options;
    std::filesystem::copy(kBundledModel, folder.path(), Options::recursive | Options::overwrite_existing);
    std::ofstream(folder / file, std::ios::trunc) << text;
    const Outcome outcome = run_program({"run", folder.path().string(), "-p", "x", "-n", "1"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(run_with("model.safetensors", "short"), HasSubstr("model.safetensors: 5 bytes"));
  EXPECT_THAT(run_with("config.json", "[]"), HasSubstr("config.json: found [], expected a JSON object"));
  EXPECT_THAT(run_with("tokenizer.json", "{\"a\x1b\n"), AllOf(HasSubstr("tokenizer.json"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(run_with("generation_config.json", R"({"top_p": 0})"),
              HasSubstr("generation_config.json: top_p: found 0, expected more than 0, at most 1"));
}

TEST(Errors, ALinkToNothingIsNotTakenForAbsence) {
  const TemporaryFolder folder;
  std::filesystem::copy(kBundledModel, folder.path(), std::filesystem::copy_options::recursive);
  for (const char* file : {"generation_config.json", "chat_template.jinja", "tokenizer.json"}) {
    std::filesystem::rename(folder / file, folder / "kept");
    std::filesystem::create_symlink("/no/such/file", folder / file);
    const Outcome outcome = run_program({"run", folder.path().string(), "--chat", "-p", "x", "-n", "1"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(std::string(file) + ": a link to /no/such/file: nothing is there"));
    std::filesystem::rename(folder / "kept", folder / file);
  }
}

TEST(Errors, APipeIsReadAndANamedPipeInPlaceOfAFileIsRefused) {
  const Outcome outcome = run_shell("echo It is a truth | \"$CALANDRA\" run -f /dev/stdin --temp 0 -n 2");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "config.json").c_str(), 0600), 0);
  const Outcome refused = run_program({"inspect", folder.path().string()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("config.json: found a pipe, expected a file"));
}

TEST(Errors, AClosedStandardOutputIsNotTakenByAnotherFile) {
  const Outcome outcome = run_shell("\"$CALANDRA\" run -p 'It is' -n 2 <&- >&-");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, StartsWith("calandra: standard output: "));
  EXPECT_EQ(run_shell("\"$CALANDRA\" --help > /dev/full").code, 1);
}

TEST(Errors, AModelFileThatIsCutOffWhileInUseEndsTheProgramWithAMessage) {
  const TemporaryFolder folder;
  std::filesystem::copy(kBundledModel, folder.path(), std::filesystem::copy_options::recursive);
  const Outcome outcome =
      run_shell(fmt::format("\"$CALANDRA\" run '{0}' -p 'It is' -n 30000 --ignore-eos | (head -c 1 >/dev/null; truncate -s 9000 "
                            "'{0}/model.safetensors'; cat >/dev/null)",
                            folder.path().string()));
  EXPECT_THAT(outcome.err, AllOf(StartsWith("calandra: "), HasSubstr("SIGBUS")));
}

TEST(Errors, MakeCheckpointThatIsToldToEndLeavesNothing) {
  const TemporaryFolder folder;
  const Outcome outcome = run_shell(fmt::format(
      "cd '{}'; \"$CALANDRA\" make-checkpoint --like ling-3.0-tiny a/b & until [ -e a/b/*.partial ]; do sleep 0.01; done; kill -TERM $!; wait $!",
      folder.path().string()));
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("a/b: stopped"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Errors, AHangUpThatIsIgnoredIsIgnored) {
  const Outcome outcome =
      run_shell("trap '' HUP; \"$CALANDRA\" run -p 'It is' -n 300 --ignore-eos & sleep 0.2; kill -HUP $!; wait $!");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Errors, ReaderThatLeavesEndsTheProgramQuietly) {
  const Outcome outcome = run_shell("\"$CALANDRA\" run -p 'It is a truth' --temp 0 --max-tokens 2000 --ignore-eos | head -c 1");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out.size(), 1U);
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(Help, EveryCommandHasOneAndItGoesToStandardOutput) {
  const Outcome all = run_program({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* command : {"run", "inspect", "perplexity", "trace", "make-checkpoint", "version"}) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const Outcome outcome = run_program({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr(command));
    EXPECT_THAT(outcome.err, IsEmpty());
    EXPECT_EQ(run_program({"help", command}).out, outcome.out);
  }
}

TEST(Help, VersionIsTheSameBothWays) {
  const Outcome option = run_program({"--version"});
  const Outcome command = run_program({"version"});
  EXPECT_EQ(option.code, 0);
  EXPECT_EQ(option.out, command.out);
  EXPECT_THAT(option.out, StartsWith("calandra 0."));
}

}  // namespace
}  // namespace calandra
