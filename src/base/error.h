#pragma once
// The one error type. An error is one line for a person: it names the thing (file, tensor, key, option),
// what was found and what was expected. Thrown where a start-up or a request fails; caught by whoever started it.

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace calandra {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void fail_formatted(fmt::string_view format, fmt::format_args arguments);

/// Throws Error with a formatted message. What happens then is compiled once, not at each of the hundreds of places.
template <class... Arguments>
[[noreturn]] void fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  fail_formatted(format, fmt::make_format_args(arguments...));
}

/// What a JSON library says, without what it says first: "[json.exception.parse_error.101] parse error at line 1, ..."
std::string_view json_complaint(std::string_view what);

/// A name read from a file, fit for a message of one line: control characters as \xNN, long names cut.
std::string printable(std::string_view name);

}  // namespace calandra
