#include "serve/api_keys.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace calandra {
namespace {

/// Looks at every byte of `offered`, whatever the first ones are; an early end would tell how many of them are right.
bool equal_in_constant_time(std::string_view offered, std::string_view key) {
  volatile unsigned difference = offered.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < offered.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference = difference | static_cast<unsigned char>(offered[i] ^ expected);
  }
  return difference == 0;
}

/// "Bearer KEY"; the scheme's name has no case (RFC 9110, 11.1).
std::optional<std::string_view> bearer_token(std::string_view value) {
  constexpr std::string_view kScheme = "Bearer ";
  if (!equal_ignoring_case(value.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  value.remove_prefix(kScheme.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

}  // namespace

std::optional<std::size_t> key_of(const HttpRequest& request, const std::vector<std::string>& keys) {
  std::optional<std::string_view> bearer;
  if (const auto value = request.headers.find("Authorization")) bearer = bearer_token(*value);
  std::optional<std::size_t> found;
  for (const std::optional<std::string_view> offered : {bearer, request.headers.find("x-api-key")}) {
    if (!offered || offered->empty()) continue;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (equal_in_constant_time(*offered, keys[i]) && !found) found = i;
    }
  }
  return found;
}

bool authorised(const HttpRequest& request, const std::vector<std::string>& keys) {
  return keys.empty() || key_of(request, keys).has_value();
}

}  // namespace calandra
