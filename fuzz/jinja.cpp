// Any template on a fixed conversation: renders or throws Error, in bounded time and stack.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto context = calandra::parse_json(
      R"({"messages": [{"role": "user", "content": "Hé"}, {"role": "assistant", "content": null,
      "tool_calls": [{"function":
      {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]}], "tools": [{"name": "f"}], "add_generation_prompt": true,
      "n": 3})",
      "context");
  calandra::JinjaOptions options;
  options.max_work = 2'000'000;
  options.max_output_bytes = 1'000'000;
  try {
    calandra::JinjaTemplate::parse({reinterpret_cast<const char*>(data), size}, "fuzz").render(context, options);
  } catch (const calandra::Error&) {
    // A bad template is an error and nothing worse.
  }
  return 0;
}
