#pragma once
// What the tests of the grammar engine share.

#include "text/grammar.h"
#include "text/tokenizer_cases.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// tests/data/grammar.
std::filesystem::path grammar_data();

/// Schemas and formats with what ajv accepts and rejects: cases.json of that folder.
const nlohmann::ordered_json& grammar_cases();

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

/// Draws allowed tokens; after `steps` of them, whatever comes nearer to the end. `names` are those of properties that may have to come.
std::string walk(const std::shared_ptr<const Grammar>& grammar, unsigned seed, int steps,
                 const std::set<std::string>& names = {});

/// The names of all properties that some part of the schema requires.
void add_names(const nlohmann::ordered_json& schema, std::set<std::string>& names);

/// Runs tests/text/validate_documents.py over [schema, text] pairs; it prints what is not valid, and "done" at the end.
std::string complaints(const std::vector<nlohmann::ordered_json>& lines);

}  // namespace calandra
