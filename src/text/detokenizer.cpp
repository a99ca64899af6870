#include "text/detokenizer.h"

#include "text/unicode.h"

#include <utility>

namespace calandra {

std::string Detokenizer::push(std::int32_t id) {
  std::string text;
  if (tokenizer_ == nullptr) return text;
  if (special_tokens_ == SpecialTokens::Skip && tokenizer_->is_special(id)) return text;
  pending_ += tokenizer_->token_bytes(id);
  pending_.erase(0, append_lossy_utf8(pending_, text));
  return text;
}

std::string Detokenizer::finish() { return lossy_utf8(std::exchange(pending_, {})); }

std::string detokenize(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, SpecialTokens special_tokens) {
  Detokenizer detokenizer(tokenizer, special_tokens);
  std::string text;
  for (const std::int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

}  // namespace calandra
