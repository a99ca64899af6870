// The program as a server: `calandra serve`, from its first line to SIGTERM.

#include "base/json.h"
#include "cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Begins a script beside a server: sends what `post PATH BODY` says on file 3, where the reply is read.
const std::string kPost = R"SH(
    post() {
      exec 3<>"/dev/tcp/127.0.0.1/$port"
      printf 'POST %s HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %s\r\n\r\n%s' "$1" "${#2}" "$2" >&3
    }
)SH";

/// Starts a server, sends it one request, ends it. Out: the reply, then the exit code; err: what the server said.
Outcome serve_once(const std::string& options, const std::string& path, const Json& body, const std::string& environment = {}) {
  return run_beside_server(options, kPost + R"SH(
    post "$1" "$2"
    cat <&3
    kill -TERM "$server"; wait "$server"; printf '\nexit %s\n' "$?"
    cat "$said" >&2
  )SH",
                           {path, dump_json(body)}, environment);
}

Json body_of(const Outcome& outcome) {
  const std::size_t begin = outcome.out.find("\r\n\r\n"), end = outcome.out.rfind("\nexit ");
  return begin == std::string::npos ? Json() : parse_json(outcome.out.substr(begin + 4, end - begin - 4), "test");
}

const std::string kQuestion = "The secret number is 4827. What is the secret number?";

TEST(Serve, AnAnswerIsTheOneThatRunGives) {
  const Json told =
      run_program({"run", "--chat", "-p", kQuestion, "--temp", "0", "--activations", "fp32", "--threads", "1", "--json"}).json();
  const Outcome served = serve_once(
      "--activations fp32 --threads 1", "/v1/chat/completions",
      {{"model", "austen-5m"}, {"messages", Json::array({{{"role", "user"}, {"content", kQuestion}}})}, {"temperature", 0}});
  EXPECT_THAT(served.out, AllOf(HasSubstr("200 OK"), HasSubstr("\nexit 0\n")));
  const Json reply = body_of(served);
  const Json& message = reply.at("choices")[0].at("message");
  EXPECT_EQ(message.at("content"), told.at("text"));
  EXPECT_EQ(message.value("reasoning_content", ""), told.at("reasoning"));
  EXPECT_EQ(reply.at("choices")[0].at("finish_reason"), told.at("finish_reason"));
  EXPECT_EQ(reply.at("usage").at("prompt_tokens"), told.at("usage").at("prompt_tokens"));
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), told.at("usage").at("completion_tokens"));
  EXPECT_THAT(served.err, AllOf(HasSubstr("austen-5m on http://127.0.0.1:"), HasSubstr("stopping")));
}

TEST(Serve, AKeyOfTheEnvironmentIsAskedFor) {
  const Json body = {{"prompt", "x"}};
  EXPECT_THAT(serve_once("", "/tokenize", body).out, HasSubstr("200 OK"));
  EXPECT_THAT(serve_once("", "/tokenize", body, "CALANDRA_API_KEY=secret ").out, HasSubstr("401 Unauthorized"));
}

const std::string kEndlessStream = dump_json({{"prompt", "x"}, {"max_tokens", 100000}, {"ignore_eos", true}, {"stream", true}});

TEST(Serve, AStreamThatOutlivesTheGraceEndsWithAnError) {
  const Outcome outcome = run_beside_server("--drain 0", kPost + R"SH(
    post /v1/completions "$1"
    head -c 2000 <&3 >/dev/null
    kill -TERM "$server"
    tail -c 400 <&3
    wait "$server"; printf '\nexit %s\n' "$?"
  )SH",
                                            {kEndlessStream});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("data: {\"error\":{\"message\":\"the server is stopping\""), HasSubstr("\nexit 0\n")));
}

TEST(Serve, ASecondSignalEndsItAtOnce) {
  const Outcome outcome = run_beside_server("--drain 3600", kPost + R"SH(
    post /v1/completions "$1"
    head -c 2000 <&3 >/dev/null
    kill -TERM "$server"
    until grep -q stopping "$said"; do sleep 0.1; done
    kill -TERM "$server"
    wait "$server"; printf 'exit %s\n' "$?"
  )SH",
                                            {kEndlessStream});
  EXPECT_EQ(outcome.out, "exit 143\n");  // and not after an hour
}

TEST(Serve, RequestsLeaveALineOfJsonWhereAskedFor) {
  const Outcome outcome = serve_once("--log-requests -", "/tokenize", {{"prompt", "my secret"}});
  EXPECT_THAT(outcome.out, HasSubstr("200 OK"));
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("\n{\"time\":\"20"), HasSubstr("\"path\":\"/tokenize\""), Not(HasSubstr("my secret"))));
  const Outcome refused = run_program({"serve", "--log-prompts"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--log-requests"));
}

// What it says of its memory at the start is what requests find: one as long as that is taken in, a longer one is not.
TEST(Serve, TheFirstLinesSayWhatThePoolHolds) {
  const std::string ask = kPost + R"SH(
    until grep -q '^pool ' "$said"; do sleep 0.1; done
    tokens=$(sed -n 's/^pool .* of \([0-9,]*\) tokens.*/\1/p' "$said" | tr -d ,)
    for more in 0 2; do
      post /v1/completions "{\"prompt\": [5], \"max_tokens\": $((tokens + more - 1)), \"stop\": \"e\", \"temperature\": 0}"
      head -1 <&3
    done
    kill -TERM "$server"; wait "$server"
    cat "$said" >&2
  )SH";
  const Json memory = run_program({"inspect", "--json"}).json().at("memory");
  const auto of_tokens = [&](std::int64_t tokens) {
    return memory["state_bytes_per_sequence"].get<std::int64_t>() + memory["tail_bytes_per_sequence"].get<std::int64_t>() +
           tokens * memory["cache_bytes_per_token"].get<std::int64_t>();
  };
  const Outcome small = run_beside_server("--pool " + std::to_string(of_tokens(700)), ask);
  EXPECT_THAT(small.err, testing::ContainsRegex("\npool [0-9.]+ [KM]iB: room for one sequence of [0-9,]+ tokens, less than"));
  EXPECT_THAT(small.out, AllOf(HasSubstr("200 OK"), HasSubstr("400 Bad Request")));

  const std::int64_t context = run_program({"inspect", "--json"}).json().at("config").at("context").get<std::int64_t>();
  const Outcome large =
      serve_once("--draft-tokens 0 --pool " + std::to_string(10 * of_tokens(context)), "/tokenize", {{"prompt", "x"}});
  EXPECT_THAT(large.err, testing::ContainsRegex("\npool [0-9.]+ [KMG]iB: room for (8|9|10) sequences of the full context\n"))
      << "some of ten, since memory is handed out in blocks";
}

TEST(Serve, AnAddressThatCannotBeHadIsNamed) {
  const Outcome outcome = run_program({"serve", "--host", "192.0.2.1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("192.0.2.1:8080"));
  EXPECT_THAT(run_program({"serve", "--host", "2001:db8::1"}).err, HasSubstr("[2001:db8::1]:8080"));
}

TEST(Serve, KeysAndOriginsThatFitNoRequestAreRefused) {
  const Outcome key = run_program({"serve", "--api-key", ""});
  EXPECT_EQ(key.code, 2);
  EXPECT_THAT(key.err, HasSubstr("--api-key: found an empty text"));
  // A browser sends a scheme and an address, without a path (RFC 6454, 7).
  for (const char* origin : {"chat.example.org", "https://chat.example.org/", "https://"}) {
    const Outcome outcome = run_program({"serve", "--cors-origin", origin});
    EXPECT_EQ(outcome.code, 2) << origin;
    EXPECT_THAT(outcome.err, HasSubstr(std::string("--cors-origin ") + origin));
  }
}

TEST(Serve, AnAliasThatIsTheNameIsListedOnce) {
  const Outcome outcome = run_beside_server("--alias austen-5m --alias other", kPost + R"SH(
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET /v1/models HTTP/1.0\r\n\r\n' >&3; cat <&3
    kill -TERM "$server"; wait "$server")SH");
  const std::string& list = outcome.out;
  EXPECT_THAT(list, HasSubstr("\"id\":\"other\""));
  const std::size_t first = list.find("\"id\":\"austen-5m\"");
  ASSERT_NE(first, list.npos);
  EXPECT_EQ(list.find("\"id\":\"austen-5m\"", first + 1), list.npos);
}

TEST(Serve, OptionsOutOfRangeAreNamed) {
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{{"--port", "65536"},
                                                                                      {"--max-bodies", "33554431"},
                                                                                      {"--max-running", "0"},
                                                                                      {"--pool", "much"},
                                                                                      {"--time-limit", "0"},
                                                                                      {"--drain", "-1"}}) {
    const Outcome outcome = run_program({"serve", option, value});
    EXPECT_EQ(outcome.code, 2) << option;
    EXPECT_THAT(outcome.err, HasSubstr(option + " " + value)) << outcome.err;
  }
}

}  // namespace
}  // namespace calandra
