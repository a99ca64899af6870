// Speculation as clients see it: replies without and with drafts are the same, and usage says what was drafted. Most can go wrong where output is
// constrained: drafts are drawn under masks of tokens that may never come.

#include "base/json.h"
#include "engine/speculation_harness.h"
#include "serve/grammar_cache.h"
#include "serve/openai_stream.h"
#include "serve/opening_guide.h"
#include "serve/whole_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra::drafts_test {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";

/// Drafted, and of these accepted, since the start.
struct Counted {
  std::int64_t drafted = 0, accepted = 0;
};
Counted counted(const Engine& engine) {
  Counted all;
  for (const DrafterStatistics& drafter : engine.statistics().drafters) {
    all.drafted += drafter.num_drafted();
    all.accepted += drafter.num_accepted();
  }
  return all;
}

Json question(std::string_view api) {
  const Json messages = Json::array({{{"role", "user"}, {"content", "Tell me about Bath."}}});
  if (api == kText) return {{"prompt", "It is a truth universally"}, {"max_tokens", 60}, {"seed", 7}};
  return {{api == "/v1/responses" ? "input" : "messages", messages},
          {api == "/v1/responses" ? "max_output_tokens" : "max_tokens", 60},
          {"seed", 7}};
}

/// A reply without what is another in each.
Json comparable(Json json) {
  for (const char* field : {"id", "created", "created_at", "completed_at"}) json.erase(field);
  return json;
}

class RepliesWithDrafts : public testing::Test {
 protected:
  RepliesWithDrafts() {
    // Cached tokens would depend on what was asked before.
    WholeServerOptions options;
    options.engine.prefixes.keeps = false;
    plain = std::make_unique<WholeServer>(options);
    options.metrics = std::make_shared<Metrics>("1.2.3");
    options.drafts = 4;
    drafting = std::make_unique<WholeServer>(std::move(options));
  }

  /// Both servers' usage of the same request, whose texts are the same.
  std::pair<Json, Json> usages(const std::string& api, const Json& body) const {
    const Answer one = plain->post(api, body), other = drafting->post(api, body);
    EXPECT_EQ(one.status, 200) << one.body;
    EXPECT_EQ(other.status, 200) << other.body;
    if (!body.value("stream", false)) {
      Json without = parse_json(one.body, "test"), with = parse_json(other.body, "test");
      EXPECT_EQ(with.at("choices"), without.at("choices"));
      return {without.at("usage"), with.at("usage")};
    }
    const std::vector<Json> without = chunks_of(one.body), with = chunks_of(other.body);
    EXPECT_EQ(texts_of(with, body.value("n", 1)), texts_of(without, body.value("n", 1)));
    return {without.back().at("usage"), with.back().at("usage")};
  }

  static std::vector<std::string> texts_of(const std::vector<Json>& chunks, int count) {
    std::vector<std::string> texts(static_cast<std::size_t>(count));
    for (const Json& chunk : chunks) {
      for (const Json& choice : chunk.at("choices")) {
        std::string& text = texts[choice.at("index").get<std::size_t>()];
        if (choice.contains("text")) text += choice["text"].get<std::string>();
        const Json delta = choice.value("delta", Json::object());
        for (const char* part : {"reasoning_content", "content"}) {
          if (delta.contains(part) && delta[part].is_string()) text += delta[part].get<std::string>();
        }
      }
    }
    return texts;
  }

  std::unique_ptr<WholeServer> plain, drafting;
};

TEST_F(RepliesWithDrafts, HaveTheSameTextsAndAUsageThatSaysWhatWasDrafted) {
  for (const char* api : {kChat, kText}) {
    for (const int count : {1, 2}) {
      for (const bool is_stream : {false, true}) {
        for (const double temperature : {0.0, 0.8}) {
          SCOPED_TRACE(fmt::format("{} n={} stream={} temperature={}", api, count, is_stream, temperature));
          Json body = question(api);
          body["n"] = count;
          body["temperature"] = temperature;
          body["stream"] = is_stream;
          if (is_stream) body["stream_options"] = {{"include_usage", true}};
          const Counted before = counted(drafting->engine);
          auto [without, with] = usages(api, body);
          const Counted after = counted(drafting->engine);
          Json& details = with.at("completion_tokens_details");
          const auto accepted = details.at("accepted_prediction_tokens").get<std::int64_t>();
          const auto rejected = details.at("rejected_prediction_tokens").get<std::int64_t>();
          EXPECT_EQ(accepted, after.accepted - before.accepted);
          EXPECT_EQ(accepted + rejected, after.drafted - before.drafted);
          EXPECT_GT(accepted, 0);
          EXPECT_GT(rejected, 0);
          // A step makes one token that is no draft, if no other.
          EXPECT_LE(accepted, with.at("completion_tokens").get<std::int64_t>() - count);
          details["accepted_prediction_tokens"] = details["rejected_prediction_tokens"] = 0;
          EXPECT_EQ(with, without);
        }
      }
    }
  }
  EXPECT_EQ(counted(plain->engine).drafted, 0);
}

TEST_F(RepliesWithDrafts, AreAsEverWhereUsageHasNoPlaceForThem) {
  for (const char* api : {"/v1/responses", "/v1/messages"}) {
    const Counted before = counted(drafting->engine);
    const Json without = parse_json(plain->post(api, question(api)).body, "test");
    Json with = parse_json(drafting->post(api, question(api)).body, "test");
    EXPECT_GT(counted(drafting->engine).accepted, before.accepted) << api;
    ASSERT_TRUE(with.contains("usage")) << with;
    EXPECT_EQ(with.at("usage"), without.at("usage")) << api;
    const char* const made = with.contains("output") ? "output" : "content";
    ASSERT_EQ(with.at(made).size(), without.at(made).size()) << api;
    for (std::size_t i = 0; i < with.at(made).size(); ++i) {
      EXPECT_EQ(comparable(with.at(made)[i]), comparable(without.at(made)[i])) << api;
    }
  }
}

// ---------------------------------------------------------------- constrained output

constexpr const char* kPerson = R"({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
  "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                 "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b\n", "\u00e9"]}}}})";

class ConstrainedDrafts : public SpeculationTest {
 protected:
  static Model& model() { return drafting_model(); }
  GrammarCache cache{model().tokenizer(), stop_ids_of(model()), model().num_samplable()};

  OpeningPlan plan(ReasoningStart start, std::optional<std::int64_t> max_reasoning_tokens = {}) const {
    OpeningPlan made;
    made.reasoning_start = start;
    made.max_reasoning_tokens = max_reasoning_tokens;
    made.tokenizer = &model().tokenizer();
    made.num_samplable = model().num_samplable();
    made.reasoning_end = model().tokenizer().encode("</think>");
    return made;
  }
  OpeningPlan with_schema(OpeningPlan made) {
    made.grammar = cache.find_or_compile(GrammarCache::Kind::JsonSchema, kPerson, "schema");
    return made;
  }
  OpeningPlan with_grammar(OpeningPlan made) {
    made.grammar =
        cache.find_or_compile(GrammarCache::Kind::Ebnf, R"(root ::= ("yes" | "no") " "? [0-9]{3,12} "!"{1,3})", "grammar");
    return made;
  }
  OpeningPlan with_calls(OpeningPlan made, bool must_call) {
    CallRules rules;
    rules.tools.push_back({"describe", kPerson, true, "tools"});
    rules.several = false;
    made.calls = cache.find_or_compile(rules);
    made.must_call = must_call;
    return made;
  }
  /// Of every kind. Reasonings of consecutive lengths end in every place of a step.
  std::vector<OpeningPlan> plans() {
    std::vector<OpeningPlan> all;
    all.push_back(with_schema(plan(ReasoningStart::Off)));
    all.push_back(with_calls(plan(ReasoningStart::Off), true));
    all.push_back(with_calls(plan(ReasoningStart::ModelMayOpen), false));
    for (std::int64_t budget = 0; budget <= kMostDrafts; ++budget) {
      const OpeningPlan open = plan(ReasoningStart::Open, budget);
      all.push_back(budget % 3 == 0 ? with_schema(open) : budget % 3 == 1 ? with_grammar(open) : with_calls(open, true));
    }
    return all;
  }

  static AnswerRequest asked(double temperature, std::uint64_t seed) {
    AnswerRequest wanted;
    wanted.prompt = model().tokenizer().encode("Describe somebody.");
    wanted.options.stop_ids = stop_ids_of(model());
    wanted.options.max_tokens = 150;
    wanted.options.sampling.temperature = temperature;
    wanted.options.sampling.seed = seed;
    wanted.options.logprobs = 1;
    return wanted;
  }
  /// One for each plan. Guides are used up by an answer.
  static std::vector<AnswerRequest> requests(const std::vector<OpeningPlan>& plans, double temperature) {
    std::vector<AnswerRequest> all;
    for (const OpeningPlan& how : plans) {
      all.push_back(asked(temperature, all.size()));
      all.back().guide = std::make_shared<OpeningGuide>(std::make_shared<const OpeningPlan>(how));
      // Truth tells answers apart by their prompts.
      all.back().prompt.push_back(static_cast<std::int32_t>(100 + all.size()));
    }
    return all;
  }
};

TEST_F(ConstrainedDrafts, AreTheTextsThatTheyAreWithoutDrafts) {
  const std::vector<OpeningPlan> how = plans();
  for (const double temperature : {0.0, 0.8}) {
    Engine plain(model(), options_with(model(), 0));
    const std::vector<Answered> expected = answers(plain, requests(how, temperature));
    for (const Answered& one : expected) EXPECT_EQ(one.heard->summary.error, "");
    for (const std::int64_t drafts : {1, 4, 8}) {
      Engine drafting(model(), options_with(model(), drafts));
      const std::vector<Answered> actual = answers(drafting, requests(how, temperature));
      for (std::size_t i = 0; i < how.size(); ++i)
        expect_same(actual[i], expected[i], fmt::format("plan {}, temperature {}, {} drafts", i, temperature, drafts));
      const Counted all = counted(drafting);
      EXPECT_GT(all.accepted, 0);
      EXPECT_LT(all.accepted, all.drafted);
    }
  }
}

// With drafts that are all right, a step makes nine tokens: where they end is known, and that ends come inside of them.
TEST_F(ConstrainedDrafts, ReasoningsAndAnswersEndInsideOfAStep) {
  const std::vector<OpeningPlan> how = plans();
  const auto is_end = [](std::int32_t id) { return id == model().tokenizer().encode("</think>").front(); };
  std::set<std::int64_t> places;
  Engine plain(model(), options_with(model(), 0));
  const std::vector<AnswerRequest> wanted = requests(how, 0.8);
  const std::vector<Answered> expected = answers(plain, wanted);
  const Truth truth(wanted, expected);
  const auto drafter =
      std::make_shared<ScriptedDrafter>([&](const Tokens& tokens, std::int64_t count) { return truth.after(tokens, count); });
  Engine drafting(model(), options_with(model(), kMostDrafts, drafter));
  // As many at once as all get their drafts.
  std::vector<Answered> actual;
  std::vector<AnswerRequest> few;
  for (const AnswerRequest& one : requests(how, 0.8)) {
    few.push_back(one);
    if (actual.size() + few.size() < how.size() && std::ssize(few) < kMostTentativeRows / (kMostDrafts + 1)) continue;
    for (Answered& answered : answers(drafting, std::exchange(few, {}))) actual.push_back(std::move(answered));
  }
  for (std::size_t i = 0; i < how.size(); ++i) {
    expect_same(actual[i], expected[i], fmt::format("plan {}", i));
    const AnswerSummary& summary = actual[i].heard->summary;
    // The first token comes with the prompt.
    const std::int64_t after_first = summary.made_tokens - 1, steps = (after_first + kMostDrafts) / (kMostDrafts + 1);
    EXPECT_EQ(summary.accepted_drafts, after_first - steps) << i;
    const Tokens& ids = actual[i].heard->ids;
    const auto end = std::find_if(ids.begin(), ids.end(), is_end) - ids.begin();
    if (end > 0 && end < std::ssize(ids)) places.insert((end - 1) % (kMostDrafts + 1));
  }
  EXPECT_GE(places.size(), 8U);
}

TEST_F(ConstrainedDrafts, WhatMayNotComeIsNoDraftThatIsAccepted) {
  const std::vector<OpeningPlan> how = plans();
  Engine plain(model(), options_with(model(), 0));
  const std::vector<AnswerRequest> wanted = requests(how, 0.8);
  const std::vector<Answered> expected = answers(plain, wanted);
  const Truth truth(wanted, expected);
  std::mt19937 random(5);
  const auto drafter = std::make_shared<ScriptedDrafter>([&](const Tokens& tokens, std::int64_t count) {
    Tokens next = truth.after(tokens, count);
    for (std::int32_t& token : next) {
      if (random() % 3 == 0) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(model().num_samplable()));
    }
    return next;
  });
  Engine drafting(model(), options_with(model(), 5, drafter));
  const std::vector<Answered> actual = answers(drafting, requests(how, 0.8));
  for (std::size_t i = 0; i < how.size(); ++i) expect_same(actual[i], expected[i], fmt::format("plan {}", i));
  const Counted all = counted(drafting);
  EXPECT_GT(all.accepted, 0);
  EXPECT_LT(all.accepted, all.drafted * 9 / 10);
}

using Mask = std::vector<std::uint64_t>;

Mask mask_of(AnswerGuide& guide) {
  const std::span<const std::uint64_t> allowed = guide.allowed();
  return {allowed.begin(), allowed.end()};
}

/// Of those that may come, a random one.
std::int32_t one_of(const Mask& mask, std::int64_t num_tokens, std::mt19937& random) {
  std::vector<std::int32_t> may;
  for (std::int32_t id = 0; id < num_tokens; ++id) {
    if (mask.empty() || (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0) may.push_back(id);
  }
  return may.empty() ? -1 : may[random() % may.size()];
}

// Whoever looks ahead does so on a fork, and forgets it: the guide goes on as one that was never forked.
TEST_F(ConstrainedDrafts, WhatIsPushedToAForkItsGuideDoesNotHear) {
  std::mt19937 random(11);
  const std::int64_t num_tokens = model().num_samplable();
  std::size_t i = 0;
  for (const OpeningPlan& how : plans()) {
    SCOPED_TRACE(i++);
    const auto shared = std::make_shared<const OpeningPlan>(how);
    Tokens pushed;
    const auto told = [&](const Tokens& more) {
      auto fresh = std::make_unique<OpeningGuide>(shared);
      for (const Tokens* tokens : std::vector<const Tokens*>{&pushed, &more}) {
        for (const std::int32_t id : *tokens) {
          fresh->allowed();
          fresh->push(id);
        }
      }
      return fresh;
    };
    OpeningGuide guide(shared);
    for (int step = 0; step < 40; ++step) {
      const Mask before = mask_of(guide);
      ASSERT_EQ(before, mask_of(*told({})));
      Tokens ahead;
      {
        std::unique_ptr<AnswerGuide> fork = guide.fork();
        for (int depth = 0; depth < 6; ++depth) {
          const std::int32_t id = one_of(mask_of(*fork), num_tokens, random);
          if (id < 0) break;
          fork->push(id);
          ahead.push_back(id);
          if (depth == 2) fork = fork->fork();
        }
        ASSERT_EQ(mask_of(*fork), mask_of(*told(ahead)));
        ASSERT_EQ(mask_of(guide), before) << "step " << step;
      }
      const std::int32_t id = one_of(mask_of(guide), num_tokens, random);
      if (id < 0) break;
      guide.push(id);
      pushed.push_back(id);
    }
    EXPECT_GT(pushed.size(), 3U);
  }
}

}  // namespace
}  // namespace calandra::drafts_test
