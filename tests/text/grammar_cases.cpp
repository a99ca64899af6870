#include "text/grammar_cases.h"

#include "base/json.h"
#include "checkpoint/synthetic_tokenizer.h"
#include "support/golden.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <set>

namespace calandra {

std::filesystem::path grammar_data() { return source_path("tests/data/grammar"); }

const Json& grammar_cases() {
  static const Json cases = read_json(grammar_data() / "cases.json");
  return cases;
}

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

namespace {

/// Those of marks as well.
std::string_view bytes_of(const GrammarVocabulary& vocabulary, std::int32_t id) {
  for (const GrammarVocabulary::Mark& mark : vocabulary.call_marks()) {
    if (mark.id == id) return mark.bytes;
  }
  return vocabulary.bytes(id);
}

}  // namespace

void add_names(const Json& schema, std::set<std::string>& names) {
  if (!schema.is_structured()) return;
  for (const auto& [key, value] : schema.items()) {
    if (key == "required" && value.is_array()) {
      for (const Json& name : value) names.insert(name.get<std::string>());
    }
    add_names(value, names);
  }
}

std::string walk(const std::shared_ptr<const Grammar>& grammar, unsigned seed, int steps, const std::set<std::string>& names) {
  const GrammarVocabulary& vocabulary = grammar->vocabulary();
  std::mt19937 random(seed);
  GrammarState state(grammar);
  TokenMask mask;
  std::string text;
  for (int step = 0; step < steps + 3000; ++step) {
    state.allowed(mask);
    const auto ids = tokens_of(mask);
    if (ids.empty()) break;
    std::int32_t chosen = ids[random() % ids.size()];
    // Now and then anything, or a number that a comma must follow has no end.
    if (step >= steps ? random() % 6 != 0 : random() % 4 == 0) {
      // Ends first, then the marks of calls, then what closes a string, then what helps to close other things.
      const std::string begun = text.substr(text.rfind('"') + 1);
      const auto worth = [&](std::int32_t id) {
        if (vocabulary.is_end(id)) return 11;
        const std::string_view bytes = bytes_of(vocabulary, id);
        const std::string longer = begun + std::string(bytes);
        const auto next = names.lower_bound(longer);
        if (!bytes.empty() && next != names.end() && next->starts_with(longer)) return 10;
        if (vocabulary.bytes(id).empty()) return 9;
        if (bytes[0] == '"') return 8;
        return bytes.size() > 1 ? 1 : std::string_view("}]:019-.@TZabc").find(bytes[0]) != std::string_view::npos ? 3 : 2;
      };
      int best = 0;
      for (const std::int32_t id : ids) best = std::max(best, worth(id));
      std::vector<std::int32_t> good;
      for (const std::int32_t id : ids) {
        if (worth(id) == best) good.push_back(id);
      }
      chosen = good[random() % good.size()];
    }
    text += bytes_of(vocabulary, chosen);
    EXPECT_TRUE(state.accept(chosen)) << text;
    if (state.has_ended()) return text;
  }
  ADD_FAILURE() << "no end after " << text.size() << " bytes: " << text.substr(0, 200) << " ... "
                << text.substr(text.size() - 50);
  return text;
}

std::string complaints(const std::vector<Json>& lines) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "documents.jsonl";
  {
    std::ofstream out(file);
    for (const Json& line : lines) out << dump_json(line) << "\n";
  }
  const std::string command =
      "/usr/bin/python3 " + source_path("tests/text/validate_documents.py").string() + " " + file.string() + " 2>&1";
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t size = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, size);
  pclose(pipe);
  return output;
}

}  // namespace calandra
