#pragma once
// Addresses as people write them.

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace calandra {

/// A host as it stands before a port: "localhost", "[::1]".
inline std::string bracketed(std::string_view host) {
  return host.find(':') == std::string_view::npos ? std::string(host) : fmt::format("[{}]", host);
}

}  // namespace calandra
