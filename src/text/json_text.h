#pragma once
// JSON from outside. nlohmann's parser takes any depth, but copying, comparing and printing what it made recurse: so the
// depth is checked here, in the text before it is parsed and in parsed data before anything else is done with it.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

/// Arrays and objects inside each other.
inline constexpr int kMaxJsonNesting = 500;

/// Throws Error "WHERE: not JSON: ..." with the place in the text, or "WHERE: nested deeper than 500, ...".
nlohmann::ordered_json parse_json(std::string_view text, const std::string& where);

/// Nothing for a text that is no JSON or too deep: for what a model wrote.
std::optional<nlohmann::ordered_json> try_parse_json(std::string_view text);

/// Whether try_parse_json would give something, without making it.
bool is_json(std::string_view text);

/// Throws Error "WHERE: nested deeper than 500, ...". Uses no stack.
void check_nesting(const nlohmann::ordered_json& json, const std::string& where);

/// Without what JSON calls white space at both ends.
std::string_view trim_json_space(std::string_view text);

}  // namespace calandra
