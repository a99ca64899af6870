// Masks: exactly the tokens after which some text of the language is still possible.

#include "text/grammar_mask.h"
#include "base/error.h"
#include "base/json.h"
#include "support/golden.h"
#include "text/grammar_cases.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

namespace calandra {
namespace {

/// Compares the mask after every prefix of tokens with what is known of the language: `has_text_with(prefix)` and `is_text`.
/// Returns the number of masks.
int expect_masks_of_language(
    const std::shared_ptr<const Grammar>& grammar, std::size_t max_size, const std::function<bool(const std::string&)>& is_begun,
    const std::function<bool(const std::string&)>& is_text,
    const std::function<bool(const std::string&)>& is_followed = [](const std::string&) { return true; }) {
  const GrammarVocabulary& vocabulary = grammar->vocabulary();
  std::vector<std::pair<GrammarState, std::string>> states = {{GrammarState(grammar), ""}};
  std::set<std::string> known = {""};
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::string text = states[i].second;
    TokenMask mask;
    states[i].first.allowed(mask);
    for (std::int32_t id = 0; id + 1 < vocabulary.size(); ++id) {
      const std::string longer = text + std::string(vocabulary.bytes(id));
      EXPECT_EQ(mask.test(id), is_begun(longer)) << "after '" << text << "' the token '" << vocabulary.bytes(id) << "'";
      GrammarState next = states[i].first;
      EXPECT_EQ(next.accept(id), mask.test(id)) << "after '" << text << "' the token '" << vocabulary.bytes(id) << "'";
      if (mask.test(id) && longer.size() <= max_size && is_followed(longer) && known.insert(longer).second)
        states.emplace_back(std::move(next), longer);
    }
    EXPECT_EQ(states[i].first.can_end(), is_text(text)) << text;
    EXPECT_EQ(mask.test(vocabulary.size() - 1), is_text(text)) << text;
    if (testing::Test::HasFailure()) break;
  }
  return static_cast<int>(states.size());
}

/// The same for a language given as all its texts.
int expect_masks_of_texts(const std::shared_ptr<const Grammar>& grammar, const std::set<std::string>& texts) {
  const auto is_begun = [&](const std::string& prefix) {
    const auto next = texts.lower_bound(prefix);
    return next != texts.end() && next->starts_with(prefix);
  };
  return expect_masks_of_language(grammar, 1000, is_begun, [&](const std::string& text) { return texts.contains(text); });
}

/// All texts of members in any order, given the members that must be there and those that may.
std::set<std::string> objects(const std::vector<std::string>& members, std::size_t num_required, std::size_t max) {
  std::set<std::string> texts;
  for (unsigned subset = 0; subset < 1u << members.size(); ++subset) {
    std::vector<std::string> chosen;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if ((subset >> i & 1) != 0) chosen.push_back(members[i]);
    }
    if ((subset & ((1u << num_required) - 1)) + 1 != 1u << num_required || chosen.size() > max) continue;
    std::ranges::sort(chosen);
    do {
      std::string text;
      for (const std::string& member : chosen) text += (text.empty() ? "" : ",") + member;
      texts.insert("{" + text + "}");
    } while (std::ranges::next_permutation(chosen).found);
  }
  return texts;
}

TEST(GrammarMask, OfObjectsAreExact) {
  const auto vocabulary = vocabulary_of({"{",
                                         "}",
                                         ",",
                                         ":",
                                         "\"",
                                         "a",
                                         "b",
                                         "c",
                                         "n",
                                         "u",
                                         "l",
                                         "null",
                                         "\":",
                                         "\":null",
                                         ",\"",
                                         "{\"",
                                         "{\"a",
                                         "{\"ab\":",
                                         "ab",
                                         "abc",
                                         "\"a\":null,\"",
                                         "l}",
                                         "l,\"b",
                                         "{}",
                                         "null,\"a\":null",
                                         "\",\"",
                                         "a\":null,\"a",
                                         "b\":null,\"ab\":null}"});
  const std::string closed = R"({"type": "object", "additionalProperties": false, "properties":
      {"a": {"type": "null"}, "ab": {"type": "null"}, "b": {"type": "null"}, "abc": false})";
  const std::vector<std::string> members = {"\"a\":null", "\"ab\":null", "\"b\":null"};
  EXPECT_EQ(objects(members, 0, 3).size(), 16u);
  expect_masks_of_texts(grammar_of_schema(closed + "}", vocabulary), objects(members, 0, 3));
  expect_masks_of_texts(grammar_of_schema(closed + R"(, "required": ["a"]})", vocabulary), objects(members, 1, 3));
  expect_masks_of_texts(grammar_of_schema(closed + R"(, "required": ["a", "ab"], "maxProperties": 2})", vocabulary),
                        objects(members, 2, 2));
  expect_masks_of_texts(grammar_of_schema(closed + R"(, "maxProperties": 1})", vocabulary), objects(members, 0, 1));
  expect_masks_of_texts(grammar_of_schema(closed + R"(, "maxProperties": 0})", vocabulary), {"{}"});
}

TEST(GrammarMask, OfOpenObjectsKnowTheKeysSeen) {
  // All keys are a's and b's of up to two letters, since no token goes beyond them: the language is finite.
  const auto vocabulary = vocabulary_of({"{\"", "a", "b", "ab", "\":0", "\":0,\"", "}", "a\":0,\"b", "b\":0,\"b",
                                         "a\":0,\"ab\":0}", "b\":0,\"b\":0", "\":0,\"b\":0,\"b", ",\""});
  const auto grammar = grammar_of_schema(R"({"type": "object", "maxProperties": 3, "additionalProperties": {"const": 0},
                           "properties": {"b": {"const": 0}}})",
                                         vocabulary);
  // A document is begun well if each key is followed by :0 and no two are the same.
  const auto keys_of = [](const std::string& text, bool& open, bool& well) {
    std::vector<std::string> keys;
    std::size_t i = 0;
    well = text.empty() || text[i++] == '{';
    open = true;
    bool first = true;
    while (well && i < text.size()) {
      if (text[i] == '}') {
        well = i + 1 == text.size();
        open = false;
        break;
      }
      if (!first && text[i++] != ',') well = false;
      if (i == text.size()) break;
      if (!well || text[i++] != '"') {
        well = false;
        break;
      }
      const std::size_t end = text.find('"', i);
      if (end == std::string::npos) break;
      keys.push_back(text.substr(i, end - i));
      i = end + 1;
      for (const char c : {':', '0'}) {
        if (i < text.size() && text[i++] != c) well = false;
      }
      first = false;
    }
    return keys;
  };
  const auto is_begun = [&](const std::string& text) {
    bool open = false, well = false;
    const auto keys = keys_of(text, open, well);
    const bool begins_another = text.ends_with(',') || std::ranges::count(text, '"') % 2 == 1;
    return well && std::set(keys.begin(), keys.end()).size() == keys.size() && keys.size() + (begins_another ? 1 : 0) <= 3;
  };
  const auto is_text = [&](const std::string& text) {
    bool open = false, well = false;
    keys_of(text, open, well);
    return well && !open;
  };
  // Keys of up to two letters are enough.
  const auto is_followed = [](const std::string& text) {
    const std::size_t letters = text.size() - 1 - text.rfind('"');
    return std::ranges::count(text, '"') % 2 == 0 || (letters <= 2 && !text.ends_with('}') && !text.ends_with(','));
  };
  EXPECT_GT(expect_masks_of_language(grammar, 18, is_begun, is_text, is_followed), 100);
}

TEST(GrammarMask, OfArraysNumbersAndAlternativesAreExact) {
  const auto vocabulary =
      vocabulary_of({"[",  "]", ",", "0",   "1",   "2",      "5",    "12", "-",   "-1", ".",  "1,", "],[",    "[[",
                     "\"", "a", "b", "\"a", "\"]", "b\",\"", "true", "t",  "rue", "e",  "1]", "0]", ",\"a\"", "\",1"});
  const auto numbers = [](int from, int to) {
    std::set<std::string> texts;
    for (int i = from; i <= to; ++i) {
      const std::string text = std::to_string(i);
      if (text.find_first_of("346789") == std::string::npos) texts.insert(text);
    }
    if (from <= 0 && to >= 0) texts.insert("-0");
    return texts;
  };
  expect_masks_of_texts(grammar_of_schema(R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 215.5})", vocabulary),
                        numbers(-12, 215));
  expect_masks_of_texts(grammar_of_schema(R"({"type": "integer", "minimum": 2, "maximum": 1501})", vocabulary), numbers(2, 1501));
  std::set<std::string> fives;
  for (const std::string& text : numbers(1, 255)) {
    if (std::stoi(text) % 5 == 0) fives.insert(text);
  }
  expect_masks_of_texts(
      grammar_of_schema(R"({"multipleOf": 5, "exclusiveMinimum": 0, "maximum": 255, "type": "number"})", vocabulary), fives);
  // Lists of up to three of 1, "a", "b" and true, of which the first is no true; a second alternative for [1,[]].
  std::set<std::string> lists = {"[1,[]]"};
  const std::vector<std::string> items = {"1", "\"a\"", "\"b\"", "true"};
  for (int first = 0; first < 3; ++first) {
    for (int second = -1; second < 4; ++second) {
      for (int third = -1; third < (second < 0 ? 0 : 4); ++third) {
        std::string text = "[" + items[static_cast<std::size_t>(first)];
        if (second >= 0) text += "," + items[static_cast<std::size_t>(second)];
        if (third >= 0) text += "," + items[static_cast<std::size_t>(third)];
        lists.insert(text + "]");
      }
    }
  }
  expect_masks_of_texts(grammar_of_schema(R"({"anyOf": [
      {"type": "array", "prefixItems": [{"enum": [1, "a", "b"]}], "items": {"enum": [1, "a", "b", true]}, "minItems": 1, "maxItems": 3},
      {"const": [1, []]}]})",
                                          vocabulary),
                        lists);
}

TEST(GrammarMask, OfPatternsAndEscapesAreExact) {
  const auto vocabulary = vocabulary_of(
      {"\"", "a", "b", "c", "\\", "u", "0", "6", "1", "2", "\\u0", "\\u006", "061", "ab", "a\"", "\"a", "\\u0062\""});
  // Words of the pattern in each way to write them with these tokens.
  std::set<std::string> texts;
  for (const std::string word : {"ab", "abb", "cab", "cabb"}) {
    std::vector<std::string> forms = {"\""};
    for (const char c : word) {
      std::vector<std::string> longer;
      for (const std::string& form : forms) {
        longer.push_back(form + c);
        if (c != 'c') longer.push_back(form + "\\u006" + (c == 'a' ? '1' : '2'));
      }
      forms = longer;
    }
    for (const std::string& form : forms) texts.insert(form + "\"");
  }
  EXPECT_EQ(texts.size(), 4u + 8 + 4 + 8);
  expect_masks_of_texts(grammar_of_schema(R"({"type": "string", "pattern": "^c?ab{1,2}$"})", vocabulary), texts);
}

TEST(GrammarMask, OfGrammarsAreExact) {
  const auto vocabulary =
      vocabulary_of({"a", "b", "aa", "ab", "ba", "aab", "abb", "aabb", "c", "(", ")", "((", "))", "()", ")(", "(c"});
  const auto is_letters = [](const std::string& text) { return text.find_first_not_of("ab") == std::string::npos; };
  // a^n b^n, by counting.
  const auto counts = [&](const std::string& text, int& a, int& b) {
    a = static_cast<int>(std::min(text.find('b'), text.size()));
    b = static_cast<int>(text.size()) - a;
    return is_letters(text) && text.find('a', static_cast<std::size_t>(a)) == std::string::npos;
  };
  expect_masks_of_language(
      grammar_of_ebnf("root ::= \"a\" root? \"b\"", vocabulary), 10,
      [&](const std::string& text) {
        int a = 0, b = 0;
        return counts(text, a, b) && b <= a;
      },
      [&](const std::string& text) {
        int a = 0, b = 0;
        return counts(text, a, b) && a == b && a > 0;
      });
  // Balanced parentheses around c's: two rules that call each other, one of them may be empty.
  const auto depth = [](const std::string& text) {
    int level = 0;
    for (const char c : text) {
      if (c != '(' && c != ')' && c != 'c') return -1;
      level += c == '(' ? 1 : c == ')' ? -1 : 0;
      if (level < 0) return -1;
    }
    return level;
  };
  expect_masks_of_language(
      grammar_of_ebnf("root ::= list\nlist ::= item list | \"\"\nitem ::= \"c\" | \"(\" list \")\"", vocabulary), 8,
      [&](const std::string& text) { return depth(text) >= 0; }, [&](const std::string& text) { return depth(text) == 0; });
  // An ambiguous one: palindromes of even length. Any text of a's and b's begins one.
  expect_masks_of_language(
      grammar_of_ebnf("root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"\"", vocabulary), 7, is_letters,
      [](const std::string& text) { return text == std::string(text.rbegin(), text.rend()) && text.size() % 2 == 0; });
  // a's and b's with an a at the fourth place from the end.
  expect_masks_of_language(grammar_of_ebnf("root ::= [ab]* \"a\" [ab]{3}", vocabulary), 8, is_letters,
                           [](const std::string& text) { return text.size() >= 4 && text[text.size() - 4] == 'a'; });
}

/// A random walk along allowed tokens, with a look at every mask.
void walk_with_exact_masks(const std::shared_ptr<const Grammar>& grammar, unsigned seed, int steps) {
  std::mt19937 random(seed);
  GrammarState state(grammar);
  for (int step = 0; step < steps && !state.has_ended(); ++step) {
    const TokenMask mask = expect_exact_mask(state, grammar->vocabulary());
    const auto ids = tokens_of(mask);
    ASSERT_FALSE(ids.empty());
    ASSERT_TRUE(state.accept(ids[random() % ids.size()]));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(GrammarMask, AreWhatAcceptTakes) {
  for (const Json& of : grammar_cases().at("schemas")) {
    SCOPED_TRACE(of.at("name").get<std::string>());
    const auto grammar = grammar_of_schema(dump_json(of.at("schema")), bundled_vocabulary());
    for (unsigned seed = 0; seed < (long_tests() ? 20u : 2u); ++seed) walk_with_exact_masks(grammar, seed, 20);
    // Random tokens soon lead away from what is written in practice: follow a document as well.
    GrammarState state(grammar);
    for (const std::int32_t id : bundled_tokenizer().encode(of.at("accepted").back().get<std::string>())) {
      expect_exact_mask(state, *bundled_vocabulary());
      ASSERT_TRUE(state.accept(id));
    }
    EXPECT_TRUE(state.can_end());
    if (HasFailure()) return;
  }
}

TEST(GrammarMask, AreWhatAcceptTakesInGrammarTexts) {
  const auto grammar = grammar_of_ebnf(R"(root ::= "{" pair ("," pair)* "}" | list
      pair ::= string ": " value
      value ::= string | list | [0-9]{1,3}
      list ::= "[" (value ", ")* value? "]"
      string ::= "\"" char* "\""
      char ::= [^"\\] | "\\" ["\\n] )",
                                       bundled_vocabulary());
  for (unsigned seed = 0; seed < 5; ++seed) walk_with_exact_masks(grammar, seed, 40);
}

/// FNV-1a over the ids, four bytes each, as make_masks.mjs writes it.
std::string hash_of(const std::vector<std::int32_t>& ids) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (static_cast<std::uint32_t>(id) >> shift & 255)) * 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

TEST(GrammarMask, OfGrammarTextsAreThoseOfXGrammar) {
  int num_masks = 0;
  for (const Json& of : read_json(grammar_data() / "masks.json")) {
    SCOPED_TRACE(of.at("name").get<std::string>());
    const auto grammar = grammar_of_ebnf(of.at("text").get<std::string>(), bundled_vocabulary());
    for (const Json& steps : of.at("walks")) {
      GrammarState state(grammar);
      std::string text;
      for (const Json& step : steps) {
        TokenMask mask;
        state.allowed(mask);
        auto ids = tokens_of(mask);
        std::erase_if(ids, [&](std::int32_t id) { return id >= of.at("num_tokens").get<std::int32_t>(); });
        if (step.contains("count")) {
          EXPECT_EQ(ids.size(), step.at("count").get<std::size_t>()) << text;
          EXPECT_EQ(hash_of(ids), step.at("hash").get<std::string>()) << text;
          EXPECT_EQ(state.can_end(), step.at("end").get<bool>()) << text;
          ++num_masks;
        }
        if (!step.contains("token")) continue;
        const auto token = step.at("token").get<std::int32_t>();
        text += bundled_vocabulary()->bytes(token);
        ASSERT_TRUE(state.accept(token)) << text;
      }
    }
  }
  EXPECT_GT(num_masks, 120);
}

TEST(GrammarMask, WhatIsKeptIsBounded) {
  std::vector<std::string> texts;
  for (int n = 0; n < 60'000; ++n) texts.push_back(std::to_string(n));
  std::vector<std::pair<std::string_view, std::int32_t>> tokens;
  for (const std::string& text : texts) tokens.emplace_back(text, 0);
  const TokenTrie trie(std::move(tokens));
  grammar::MaskCache cache;
  std::size_t kept = 0, num_kept = 0;
  constexpr std::uint64_t kMasks = 2'000;
  for (std::uint64_t i = 0; i < kMasks; ++i) {
    auto mask = std::make_shared<grammar::FrameMask>();
    mask->tokens.clear(157'184);
    if (i % 10 == 0) mask->exits.push_back({0, trie});
    cache.keep({i, 0}, std::move(mask));
    EXPECT_NE(cache.find({i, 0}), nullptr);
  }
  for (std::uint64_t i = 0; i < kMasks; ++i) {
    if (const auto mask = cache.find({i, 0})) {
      kept += mask->tokens.words().size_bytes();
      for (const auto& exit : mask->exits) kept += exit.continuations.nodes().size_bytes();
      ++num_kept;
    }
  }
  EXPECT_LT(kept, std::size_t{16} << 20);
  EXPECT_GT(num_kept, 0u);
}

TEST(GrammarMask, CopiesGoTheirOwnWays) {
  const auto grammar = grammar_of_schema(R"({"type": "object", "additionalProperties": {"type": "integer"}})");
  GrammarState state(grammar);
  ASSERT_TRUE(state.accept_text("{\"a\":1"));
  TokenMask before, after;
  state.allowed(before);
  for (int i = 0; i < 3; ++i) {
    GrammarState draft = state;
    EXPECT_TRUE(draft.accept_text(",\"b\":" + std::to_string(i) + ",\"c"));
    EXPECT_FALSE(draft.accept_text("\":x"));
    EXPECT_TRUE(draft.accept_text("\":2}"));
    EXPECT_TRUE(draft.can_end());
    EXPECT_TRUE(draft.accept(256));
    EXPECT_TRUE(draft.has_ended());
    EXPECT_FALSE(draft.accept(256));
    draft.allowed(after);
    EXPECT_EQ(after.count(), 0);
    EXPECT_FALSE(state.can_end());
    EXPECT_FALSE(state.accept(256));
    state.allowed(after);
    EXPECT_EQ(before, after);
  }
  EXPECT_FALSE(state.accept_text(",\"a\""));
  EXPECT_TRUE(state.accept_text(",\"b\":1}"));
}

TEST(GrammarMask, AddedTokensAreNeverText) {
  const auto grammar = Grammar::any_json_object(bundled_vocabulary());
  GrammarState state(grammar);
  ASSERT_TRUE(state.accept_text("{\"a\":\"in a string "));
  TokenMask mask;
  state.allowed(mask);
  for (const AddedToken& token : bundled_tokenizer().added_tokens()) EXPECT_FALSE(mask.test(token.id)) << token.content;
  EXPECT_TRUE(mask.test(bundled_tokenizer().id_of(" the").value()));
}

/// What malloc has given out.
double allocated_bytes() {
  const struct mallinfo2 all = ::mallinfo2();
  return static_cast<double>(all.uordblks + all.hblkhd);
}

TEST(GrammarMask, AGrammarTakesTheMemoryThatItSays) {
  const auto vocabulary = bundled_vocabulary();
  const auto warm = grammar_of_schema(R"({"type": "number"})", vocabulary);  // what all grammars share
  std::string properties, rules;
  for (int i = 0; i < 300; ++i) {
    const std::string number = std::to_string(i);
    properties += (i > 0 ? ",\"" : "\"") + number + R"( of three hundred":{"type":"array","items":{"enum":[)" + number + "]}}";
    rules += " \"" + number + "\" [a-z]{3} |";
  }
  const std::string schemas[] = {R"({"type": "object"})", "{\"properties\":{" + properties + "}}",
                                 R"({"type": "string", "pattern": "^[ab]*a[ab]{10}$"})"};
  std::vector<std::function<std::shared_ptr<const Grammar>()>> compiles;
  for (const std::string& schema : schemas) compiles.emplace_back([&] { return grammar_of_schema(schema, vocabulary); });
  compiles.emplace_back([&] { return grammar_of_ebnf("root ::= \"x\" (" + rules + " root)", vocabulary); });
  int num_with_masks = 0;
  for (const auto& compile : compiles) {
    const double before = allocated_bytes();
    const auto grammar = compile();
    double taken = allocated_bytes() - before;
    if (taken == 0) GTEST_SKIP() << "this malloc does not tell";
    EXPECT_NEAR(static_cast<double>(grammar->bytes()), taken, 0.1 * taken + 500);
    const auto compiled = static_cast<double>(grammar->bytes());
    GrammarState state(grammar);
    for (int i = 0; i < 20; ++i) {
      TokenMask mask;
      state.allowed(mask);
      const std::vector<std::int32_t> ids = tokens_of(mask);
      if (ids.empty() || !state.accept(ids[static_cast<std::size_t>(i) * 7 % ids.size()])) break;
    }
    state = GrammarState(warm);  // whose own memory is none of the grammar's
    taken = allocated_bytes() - before;
    const auto with_masks = static_cast<double>(grammar->bytes());
    if (with_masks == compiled) continue;  // masks of plain strings are all grammars'
    ++num_with_masks;
    EXPECT_NEAR(with_masks, taken, 0.1 * taken + 500);
  }
  EXPECT_GT(num_with_masks, 0);
}

}  // namespace
}  // namespace calandra
