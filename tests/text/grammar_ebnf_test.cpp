#include "base/error.h"
#include "support/golden.h"
#include "text/grammar_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>

namespace calandra {
namespace {

using testing::HasSubstr;

std::string ebnf_error(std::string_view text) {
  return error_of([&] { grammar_of_ebnf(text); });
}

TEST(GrammarEbnf, TakesWhatItsRulesSay) {
  const auto grammar = grammar_of_ebnf(R"(
      # A comment
      root ::= greeting ", " name+ ("!" | "?"){1,2} tail?   # to the end of the line
      greeting ::= "Hello"
                 | [A-Cx-z^\-\]] [^a-z\n]
      name ::= .{2} | "\u4e2d\x41\U0001F600\t\"\\"
      tail ::= "."*)");
  for (const char* const text :
       {"Hello, ab!", "Hello, abcd?!", "x1, éé!", "-X, ab!.....", "]1, \u4e2dA\U0001F600\t\"\\!", "^\u00e9, ab?"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* const text : {"", "Hello", "Hello, a!", "Hello, ab", "D1, ab!", "xa, ab!", "x\n, ab!"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
  EXPECT_TRUE(accepts(grammar_of_ebnf("root ::= \"a\"{2,}"), "aaaaa"));
  EXPECT_FALSE(accepts(grammar_of_ebnf("root ::= \"a\"{2,}"), "a"));
  EXPECT_TRUE(accepts(grammar_of_ebnf("root ::= \"a\"{,2}"), ""));
  EXPECT_FALSE(accepts(grammar_of_ebnf("root ::= \"a\"{,2}"), "aaa"));
  EXPECT_TRUE(accepts(grammar_of_ebnf("root ::="), ""));
  EXPECT_FALSE(accepts(grammar_of_ebnf("root ::= [a-z]+"), "\xFF"));
}

TEST(GrammarEbnf, ErrorsNameThePlace) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"root ::= \"a", "grammar:1:10: a \" without its end"},
      {"root ::= [a\n", "grammar:1:10: a [ without its ]"},
      {"root ::= (\"a\"", "grammar:1:10: a ( without its )"},
      {"root ::= \"a\")", "grammar:1:13: unexpected ')'"},
      {"root ::= \"a\"\n  | other", "grammar:2:5: there is no rule 'other'"},
      {"root ::= \"é\" %", "grammar:1:14: unexpected '%'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "grammar:2:1: rule 'root' is defined twice"},
      {"start ::= \"a\"", "grammar: there is no rule 'root'"},
      {"", "grammar: there is no rule 'root'"},
      {"root = \"a\"", "grammar:1:6: expected ::="},
      {"root ::= \"\\q\"", "grammar:1:11: expected one of the escapes"},
      {"root ::= \"\\x4\"", "grammar:1:11: expected 2 hexadecimal digits"},
      {"root ::= \"\\ud800\"", "grammar:1:11: expected the number of a character"},
      {"root ::= [z-a]", "grammar:1:11: a range whose end is before its start"},
      {"root ::= \"a\"{3,2}", "grammar:1:13: a repetition whose end is before its start"},
      {"root ::= \"a\"{x}", "grammar:1:14: expected a number"},
      {"root ::= \"a\"{99999999}", "grammar:1:14: expected a number up to 10000"},
      {"root ::= * \"a\"", "grammar:1:10: unexpected '*'"},
      {"root ::= root \"a\" | \"b\"", "grammar: rule 'root' begins with itself (left recursion)"},
      {"root ::= a\na ::= \" \"? b \"x\"\nb ::= a \"y\" | \"z\"", "begins with itself (left recursion)"},
      {"root ::= \"a\" root", "grammar: no text fits rule 'root': it never ends"},
      {"root ::= \"a\" | x\nx ::= [^\\x00-\\U0010FFFF]", "grammar: no text fits rule 'x': it never ends"},
      {"root ::= \"\xFF\"", "grammar: found a grammar that is not UTF-8"},
  };
  for (const auto& [text, error] : cases) EXPECT_THAT(ebnf_error(text), HasSubstr(error)) << text;
}

TEST(GrammarEbnf, LongRepetitionsStayFlat) {
  // A list that calls itself at its end does not grow the stack: the last steps take no longer than the first.
  const auto grammar = grammar_of_ebnf("root ::= item | item \", \" root\nitem ::= \"[\" root? \"]\" | [a-z]");
  GrammarState state(grammar);
  const std::clock_t start = std::clock();
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(state.accept_text("a, "));
  const double taken = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(taken, 10);
  EXPECT_TRUE(state.accept_text("[b]"));
  EXPECT_TRUE(state.can_end());
}

TEST(GrammarEbnf, HostileTextsEndSoon) {
  const auto repeat = [](const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  std::string doubling = "root ::= r0\n", chain = doubling, pairs = doubling;
  for (int i = 0; i < 1500; ++i) {
    const std::string rule = "r" + std::to_string(i) + " ::= ", next = "r" + std::to_string(i + 1);
    doubling += rule + next + " " + next + "\n";
    chain += rule + repeat("(", 90) + next + repeat(")", 90) + "\n";
    pairs += rule + "\"x\"? " + next + " | " + next + " \"y\" r" + std::to_string(i / 2) + "?\n";
  }
  const std::string last = "r1500 ::= \"a\"?";
  for (const std::string& text : std::vector<std::string>{
           doubling + last, chain + last, pairs + last, "root ::= " + repeat("(", 100'000),
           "root ::= " + repeat("(", 90) + repeat(")", 90), std::string("root ::= (((\"a\"{0,1000}){0,1000}){0,1000}){0,1000}"),
           "root ::= [ab]* \"a\" [ab]{40}", "root ::= " + repeat("\"a\"? ", 5000),
           "root ::= " + repeat("[^a] | ", 5000) + "\"b\"", repeat("#", 1 << 20),
           "root ::= (" + repeat("(\"\" | ", 80) + "\"a\"" + repeat(")*", 80) + ")"}) {
    const std::clock_t start = std::clock();
    const std::string error = error_of([&] {
      GrammarState state(grammar_of_ebnf(text));
      TokenMask mask;
      for (int i = 0; i < 3; ++i) {
        state.allowed(mask);
        state.accept_text("a");
      }
    });
    const double taken = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(taken, 20) << text.substr(0, 60) << " " << error;  // seconds of a processor; sanitizers included
    if (long_tests()) std::printf("%6.3f s  %.50s  %.100s\n", taken, text.c_str(), error.c_str());
  }
}

TEST(GrammarEbnf, AmbiguityCostsNoMoreThanItHas) {
  // Each letter is an a in 2^n ways.
  const auto grammar =
      grammar_of_ebnf("root ::= x\nx ::= \"a\" x y? | \"a\" x | \"b\"\ny ::= \"c\" x? | \"c\"", bundled_vocabulary());
  GrammarState state(grammar);
  TokenMask mask;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(state.accept_text("a"));
    state.allowed(mask);
  }
  ASSERT_TRUE(state.accept_text("bcccc"));
  EXPECT_TRUE(state.can_end());
}

}  // namespace
}  // namespace calandra
