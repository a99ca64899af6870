#pragma once
// Token ids to text, as they come. A token need not end where a character does: what is incomplete waits for the next
// token, so no half character is ever given out.
//
// Whatever the tokens are, all that push() gave plus finish() is exactly the lossy decoding (unicode.h) of all their
// bytes in one row: stray bytes become U+FFFD as soon as it is certain that nothing can complete them.

#include "text/tokenizer.h"

#include <cstdint>
#include <span>
#include <string>

namespace calandra {

enum class SpecialTokens : std::uint8_t { Keep, Skip };

class Detokenizer {
 public:
  /// `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer, SpecialTokens special_tokens = SpecialTokens::Keep)
      : Detokenizer(&tokenizer, special_tokens) {}
  /// Null: no id has a token.
  explicit Detokenizer(const Tokenizer* tokenizer, SpecialTokens special_tokens = SpecialTokens::Keep)
      : tokenizer_(tokenizer), special_tokens_(special_tokens) {}

  /// The text that `id` completes; often empty. An id that no token has, and a special token to skip, adds nothing.
  std::string push(std::int32_t id);

  /// What is left at the end: U+FFFD if the last character is incomplete, else nothing. Ready for a new text after it.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_tokens_;
  std::string pending_;  // the beginning of a character, at most 3 bytes
};

/// The text of all `ids`.
std::string detokenize(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                       SpecialTokens special_tokens = SpecialTokens::Keep);

}  // namespace calandra
