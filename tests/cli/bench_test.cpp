// calandra bench: its figures agree with each other and with the model, in every form of output, and it ends when told to.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

TEST(BenchCommand, WithoutATerminalALineSaysWhatComesNext) {
  const Outcome outcome = run_program({"bench", "-p", "20", "-n", "3", "--depth", "0,70", "--batch", "1", "--rounds", "2"});
  EXPECT_EQ(outcome.err,
            "Measuring: warming up\nMeasuring: 70 tokens of depth\nMeasuring: round 1 of 2\nMeasuring: round 2 of 2\n");
  const Outcome prompts = run_program({"bench", "-p", "20", "-n", "0", "--rounds", "1", "--json"});
  EXPECT_EQ(prompts.err, "Measuring: warming up\nMeasuring: round 1 of 1\n");
}

}  // namespace
}  // namespace calandra
