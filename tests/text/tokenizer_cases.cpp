#include "text/tokenizer_cases.h"

#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <array>

namespace calandra {
namespace {

std::string decode_base64(const std::string& encoded) {
  std::string bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : encoded) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<char>(bits >> num_bits & 0xFF));
    }
  }
  return bytes;
}

}  // namespace

std::filesystem::path tokenizer_data() { return std::filesystem::path(CALANDRA_SOURCE_DIR) / "tests/data/tokenizer"; }

const Tokenizer& bundled_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(CALANDRA_SOURCE_DIR "/models/austen-5m/tokenizer.json");
  return tokenizer;
}

std::string case_text(const nlohmann::ordered_json& item) {
  return item.contains("text") ? item.at("text").get<std::string>() : decode_base64(item.at("base64").get<std::string>());
}

void expect_same_ids(const Tokenizer& tokenizer, const nlohmann::ordered_json& cases) {
  int num_wrong = 0;
  for (const auto& item : cases) {
    const std::string text = case_text(item);
    const auto expected = item.at("ids").get<std::vector<std::int32_t>>();
    if (const auto ids = tokenizer.encode(text); ids != expected && ++num_wrong <= 10) {
      ADD_FAILURE() << testing::PrintToString(text) << "\n  gives    " << testing::PrintToString(ids) << "\n  expected "
                    << testing::PrintToString(expected);
    }
  }
  EXPECT_EQ(num_wrong, 0) << "of " << cases.size() << " texts";
  EXPECT_GT(cases.size(), 0u);
}

void expect_same_texts(const Tokenizer& tokenizer, const nlohmann::ordered_json& cases) {
  int num_wrong = 0;
  for (const auto& item : cases) {
    const auto ids = item.at("ids").get<std::vector<std::int32_t>>();
    const auto special = item.at("skip").get<bool>() ? SpecialTokens::Skip : SpecialTokens::Keep;
    const auto expected = item.at("text").get<std::string>();
    if (const auto text = detokenize(tokenizer, ids, special); text != expected && ++num_wrong <= 10) {
      ADD_FAILURE() << testing::PrintToString(ids) << "\n  gives    " << testing::PrintToString(text) << "\n  expected "
                    << testing::PrintToString(expected);
    }
  }
  EXPECT_EQ(num_wrong, 0) << "of " << cases.size() << " rows of ids";
  EXPECT_GT(cases.size(), 0u);
}

}  // namespace calandra
