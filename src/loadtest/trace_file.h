#pragma once
// Recorded traffic: when requests came, how long their prompts and answers were. One request a line, in the order they came, as CSV
//
//     arrival,prompt_tokens,output_tokens        (this line may be missing)
//     0.00,512,128
//     0.25,2048,64
//
// or as JSON, one object a line, in which other keys are passed over:
//
//     {"arrival": 0.25, "prompt_tokens": 2048, "output_tokens": 64}
//
// Arrivals are seconds from the beginning. Empty lines, and lines that begin with #, are skipped.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct TraceEntry {
  double arrival_seconds = 0;
  std::int64_t prompt_tokens = 1;
  std::int64_t output_tokens = 1;
};

/// `name` is the file's. Throws Error that names it, the line, what was found there and what was expected.
std::vector<TraceEntry> parse_trace(std::string_view text, const std::string& name);

}  // namespace calandra
