// /v1/completions as OpenAI's documentation has it.

#include "serve/openai_completions.h"
#include "base/json.h"
#include "serve/openai_stream.h"
#include "serve/scripted_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace calandra {
namespace {

using testing::ElementsAre;

constexpr std::string_view kCompletionsPath = "/v1/completions";

/// Texts and lists of a stream's choices put together.
Json texts_of_choices(const std::vector<Json>& chunks) {
  Json choices = Json::array();
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk.at("object"), "text_completion");
    for (const Json& part : chunk.at("choices")) {
      const std::size_t index = part.at("index");
      while (choices.size() <= index) {
        choices.push_back({{"index", choices.size()}, {"text", ""}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
      }
      Json& choice = choices[index];
      choice["text"] = choice["text"].get<std::string>() + part.at("text").get<std::string>();
      choice["finish_reason"] = part.at("finish_reason");
      if (part.at("logprobs").is_null()) continue;
      if (choice["logprobs"].is_null()) {
        choice["logprobs"] = part["logprobs"];
        continue;
      }
      for (const auto& [key, list] : part["logprobs"].items()) {
        for (const Json& value : list) choice["logprobs"][key].push_back(value);
      }
    }
  }
  return choices;
}

TEST(OpenAiCompletions, AReplyHasTheDocumentedShape) {
  ApiBench bench(openai_completions);
  bench.answers.script = {.pieces = {" is", " a test"}, .outcome = AnswerOutcome::Length};
  Json json = bench.ask({{"model", "austen-5m"}, {"prompt", "This"}}, kCompletionsPath).json();
  json.erase("created");
  const std::size_t prompt_tokens = bench.answers.requests.back().prompt.size();
  EXPECT_EQ(json,
            Json({{"id", "cmpl-0a1b2c3d-7"},
                  {"object", "text_completion"},
                  {"model", "austen-5m"},
                  {"choices",
                   Json::array({{{"index", 0}, {"text", " is a test"}, {"logprobs", nullptr}, {"finish_reason", "length"}}})},
                  {"usage",
                   {{"prompt_tokens", prompt_tokens},
                    {"completion_tokens", 2},
                    {"total_tokens", prompt_tokens + 2},
                    {"prompt_tokens_details", {{"cached_tokens", 0}, {"cache_write_tokens", 0}}},
                    {"completion_tokens_details",
                     {{"reasoning_tokens", 0}, {"accepted_prediction_tokens", 0}, {"rejected_prediction_tokens", 0}}}}}}))
      << dump_json(json, 1);
  EXPECT_EQ(bench.last_prompt(), "This");  // no template
  EXPECT_EQ(bench.answers.requests.back().options.max_tokens, 16);
}

TEST(OpenAiCompletions, MarksAreText) {
  ApiBench bench(openai_completions);
  bench.answers.script = {.pieces = {"<think>", "a</think>", "<tool_call>"}};
  EXPECT_EQ(bench.ask({{"prompt", "x"}}, kCompletionsPath).json()["choices"][0]["text"], "<think>a</think><tool_call>");
}

TEST(OpenAiCompletions, PromptsMayBeTextsOrTokensOneOrMany) {
  ApiBench bench(openai_completions);
  bench.answers.script = {.pieces = {"x"}};
  const auto prompts = [&](Json prompt) {
    bench.answers.requests.clear();
    const ApiReply reply = bench.ask({{"prompt", std::move(prompt)}, {"n", 2}}, kCompletionsPath);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json().at("choices").size(), bench.answers.requests.size());
    std::vector<std::vector<std::int32_t>> ids;
    for (const AnswerRequest& request : bench.answers.requests) {
      EXPECT_EQ(request.sample, ids.size() % 2);
      ids.push_back(request.prompt);
    }
    return ids;
  };
  const std::vector<std::int32_t> one = {5, 6}, other = {7};
  EXPECT_THAT(prompts({5, 6}), ElementsAre(one, one));
  EXPECT_THAT(prompts(Json::array({Json::array({5, 6}), Json::array({7})})), ElementsAre(one, one, other, other));
  const std::vector<std::int32_t> a = bench.model().tokenizer->encode("Hello"), b = bench.model().tokenizer->encode("you");
  EXPECT_THAT(prompts({"Hello", "you"}), ElementsAre(a, a, b, b));
}

TEST(OpenAiCompletions, AnEchoHasThePromptAndItsLogprobs) {
  ApiBench bench(openai_completions);
  const Tokenizer& tokenizer = *bench.model().tokenizer;
  const auto id = [&](std::string_view text) { return tokenizer.id_of(text).value(); };
  const std::int32_t first = id("\xC3"), second = id("\xA9"), b = id("b"),
                     c = id("c");  // "e" with an acute accent, in two tokens
  bench.answers.script = {.pieces = {"c"},
                          .outcome = AnswerOutcome::Length,
                          .ids = {c},
                          .logprobs = {{{c, -3.0}, {{b, -0.5}}}},
                          .prompt_logprobs = {{{second, -1.0}, {{second, -1.0}}}, {{b, -2.0}, {{c, -0.25}}}}};
  Json body = {{"prompt", {first, second, b}}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 1}};
  const Json choices = bench.ask(body, kCompletionsPath).json().at("choices");
  const std::string stray = "\xEF\xBF\xBD";
  EXPECT_EQ(choices[0].at("text"),
            "\xC3\xA9"
            "bc");
  EXPECT_EQ(
      choices[0].at("logprobs"),
      Json({{"tokens", {stray, stray, "b", "c"}},
            {"token_logprobs", {nullptr, -1.0, -2.0, -3.0}},
            {"top_logprobs", Json::array({nullptr, {{stray, -1.0}}, {{"c", -0.25}, {"b", -2.0}}, {{"b", -0.5}, {"c", -3.0}}})},
            {"text_offset", {0, 0, 1, 2}}}))
      << dump_json(choices, 1);
  body["stream"] = true;
  EXPECT_EQ(texts_of_choices(chunks_of(bench.ask(body, kCompletionsPath).body)), choices);

  // Only the prompt: what the engine makes for it is not told.
  body.erase("stream");
  body["max_tokens"] = 0;
  const Json prompt_only = bench.ask(body, kCompletionsPath).json();
  EXPECT_EQ(prompt_only["choices"][0]["text"],
            "\xC3\xA9"
            "b");
  EXPECT_EQ(prompt_only["choices"][0]["logprobs"]["tokens"].size(), 3U);
  EXPECT_EQ(prompt_only["usage"]["completion_tokens"], 0);
}

TEST(OpenAiCompletions, HoweverTheOutputIsCutAStreamSaysWhatAWholeReplySays) {
  ApiBench bench(openai_completions);
  const std::string output = "caf\xC3\xA9 \xF0\x9F\x98\x80 and </think> more";
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    bench.answers.script = {.pieces = random_pieces(output, seed)};
    for (const bool echo : {false, true}) {
      Json body = {{"prompt", "Say: "}, {"n", 2}, {"echo", echo}};
      const Json whole = bench.ask(body, kCompletionsPath).json().at("choices");
      EXPECT_EQ(whole[1].at("text"), (echo ? "Say: " : "") + output);
      body["stream"] = true;
      ASSERT_EQ(texts_of_choices(chunks_of(bench.ask(body, kCompletionsPath).body)), whole) << "seed " << seed;
    }
  }
}

TEST(OpenAiCompletions, ErrorsNameTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"prompt": null})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": ""})", "prompt"},
      {R"({"prompt": {"text": "x"}})", "prompt"},
      {R"({"prompt": ["a", 5]})", "prompt[1]"},
      {R"({"prompt": [1, 99999999]})", "prompt[1]"},
      {R"({"logprobs": 21})", "logprobs"},
      {R"({"logprobs": true})", "logprobs"},
      {R"({"suffix": "x"})", "suffix"},
      {R"({"best_of": 4})", "best_of"},
      {R"({"max_tokens": 0})", "max_tokens"},
      {R"({"messages": []})", "messages"},
      {R"({"prompt": ["a", "b"], "n": 60})", "n"},
  };
  ApiBench bench(openai_completions);
  bench.answers.script = {.pieces = {"x"}};
  for (const auto& [changes, field] : cases) {
    Json body = {{"prompt", "x"}};
    body.update(parse_json(changes, "test"));
    const ApiReply reply = bench.ask(body, kCompletionsPath);
    EXPECT_EQ(reply.status, 400) << changes << reply.body;
    if (reply.status != 400) continue;
    EXPECT_EQ(reply.error().at("param"), field) << changes << reply.body;
  }
}

}  // namespace
}  // namespace calandra
