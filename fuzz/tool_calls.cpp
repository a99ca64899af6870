// Any output of a model: never throws, and comes out the same whole and in pieces. The first byte chooses the pieces and
// how the output begins.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json.h"
#include "text/output_parser.h"

namespace {

using calandra::OutputEvent;

void add(std::vector<OutputEvent>& all, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    if (!all.empty() && all.back().kind == event.kind && all.back().index == event.index) {
      all.back().text += event.text;
    } else {
      all.push_back(event);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tools = calandra::parse_json(
      R"([{"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"},
      "o": {"type": ["object", "array"]}, "u": {"type": ["string", "null", "number"]}}}}}])",
      "tools");
  static const calandra::OutputFormat format = {true, true, true, {"<|role_end|>"}};
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto start = static_cast<calandra::ReasoningStart>(data[0] % 3);
  const std::size_t piece = 1 + data[0] / 3 % 16;
  std::vector<OutputEvent> whole, pieces;
  calandra::OutputParser first(format, start, tools), second(format, start, tools);
  add(whole, first.push(text));
  add(whole, first.finish());
  for (std::size_t i = 0; i < text.size(); i += piece) add(pieces, second.push(text.substr(i, piece)));
  add(pieces, second.finish());
  if (whole != pieces) std::abort();
  calandra::ParsedOutput output;
  output.add(whole);
  return 0;
}
