// calandra bench serve against calandra serve: what one has measured is what the other has counted, in every form of output, and
// bad ends are told.

#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A small load, of completions: a chat ends with the turn, whatever length was asked for.
const std::string kBench = R"SH(
  bench() {
    "$CALANDRA" bench serve "http://127.0.0.1:$port" --api completions --seed 7 --warmup 0 --prompt-tokens 30:90 --output-tokens 12 "$@"
  }
  metrics() { exec 3<>"/dev/tcp/127.0.0.1/$port"; printf 'GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n' >&3; cat <&3; }
  # Ten answers are more than are asked for before the first level.
  until_measuring() { until metrics | grep -Eq '^calandra_requests_total[{]outcome="length"[}] [0-9]{2}'; do sleep 0.1; done; }
)SH";

/// The value of a metric on a page.
double metric(const std::string& page, const std::string& name) {
  const std::size_t at = page.find("\n" + name + " ");
  return at == std::string::npos ? NAN : std::stod(page.substr(at + name.size() + 2));
}

std::vector<std::string> parts_at(const std::string& text, const std::string& mark) {
  std::vector<std::string> parts(1);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line == mark) {
      parts.emplace_back();
    } else {
      parts.back() += line + "\n";
    }
  }
  return parts;
}

std::int64_t sum_of(const Json& levels, const std::string& key) {
  std::int64_t sum = 0;
  for (const Json& level : levels) sum += level.at(key).get<std::int64_t>();
  return sum;
}

TEST(BenchServe, CountsWhatTheServerCounts) {
  const Outcome outcome = run_beside_server("--threads 1", kBench + R"SH(
    bench --concurrency 1,3 --requests 5 --json -; echo ---
    metrics; echo ---
    bench --concurrency 4 --requests 8 --json -; echo ---
    metrics
  )SH");
  const std::vector<std::string> parts = parts_at(outcome.out, "---");
  ASSERT_EQ(parts.size(), 4u) << outcome.out << outcome.err;
  const Json first = json_of(parts[0]), second = json_of(parts[2]);
  ASSERT_EQ(first["levels"].size(), 2u);
  EXPECT_EQ(sum_of(first["levels"], "ok"), 10);
  EXPECT_EQ(sum_of(second["levels"], "ok"), 8);
  EXPECT_EQ(sum_of(first["levels"], "output_tokens"), 120);
  EXPECT_EQ(sum_of(first["levels"], "estimated"), 0);
  // Before the levels each of the two asks three times: for a stream of 4 tokens and twice for 1 token.
  constexpr int kTrials = 3, kTrialTokens = 6;
  EXPECT_EQ(metric(parts[1], "calandra_requests_total{outcome=\"length\"}"), 10 + kTrials);
  EXPECT_EQ(metric(parts[3], "calandra_requests_total{outcome=\"length\"}"), 10 + 8 + 2 * kTrials);
  EXPECT_EQ(metric(parts[1], "calandra_generated_tokens_total"), 120 + kTrialTokens);
  EXPECT_EQ(metric(parts[3], "calandra_generated_tokens_total"), 120 + 96 + 2 * kTrialTokens);
  // The prompts of those are the same both times.
  const std::string prompts = "calandra_prompt_tokens_total";
  const double before_first = metric(parts[1], prompts) - static_cast<double>(sum_of(first["levels"], "prompt_tokens"));
  const double before_second =
      metric(parts[3], prompts) - metric(parts[1], prompts) - static_cast<double>(sum_of(second["levels"], "prompt_tokens"));
  EXPECT_EQ(before_first, before_second);
  EXPECT_GT(before_first, 0);
}

TEST(BenchServe, FiguresAgreeWithEachOtherAndThePictureIsXml) {
  const Outcome outcome = run_beside_server("", kBench + R"SH(
    bench --concurrency 1,2,4 --requests 6 --prompt-tokens 200 --shared-prefix 100 \
          --json "$folder/j.json" --svg "$folder/s.svg" >"$folder/table" || exit
    cat "$folder/j.json"; echo ---
    cat "$folder/table"; echo ---
    python3 -c 'import sys, xml.etree.ElementTree as tree
for element in tree.parse(sys.argv[1]).iter(): print(element.tag.split("}")[1], (element.text or "").strip())' "$folder/s.svg"
  )SH");
  const std::vector<std::string> parts = parts_at(outcome.out, "---");
  ASSERT_EQ(parts.size(), 3u) << outcome.out << outcome.err;
  const Json json = json_of(parts[0]);
  EXPECT_EQ(json["model"], "austen-5m");
  EXPECT_EQ(json["api"], "completions");
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["ignore_eos"], true);
  EXPECT_EQ(json["complete"], true);
  std::vector<int> amounts;
  for (const Json& level : json["levels"]) {
    amounts.push_back(level["amount"].get<int>());
    EXPECT_EQ(level["kind"], "concurrency");
    EXPECT_EQ(level["ok"], 6);
    const auto seconds = level["seconds"].get<double>();
    EXPECT_NEAR(level["output_tokens_per_second"].get<double>() * seconds, 72, 1e-6);
    EXPECT_NEAR(level["requests_per_second"].get<double>() * seconds, 6, 1e-6);
    EXPECT_NEAR(level["total_tokens_per_second"].get<double>() * seconds, level["prompt_tokens"].get<double>() + 72, 1e-6);
    EXPECT_NEAR(level["prompt_tokens"].get<double>() / 6, 300, 30) << "prompts of about the tokens that were wanted";
    EXPECT_TRUE(level["cached_share"].is_number());
    EXPECT_LE(level["in_flight"].get<double>(), level["amount"].get<double>() + 1e-6);
    for (const char* name : {"time_to_first_token_seconds", "time_to_first_token_from_send_seconds",
                             "inter_token_latency_seconds", "gap_seconds", "end_to_end_seconds", "lateness_seconds"}) {
      const Json& figures = level[name];
      EXPECT_EQ(figures["count"], std::string(name) == "gap_seconds" ? 6 * 11 : 6) << name;
      EXPECT_LE(figures["p50"], figures["p90"]) << name;
      EXPECT_LE(figures["p90"], figures["p99"]) << name;
      EXPECT_LE(figures["p99"], figures["max"]) << name;
      EXPECT_GE(figures["mean"], 0) << name;
    }
    // A request is its first token and eleven steps.
    EXPECT_NEAR(level["end_to_end_seconds"]["mean"].get<double>(),
                level["time_to_first_token_seconds"]["mean"].get<double>() +
                    11 * level["inter_token_latency_seconds"]["mean"].get<double>(),
                0.02 + 0.1 * level["end_to_end_seconds"]["mean"].get<double>());
  }
  EXPECT_THAT(amounts, testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(parts[1], AllOf(HasSubstr("1 user "), HasSubstr("4 users"), HasSubstr("output tokens/s"), HasSubstr("seed 7"),
                              HasSubstr("between tokens")));
  EXPECT_THAT(parts[2], AllOf(HasSubstr("svg "), HasSubstr("polyline"), HasSubstr("Time to first token, ms"),
                              HasSubstr("Time between tokens, ms"), HasSubstr("Output tokens/s"), HasSubstr("users at a time")));
  std::size_t points = 0;
  for (std::size_t at = 0; (at = parts[2].find("\ncircle", at)) != std::string::npos; ++at) ++points;
  EXPECT_EQ(points, 3u * 5u) << "three levels of five lines";
}

TEST(BenchServe, OpenLoopsAndConversationsAndTracesRun) {
  const Outcome outcome = run_beside_server("", kBench + R"SH(
    bench --rate 20,40 --requests 10; echo "exit $?"
    bench --api chat --concurrency 2 --turns 3 --requests 6 --output-tokens 8 --json -; echo ---
    printf '0,40,6\n0.1,50,7\n{"arrival": 0.2, "prompt_tokens": 60, "output_tokens": 8}\n' | bench --trace - --json -
  )SH");
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("20 arrivals/s"), HasSubstr("40 arrivals/s"), HasSubstr("sent late"), HasSubstr("exit 0\n")));
  const std::vector<std::string> parts = parts_at(outcome.out.substr(outcome.out.find("exit 0\n") + 7), "---");
  ASSERT_EQ(parts.size(), 2u) << outcome.out << outcome.err;
  EXPECT_EQ(json_of(parts[0])["levels"][0]["ok"], 6);
  const Json trace = json_of(parts[1])["levels"][0];
  EXPECT_EQ(trace["kind"], "trace");
  EXPECT_EQ(trace["ok"], 3);
  EXPECT_EQ(trace["output_tokens"], 21);
}

TEST(BenchServe, WhatTheServerRefusesIsAResultAndItsWordsAreTold) {
  // The trials fit the context, the prompts do not.
  const Outcome outcome = run_beside_server("--context 512", kBench + R"SH(
    bench --concurrency 2 --requests 4 --prompt-tokens 900 --json -; echo "exit $?"
  )SH");
  const std::size_t end = outcome.out.rfind("exit ");
  const Json level = json_of(outcome.out.substr(0, end))["levels"][0];
  EXPECT_EQ(level["failures"]["4xx"], 4);
  EXPECT_EQ(level["ok"], 0);
  EXPECT_EQ(outcome.out.substr(end), "exit 1\n");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("note: 2 users: failed: 4xx 4; the first: 400: "), HasSubstr("no request went well")));
}

TEST(BenchServe, AServerThatDiesInTheMiddleEndsItWithWhatThereIs) {
  const Outcome outcome = run_beside_server("", kBench + R"SH(
    { until_measuring; kill -KILL "$server"; } &
    bench --concurrency 2,4 --requests 1000000; echo "exit $?"
  )SH");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("2 users, cut off"), Not(HasSubstr("4 users")), HasSubstr("exit 1\n")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("failed: connection "), HasSubstr("the server is gone: 127.0.0.1:")));
}

TEST(BenchServe, ControlCPrintsWhatThereIs) {
  const Outcome outcome = run_beside_server("", kBench + R"SH(
    set -m  # without it what runs in the background hears no Ctrl-C
    "$CALANDRA" bench serve "127.0.0.1:$port" --concurrency 2 --requests 1000000 --prompt-tokens 30 --output-tokens 8 & bench=$!
    until_measuring
    kill -INT "$bench"; wait "$bench"; echo "exit $?"
  )SH");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("2 users, cut off"), HasSubstr("exit 130\n")));
  EXPECT_THAT(outcome.err, HasSubstr("stopped before all was measured"));
}

TEST(BenchServe, AKeyIsSent) {
  const Outcome outcome = run_beside_server("--api-key secret", kBench + R"SH(
    bench --requests 1 --concurrency 1 --api-key wrong; echo "exit $?"
    bench --requests 1 --concurrency 1 --api-key secret >/dev/null; echo "exit $?"
    CALANDRA_API_KEY=secret bench --requests 1 --concurrency 1 >/dev/null; echo "exit $?"
  )SH");
  EXPECT_EQ(outcome.out, "exit 1\nexit 0\nexit 0\n") << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("/v1/models: 401: "));
}

TEST(BenchServe, ACommandLineThatCannotBeMeantIsNamed) {
  const std::string url = "http://127.0.0.1:1";
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{}, "URL is required (calandra bench serve --help)"},
      {{url, "--concurrency", "0"}, "--concurrency 0: expected integers from 1 to"},
      {{url, "--rate", "1,x"}, "--rate 1,x: expected numbers from"},
      {{url, "--rate", "1", "--concurrency", "2"}, "excludes"},
      {{url, "--prompt-tokens", "9:5"}, "--prompt-tokens 9:5: expected a length, or two with a colon between them"},
      {{url, "--output-tokens", "0"}, "--output-tokens 0: expected"},
      {{url, "--extra", "[1]"}, "--extra [1]: expected a JSON object"},
      {{url, "--duration", "0"}, "--duration 0: expected"},
      {{url, "--api", "responses"}, "--api responses: expected chat|completions"},
      {{url, "--trace", "/dev/null", "--svg", "/tmp/x.svg"}, "--svg and --trace exclude each other"},
  };
  for (const auto& [arguments, message] : cases) {
    Arguments all = {"bench", "serve"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_program(all);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  // Not of the command line but of the world: exit code 1, before anything is measured.
  for (const auto& [arguments, message] :
       std::vector<std::pair<Arguments, std::string>>{{{"https://127.0.0.1"}, "https://127.0.0.1"},
                                                      {{url}, "127.0.0.1:1: Connection refused"},
                                                      {{url, "--json", "/no/such/folder/x.json"}, "/no/such/folder"},
                                                      {{url, "--trace", "/no/such/trace"}, "/no/such/trace"}}) {
    Arguments all = {"bench", "serve"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_program(all);
    EXPECT_EQ(outcome.code, 1) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST(BenchServe, HelpIsItsOwnAndBenchHasKeptIts) {
  for (const Arguments& arguments : std::vector<Arguments>{{"bench", "serve", "--help"}, {"help", "bench", "serve"}}) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("--concurrency"), HasSubstr("bench serve [OPTIONS] URL"), Not(HasSubstr("--depth"))));
  }
  EXPECT_THAT(run_program({"help", "bench"}).out,
              AllOf(HasSubstr("--depth"), HasSubstr("serve"), Not(HasSubstr("--concurrency"))));
}

}  // namespace
}  // namespace calandra
