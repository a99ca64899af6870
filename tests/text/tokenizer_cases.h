#pragma once
// Answers of another implementation, as tools/oracles/tokenizer/make.mjs writes them.

#include "support/json.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace calandra {

class Tokenizer;

/// Folder of the stored cases.
std::filesystem::path tokenizer_data();

/// The bytes to encode of one case.
std::string case_text(const nlohmann::ordered_json& item);

/// The tokenizer of the bundled model.
const Tokenizer& bundled_tokenizer();

/// Reports each encode case that gives other ids, at most ten of them.
void expect_same_ids(const Tokenizer& tokenizer, const nlohmann::ordered_json& cases);

/// Reports each decode case that gives another text, at most ten of them.
void expect_same_texts(const Tokenizer& tokenizer, const nlohmann::ordered_json& cases);

}  // namespace calandra
