#pragma once
// The tokenizer of a synthetic checkpoint: a working byte-level BPE with Ling's pre-tokenizer and special tokens. Common
// English words and marks are one token each; the rest of the vocabulary is filled with combinations of them.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

/// Vocabulary of the released models, and how much of it are bytes and merges.
inline constexpr std::int64_t kLingVocab = 157184;
inline constexpr std::int64_t kLingBaseVocab = 156891;

/// Added tokens in order of their ids, and whether each is special. Places whose use is not known are reserved.
struct LingToken {
  std::string_view text;
  bool special = false;
};
const std::vector<LingToken>& ling_added_tokens();

/// 256 bytes and room for the added tokens.
std::int64_t min_synthetic_vocab();

/// Bytes and merges of a vocabulary: Ling's own from its size on, else all but the added tokens at the top.
/// Throws Error below min_synthetic_vocab().
std::int64_t base_vocab(std::int64_t vocab);

/// Id of an added token in a vocabulary of that size. The text must be one of ling_added_tokens().
std::int64_t added_token_id(std::string_view text, std::int64_t vocab);

/// The merges as pairs of byte strings, most important first. Fewer merges are a prefix of more.
std::vector<std::pair<std::string, std::string>> synthetic_merges(std::int64_t count);

/// Contents of tokenizer.json and tokenizer_config.json.
std::string tokenizer_json(std::int64_t vocab);
std::string tokenizer_config_json(std::int64_t vocab, std::int64_t context);

}  // namespace calandra
