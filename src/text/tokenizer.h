#pragma once
// Text to token ids and back to bytes, as a tokenizer.json of the byte-level BPE kind says. Immutable once made; safe from
// many threads, each call has its own scratch memory.
//
// What is in the file is done or refused by name, with two exceptions: nothing is ever added (no BOS, no EOS, so the
// post-processor is not run: the chat template writes what a prompt needs) and nothing is cut or padded ("truncation" and
// "padding" are not read). A byte always has a token, so "unk_token" never comes up.
//
// Text is taken as UTF-8; ill-formed bytes count as U+FFFD (unicode.h).

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/regex.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace calandra {

class PieceCache;
struct TokenizerFile;

/// What each token id stands for, in bytes. Ids may have gaps. Move-only.
class Vocabulary {
 public:
  explicit Vocabulary(const TokenizerFile& file);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::int32_t size() const { return static_cast<std::int32_t>(spans_.size()); }
  /// Nothing for an id that no token has.
  std::string_view bytes(std::int32_t id) const {
    if (id < 0 || id >= size()) return {};
    const Span span = spans_[static_cast<std::size_t>(id)];
    return {bytes_.data() + span.begin, span.size};
  }

 private:
  struct Span {
    std::size_t begin = 0;
    std::uint32_t size = 0;
  };
  std::vector<char> bytes_;  // a vector, since moving it leaves views valid
  std::vector<Span> spans_;  // by id
};

class Tokenizer {
 public:
  /// Reads a tokenizer.json. Throws Error that names the file and the key.
  static Tokenizer load(const std::filesystem::path& path);
  /// The same for its content; `where` stands for the file in errors.
  static Tokenizer parse(std::string_view json, std::string_view where);

  /// The tokens of `text`, which may hold any bytes, zero included. Added tokens are recognised in it.
  /// Throws Error if there are more than 2 GiB between two of them, or if the pre-tokenizer's pattern gives up.
  std::vector<std::int32_t> encode(std::string_view text) const;

  /// What a token stands for; nothing for ids that no token has, such as rows of the model beyond the last token. Bytes need
  /// not be whole characters: Detokenizer makes text of them.
  std::string_view token_bytes(std::int32_t id) const { return vocabulary_.bytes(id); }
  /// The token that stands for exactly these bytes; an added token goes before a plain one.
  std::optional<std::int32_t> id_of(std::string_view bytes) const;
  /// Whether the file calls the token special: a mark such as <|endoftext|> rather than text.
  bool is_special(std::int32_t id) const;
  /// One more than the highest id.
  std::int32_t vocab_size() const { return vocabulary_.size(); }
  /// In the order of the file.
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }

 private:
  struct Scratch;

  explicit Tokenizer(TokenizerFile file);
  void encode_text(std::string_view text, Scratch& scratch, PieceCache& cache, std::vector<std::int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::string_view, std::int32_t> plain_ids_;  // by bytes, without added tokens
  std::vector<AddedToken> added_tokens_;
  std::vector<std::int32_t> special_ids_;  // ascending
  AddedTokenFinder raw_finder_;            // added tokens looked for in the text as given
  AddedTokenFinder normalized_finder_;     // and in normalized text
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  bool ignore_merges_;  // a piece that is a token by itself is that token
};

}  // namespace calandra
