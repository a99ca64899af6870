#include "loadtest/reply_json.h"

#include <nlohmann/json.hpp>

namespace calandra {
namespace {

constexpr double kMostCount = 1e9;  // of one answer

}  // namespace

const Json* member(const Json& json, std::string_view key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> count_in(const Json& json, std::string_view key) {
  const Json* value = member(json, key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const auto count = value->get<double>();
  if (!(count >= 0 && count <= kMostCount)) return std::nullopt;
  return static_cast<std::int64_t>(count);
}

std::string text_in(const Json& json, std::string_view key) {
  const Json* value = member(json, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

}  // namespace calandra
