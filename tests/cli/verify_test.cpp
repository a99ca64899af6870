// calandra verify as a person runs it: on a model, on a server, and on models and servers that break the promise.

#include "cli/program.h"

#include "support/scripted_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(VerifyModel, HoldsAndSaysSoForPeopleAndPrograms) {
  const Arguments arguments = {"verify", kBundledModel, "--prompt-tokens", "64", "--answer-tokens", "4", "--seed", "5"};
  const Outcome table = run_program(arguments);
  EXPECT_EQ(table.code, 0) << table.out << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("austen-5m, 5.77 M parameters"), HasSubstr("seed 5"), HasSubstr("preempted"),
                               HasSubstr("control: 1 of 1 bits"), HasSubstr("The promise holds: "), Not(HasSubstr("DIFFERENT"))));
  EXPECT_THAT(table.err, IsEmpty());

  Arguments for_programs = arguments;
  for_programs.insert(for_programs.end(), {"--json", "--threads", "1", "--kv", "fp8"});
  const Outcome outcome = run_program(for_programs);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json["holds"], true);
  EXPECT_EQ(json["complete"], true);
  EXPECT_EQ(json["kv"], "fp8");
  EXPECT_EQ(json["threads"], 1);
  EXPECT_EQ(json["control"]["bits_seen"], 1);
  EXPECT_EQ(json["alone"]["rows"], json["alone"]["requests"].get<int>() * 4);
  EXPECT_GE(json["paths"].size(), 10u);
  for (const Json& path : json["paths"]) {
    EXPECT_EQ(path["different_rows"], 0) << path["path"];
    EXPECT_TRUE(path["first_difference"].is_null());
    EXPECT_EQ(path["rows"], path["requests"].get<int>() * 4) << path["path"];
  }
}

// Memory that changes under the program, as a broken module would: some bytes of the file of weights, which it has mapped.
TEST(VerifyModel, WeightsThatChangeMeanwhileAreFoundOut) {
  const TemporaryFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(kBundledModel))
    std::filesystem::copy(entry.path(), folder / entry.path().filename().string());
  const std::filesystem::path file = folder / "model.safetensors";
  std::atomic<bool> is_over = false;
  std::thread breaker([&] {
    std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
    std::string bytes(1 << 16, '\0');
    weights.seekg(middle);
    weights.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    while (!is_over) {
      for (std::size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(bytes[i] ^ 0x10);  // small bits of bf16
      weights.seekp(middle);
      weights.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      weights.flush();
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
  });
  const Outcome outcome = run_program({"verify", folder.path().string(), "--prompt-tokens", "64", "--seed", "5"});
  is_over = true;
  breaker.join();
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("DIFFERENT"), HasSubstr("rows differ, by "), HasSubstr("THE PROMISE IS BROKEN"),
                                 Not(HasSubstr("The promise holds"))));
}

TEST(VerifyModel, ControlCLeavesWithoutAVerdict) {
  const Outcome outcome = run_shell(R"SH(
    folder=$(mktemp -d)
    bash -c 'set -m; "$CALANDRA" verify --rounds 1000 >"$1/out" 2>&1 & p=$!
      until grep -q "^path" "$1/out"; do sleep 0.1; done; kill -INT $p; wait $p; echo "exit $?"' bash "$folder"
    cat "$folder/out"; rm -r "$folder"
  )SH");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("exit 130\n"), HasSubstr("The promise was not shown to hold."),
                                 HasSubstr("stopped before all was compared"), Not(HasSubstr("The promise holds"))));
}

TEST(VerifyServer, OursIsTheSameAlsoAfterEvictions) {
  const Outcome outcome = run_beside_server("--pool 3MiB", R"SH(
    verify() { "$CALANDRA" verify --url "127.0.0.1:$port" --prompt-tokens 300 --answer-tokens 8 --rounds 2 --evict-tokens 4000 --seed 4 "$@"; }
    verify; echo "exit $?"; verify --api completions --json
  )SH");
  const std::size_t end = outcome.out.find("exit 0\n");
  ASSERT_NE(end, std::string::npos) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out.substr(0, end),
              AllOf(HasSubstr("austen-5m at http://127.0.0.1:"), HasSubstr("cache: seen; of prompts sent again"),
                    HasSubstr("eviction: seen"), HasSubstr("answers are the same as the first time")));
  const Json json = json_of(outcome.out.substr(end + 7));
  EXPECT_EQ(json["verdict"], "same");
  EXPECT_EQ(json["logprobs"], true);
  for (const Json& step : json["steps"]) {
    EXPECT_EQ(step["failed"], 0) << step["first_failure"];
    EXPECT_EQ(step["other_text"], 0);
    EXPECT_TRUE(step["cached_tokens"].is_number());
  }
}

/// Answers every chat with the same text; what `change` does to the choice of answer n, from 1, is up to it.
class Liar {
 public:
  explicit Liar(std::function<void(Json&, int)> change)
      : change_(std::move(change)), server_([this](const auto& request, const auto& send) { return answer(request, send); }) {}

  Outcome verify(Arguments more = {}) const {
    Arguments arguments = {
        "verify",         "--url", fmt::format("127.0.0.1:{}", server_.port()), "--prompt-tokens", "64", "--rounds", "1",
        "--evict-tokens", "100"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

 private:
  bool answer(const ScriptedRequest& request, const ScriptedServer::Send& send) {
    if (request.target == "/v1/models") {
      send(whole_reply(200, "application/json", R"({"data": [{"id": "liar"}]})"));
    } else if (request.body["stream"].get<bool>()) {
      send(stream_header() + "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\ndata: [DONE]\n\n");
      return false;
    } else {
      Json choice = json_of(R"({"message": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}})");
      change_(choice, ++num_answers_);
      Json reply = {{"choices", Json::array()}};
      reply["choices"].push_back(choice);
      send(whole_reply(200, "application/json", dump_json(reply)));
    }
    return true;
  }

  std::function<void(Json&, int)> change_;
  std::atomic<int> num_answers_ = 0;
  ScriptedServer server_;
};

TEST(VerifyServer, TheExitCodeSaysWhetherItDiffersOrCouldNotBeTested) {
  const Outcome same = Liar([](Json&, int) {}).verify();
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, AllOf(HasSubstr("cache: not reported"), HasSubstr("answers are the same as the first time")));

  // One log probability, in its seventh digit.
  const Outcome differs = Liar([](Json& choice, int n) {
                            if (n > 8) choice["logprobs"]["content"][0]["logprob"] = -0.5000001;
                          }).verify();
  EXPECT_EQ(differs.code, 1) << differs.out << differs.err;
  EXPECT_THAT(differs.out, AllOf(HasSubstr("answers are NOT the same as the first time"),
                                 HasSubstr("token 1: found \"a\" -0.5000001"), HasSubstr("by 1e-07 at most")));

  const Outcome untested = Liar([](Json& choice, int) { choice.erase("logprobs"); }).verify();
  EXPECT_EQ(untested.code, 2);
  EXPECT_THAT(untested.out, AllOf(HasSubstr("Not tested: "), HasSubstr("no log probabilities (the answer has none)")));

  const Outcome nobody = run_program({"verify", "--url", "127.0.0.1:1"});
  EXPECT_EQ(nobody.code, 2);
  EXPECT_THAT(nobody.err, HasSubstr("calandra: verify: "));
  EXPECT_THAT(nobody.out, IsEmpty());
}

TEST(Verify, ACommandLineThatCannotBeMeantIsNamed) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--url", "127.0.0.1:1", kBundledModel}, "excludes"},
      {{"--url", "127.0.0.1:1", "--threads", "2"}, "excludes"},
      {{"--evict-tokens", "5"}, "--evict-tokens requires --url"},
      {{"--api-key", "k"}, "--api-key requires --url"},
      {{"--prompt-tokens", "63"}, "--prompt-tokens 63: expected an integer from 64 to"},
      {{"--answer-tokens", "3"}, "--answer-tokens 3: expected an integer from 4 to"},
      {{"--rounds", "0"}, "--rounds 0: expected"},
      {{"--url", "127.0.0.1:1", "--extra", "[1]"}, "--extra [1]: expected a JSON object"},
      {{"--url", "127.0.0.1:1", "--extra", "{1"}, "--extra: not JSON"},
      {{"--url", "https://127.0.0.1"}, "URL: found 'https://127.0.0.1', expected http"},
  };
  for (const auto& [more, message] : cases) {
    Arguments arguments = {"verify"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  const Outcome too_long = run_program({"verify", "--prompt-tokens", "100000"});
  EXPECT_EQ(too_long.code, 1);
  EXPECT_THAT(too_long.err, HasSubstr("prompts of up to 100000 tokens: expected 64 to"));
}

}  // namespace
}  // namespace calandra
