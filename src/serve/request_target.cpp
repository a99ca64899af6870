#include "serve/request_target.h"

#include "serve/http_message.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> decode_path(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<unsigned char>(high * 16 + low);
      i += 2;
    }
    if (c < 0x20 || c == 0x7F) return std::nullopt;
    out += static_cast<char>(c);
  }
  return out;
}

/// What follows the host in "http://host/a?b"; it may be empty, or begin with the '?'.
std::optional<std::string_view> after_authority(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    if (end > 0) return target.substr(end);
  }
  return std::nullopt;
}

}  // namespace

std::optional<RequestTarget> parse_request_target(std::string_view method, std::string_view target) {
  if (target == "*" && method == "OPTIONS") return RequestTarget{.path = "*", .query = {}};
  if (!target.starts_with('/')) {
    const std::optional<std::string_view> rest = after_authority(target);
    if (!rest) return std::nullopt;
    target = *rest;
  }
  const std::size_t mark = std::min(target.find('?'), target.size());
  std::optional<std::string> path = decode_path(target.substr(0, mark));
  if (!path) return std::nullopt;
  if (path->empty()) path->push_back('/');
  return RequestTarget{.path = std::move(*path), .query = std::string(target.substr(std::min(mark + 1, target.size())))};
}

}  // namespace calandra
