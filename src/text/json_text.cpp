#include "text/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"

namespace calandra {
namespace {

/// How deep the brackets of a text go. Right up to the first place where it is no JSON: the parser stops there.
int nesting_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

[[noreturn]] void refuse_nesting(const std::string& where) {
  fail("{}: nested deeper than {}, expected JSON that is less deep", where, kMaxJsonNesting);
}

}  // namespace

nlohmann::ordered_json parse_json(std::string_view text, const std::string& where) {
  if (nesting_of(text) > kMaxJsonNesting) refuse_nesting(where);
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::ordered_json::exception& error) {
    fail("{}: not JSON: {}", where, printable(json_complaint(error.what())));
  }
}

std::optional<nlohmann::ordered_json> try_parse_json(std::string_view text) {
  if (nesting_of(text) > kMaxJsonNesting) return std::nullopt;
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

bool is_json(std::string_view text) { return nesting_of(text) <= kMaxJsonNesting && nlohmann::ordered_json::accept(text); }

void check_nesting(const nlohmann::ordered_json& json, const std::string& where) {
  std::vector<const nlohmann::ordered_json*> level, next;
  if (json.is_structured()) level.push_back(&json);
  for (int depth = 1; !level.empty(); ++depth) {
    if (depth > kMaxJsonNesting) refuse_nesting(where);
    for (const auto* outer : level) {
      for (const auto& inner : *outer) {
        if (inner.is_structured()) next.push_back(&inner);
      }
    }
    level = std::exchange(next, {});
  }
}

std::string_view trim_json_space(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace calandra
