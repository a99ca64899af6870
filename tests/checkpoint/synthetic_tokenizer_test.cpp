#include "checkpoint/synthetic_tokenizer.h"

#include "support/golden.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

namespace calandra {
namespace {

std::string merged(const std::string& pair) {
  const std::size_t space = pair.find(' ');
  return pair.substr(0, space) + pair.substr(space + 1);
}

void expect_consistent(std::int64_t vocab) {
  simdjson::dom::parser parser;  // our own would search 157,000 ordered keys at each insertion
  const std::string text = tokenizer_json(vocab);
  const simdjson::dom::element model = parser.parse(text).at_key("model");
  std::unordered_map<std::string, std::int64_t> ids;
  for (const auto& [token, id] : model["vocab"].get_object()) ids.emplace(token, id.get_int64());
  std::vector<std::string> merges;
  for (const auto& pair : model["merges"].get_array()) merges.emplace_back(pair.get_string().value());
  ASSERT_EQ(static_cast<std::int64_t>(ids.size()), base_vocab(vocab));
  ASSERT_EQ(merges.size() + 256, ids.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& pair = merges[rank];
    const std::size_t space = pair.find(' ');
    ASSERT_EQ(std::count(pair.begin(), pair.end(), ' '), 1) << pair;
    const auto made = static_cast<std::int64_t>(256 + rank);
    ASSERT_EQ(ids.at(merged(pair)), made) << pair;
    ASSERT_LT(ids.at(pair.substr(0, space)), made) << pair;
    ASSERT_LT(ids.at(pair.substr(space + 1)), made) << pair;
  }
}

TEST(SyntheticTokenizer, EveryMergeMakesANewTokenOfEarlierOnes) {
  for (const std::int64_t vocab : {min_synthetic_vocab(), min_synthetic_vocab() + 1, std::int64_t{2048}, kLingVocab}) {
    SCOPED_TRACE(vocab);
    expect_consistent(vocab);
  }
}

TEST(SyntheticTokenizer, LingsIdsAreWhereTheReleasesHaveThem) {
  // docs/model.md 8.1
  const std::map<std::string, int> published = {{"<|startoftext|>", 156891}, {"<|endoftext|>", 156892}, {"[CLS]", 156893},
                                                {"[gMASK]", 156894},         {"<|role_end|>", 156895},  {"<tool_call>", 156896},
                                                {"</tool_call>", 156897},    {"<think>", 156903},       {"</think>", 156904}};
  std::map<std::string, int> ids;
  const Json config = json_of(tokenizer_config_json(kLingVocab, 131072));
  for (const auto& [id, token] : config.at("added_tokens_decoder").items()) ids[token.at("content")] = std::stoi(id);
  for (const auto& [text, id] : published) EXPECT_EQ(ids.at(text), id) << text;
  EXPECT_EQ(base_vocab(kLingVocab), 156891);
}

TEST(SyntheticTokenizer, ASmallVocabularyEndsWithTheSameAddedTokens) {
  const Json tokenizer = json_of(tokenizer_json(2048));
  const Json& added = tokenizer.at("added_tokens");
  EXPECT_EQ(added.size(), 24u);
  EXPECT_EQ(added.front().at("id"), 2024);
  EXPECT_EQ(added.back().at("id"), 2047);
  EXPECT_EQ(added_token_id("<|role_end|>", 2048), 2028);
  EXPECT_THAT(error_of([] { base_vocab(279); }), ::testing::HasSubstr("280"));
}

TEST(SyntheticTokenizer, HasTheFormOfTheBundledOne) {
  // Same bytes with the same ids, same pre-tokenizer and decoder, same keys.
  const Json ours = json_of(tokenizer_json(2048));
  const Json bundled = read_json(source_path("models/austen-5m/tokenizer.json"));
  for (const char* key : {"version", "truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    EXPECT_EQ(with_sorted_keys(ours.at(key)), with_sorted_keys(bundled.at(key))) << key;
  }
  for (const auto& [key, value] : bundled.at("model").items()) {
    ASSERT_TRUE(ours.at("model").contains(key)) << key;
    if (key == "vocab" || key == "merges") continue;
    EXPECT_EQ(with_sorted_keys(ours.at("model").at(key)), with_sorted_keys(value)) << key;
  }
  for (const auto& [text, id] : bundled.at("model").at("vocab").items()) {
    if (id >= 256) continue;
    EXPECT_EQ(ours.at("model").at("vocab").at(text), id) << text;
  }
  std::map<std::string, Json> markers;  // of both, but for their ids
  for (Json token : bundled.at("added_tokens")) {
    token.erase("id");
    markers[token.at("content")] = token;
  }
  for (Json token : ours.at("added_tokens")) {
    token.erase("id");
    const auto found = markers.find(token.at("content"));
    if (found == markers.end()) continue;
    EXPECT_EQ(with_sorted_keys(token), with_sorted_keys(found->second));
  }
}

/// Byte-level BPE by the book: the lowest rank first, from the left.
std::vector<std::string> encode(std::string_view piece, const std::vector<std::pair<std::string, std::string>>& merges) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
  std::vector<std::string> tokens;
  for (const char c : piece) tokens.emplace_back(1, c);
  while (true) {
    std::size_t best = tokens.size(), best_rank = merges.size();
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found != ranks.end() && found->second < best_rank) best = i, best_rank = found->second;
    }
    if (best == tokens.size()) return tokens;
    tokens[best] += tokens[best + 1];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(SyntheticTokenizer, CommonWordsAndMarksAreOneToken) {
  const auto merges = synthetic_merges(20000);
  for (const char* piece : {" the", " government", "The", " Wednesday", "return", "    ", "\n\n", " {\n", "\u4e2d", "\u2019"}) {
    EXPECT_EQ(encode(piece, merges).size(), 1u) << piece;
  }
}

TEST(SyntheticTokenizer, FewerMergesAreTheFirstOfMore) {
  const auto few = synthetic_merges(1000), many = synthetic_merges(10000);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
}

}  // namespace
}  // namespace calandra
