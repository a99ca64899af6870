#pragma once
// Where a server is, as a person writes it.

#include <string>
#include <string_view>

namespace calandra {

/// http://host:port/path
struct ServerUrl {
  std::string host;  ///< without the brackets of an IPv6 address
  int port = 80;
  std::string base;  ///< the path that APIs are below, such as "/v1"; no slash at its end

  /// "http://[::1]:8080/v1"
  std::string text() const;
  /// As in the header "Host": the port only where it is not 80.
  std::string authority() const;
};

/// "http://127.0.0.1:8080", "localhost:8080", "http://host/openai/v1/". Without a path it is /v1. Throws Error that names the
/// text and what was expected: there is no TLS here, and so no https.
ServerUrl parse_server_url(std::string_view text);

}  // namespace calandra
