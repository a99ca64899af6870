#pragma once
// The second word of a request line: "/v1/models?x=1", "http://host/v1/models", or "*" for OPTIONS (RFC 9112, 3.2).

#include <optional>
#include <string>
#include <string_view>

namespace calandra {

struct RequestTarget {
  std::string path;   ///< percent-decoded, "/" at the front or "*"
  std::string query;  ///< as sent, without the '?'
};

/// Nothing where the target has none of these forms, an escape is not two hex digits, or the decoded path has a control character.
/// Dots are left as they are: paths here name routes, never files.
std::optional<RequestTarget> parse_request_target(std::string_view method, std::string_view target);

}  // namespace calandra
