// Random walks along allowed tokens end, and what they wrote is valid for another implementation.

#include "base/json.h"
#include "support/golden.h"
#include "text/grammar_cases.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>

namespace calandra {
namespace {

/// Draws allowed tokens; after `steps` of them, whatever comes nearer to the end.
std::string walk(const std::shared_ptr<const Grammar>& grammar, unsigned seed, int steps) {
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
    if (step >= steps || random() % 4 == 0) {
      // Ends first, then what closes a string, then what helps to close other things.
      const auto worth = [&](std::int32_t id) {
        if (vocabulary.is_end(id)) return 9;
        const std::string_view bytes = vocabulary.bytes(id);
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
    text += vocabulary.bytes(chosen);
    EXPECT_TRUE(state.accept(chosen)) << text;
    if (state.has_ended()) return text;
  }
  ADD_FAILURE() << "no end after " << text.size() << " bytes: " << text.substr(0, 200) << " ... "
                << text.substr(text.size() - 50);
  return text;
}

/// Runs tests/text/validate_documents.py, which prints what is not valid.
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

TEST(GrammarWalk, FinishedDocumentsAreValid) {
  std::vector<Json> lines;
  for (const auto& vocabulary : {bundled_vocabulary(), byte_vocabulary()}) {
    for (const Json& of : read_json(grammar_data() / "cases.json").at("schemas")) {
      SCOPED_TRACE(of.at("name").get<std::string>());
      const auto grammar = grammar_of_schema(dump_json(of.at("schema")), vocabulary);
      for (unsigned seed = 0; seed < (long_tests() ? 200u : 20u); ++seed) {
        lines.push_back({of.at("schema"), walk(grammar, seed, static_cast<int>(4 * seed % 60))});
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(complaints(lines), "done\n");
}

TEST(GrammarWalk, ValidatorSeesWhatIsWrong) {
  const Json schema = {{"type", "integer"}};
  EXPECT_NE(complaints({{schema, "\"x\""}}), "done\n");
  EXPECT_NE(complaints({{true, R"({"a":1,"a":2})"}}), "done\n");
}

}  // namespace
}  // namespace calandra
