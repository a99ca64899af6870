// Where an answer ends, and how a conversation goes on with the tokens it has.

#include "engine/generate.h"

#include "engine/perplexity.h"
#include "support/golden.h"
#include "support/json.h"
#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <stdexcept>

namespace calandra {
namespace {

using testing::UnorderedElementsAre;

class GenerateTest : public testing::Test {
 protected:
  static Model& model() {
    static Model loaded(source_path("models/austen-5m").string(), {});
    return loaded;
  }
  static Generation greedy(std::string_view prompt, GenerationOptions options) {
    options.sampling.temperature = 0;
    Session session(model(), 256);
    return generate(model(), session, model().tokenizer().encode(prompt), options);
  }
  /// The id of a token by its text in tokenizer.json.
  static std::int32_t id_of(std::string_view mark) {
    const auto file = read_json(source_path("models/austen-5m/tokenizer.json"));
    for (const auto& token : file["added_tokens"]) {
      if (token["content"] == mark) return token["id"].get<std::int32_t>();
    }
    throw std::runtime_error("no such token");
  }
};

TEST_F(GenerateTest, TheEndOfARoleStopsWhateverTheConfigsList) {
  const TemporaryFolder folder;
  std::filesystem::copy(source_path("models/austen-5m"), folder.path(), std::filesystem::copy_options::recursive);
  auto config = read_json(folder / "config.json");
  config["eos_token_id"] = 11;
  write_file(folder / "config.json", dump_json(config));
  write_file(folder / "generation_config.json", R"({"eos_token_id": [7, 9]})");
  const Model other(folder.path().string(), {});
  EXPECT_THAT(stop_ids_of(other), UnorderedElementsAre(7, 9, 11, id_of("<|role_end|>"), id_of("<|endoftext|>")));
}

TEST_F(GenerateTest, EachStopIdEndsTheAnswerWithoutItsText) {
  GenerationOptions twelve;
  twelve.max_tokens = 12;
  const Generation whole = greedy("Elizabeth was", twelve);
  ASSERT_EQ(whole.ids.size(), 12U);
  for (std::size_t n = 0; n < whole.ids.size(); ++n) {
    GenerationOptions options;
    options.stop_ids = {2000, whole.ids[n], 2001};
    const Generation made = greedy("Elizabeth was", options);
    const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[n]);
    EXPECT_EQ(made.ids, std::vector(whole.ids.begin(), first + 1)) << "up to the first " << whole.ids[n];
    EXPECT_EQ(made.finish_reason, FinishReason::Stop);
    EXPECT_EQ(made.text, detokenize(model().tokenizer(), std::span(made.ids).first(made.ids.size() - 1)));
  }
}

TEST_F(GenerateTest, EveryTokenHasOneLogprobAndThePromptsSumToItsPerplexity) {
  const std::string prompt = [] {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "It is a truth universally acknowledged, that a single man must be in want of a wife. ";
    return text;
  }();
  const std::vector<std::int32_t> ids = model().tokenizer().encode(prompt);
  ASSERT_GT(std::ssize(ids), kPrefillTokens + 2 * kLogitRows) << "more than one step, and more rows than are held at a time";
  GenerationOptions options{.max_tokens = 7, .logprobs = 3, .prompt_logprobs = 2};
  options.sampling.temperature = 0;
  Session session(model());
  const Generation made = generate(model(), session, ids, options);
  ASSERT_EQ(made.logprobs.size(), made.ids.size());
  ASSERT_EQ(made.prompt_logprobs.size(), ids.size() - 1);
  for (std::size_t i = 0; i < made.ids.size(); ++i) {
    EXPECT_EQ(made.logprobs[i].chosen.token, made.ids[i]);
    EXPECT_EQ(made.logprobs[i].chosen, made.logprobs[i].top.at(0)) << "greedy";
    EXPECT_EQ(made.logprobs[i].top.size(), 3U);
  }
  double nats = 0;
  for (std::size_t i = 0; i < made.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(made.prompt_logprobs[i].chosen.token, ids[i + 1]);
    EXPECT_EQ(made.prompt_logprobs[i].top.size(), 2U);
    nats -= made.prompt_logprobs[i].chosen.logprob;
  }
  EXPECT_NEAR(nats, measure_perplexity(model(), ids).nats, 1e-9 * nats);

  // The same if the session holds the prompt already, and without the logprobs the same answer.
  const Generation again = generate(model(), session, ids, options);
  EXPECT_EQ(again.prompt_logprobs, made.prompt_logprobs);
  EXPECT_EQ(again.reused_tokens, 0);
  options.prompt_logprobs.reset();
  const Generation plain = generate(model(), session, ids, options);
  EXPECT_EQ(plain.ids, made.ids);
  EXPECT_EQ(plain.logprobs, made.logprobs);
  EXPECT_EQ(plain.prompt_logprobs.size(), 0U);
}

TEST_F(GenerateTest, KnownTokensAreKeptHoweverTheyAreSpelt) {
  const Tokenizer& tokenizer = model().tokenizer();
  std::vector<std::int32_t> letters;  // one token a letter, as no tokenizer would spell it
  for (const char letter : std::string_view("Elizabeth")) letters.push_back(tokenizer.encode(std::string_view(&letter, 1)).at(0));
  ASSERT_NE(tokenizer.encode("Elizabeth"), letters);
  auto expected = letters;
  const auto rest = tokenizer.encode(" was");
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(extend_tokens(tokenizer, letters, "Elizabeth was"), expected);
  EXPECT_EQ(extend_tokens(tokenizer, letters, "Elizabeth"), letters);
  EXPECT_EQ(extend_tokens(tokenizer, letters, "Eliza was"), tokenizer.encode("Eliza was")) << "another text";
  EXPECT_EQ(extend_tokens(tokenizer, std::vector<std::int32_t>{1, -5}, "Eliza"), tokenizer.encode("Eliza")) << "foreign ids";
}

}  // namespace
}  // namespace calandra
