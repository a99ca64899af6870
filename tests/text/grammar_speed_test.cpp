// What masks cost with a vocabulary as large as Ling's. The limits are far above what is measured, since tests run on busy
// machines and under sanitizers; CALANDRA_LONG_TESTS=1 prints the figures.

#include "checkpoint/synthetic_tokenizer.h"
#include "support/golden.h"
#include "text/grammar_cases.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>

namespace calandra {
namespace {

/// Of this thread on a processor: what others do meanwhile does not count.
template <class Action>
double seconds(Action&& action) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  action();
  return now() - start;
}

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

constexpr std::string_view kSchema = R"({"type": "object", "properties": {
  "city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]},
  "days": {"type": "array", "maxItems": 7, "items": {"type": "object", "properties": {
    "date": {"type": "string", "format": "date"}, "low": {"type": "number"}, "high": {"type": "number"},
    "summary": {"type": "string", "maxLength": 200}}, "required": ["date", "low", "high", "summary"], "additionalProperties": false}},
  "notes": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["city", "days"], "additionalProperties": false})";
constexpr std::string_view kDocument =
    R"({"city": "Paris", "unit": "celsius", "days": [{"date": "2024-02-29", "low": 3.5, "high": 11, "summary": "Some rain in the morning, then sun. )"
    R"(The wind will turn to the west."}, {"date": "2024-03-01", "low": -1, "high": 7.25, "summary": "Cold and clear, with \"frost\"."}], "notes": "What )"
    R"(is known of the weather of the following week is not enough for more than a guess."})";
constexpr std::string_view kJsonGrammar = R"(
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? ws "}"
array ::= "[" ws (value ("," ws value)*)? ws "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= [ \n\t]{0,20}
)";

TEST(GrammarSpeed, MasksAreASmallPartOfAStep) {
  const Tokenizer tokenizer = Tokenizer::parse(tokenizer_json(kLingVocab), "tokenizer.json");
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  const double preparation = seconds([&] { vocabulary = large_vocabulary(); });
  std::vector<float> logits(static_cast<std::size_t>(vocabulary->size()), 1.0f), copy(logits.size());
  std::vector<double> copies;
  for (int i = 0; i < 50; ++i) {
    copies.push_back(seconds([&] { std::memcpy(copy.data(), logits.data(), logits.size() * sizeof(float)); }));
    logits[static_cast<std::size_t>(i)] += copy[static_cast<std::size_t>(i) + 1];
  }
  if (long_tests())
    std::printf("vocabulary %.3f s (with its tokenizer), copy of the logits %.1f us\n", preparation, median(copies) * 1e6);
  for (const auto& [name, make] : std::vector<std::pair<const char*, std::function<std::shared_ptr<const Grammar>()>>>{
           {"schema", [&] { return grammar_of_schema(kSchema, vocabulary); }},
           {"json_object", [&] { return Grammar::any_json_object(vocabulary); }},
           {"ebnf", [&] { return grammar_of_ebnf(kJsonGrammar, vocabulary); }}}) {
    std::shared_ptr<const Grammar> grammar;
    const double compilation = seconds([&, &make = make] { grammar = make(); });
    EXPECT_LT(compilation, 5) << name;
    for (const char* const pass : {"first", "again"}) {
      std::vector<double> masks, steps;
      GrammarState state(grammar);
      TokenMask mask;
      for (const std::int32_t id : tokenizer.encode(kDocument)) {
        masks.push_back(seconds([&] { state.allowed(mask); }));
        EXPECT_TRUE(mask.test(id)) << name;
        bool accepted = false;
        steps.push_back(seconds([&] { accepted = state.accept(id); }));
        ASSERT_TRUE(accepted) << name;
      }
      EXPECT_TRUE(state.can_end());
      std::ranges::sort(masks);
      const double middle = masks[masks.size() / 2], most = masks[masks.size() * 95 / 100];
      EXPECT_LT(middle, 0.005) << name;  // seconds
      if (long_tests()) {
        std::printf(
            "%-12s %s: compiled in %.4f s; %zu masks: median %.1f us (%.2f copies), 95 %% below %.1f us, largest %.1f us; accept %.2f us\n",
            name, pass, compilation, masks.size(), middle * 1e6, middle / median(copies), most * 1e6, masks.back() * 1e6,
            median(steps) * 1e6);
      }
    }
  }
}

}  // namespace
}  // namespace calandra
