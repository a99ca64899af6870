#pragma once
// JSON as text: parsed and printed here and nowhere else, as nlohmann's templates for either cost seconds in each
// translation unit that calls them.
// JSON from outside: the parser takes any depth, but copying, comparing and printing what it made recurse. So the depth is
// checked here, in the text before it is parsed and in parsed data before anything else is done with it.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

/// Objects keep the order of their keys and are searched from the front: nothing for a vocabulary.
using Json = nlohmann::ordered_json;

/// Arrays and objects inside each other.
inline constexpr int kMaxJsonNesting = 500;

/// Keys of one object: each is compared with all before it, so ten thousand take a fifth of a second.
inline constexpr int kMaxJsonKeys = 10'000;

/// Throws Error "WHERE: not JSON: ..." with the place in the text, "WHERE: nested deeper than 500, ..." or "WHERE: an object
/// of N keys, ...".
Json parse_json(std::string_view text, const std::string& where);

/// For configuration files. The same, but of any depth, and throws Error also for a key that stands twice in one object and
/// for more than `most_keys` in all: an object takes longer for each key that it has.
Json parse_json_with_unique_keys(std::string_view text, const std::string& where, int most_keys);

/// Nothing for a text that is no JSON or too deep: for what a model wrote.
std::optional<Json> try_parse_json(std::string_view text);

/// The same without what is inside of an array or object: for whoever asks only what kind of value a text is.
std::optional<Json> try_parse_json_outline(std::string_view text);

/// Whether try_parse_json would give something, without making it.
bool is_json(std::string_view text);

/// Throws Error "WHERE: nested deeper than 500, ...". Uses no stack.
void check_nesting(const Json& json, const std::string& where);

/// In one line, or indented by so many spaces. Bytes that are no UTF-8 become U+FFFD. Recurses.
std::string dump_json(const Json& json, int indent = -1);

/// Without what JSON calls white space at both ends.
std::string_view trim_json_space(std::string_view text);

}  // namespace calandra
