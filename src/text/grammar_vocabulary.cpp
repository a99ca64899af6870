#include "text/grammar_vocabulary.h"

#include "text/grammar_mask.h"
#include "text/grammar_program.h"
#include "text/tokenizer.h"

#include <algorithm>

namespace calandra {

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer, std::span<const std::int32_t> end_ids, std::int32_t size)
    : tokens_(static_cast<std::size_t>(size)) {
  for (std::int32_t id = 0; id < std::min(size, tokenizer.vocab_size()); ++id) {
    tokens_[static_cast<std::size_t>(id)] = tokenizer.token_bytes(id);
  }
  for (const AddedToken& added : tokenizer.added_tokens()) {
    if (added.id >= size) continue;
    tokens_[static_cast<std::size_t>(added.id)].clear();
    if (std::ranges::find(grammar::kCallMarks, added.content) != grammar::kCallMarks.end())
      call_marks_.push_back({added.id, added.content});
  }
  prepare(end_ids);
}

GrammarVocabulary::GrammarVocabulary(std::vector<std::string> tokens, std::span<const std::int32_t> end_ids)
    : tokens_(std::move(tokens)) {
  prepare(end_ids);
}

GrammarVocabulary::~GrammarVocabulary() = default;

void GrammarVocabulary::prepare(std::span<const std::int32_t> end_ids) {
  for (const std::int32_t id : end_ids) {
    if (id < 0 || id >= size()) continue;
    end_ids_.push_back(id);
    tokens_[static_cast<std::size_t>(id)].clear();
  }
  std::vector<std::pair<std::string_view, std::int32_t>> tokens;
  tokens.reserve(tokens_.size());
  for (std::int32_t id = 0; id < size(); ++id) tokens.emplace_back(bytes(id), id);
  trie_ = TokenTrie(std::move(tokens));
  plain_masks_ = std::make_unique<grammar::MaskCache>();
}

bool GrammarVocabulary::is_end(std::int32_t id) const { return std::ranges::find(end_ids_, id) != end_ids_.end(); }

}  // namespace calandra
