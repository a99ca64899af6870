#pragma once
// What the grammar engine knows of a vocabulary, made once and shared by all grammars: the bytes of each token as a trie, the
// tokens that end a text, and masks that do not depend on the grammar (inside of a plain JSON string).
//
// For 157,184 tokens: about 10 MB and 0.1 s. Safe from many threads.

#include "text/token_trie.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

class Tokenizer;

namespace grammar {
class MaskCache;
}

class GrammarVocabulary {
 public:
  /// Added tokens are never allowed by a grammar: they are marks, whatever their text. `end_ids` are allowed where a text may
  /// end. A mask has `size` bits, the rows of the logits, which may be more than there are tokens.
  GrammarVocabulary(const Tokenizer& tokenizer, std::span<const std::int32_t> end_ids, std::int32_t size);
  /// Token i stands for tokens[i]; nothing: for no text.
  GrammarVocabulary(std::vector<std::string> tokens, std::span<const std::int32_t> end_ids);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::string_view bytes(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  bool is_end(std::int32_t id) const;
  std::span<const std::int32_t> end_ids() const { return end_ids_; }
  const TokenTrie& trie() const { return trie_; }
  /// The added tokens that are marks of calls, whose bytes are not among those above: only a grammar of calls takes them, where it has marks.
  struct Mark {
    std::int32_t id;
    std::string bytes;
  };
  std::span<const Mark> call_marks() const { return call_marks_; }
  grammar::MaskCache& plain_masks() const { return *plain_masks_; }

 private:
  void prepare(std::span<const std::int32_t> end_ids);

  std::vector<std::string> tokens_;
  std::vector<std::int32_t> end_ids_;
  std::vector<Mark> call_marks_;
  TokenTrie trie_;
  std::unique_ptr<grammar::MaskCache> plain_masks_;
};

}  // namespace calandra
