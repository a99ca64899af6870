#pragma once
// What the tests of the grammar engine share.

#include "text/grammar.h"
#include "text/tokenizer_cases.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// tests/data/grammar.
std::filesystem::path grammar_data();

/// A token for each byte, and an end token, 256.
std::shared_ptr<const GrammarVocabulary> byte_vocabulary();

/// That of the bundled model.
std::shared_ptr<const GrammarVocabulary> bundled_vocabulary();

/// A vocabulary as large as Ling's, of a synthetic checkpoint.
std::shared_ptr<const GrammarVocabulary> large_vocabulary();

/// The tokens in the given order, and an end token after them.
std::shared_ptr<const GrammarVocabulary> vocabulary_of(std::vector<std::string> tokens);

std::shared_ptr<const Grammar> grammar_of_schema(std::string_view schema,
                                                 std::shared_ptr<const GrammarVocabulary> vocabulary = byte_vocabulary());
std::shared_ptr<const Grammar> grammar_of_ebnf(std::string_view text,
                                               std::shared_ptr<const GrammarVocabulary> vocabulary = byte_vocabulary());

/// Whether `text` is a whole text of the grammar.
bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text);

/// Fails the test unless the mask of `state` has exactly the tokens that accept() takes; returns it.
TokenMask expect_exact_mask(const GrammarState& state, const GrammarVocabulary& vocabulary);

/// The tokens of a mask.
std::vector<std::int32_t> tokens_of(const TokenMask& mask);

}  // namespace calandra
