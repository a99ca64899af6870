#include "text/tokenizer.h"

#include "base/error.h"
#include "support/golden.h"
#include "support/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer_cases.h"
#include "text/unicode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <thread>

namespace calandra {
namespace {

const Tokenizer& qwen3_cut() {
  static const Tokenizer tokenizer = Tokenizer::load(tokenizer_data() / "qwen3_cut.json");
  return tokenizer;
}

/// The bundled tokenizer.json with `changes` of its top level, and of its model key by key.
Json changed(const Json& changes) {
  static const Json original = read_json(CALANDRA_SOURCE_DIR "/models/austen-5m/tokenizer.json");
  Json file = original;
  for (const auto& [key, value] : changes.items()) {
    if (key == "model") {
      file["model"].update(value);
    } else {
      file[key] = value;
    }
  }
  return file;
}

Tokenizer parse(const Json& file) { return Tokenizer::parse(dump_json(file), "tokenizer.json"); }

std::string load_error(std::string_view json) {
  return error_of([&] { Tokenizer::parse(json, "tokenizer.json"); });
}

std::string load_error_of_changed(std::string_view changes) { return load_error(dump_json(changed(json_of(changes)))); }

std::string bytes_of(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(bytes_of(tokenizer, tokenizer.encode(text)), text);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Tokenizer, BundledModelGivesTheIdsOfAnotherLibrary) {
  expect_same_ids(bundled_tokenizer(), read_json(tokenizer_data() / "austen_cases.json").at("encode"));
}

TEST(Tokenizer, CutOfAPublishedTokenizerGivesTheIdsOfAnotherLibrary) {
  expect_same_ids(qwen3_cut(), read_json(tokenizer_data() / "qwen3_cut_cases.json").at("encode"));
}

TEST(Tokenizer, EachSettingGivesTheIdsOfAnotherLibrary) {
  const Json stored = read_json(tokenizer_data() / "variants.json");
  for (const Json& variant : stored.at("variants")) {
    SCOPED_TRACE(variant.at("name").get<std::string>());
    Json cases = Json::array();
    for (std::size_t i = 0; i < stored.at("texts").size(); ++i) {
      cases.push_back({{"text", stored.at("texts")[i]}, {"ids", variant.at("ids")[i]}});
    }
    expect_same_ids(parse(changed(variant.at("changes"))), cases);
  }
}

TEST(Tokenizer, OracleAgreesOnPublishedTokenizers) {
  const char* const folder = std::getenv("CALANDRA_TOKENIZER_ORACLE");
  if (folder == nullptr) {
    GTEST_SKIP() << "CALANDRA_TOKENIZER_ORACLE does not name a folder made by tools/oracles/tokenizer/make.mjs live";
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().string());
    const Tokenizer tokenizer = Tokenizer::load(entry.path() / "tokenizer.json");
    const Json cases = read_json(entry.path() / "cases.json");
    expect_same_ids(tokenizer, cases.at("encode"));
    expect_same_texts(tokenizer, cases.at("decode"));
  }
}

TEST(Tokenizer, KnowsTheTokensOfTheFile) {
  const Tokenizer& tokenizer = bundled_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 2048);
  EXPECT_EQ(tokenizer.id_of("<|role_end|>"), 2033);
  EXPECT_EQ(tokenizer.token_bytes(2033), "<|role_end|>");
  EXPECT_TRUE(tokenizer.is_special(2033));
  EXPECT_EQ(tokenizer.id_of("<think>"), 2036);
  EXPECT_FALSE(tokenizer.is_special(2036));
  EXPECT_EQ(tokenizer.token_bytes(256), " t");  // the first merge
  EXPECT_EQ(tokenizer.id_of(" t"), 256);
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  for (const std::int32_t id : {-1, 2048, INT32_MAX, INT32_MIN}) EXPECT_EQ(tokenizer.token_bytes(id), "") << id;
}

TEST(Tokenizer, BytesOfTheTokensAreTheText) {
  EXPECT_TRUE(rc::check("without a normalizer the bytes of encode(text) are the lossy text", [](const std::string& bytes) {
    RC_ASSERT(bytes_of(bundled_tokenizer(), bundled_tokenizer().encode(bytes)) == lossy_utf8(bytes));
  }));
}

TEST(Tokenizer, IllFormedBytesCountAsReplacementCharacters) {
  const std::string_view cases[][2] = {{"a\x85z", "a\uFFFDz"},                  // lone continuation byte
                                       {"\xC0\xAF", "\uFFFD\uFFFD"},            // overlong
                                       {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // surrogate
                                       {"\xF0\x9F\x98", "\uFFFD"},              // cut short
                                       {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                                       {"\xE2\x9C\x85\x85", "\u2705\uFFFD"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(bundled_tokenizer().encode(bytes), bundled_tokenizer().encode(text)) << text;
  EXPECT_EQ(bundled_tokenizer().encode(std::string("a\0b", 3)).size(), 3u);
}

TEST(Tokenizer, LongTextsTakeTimeInProportion) {
  // Quadratic work on these would take minutes; the limit leaves room for sanitizers and a busy machine.
  const std::size_t size = std::size_t{1} << 18;
  std::string lines, marks = "a";
  for (std::size_t i = 0; i < size / 2; ++i) lines += " \n";
  for (std::size_t i = 0; i < size / 4; ++i) marks += i < size / 8 ? "\u0301" : "\u0323";
  for (const std::string& text : {std::string(size, 'a'), std::string(size, ' '), std::string(size, ' ') + 'x', lines,
                                  std::string(size, '<'), std::string(size, '\n')}) {
    EXPECT_LT(seconds_to_encode(bundled_tokenizer(), text), 20) << text.substr(0, 4);
    EXPECT_LT(seconds_to_encode(qwen3_cut(), text), 20) << text.substr(0, 4);
  }
  EXPECT_FALSE(qwen3_cut().encode(marks).empty());  // NFC puts a run of 128K marks into order
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Json cases = read_json(tokenizer_data() / "qwen3_cut_cases.json").at("encode");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&cases] { expect_same_ids(qwen3_cut(), cases); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, StaysUsableWhenMoved) {
  Tokenizer first = parse(changed(json_of(R"({"model": {"ignore_merges": true}})")));
  const auto ids = first.encode("the end <think>");
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("the end <think>"), ids);
  EXPECT_EQ(second.id_of("e"), 68);
}

TEST(TokenizerErrors, MissingAndIllFormedFilesAreNamed) {
  EXPECT_THAT([] { Tokenizer::load("/nowhere/tokenizer.json"); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("/nowhere/tokenizer.json")));
  for (const std::string_view json : {"", "{", "[1,2", "\xFF", "{\"model\": }", "nul"}) {
    EXPECT_THAT(load_error(json), testing::StartsWith("tokenizer.json: not a JSON document: ")) << json;
  }
  EXPECT_EQ(load_error("[]"), "tokenizer.json: found an array, expected an object");
  EXPECT_EQ(load_error("{}"), "tokenizer.json: model: missing");
  EXPECT_EQ(load_error(R"({"model": 3})"), "tokenizer.json: model: found a number, expected an object");
}

struct BadFile {
  const char* changes;  // of the bundled tokenizer.json
  const char* error;    // a part of it
};

void expect_errors(std::initializer_list<BadFile> files) {
  for (const auto& [changes, error] : files) EXPECT_THAT(load_error_of_changed(changes), testing::HasSubstr(error));
}

TEST(TokenizerErrors, WhatIsNotImplementedIsRefusedByName) {
  expect_errors({
      {R"({"model": {"type": "Unigram"}})", "tokenizer.json: model.type: model \"Unigram\" is not implemented"},
      {R"({"model": {"byte_fallback": true}})", "tokenizer.json: model.byte_fallback: true is not implemented"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout: 0.1 is not implemented"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", "model.end_of_word_suffix: \"</w>\" is not implemented"},
      {R"({"normalizer": {"type": "BertNormalizer"}})", "normalizer.type: normalizer \"BertNormalizer\" is not"},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})", "pre_tokenizer.type: pre-tokenizer \"Metaspace\" is not"},
      {R"({"pre_tokenizer": {"type": "Digits"}})", "pre_tokenizer: expected a ByteLevel pre-tokenizer, as the last one"},
      {R"({"pre_tokenizer": null})", "pre_tokenizer: missing"},
      {R"({"decoder": {"type": "WordPiece"}})", "decoder.type: decoder \"WordPiece\" is not implemented"},
      {R"({"post_processor": {"type": "Odd"}})", "post_processor.type: post-processor \"Odd\" is not implemented"},
  });
}

TEST(TokenizerErrors, PatternsThatMayMeanSomethingElseAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"\\w+", "regular expression \"\\w+\": \\w at byte 0 is not implemented"},
      {"a\\b", "\\b at byte 1 is not implemented"},
      {"\\h", "\\h at byte 0 is not implemented"},
      {"[a[b]]", "a class in a class at byte 2 is not implemented"},
      {"[a&&b]", "an intersection of classes at byte 2 is not implemented"},
      {"[a-\\s]", "a range that ends in \\s or \\S at byte 3 is not implemented"},
      {"\\p{N}{1,3}+", "{} followed by + or ? at byte 5 is not implemented"},
      {"a{,3}", "{ without a number at byte 1 is not implemented"},
      {"(?m:a)", "(?m: at byte 0 is not implemented"},
      {"(*UTF)a", "(* at byte 0 is not implemented"},
      {"[abc", "a character class without end"},
      {"(abc", "missing closing parenthesis"},
      {"\\p{Klingon}", "unknown property"}};
  for (const auto& [pattern, error] : cases) {
    Json changes;
    changes["normalizer"] = {{"type", "Replace"}, {"content", ""}};
    changes["normalizer"]["pattern"]["Regex"] = pattern;
    const std::string found = load_error_of_changed(dump_json(changes));
    EXPECT_THAT(found, testing::StartsWith("tokenizer.json: normalizer.pattern.Regex: regular expression \""));
    EXPECT_THAT(found, testing::HasSubstr(error));
  }
}

TEST(TokenizerErrors, WrongTypesAndValuesAreNamed) {
  expect_errors({
      {R"({"model": {"vocab": []}})", "model.vocab: found an array, expected an object"},
      {R"({"model": {"vocab": {"a": "1"}}})", "model.vocab: token \"a\": expected an integer id"},
      {R"({"model": {"vocab": {"a": 1, "b": 1}}})", "model.vocab: token \"b\": id 1 is that of another token"},
      {R"({"model": {"vocab": {"a": -5}}})", "model.vocab: token \"a\": found id -5, expected 0 to 16777215"},
      {R"({"model": {"vocab": {"a": 1099511627776}}})", "found id 1099511627776, expected 0 to 16777215"},
      {R"({"model": {"vocab": {"a": 1}}})", "model.vocab: no token \"\u0100\" for byte 0, expected one for each byte"},
      {R"({"model": {"merges": 1}})", "model.merges: found a number, expected an array"},
      {R"({"model": {"merges": ["t h e"]}})", "model.merges[0]: expected \"left right\" or [\"left\", \"right\"]"},
      {R"({"model": {"merges": [["t", "h", "e"]]}})", "model.merges[0]: expected"},
      {R"({"model": {"merges": ["h e", "zebra q"]}})", "model.merges[1]: token \"zebra\" is not in model.vocab"},
      {R"({"model": {"merges": ["q z"]}})", "model.merges[0]: token \"qz\" is not in model.vocab"},
      {R"({"model": {"ignore_merges": "no"}})", "model.ignore_merges: found a string, expected a boolean"},
      {R"({"added_tokens": [{"id": 7, "content": "<n>"}]})", "added_tokens[0].id: found 7 for \"<n>\", the id of another token"},
      {R"({"added_tokens": [{"id": 3000, "content": "a"}]})", "added_tokens[0].id: found 3000 for \"a\", which has id 64"},
      {R"({"added_tokens": [{"id": 3000, "content": ""}]})", "added_tokens[0].content: found nothing, expected a text"},
      {R"({"added_tokens": [{"id": 3000}]})", "added_tokens[0].content: missing"},
      {R"({"normalizer": {"type": "Replace", "content": "", "pattern": {"String": ""}}})", "pattern.String: found nothing"},
  });
  std::string twice = dump_json(changed({}));
  twice.replace(twice.find("\"vocab\":{"), 9, "\"vocab\":{\"a\":64,");
  EXPECT_THAT(load_error(twice), testing::HasSubstr("model.vocab: token \"a\" is there twice"));
}

TEST(TokenizerErrors, EveryCutOfAFileIsRefused) {
  const std::string json = dump_json(changed({}));
  for (std::size_t size = 0; size < json.size(); size += 997) {
    EXPECT_THAT(load_error(std::string_view(json).substr(0, size)), testing::StartsWith("tokenizer.json: ")) << size;
  }
}

TEST(TokenizerErrors, APatternThatGivesUpIsAnErrorAndNoWrongAnswer) {
  const Tokenizer tokenizer = parse(changed(json_of(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(a+)+[bc]"}, "behavior": "Isolated"},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}})")));
  EXPECT_EQ(tokenizer.encode("aab").size(), 2u);
  EXPECT_THAT([&] { tokenizer.encode(std::string(64, 'a')); }, testing::ThrowsMessage<Error>(testing::HasSubstr("gave up")));
}

}  // namespace
}  // namespace calandra
