#pragma once
// What a tokenizer.json says, checked and in the form Tokenizer works with. Owns everything; nothing refers to the JSON.

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct TokenizerFile {
  struct Token {
    enum class Kind : std::uint8_t {
      None,   // no token has this id
      Plain,  // pieces of text become it; its bytes were spelled in the byte alphabet
      Other,  // an added token, or one whose spelling is not in that alphabet: no text becomes it by merging
    };
    Kind kind = Kind::None;
    std::string bytes;
  };

  std::vector<Token> tokens;  // by id
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::array<std::int32_t, 256> byte_ids;  // the token of each byte
  std::vector<Bpe::Merge> merges;          // in order of rank
  bool ignore_merges;

  /// Throws Error that starts with `where` and names the key, what was found and what was expected.
  static TokenizerFile parse(std::string_view json, std::string_view where);
};

}  // namespace calandra
