// Constrained output from request to text: what the model is made to say fits what was asked for, and nothing else does it.

#include "base/json.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "scripted_answers.h"
#include "serve/grammar_cache.h"
#include "serve/openai_chat.h"
#include "serve/opening_guide.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <future>

namespace calandra {
namespace {

constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
  "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                 "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b\n", "\u00e9"]}}}})";

class Text : public AnswerListener {
 public:
  void gained(std::int32_t /*id*/, const AnswerStep& step) override { text += step.text; }
  void ended(const AnswerSummary& heard, std::string_view rest) override {
    text += rest;
    summary.set_value(heard);
  }
  std::string text;
  std::promise<AnswerSummary> summary;
};

class StructuredOutput : public testing::Test {
 protected:
  static Model& model() {
    static Model loaded(source_path("models/austen-5m").string(), {.threads = 2});
    return loaded;
  }
  GrammarCache cache{model().tokenizer(), stop_ids_of(model()), model().num_samplable()};

  OpeningPlan plan(std::shared_ptr<const Grammar> grammar, ReasoningStart start = ReasoningStart::Off) {
    OpeningPlan made;
    made.reasoning_start = start;
    made.tokenizer = &model().tokenizer();
    made.num_samplable = model().num_samplable();
    made.reasoning_end = model().tokenizer().encode("</think>");
    made.grammar = std::move(grammar);
    return made;
  }
  std::string answer(const OpeningPlan& how, std::uint64_t seed, AnswerOutcome expected) {
    Engine engine(model(), {.limits = {}, .context = 1024, .pool_bytes = std::int64_t{64} << 20, .freed = FreedMemory::Poisoned});
    AnswerRequest wanted;
    wanted.prompt = model().tokenizer().encode("Describe somebody.");
    wanted.options.stop_ids = stop_ids_of(model());
    wanted.options.max_tokens = 400;
    wanted.options.sampling.seed = seed;
    wanted.guide = std::make_shared<OpeningGuide>(std::make_shared<const OpeningPlan>(how));
    const auto heard = std::make_shared<Text>();
    engine.submit(wanted, heard);
    const AnswerSummary summary = heard->summary.get_future().get();
    EXPECT_EQ(summary.outcome, expected) << summary.error;
    return heard->text;
  }
};

TEST_F(StructuredOutput, EveryAnswerFitsItsSchema) {
  const OpeningPlan how = plan(cache.find_or_compile(GrammarCache::Kind::JsonSchema, kSchema, "schema"));
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const std::string text = answer(how, seed, AnswerOutcome::Stop);
    SCOPED_TRACE(text);
    const Json json = try_parse_json(text).value_or(Json());
    ASSERT_TRUE(json.is_object());
    EXPECT_EQ(json.size(), 3u);
    EXPECT_TRUE(json.at("name").is_string());
    EXPECT_GE(json.at("age").get<int>(), 0);
    EXPECT_LE(json.at("age").get<int>(), 120);
    ASSERT_LE(json.at("tags").size(), 3u);
    for (const Json& tag : json.at("tags")) EXPECT_THAT(tag.get<std::string>(), testing::AnyOf("a", "b\n", "\u00e9"));
  }
}

TEST_F(StructuredOutput, AGrammarTextIsFollowedToItsEnd) {
  const OpeningPlan how = plan(cache.find_or_compile(GrammarCache::Kind::Ebnf, R"(root ::= ("yes" | "no") "!"{1,3})", "grammar"));
  for (std::uint64_t seed = 0; seed < 6; ++seed)
    EXPECT_THAT(answer(how, seed, AnswerOutcome::Stop), testing::MatchesRegex("(yes|no)!(!)?(!)?"));
}

TEST_F(StructuredOutput, BeginsWhenTheReasoningHasEnded) {
  OpeningPlan how =
      plan(cache.find_or_compile(GrammarCache::Kind::Ebnf, R"(root ::= "yes" | "no")", "grammar"), ReasoningStart::Open);
  how.max_reasoning_tokens = 9;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text = answer(how, seed, AnswerOutcome::Stop);
    const std::size_t end = text.find("</think>");
    ASSERT_NE(end, std::string::npos) << text;
    EXPECT_THAT(text.substr(end + 8), testing::AnyOf("yes", "no"));
  }
}

TEST_F(StructuredOutput, TheSameTextIsCompiledOnce) {
  const auto first = cache.find_or_compile(GrammarCache::Kind::JsonSchema, kSchema, "a");
  EXPECT_EQ(cache.find_or_compile(GrammarCache::Kind::JsonSchema, kSchema, "b"), first);
  EXPECT_NE(cache.find_or_compile(GrammarCache::Kind::JsonObject, kSchema, "c"), first);
  EXPECT_EQ(cache.size(), 2u);
  for (int i = 0; i < 100; ++i)
    cache.find_or_compile(GrammarCache::Kind::Ebnf, "root ::= \"" + std::to_string(i) + "\"", "grammar");
  EXPECT_LE(cache.size(), 64u);
  EXPECT_THAT(error_of([&] { cache.find_or_compile(GrammarCache::Kind::Ebnf, "root ::= (", "grammar"); }),
              testing::HasSubstr("grammar:1:"));
  EXPECT_LE(cache.size(), 64u);
}

}  // namespace
}  // namespace calandra
