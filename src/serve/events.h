#pragma once
// Server-sent events, as the WHATWG's HTML standard writes them.

#include <string>
#include <string_view>

namespace calandra {

/// One event with its blank line. Every line of `data` becomes a line of its own; a reader joins them with "\n", so of "\r\n" and
/// "\r" a "\n" is left. `name` is left out if empty.
std::string format_event(std::string_view data, std::string_view name = {});

/// A line that readers skip: it keeps proxies from giving up on a silent stream.
inline constexpr std::string_view kEventComment = ":\n\n";

}  // namespace calandra
