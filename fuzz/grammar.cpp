// A JSON Schema, of a document or of a call's arguments, or a grammar text, then bytes that choose a way through its masks: ends in an Error or in a text, in bounded
// time, and never in a place without a way out. The first byte chooses which of them, a zero byte ends it.

#include "text/grammar.h"

#include "base/error.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::shared_ptr<const calandra::GrammarVocabulary> vocabulary() {
  static const auto result = [] {
    std::vector<std::string> tokens;
    tokens.reserve(256);
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* const text :
         {"\":", "\",\"", "{\"", "\"}", "},{", "true", "null", "\": ", ",\n", "a\",\"a\":1", "\\u00", "12.5e", "\xC3\xA9"}) {
      tokens.emplace_back(text);
    }
    const std::int32_t end[] = {static_cast<std::int32_t>(tokens.size())};
    tokens.emplace_back();
    return std::make_shared<const calandra::GrammarVocabulary>(std::move(tokens), end);
  }();
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view text = all.substr(0, all.find('\0'));
  const std::string_view choices = all.substr(text.size());
  try {
    const auto grammar = data[0] % 3 == 0 ? calandra::Grammar::from_json_schema(text, "fuzz", vocabulary())
                         : data[0] % 3 == 1
                             ? calandra::Grammar::from_ebnf(text, "fuzz", vocabulary())
                             : calandra::Grammar::from_calls({{{"f", std::string(text), true, "fuzz"}}, true}, vocabulary());
    calandra::GrammarState state(grammar);
    calandra::TokenMask mask;
    for (std::size_t step = 0; step < std::max<std::size_t>(choices.size(), 20) && !state.has_ended(); ++step) {
      state.allowed(mask);
      if (mask.count() == 0) std::abort();  // a dead end
      // The chosen token or the next allowed one; what is not allowed is not accepted either.
      std::int32_t id =
          step < choices.size() ? static_cast<std::uint8_t>(choices[step]) : static_cast<std::int32_t>(step * 37 % 256);
      calandra::GrammarState other = state;
      if (!mask.test(id) && other.accept(id)) std::abort();
      while (!mask.test(id)) id = (id + 1) % mask.size();
      if (!state.accept(id)) std::abort();
    }
  } catch (const calandra::Error&) {
    // A bad schema or grammar is an error and nothing worse.
  }
  return 0;
}
