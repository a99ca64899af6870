#include "loadtest/url.h"

#include "base/error.h"
#include "base/host.h"

#include <algorithm>
#include <charconv>

namespace calandra {
namespace {

constexpr int kHttpPort = 80;

bool is_plain(char c) { return c > ' ' && c < 0x7F && c != '"' && c != '<' && c != '>' && c != '\\'; }

[[noreturn]] void refuse(std::string_view text) {
  fail("URL: found '{}', expected http://HOST:PORT or http://HOST:PORT/PATH", printable(text));
}

}  // namespace

std::string ServerUrl::authority() const {
  return port == kHttpPort ? bracketed(host) : fmt::format("{}:{}", bracketed(host), port);
}

std::string ServerUrl::text() const { return fmt::format("http://{}{}", authority(), base); }

ServerUrl parse_server_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https:")) {
    fail("URL: found '{}', expected http: there is no TLS here; let a proxy on this machine speak it", printable(text));
  }
  std::string_view rest = text;
  if (rest.starts_with(kScheme)) {
    rest.remove_prefix(kScheme.size());
  } else if (rest.find("://") != rest.npos) {
    refuse(text);
  }
  if (!std::all_of(rest.begin(), rest.end(), is_plain) || rest.find_first_of("?#@") != rest.npos) refuse(text);

  ServerUrl url;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  url.base = rest.substr(slash);
  while (url.base.ends_with('/')) url.base.pop_back();
  if (url.base.empty()) url.base = "/v1";

  std::string_view authority = rest.substr(0, slash);
  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t bracket = authority.find(']');
    if (bracket == authority.npos) refuse(text);
    url.host = authority.substr(1, bracket - 1);
    port = authority.substr(bracket + 1);
  } else {
    const std::size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (url.host.empty()) refuse(text);
  if (!port.empty()) {
    const auto [stop, error] = std::from_chars(port.data() + 1, port.data() + port.size(), url.port);
    if (port[0] != ':' || error != std::errc() || stop != port.data() + port.size() || url.port < 1 || url.port > 65535)
      refuse(text);
  }
  return url;
}

}  // namespace calandra
