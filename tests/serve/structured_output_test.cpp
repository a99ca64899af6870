// Constrained output from request to text: what the model is made to say fits what was asked for, and nothing else does it.

#include "base/json.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "scripted_answers.h"
#include "serve/grammar_cache.h"
#include "serve/openai_chat.h"
#include "serve/opening_guide.h"
#include "serve/test_server.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
  "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                 "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b\n", "\u00e9"]}}}})";

class Text : public AnswerListener {
 public:
  void gained(std::int32_t /*id*/, const AnswerStep& step) override {
    text += step.text;
    num_logprobs += step.logprobs ? 1 : 0;
  }
  void ended(const AnswerSummary& heard, std::string_view rest) override {
    text += rest;
    summary.set_value(heard);
  }
  std::string text;
  int num_logprobs = 0;
  std::promise<AnswerSummary> summary;
};

constexpr const char* kTool = R"({"type": "object", "additionalProperties": false, "required": ["name", "age"], "properties": {
  "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "alive": {"type": "boolean"}}})";

CallRules one_tool() {
  CallRules rules;
  rules.tools.push_back({"describe", kTool, true, "tools"});
  rules.several = false;
  return rules;
}

/// A schema of few bytes whose automata take about half a second; or that fails behind them.
std::string slow_schema(bool fails) {
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 6; ++i) {
    schema["properties"]["p" + std::to_string(i)] = {{"type", "string"},
                                                     {"pattern", "^[ab]*a[ab]{12}" + std::to_string(i) + "$"}};
  }
  if (fails) schema["properties"]["z"] = {{"not", Json::object()}};
  return dump_json(schema);
}

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
  OpeningPlan call_plan(bool must_call, ReasoningStart start = ReasoningStart::Off) {
    OpeningPlan made = plan(nullptr, start);
    made.calls = cache.find_or_compile(one_tool());
    made.must_call = must_call;
    return made;
  }
  std::int32_t id_of(std::string_view token) {
    const std::vector<std::int32_t> ids = model().tokenizer().encode(token);
    EXPECT_EQ(ids.size(), 1u) << token;
    return ids.front();
  }
  /// Tokens that may come, all if there is no mask.
  bool may(AnswerGuide& guide, std::string_view token) {
    const std::int32_t id = id_of(token);
    const std::span<const std::uint64_t> mask = guide.allowed();
    return mask.empty() || (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0;
  }
  void push(AnswerGuide& guide, std::string_view text) {
    for (const std::int32_t id : model().tokenizer().encode(text)) {
      const std::span<const std::uint64_t> mask = guide.allowed();
      EXPECT_TRUE(mask.empty() || (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0) << text;
      guide.push(id);
    }
  }
  void expect_call(const std::string& text) {
    SCOPED_TRACE(text);
    const Json tools = Json::array({{{"name", "describe"}, {"parameters", parse_json(kTool, "test")}}});
    const ParsedOutput output = parse_output(text, OutputFormat{true, true, true, {}}, ReasoningStart::Off, tools);
    ASSERT_EQ(output.tool_calls.size(), 1u);
    const Json arguments = parse_json(output.tool_calls[0].arguments, "test");
    EXPECT_LE(arguments.at("name").get<std::string>().size(), 48u);
    EXPECT_GE(arguments.at("age").get<int>(), 0);
    EXPECT_LE(arguments.at("age").get<int>(), 120);
    EXPECT_EQ(arguments.size(), arguments.contains("alive") ? 3u : 2u);
    EXPECT_TRUE(!arguments.contains("alive") || arguments["alive"].is_boolean());
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
  EXPECT_THAT(error_of([&] { cache.find_or_compile(GrammarCache::Kind::Ebnf, "root ::= (", "grammar"); }),
              testing::HasSubstr("grammar:1:"));
  EXPECT_EQ(cache.size(), 2u);
}

TEST_F(StructuredOutput, WhatIsKeptIsLimitedByItsMemoryNotByHowMuchItIs) {
  GrammarCache small(model().tokenizer(), stop_ids_of(model()), model().num_samplable(), std::size_t{1} << 20);
  const auto compile = [&](int i) {
    return small.find_or_compile(GrammarCache::Kind::Ebnf, "root ::= \"" + std::to_string(i) + "\"", "grammar");
  };
  const auto first = compile(0);
  for (int i = 1; i < 200; ++i) compile(i);
  EXPECT_EQ(small.size(), 200u);
  EXPECT_EQ(compile(0), first);
  const std::size_t bytes_of_small = small.bytes();
  const auto second = compile(1);
  // A hundred times a digit is no more to write, and much more to keep.
  for (int i = 0; i < 100; ++i) {
    small.find_or_compile(GrammarCache::Kind::Ebnf, "root ::= ([a-z] \"" + std::to_string(i) + "\"){100}", "grammar");
    EXPECT_LE(small.bytes(), std::size_t{1} << 20);
  }
  EXPECT_LT(bytes_of_small, std::size_t{1} << 20);
  EXPECT_LT(small.size(), 200u);
  EXPECT_NE(compile(2), nullptr);
  EXPECT_NE(compile(1), second) << "it was not asked for the longest";
}

TEST_F(StructuredOutput, MasksThatWereMadeCountForTheMemoryOfTheirGrammar) {
  const auto grammar = cache.find_or_compile(GrammarCache::Kind::Ebnf, R"(root ::= "a" [b-y]+ "z")", "grammar");
  const std::size_t before = cache.bytes();
  EXPECT_GE(before, grammar->bytes());
  GrammarState state(grammar);
  TokenMask mask;
  for (const char c : std::string_view("ab")) {
    ASSERT_TRUE(state.accept_text({&c, 1}));
    state.allowed(mask);
  }
  EXPECT_GE(cache.bytes(), before + mask.words().size_bytes());
}

// A text that takes long does not hold up another one; and whoever asks for one that is being compiled waits for it.
TEST_F(StructuredOutput, DifferentTextsAreCompiledSideBySideAndTheSameOnce) {
  using Clock = std::chrono::steady_clock;
  const auto compile = [this](const std::string& text) {
    return cache.find_or_compile(GrammarCache::Kind::JsonSchema, text, "schema");
  };
  compile(R"({"type": "null"})");  // makes the vocabulary
  const auto start = Clock::now();
  std::vector<std::future<std::pair<std::shared_ptr<const Grammar>, Clock::time_point>>> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(std::async(std::launch::async, [&] {
      auto grammar = compile(slow_schema(false));
      return std::pair(std::move(grammar), Clock::now());
    }));
  }
  ASSERT_TRUE(becomes_true([&] { return cache.size() == 2; }));
  compile(R"({"type": "boolean"})");
  const auto quick_end = Clock::now();
  const auto [grammar, end] = slow[0].get();
  EXPECT_LT(quick_end - start, (end - start) / 2);
  for (int i = 1; i < 3; ++i) EXPECT_EQ(slow[static_cast<std::size_t>(i)].get().first, grammar);
}

TEST_F(StructuredOutput, WhoWaitsForATextThatFailsHearsOfItInHisOwnWords) {
  const std::string text = slow_schema(true);
  std::vector<std::future<std::string>> errors;
  for (const char* where : {"one", "other"}) {
    errors.push_back(std::async(std::launch::async, [this, &text, where] {
      return error_of([&] { cache.find_or_compile(GrammarCache::Kind::JsonSchema, text, where); });
    }));
  }
  EXPECT_THAT(errors[0].get(), testing::StartsWith("one: "));
  EXPECT_THAT(errors[1].get(), testing::StartsWith("other: "));
  EXPECT_EQ(cache.size(), 0u);
}

TEST_F(StructuredOutput, ACallThatMustComeHasArgumentsThatFit) {
  const OpeningPlan how = call_plan(true);
  for (std::uint64_t seed = 0; seed < 12; ++seed) expect_call(answer(how, seed, AnswerOutcome::Stop));
}

TEST_F(StructuredOutput, TheModelSaysWhatItLikesUntilItCalls) {
  OpeningGuide guide(std::make_shared<const OpeningPlan>(call_plan(false)));
  push(guide, "Let me see: a < b, <tool>");
  EXPECT_TRUE(guide.allowed().empty());
  guide.push(id_of("<tool_call>"));
  EXPECT_FALSE(may(guide, "<arg_key>"));
  push(guide, "describe\n");
  EXPECT_FALSE(may(guide, "</tool_call>"));
  push(guide, "<arg_key>age</arg_key>\n<arg_value>7");
  EXPECT_FALSE(may(guide, "x"));
  push(guide, "</arg_value>\n<arg_key>name</arg_key><arg_value>Anne</arg_value>\n</tool_call>");
  EXPECT_FALSE(may(guide, "<tool_call>"));
  EXPECT_TRUE(may(guide, "<|role_end|>"));
}

TEST_F(StructuredOutput, ACallOutOfTheReasoningIsHeldToItsTool) {
  for (const bool must_call : {false, true}) {
    OpeningGuide guide(std::make_shared<const OpeningPlan>(call_plan(must_call, ReasoningStart::Open)));
    push(guide, "Hm, <tool_call>");
    push(guide, "describe\n<arg_key>");
    EXPECT_FALSE(may(guide, "</arg_key>"));
  }
}

/// The reader of the output has it so: what follows is the answer, which a grammar may be about.
TEST_F(StructuredOutput, WithoutToolsACallsMarkEndsTheReasoning) {
  OpeningPlan how =
      plan(cache.find_or_compile(GrammarCache::Kind::Ebnf, R"(root ::= "yes" | "no")", "grammar"), ReasoningStart::Open);
  how.tool_call_mark = OpeningPlan::ToolCallMark::ReasoningEnd;
  OpeningGuide guide(std::make_shared<const OpeningPlan>(how));
  push(guide, "Hm, <tool_call>");
  EXPECT_FALSE(may(guide, "a"));
  push(guide, "yes");
  EXPECT_TRUE(may(guide, "<|role_end|>"));
  const ParsedOutput output =
      parse_output("Hm, <tool_call>yes", OutputFormat{true, true, true, {}}, ReasoningStart::Open, Json::array());
  EXPECT_EQ(output.content, "yes");
  // Where calls are not known it is text like any other.
  how.tool_call_mark = OpeningPlan::ToolCallMark::Text;
  OpeningGuide other(std::make_shared<const OpeningPlan>(how));
  push(other, "Hm, <tool_call> a </think>");
  EXPECT_FALSE(may(other, "a"));
  EXPECT_EQ(parse_output("Hm, <tool_call> a </think>no", OutputFormat{true, false, true, {}}, ReasoningStart::Open, Json::array())
                .content,
            "no");
}

/// Marks that are spelled in other tokens, of which the last has the beginning of what follows.
TEST_F(StructuredOutput, WhatFollowsAMarkInsideOfATokenIsTheGrammars) {
  OpeningPlan how = plan(cache.find_or_compile(GrammarCache::Kind::JsonSchema, R"({"type": "object", "required": ["k"],
      "additionalProperties": false, "properties": {"k": {"type": "integer"}}})",
                                               "schema"),
                         ReasoningStart::Open);
  const auto reasoned = [&] {
    auto guide = std::make_shared<OpeningGuide>(std::make_shared<const OpeningPlan>(how));
    push(*guide, "Hm");
    push(*guide, "</think");
    return guide;
  };
  auto guide = reasoned();
  EXPECT_TRUE(may(*guide, ">"));
  EXPECT_TRUE(may(*guide, ">\n"));
  EXPECT_TRUE(may(*guide, ">{"));
  EXPECT_FALSE(may(*guide, "></"));  // no document begins so
  guide->push(id_of(">{"));
  EXPECT_FALSE(may(*guide, "{"));
  push(*guide, "\"");
  EXPECT_FALSE(may(*guide, "w"));
  EXPECT_TRUE(may(*guide, "k"));
  // As one token each, as a draft of several would have them.
  guide = reasoned();
  guide->push(id_of(">\n"));
  EXPECT_TRUE(may(*guide, "{"));
  guide->push(id_of("{"));
  EXPECT_FALSE(may(*guide, "{"));
  // Where anything may follow, no mask is made.
  how.grammar = nullptr;
  EXPECT_TRUE(reasoned()->allowed().empty());
}

TEST_F(StructuredOutput, AnswersThatAreCutSaySo) {
  Engine engine(model(), {.limits = {}, .context = 1024, .pool_bytes = std::int64_t{64} << 20, .freed = FreedMemory::Poisoned});
  const auto how =
      std::make_shared<const OpeningPlan>(plan(cache.find_or_compile(GrammarCache::Kind::JsonSchema, kSchema, "schema")));
  for (const std::int64_t max_tokens : {1, 2, 5}) {
    AnswerRequest wanted;
    wanted.prompt = model().tokenizer().encode("Describe somebody.");
    wanted.options.stop_ids = stop_ids_of(model());
    wanted.options.max_tokens = max_tokens;
    wanted.guide = std::make_shared<OpeningGuide>(how);
    const auto heard = std::make_shared<Text>();
    engine.submit(wanted, heard);
    EXPECT_EQ(heard->summary.get_future().get().outcome, AnswerOutcome::Length) << max_tokens;
    GrammarState state(how->grammar);
    EXPECT_TRUE(state.accept_text(heard->text)) << heard->text;
    EXPECT_FALSE(state.can_end());
  }
}

/// Everything else that has a say in a token beside a grammar.
TEST_F(StructuredOutput, PenaltiesLogprobsStopsAndManyAnswersKeepToTheGrammar) {
  Engine engine(model(), {.limits = {}, .context = 1024, .pool_bytes = std::int64_t{64} << 20, .freed = FreedMemory::Poisoned});
  const auto how =
      std::make_shared<const OpeningPlan>(plan(cache.find_or_compile(GrammarCache::Kind::JsonSchema, kSchema, "schema")));
  std::vector<std::shared_ptr<Text>> all;
  for (std::uint32_t sample = 0; sample < 6; ++sample) {
    AnswerRequest wanted;
    wanted.prompt = model().tokenizer().encode("Describe somebody.");
    wanted.sample = sample;
    wanted.options.stop_ids = stop_ids_of(model());
    wanted.options.max_tokens = 400;
    wanted.options.logprobs = 5;
    wanted.options.stop = {"\"tags\""};
    wanted.options.sampling.seed = 7;
    wanted.options.sampling.presence_penalty = 2;
    wanted.options.sampling.frequency_penalty = 2;
    wanted.options.sampling.repetition_penalty = 5;
    wanted.options.sampling.logit_bias = {{id_of("{"), 100.0F}, {id_of("}"), 100.0F}};
    wanted.guide = std::make_shared<OpeningGuide>(how);
    all.push_back(std::make_shared<Text>());
    engine.submit(wanted, all.back());
  }
  for (const auto& heard : all) {
    EXPECT_EQ(heard->summary.get_future().get().outcome, AnswerOutcome::Stop);
    // "tags" must come, and so the stop does; the text before it begins a document.
    EXPECT_EQ(heard->text.find("tags"), std::string::npos) << heard->text;
    GrammarState state(how->grammar);
    EXPECT_TRUE(state.accept_text(heard->text)) << heard->text;
    EXPECT_TRUE(state.accept_text("\"tags\"")) << heard->text;
    EXPECT_GT(heard->num_logprobs, 0);
  }
}

}  // namespace
}  // namespace calandra
