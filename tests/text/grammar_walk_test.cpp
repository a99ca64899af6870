// Random walks along allowed tokens end, and what they wrote is valid for another implementation.

#include "base/json.h"
#include "support/golden.h"
#include "text/grammar_cases.h"

#include <gtest/gtest.h>

namespace calandra {
namespace {

TEST(GrammarWalk, FinishedDocumentsAreValid) {
  std::vector<Json> lines;
  for (const auto& vocabulary : {bundled_vocabulary(), byte_vocabulary()}) {
    for (const Json& of : grammar_cases().at("schemas")) {
      SCOPED_TRACE(of.at("name").get<std::string>());
      const auto grammar = grammar_of_schema(dump_json(of.at("schema")), vocabulary);
      std::set<std::string> names;
      add_names(of.at("schema"), names);
      for (unsigned seed = 0; seed < (long_tests() ? 200u : 8u); ++seed) {
        lines.push_back({of.at("schema"), walk(grammar, seed, static_cast<int>(4 * seed % 60), names)});
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(lines.size(), 200u);
  EXPECT_EQ(complaints(lines), "done\n");
}

TEST(GrammarWalk, ValidatorSeesWhatIsWrong) {
  const Json schema = {{"type", "integer"}};
  EXPECT_NE(complaints({{schema, "\"x\""}}), "done\n");
  EXPECT_NE(complaints({{true, R"({"a":1,"a":2})"}}), "done\n");
}

}  // namespace
}  // namespace calandra
