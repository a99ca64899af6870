#include "text/grammar_cases.h"

#include "checkpoint/synthetic_tokenizer.h"
#include "support/golden.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

namespace calandra {

std::filesystem::path grammar_data() { return source_path("tests/data/grammar"); }

std::shared_ptr<const GrammarVocabulary> vocabulary_of(std::vector<std::string> tokens) {
  const std::int32_t end[] = {static_cast<std::int32_t>(tokens.size())};
  tokens.emplace_back();
  return std::make_shared<const GrammarVocabulary>(std::move(tokens), end);
}

std::shared_ptr<const GrammarVocabulary> byte_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return vocabulary_of(std::move(tokens));
  }();
  return vocabulary;
}

std::shared_ptr<const GrammarVocabulary> bundled_vocabulary() {
  static const auto vocabulary = [] {
    const std::int32_t end[] = {bundled_tokenizer().id_of("<|role_end|>").value()};
    return std::make_shared<const GrammarVocabulary>(bundled_tokenizer(), end, bundled_tokenizer().vocab_size());
  }();
  return vocabulary;
}

std::shared_ptr<const GrammarVocabulary> large_vocabulary() {
  static const auto vocabulary = [] {
    const Tokenizer tokenizer = Tokenizer::parse(tokenizer_json(kLingVocab), "tokenizer.json");
    const std::int32_t end[] = {tokenizer.id_of("<|role_end|>").value()};
    return std::make_shared<const GrammarVocabulary>(tokenizer, end, static_cast<std::int32_t>(kLingVocab));
  }();
  return vocabulary;
}

std::shared_ptr<const Grammar> grammar_of_schema(std::string_view schema, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return Grammar::from_json_schema(schema, "schema", std::move(vocabulary));
}

std::shared_ptr<const Grammar> grammar_of_ebnf(std::string_view text, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return Grammar::from_ebnf(text, "grammar", std::move(vocabulary));
}

bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarState state(grammar);
  return state.accept_text(text) && state.can_end();
}

TokenMask expect_exact_mask(const GrammarState& state, const GrammarVocabulary& vocabulary) {
  TokenMask mask;
  state.allowed(mask);
  EXPECT_EQ(mask.size(), vocabulary.size());
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    GrammarState next = state;
    EXPECT_EQ(mask.test(id), next.accept(id)) << "token " << id << " '" << vocabulary.bytes(id) << "'";
  }
  return mask;
}

std::vector<std::int32_t> tokens_of(const TokenMask& mask) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < mask.size(); ++id) {
    if (mask.test(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace calandra
