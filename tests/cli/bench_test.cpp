// calandra bench: its figures agree with each other and with the model, in every form of output, and it ends when told to.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Arguments bench_with(const Arguments& more) {
  Arguments arguments = {"bench", "-p", "20", "-n", "3", "--depth", "0,70", "--batch", "1,4", "--rounds", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

TEST(BenchCommand, JsonHasFiguresThatAgreeWithEachOtherAndWithTheModel) {
  const Outcome outcome = run_program(bench_with({"--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = outcome.json(), inspected = run_program({"inspect", "--json"}).json();
  EXPECT_EQ(json["parameters"], inspected["parameters"]);
  EXPECT_EQ(json["complete"], true);
  EXPECT_EQ(json["exclusive"], "no");
  const Json& machine = json["machine"];
  EXPECT_GT(machine["bytes_per_second"], 1e7);
  EXPECT_GT(machine["operations_per_second"], 1e7);
  EXPECT_GT(machine["read_bytes"], 0);
  EXPECT_EQ(machine["reads"], 8);

  ASSERT_EQ(json["rows"].size(), 5U);
  for (const Json& row : json["rows"]) {
    const double speed = row["tokens_per_second"];
    EXPECT_GT(speed, 0);
    EXPECT_NEAR(row["bytes_per_second"].get<double>() / (speed * row["bytes_per_token"].get<double>()), 1, 1e-9);
    EXPECT_NEAR(row["operations_per_second"].get<double>() / (speed * row["operations_per_token"].get<double>()), 1, 1e-9);
    EXPECT_NEAR(row["share_of_bandwidth"].get<double>() * machine["bytes_per_second"].get<double>() /
                    row["bytes_per_second"].get<double>(),
                1, 1e-9);
    double bytes = 0;
    for (const auto& [part, amount] : row["bytes_by_part"].items()) bytes += amount.get<double>();
    EXPECT_NEAR(bytes / row["bytes_per_token"].get<double>(), 1, 1e-9);
    double seconds = 0;
    for (const auto& [family, time] : row["seconds_by_family"].items()) seconds += time.get<double>();
    EXPECT_LE(seconds * speed, 1 + 1e-9);
    EXPECT_GT(seconds * speed, 0.5);
  }
  // One sequence decodes what `inspect` says a token reads, and its state, twice; every position before it adds its latents.
  const Json &shallow = json["rows"][1], &deep = json["rows"][3], &memory = inspected["memory"];
  EXPECT_EQ(shallow["kind"], "decode");
  const auto state =
      2 * (memory["state_bytes_per_sequence"].get<std::int64_t>() + memory["tail_bytes_per_sequence"].get<std::int64_t>());
  const auto latents = memory["cache_bytes_per_token"].get<std::int64_t>();
  EXPECT_EQ(shallow["bytes_per_token"],
            static_cast<double>(inspected["bytes_per_token"].get<std::int64_t>() + state + 2 * latents));
  EXPECT_EQ(deep["bytes_per_token"].get<double>() - shallow["bytes_per_token"].get<double>(), static_cast<double>(70 * latents));
  EXPECT_EQ(shallow["experts_per_layer"], inspected["config"]["top_k"].get<double>());
}

TEST(BenchCommand, CsvHasALineForEveryRowWithTheSameNames) {
  const Outcome outcome = run_program(bench_with({"--csv", "--threads", "1"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> lines = split(outcome.out, '\n');
  ASSERT_EQ(lines.size(), 6U);
  const std::vector<std::string> names = split(lines[0], ',');
  EXPECT_THAT(names, AllOf(testing::Contains("tokens_per_second"), testing::Contains("share_of_bandwidth"),
                           testing::Contains("bytes_by_part.kda"), testing::Contains("depth")));
  for (const std::string& line : lines) EXPECT_EQ(std::count(line.begin(), line.end(), ','), std::ssize(names) - 1) << line;
  EXPECT_EQ(split(lines[1], ',')[0], "prompt");
  EXPECT_EQ(lines[5].rfind("decode,3,70,4,1,", 0), 0U) << lines[5];
}

TEST(BenchCommand, ExclusiveMeasuresAndSaysInOneLineWhatWasNotPermitted) {
  const Outcome outcome = run_program(bench_with({"--exclusive", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json["rows"].size(), 5U);
  if (json["exclusive"] == "yes") {
    EXPECT_THAT(outcome.err, Not(HasSubstr("note")));
  } else {
    const std::string note = outcome.err.substr(0, outcome.err.find("Measuring: "));
    EXPECT_THAT(note, HasSubstr("note: --exclusive is not permitted in full (" + json["exclusive"].get<std::string>()));
    EXPECT_EQ(std::count(note.begin(), note.end(), '\n'), 1);
  }
  // Messages and exit code of the process that measures are the program's.
  const Outcome errors = run_shell("\"$CALANDRA\" bench --exclusive /no/such/model; echo $?");
  EXPECT_THAT(errors.out, HasSubstr("1\n"));
  EXPECT_THAT(errors.err, HasSubstr("/no/such/model"));
}

TEST(BenchCommand, ControlCEndsItCleanlyAlsoInASessionOfItsOwn) {
  for (const char* how : {"--rounds=1000", "--exclusive"}) {
    TerminalRun run({"bench", "-p", "4096", "-n", "1000", "--depth", "0,8192", "--rounds", "1000", how});
    run.expect("Measuring");
    run.type(kControlC);
    EXPECT_EQ(run.wait(), 130) << how;
    EXPECT_THAT(run.rest(), AllOf(HasSubstr("stopped before all was measured"), Not(HasSubstr("round 1")))) << how;
  }
}

Arguments drafts_with(const Arguments& more) {
  Arguments arguments = {"bench", "--draft", "2,auto", "-n", "12", "--depth", "30", "--batch", "1,2", "--rounds", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(BenchCommand, DraftsInJsonAgreeWithEachOther) {
  const Outcome outcome = run_program(drafts_with({"--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json["complete"], true);
  ASSERT_EQ(json["rows"].size(), 3U * 2 * 2);  // settings, temperatures, batches
  for (std::size_t i = 0; i < json["rows"].size(); ++i) {
    const Json &row = json["rows"][i], &plain = json["rows"][i - i % 3];
    SCOPED_TRACE(dump_json(row));
    EXPECT_EQ(row["kind"], "draft");
    EXPECT_EQ(row["drafts"], (std::array{"0", "2", "auto"})[i % 3]);
    EXPECT_EQ(row["temperature"], i / 3 % 2 == 0 ? 0.0 : 0.7);
    EXPECT_EQ(row["batch"], i < 6 ? 1 : 2);
    EXPECT_EQ(row["depth"], 30);
    EXPECT_NEAR(row["gain"].get<double>() / (row["tokens_per_second"].get<double>() / plain["tokens_per_second"].get<double>()),
                1, 1e-9);
    EXPECT_NEAR(row["measured_over_predicted"].get<double>() * row["predicted_gain"].get<double>() / row["gain"].get<double>(), 1,
                1e-9);
    std::int64_t accepted = 0;
    for (const auto& [name, drafter] : row["drafters"].items()) {
      EXPECT_LE(drafter["accepted"], drafter["drafted"]);
      accepted += drafter["accepted"].get<std::int64_t>();
    }
    const double tokens = row["tokens_per_step"].get<double>() * row["steps"].get<double>() * row["batch"].get<double>();
    EXPECT_NEAR(tokens, row["steps"].get<double>() * row["batch"].get<double>() + static_cast<double>(accepted), 1e-6);
  }
}

TEST(BenchCommand, DraftsAsTableAndCsvHaveALineForEveryRow) {
  const Outcome csv = run_program(drafts_with({"--csv", "--draft-temp", "0.5", "--draft-acceptance", "2"}));
  ASSERT_EQ(csv.code, 0) << csv.err;
  const std::vector<std::string> lines = split(csv.out, '\n');
  ASSERT_EQ(lines.size(), 1U + 3 * 2) << csv.out;
  EXPECT_THAT(split(lines[0], ','),
              AllOf(testing::Contains("measured_over_predicted"), testing::Contains("drafters.oracle.mean_tokens")));
  EXPECT_EQ(lines[2].rfind("draft,2,0.5,12,30,1,1,", 0), 0U) << lines[2];
  const Outcome table = run_program(drafts_with({"--draft-temp", "0"}));
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("answers of 12 tokens; median of 1 round\n"), HasSubstr("temp 0, at 30 x 2"),
                               HasSubstr("predicted"), HasSubstr("mtp ")));
  EXPECT_THAT(table.err, HasSubstr("Measuring: 30, batch 2, temperature 0: round 1 of 1\n"));
}

TEST(BenchCommand, PromptsForDraftsComeFromTheTextThatIsGiven) {
  const Outcome outcome = run_shell("printf 'one two' | \"$CALANDRA\" bench --draft 1 --draft-text -; echo $?");
  EXPECT_THAT(outcome.out, HasSubstr("1\n"));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("a depth of 64"), HasSubstr("the text for prompts has")));
  EXPECT_THAT(run_program({"bench", "--draft", "1", "--draft-text", "/no/such/text"}).err, HasSubstr("/no/such/text"));
}

TEST(BenchCommand, WhatCannotBeAskedOfDraftsIsRefusedInOneLine) {
  const auto refused = [](const Arguments& arguments) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  for (const char* list : {"9", "1,", "", "-1", "auto,x", "1.5"})
    EXPECT_THAT(refused({"bench", "--draft", list}), AllOf(HasSubstr("--draft"), HasSubstr("integers from 0 to 8 or auto")))
        << list;
  EXPECT_THAT(refused({"bench", "--draft", "1", "-p", "20"}), HasSubstr("--draft and --prompt exclude each other"));
  EXPECT_THAT(refused({"bench", "--draft", "1", "-n", "1"}), HasSubstr("--decode 1: expected at least 2"));
  EXPECT_THAT(refused({"bench", "--draft-temp", "1"}), HasSubstr("--draft"));
  EXPECT_THAT(refused({"bench", "--draft", "1", "--draft-acceptance", "9.1"}), HasSubstr("a number from 1 to 9"));
}

TEST(BenchCommand, WithoutATerminalALineSaysWhatComesNext) {
  const Outcome outcome = run_program({"bench", "-p", "20", "-n", "3", "--depth", "0,70", "--batch", "1", "--rounds", "2"});
  EXPECT_EQ(outcome.err,
            "Measuring: warming up\nMeasuring: 70 tokens of depth\nMeasuring: round 1 of 2\nMeasuring: round 2 of 2\n");
  const Outcome prompts = run_program({"bench", "-p", "20", "-n", "0", "--rounds", "1", "--json"});
  EXPECT_EQ(prompts.err, "Measuring: warming up\nMeasuring: round 1 of 1\n");
}

}  // namespace
}  // namespace calandra
