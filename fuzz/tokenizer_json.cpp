// Loads any bytes as a tokenizer.json; where they are one, encodes a text with it and decodes the result.

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace calandra;
  constexpr std::string_view kText = "I'm 12 <a> e\xCC\x81 \xE4\xBD\xA0\xE5\xA5\xBD\xF0\x9F\x98\x80\n\n  \xFF\xE2\x80 end ";
  try {
    const Tokenizer tokenizer = Tokenizer::parse({reinterpret_cast<const char*>(data), size}, "tokenizer.json");
    detokenize(tokenizer, tokenizer.encode(kText));
  } catch (const Error&) {
    // refused: what is wanted of most inputs
  }
  return 0;
}
