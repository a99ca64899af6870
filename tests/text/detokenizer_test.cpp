#include "text/detokenizer.h"

#include "text/tokenizer_cases.h"
#include "text/unicode.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

namespace calandra {
namespace {

/// The token of each byte.
std::vector<std::int32_t> byte_tokens(std::string_view bytes) {
  std::vector<std::int32_t> ids;
  for (const char byte : bytes) ids.push_back(bundled_tokenizer().id_of(std::string_view(&byte, 1)).value());
  return ids;
}

std::vector<std::string> pushes(std::string_view bytes) {
  Detokenizer detokenizer(bundled_tokenizer());
  std::vector<std::string> texts;
  for (const std::int32_t id : byte_tokens(bytes)) texts.push_back(detokenizer.push(id));
  texts.push_back(detokenizer.finish());
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Detokenizer, GivesTheTextsOfAnotherLibrary) {
  expect_same_texts(bundled_tokenizer(), read_json(tokenizer_data() / "austen_cases.json").at("decode"));
}

TEST(Detokenizer, GivesTheTextsOfAnotherLibraryForACutOfAPublishedTokenizer) {
  expect_same_texts(Tokenizer::load(tokenizer_data() / "qwen3_cut.json"),
                    read_json(tokenizer_data() / "qwen3_cut_cases.json").at("decode"));
}

TEST(Detokenizer, AnEmojiInFourTokensComesWhole) { EXPECT_EQ(pushes("\U0001F600!"), (Texts{"", "", "", "\U0001F600", "!", ""})); }

TEST(Detokenizer, AStrayByteIsReplacedAndHarmsNoOther) {
  EXPECT_EQ(pushes("\xE2\x9C\x85\x85x"), (Texts{"", "", "\u2705", "\uFFFD", "x", ""}));
}

TEST(Detokenizer, EachLongestPrefixOfACharacterBecomesOneReplacement) {
  // The example of the Unicode Standard, table 3-8, and the cases it rules out one by one.
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF4\x8F\xBF\xBF\xED\x9F\xBF\xEE\x80\x80", "\U0010FFFF\uD7FF\uE000"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(lossy_utf8(bytes), text);
    EXPECT_EQ(detokenize(bundled_tokenizer(), byte_tokens(bytes)), text);
  }
}

TEST(Detokenizer, StreamedIsWholeForAnyTokens) {
  EXPECT_TRUE(rc::check("pushes and finish joined are the lossy decoding of all bytes; each is whole characters", [] {
    const auto ids = *rc::gen::container<std::vector<std::int32_t>>(
        rc::gen::oneOf(rc::gen::inRange<std::int32_t>(0, 256), rc::gen::inRange<std::int32_t>(-2, 2060)));
    Detokenizer detokenizer(bundled_tokenizer());
    std::string bytes, text;
    for (const std::int32_t id : ids) {
      bytes += bundled_tokenizer().token_bytes(id);
      const std::string part = detokenizer.push(id);
      RC_ASSERT(is_valid_utf8(part));
      text += part;
    }
    text += detokenizer.finish();
    RC_ASSERT(text == lossy_utf8(bytes));
    RC_ASSERT(is_valid_utf8(text));
  }));
}

TEST(Detokenizer, GivesBackAnyTextThatWasEncoded) {
  const nlohmann::ordered_json cases = read_json(tokenizer_data() / "austen_cases.json").at("encode");
  ASSERT_GT(cases.size(), 300u);
  for (const auto& item : cases) {
    const std::string text = case_text(item);
    EXPECT_EQ(detokenize(bundled_tokenizer(), bundled_tokenizer().encode(text)), lossy_utf8(text));
  }
}

TEST(Detokenizer, SpecialTokensAreKeptOrSkipped) {
  const auto ids = bundled_tokenizer().encode("Hi<|role_end|><think>");
  EXPECT_EQ(detokenize(bundled_tokenizer(), ids), "Hi<|role_end|><think>");
  EXPECT_EQ(detokenize(bundled_tokenizer(), ids, SpecialTokens::Skip), "Hi<think>");
}

TEST(Detokenizer, UnknownIdsGiveNothing) {
  Detokenizer detokenizer(bundled_tokenizer());
  for (const std::int32_t id : {-1, 2048, 157183, INT32_MAX}) EXPECT_EQ(detokenizer.push(id), "") << id;
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, StartsAnewAfterFinish) {
  Detokenizer detokenizer(bundled_tokenizer());
  EXPECT_EQ(detokenizer.push(byte_tokens("\xE2").front()), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.push(byte_tokens("a").front()), "a");
  EXPECT_EQ(detokenizer.finish(), "");
}

}  // namespace
}  // namespace calandra
