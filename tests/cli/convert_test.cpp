// The command convert: what a person sees, and that no way of ending it does harm.

#include "cli/program.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace calandra {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kText = "It is a truth universally acknowledged, that a single man must be in want of a wife.\n";

TEST(ConvertCommand, ConvertedModelRunsAndIsCheckedAsTextAndJson) {
  const TemporaryFolder folder;
  write_file(folder / "text", kText);
  const std::string out = folder / "out";
  const Outcome made = run_program({"convert", kBundledModel, out, "--to", "fp4", "--check", folder / "text"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, IsEmpty());
  EXPECT_THAT(made.out, AllOf(HasSubstr("fp4 of austen-5m"), HasSubstr("in 1 file\n"), HasSubstr("routed_experts  mxfp4"),
                              HasSubstr("KL divergence"), HasSubstr("perplexity")));
  const Outcome answer = run_program({"run", out, "-p", "Elizabeth was", "-n", "8", "--ignore-eos", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.json()["ids"].size(), 8u);

  // Finished: it only checks.
  const auto before = files_in(out);
  const Json json = run_program({"convert", kBundledModel, out, "--to", "fp4", "--check", folder / "text", "--json"}).json();
  EXPECT_EQ(json["finished_before"], true);
  EXPECT_EQ(files_in(out), before);
  for (const auto& [when, model] : {std::pair{"before", kBundledModel}, {"after", out}}) {
    const Json alone = run_program({"perplexity", model, folder / "text", "--json"}).json();
    EXPECT_EQ(json["check"]["perplexity"][when], alone["perplexity"]) << when;
  }
  EXPECT_GT(json["check"]["kl_divergence"]["mean"], 0);
  EXPECT_GT(json["check"]["kl_divergence"]["worst"], json["check"]["kl_divergence"]["mean"]);
  EXPECT_LT(json["check"]["kl_divergence"]["mean"], 0.3);
  EXPECT_EQ(json["check"]["tensors"].size(), 463u);
  const Json inspected = run_program({"inspect", out, "--json"}).json();
  EXPECT_EQ(inspected["bytes"], json["bytes"]);
  EXPECT_EQ(inspected["parameters"], json["parameters"]);
}

// The shell kills the program once a shard is there; whatever was begun beside it stays behind.
TEST(ConvertCommand, KilledAndStartedAgainItEndsInTheSameBytes) {
  const TemporaryFolder folder;
  const std::string options = " --to fp4-all --shard-size 200000 ";
  const Outcome whole = run_shell("$CALANDRA convert " + kBundledModel + " " + (folder / "whole").string() + options);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const auto expected = files_in(folder / "whole");
  ASSERT_GT(expected.size(), 15u);

  const std::string out = folder / "out", command = "$CALANDRA convert " + kBundledModel + " " + out + options;
  int killed = 0, turn = 0;
  for (const auto& [shard, bytes] : expected) {
    if (!shard.starts_with("model-") || turn++ % 3 != 0) continue;
    const Outcome run = run_shell(command + " & program=$!; while [ ! -e " + out + "/" + shard +
                                  " ] && kill -0 $program 2>/dev/null; do :; done; kill -9 $program; wait $program");
    if (run.code == 128 + 9) ++killed;
  }
  EXPECT_GT(killed, 2);
  const Outcome last = run_shell(command);
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(files_in(out), expected);
}

/// After an end on request: finished shards and nothing else, with which the same command goes on.
void expect_resumable(const fs::path& out, const Arguments& command) {
  EXPECT_FALSE(fs::exists(out / "config.json"));
  const auto kept = files_in(out);
  EXPECT_GT(kept.size(), 0u);
  for (const auto& [name, bytes] : kept) EXPECT_TRUE(name.ends_with(".safetensors")) << name;
  const Outcome rest = run_program(command);
  EXPECT_EQ(rest.code, 0) << rest.err;
  const auto all = files_in(out);
  for (const auto& [name, bytes] : kept) EXPECT_EQ(all.at(name), bytes) << name;
}

/// A conversion that takes a second at least, in many shards: time for a signal to come between.
Arguments slow_conversion(const TemporaryFolder& folder) {
  const Outcome made = run_program({"make-checkpoint", "--like", "ling-3.0-tiny", "--layers", "4", "--experts", "16", "--vocab",
                                    "2048", "--headers-only", folder / "source"});
  EXPECT_EQ(made.code, 0) << made.err;
  return {"convert", folder / "source", folder / "out", "--to", "fp4-all", "--shard-size", "1", "--threads", "1"};
}

TEST(ConvertCommand, ToldToEndItKeepsWhatIsFinishedAndSaysHowToGoOn) {
  const TemporaryFolder folder;
  const Arguments command = slow_conversion(folder);
  std::string line = "$CALANDRA";
  for (const std::string& word : command) line += " " + word;
  const std::string out = folder / "out";
  const Outcome run = run_shell(line + " & program=$!; until ls " + out +
                                " 2>/dev/null | grep -q 'safetensors$'; do :; done; kill -TERM $program; wait $program");
  EXPECT_EQ(run.code, 130) << run.err;
  EXPECT_THAT(run.err,
              AllOf(HasSubstr(out + ": stopped with "), HasSubstr(" files finished; the same command goes on from there\n")));
  expect_resumable(out, command);
}

TEST(ConvertCommand, ControlCDoesTheSame) {
  const TemporaryFolder folder;
  const Arguments command = slow_conversion(folder);
  TerminalRun run(command);
  run.expect("Converting [");  // the bar: it has been running for a moment
  run.type(kControlC);
  run.expect("the same command goes on from there");
  EXPECT_EQ(run.wait(), 130);
  expect_resumable(folder / "out", command);
}

TEST(ConvertCommand, MistakesAreNamed) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const auto fails = [](const Arguments& arguments, int code, const std::string& message) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  fails({"convert", kBundledModel, out}, 2, "--to is required");
  fails({"convert", kBundledModel, out, "--to", "int4"}, 2, "--to int4: expected fp8|fp4|fp4-all");
  fails({"convert", kBundledModel, out, "--to", "fp4", "--head", "no"}, 2, "--head no: expected bf16|fp8|fp4");
  fails({"convert", out, folder / "other", "--to", "fp4"}, 1, "no such folder");
  fails({"convert", kBundledModel, out, "--to", "fp4", "--check", folder / "none"}, 1, "none: cannot open");
  fails({"convert", golden_path("a_tiny_bf16"), out, "--to", "fp4", "--check", kBundledModel + "/README.md"}, 1,
        "no tokenizer.json");
  fails({"convert", kBundledModel, out, "--to", "fp4", "--shard-size", "0.0001KB"}, 2, "expected whole bytes");
  fails({"convert", kBundledModel, out, "--to", "fp4", "--window", "64"}, 2, "--window: expected --check FILE beside it");
  write_file(folder / "text", kText);
  fails({"convert", kBundledModel, out, "--to", "fp4", "--check", folder / "text", "--window", "1000000"}, 1,
        "window of 1000000 tokens: expected 2 to the context of ");  // before anything is converted
  EXPECT_FALSE(fs::exists(out));
  fs::remove(folder / "text");
  write_file(folder / "notes.txt", "mine");
  fails({"convert", kBundledModel, folder.path(), "--to", "fp4"}, 1, "found notes.txt, which is no part of it");
}

TEST(ConvertCommand, ASizeInTenthsOfAUnitIsWholeBytes) {
  const TemporaryFolder folder;
  const Json json =
      run_program({"convert", kBundledModel, folder / "out", "--to", "fp8", "--shard-size", "4.1MB", "--json"}).json();
  EXPECT_EQ(json["files"], 2);
}

TEST(ConvertCommand, ATextThatIsNotAllTextIsRemarked) {
  const TemporaryFolder folder;
  write_file(folder / "text", std::string(kText) + "\xFF\xFE");
  const Outcome bundled = run_program({"convert", kBundledModel, folder / "out", "--to", "fp4", "--check", folder / "text"});
  EXPECT_EQ(bundled.code, 0) << bundled.err;
  EXPECT_THAT(bundled.err, HasSubstr("text is not all UTF-8; U+FFFD stands for stray bytes\n"));
}

TEST(ConvertCommand, WhatStaysAsItIsIsRemarkedInOneLine) {
  const TemporaryFolder folder;
  const Outcome outcome = run_program({"convert", golden_path("d_mix_fp4"), folder / "out", "--to", "fp8"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("note: "), HasSubstr("stored coarser than asked for: copied as stored\n")));
}

}  // namespace
}  // namespace calandra
