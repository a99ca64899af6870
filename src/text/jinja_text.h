#pragma once
// Python's string functions on UTF-8. A byte that is no UTF-8 counts as one character and is kept.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace calandra::jinja {

/// The characters of a text, as views into it.
std::vector<std::string_view> characters(std::string_view text);
std::int64_t count_characters(std::string_view text);
/// The character number `index`, from 0; there must be one.
std::string_view character_at(std::string_view text, std::int64_t index);
/// Code point of one character; -1 for a stray byte.
std::int32_t code_point(std::string_view character);

bool is_space(std::string_view text);  ///< not empty and nothing but white space
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
bool is_digits(std::string_view text);    ///< str.isdigit: of decimal digits and such as ²
bool is_decimals(std::string_view text);  ///< str.isdecimal
bool is_numeric(std::string_view text);   ///< str.isnumeric: also ½ and Ⅳ
bool is_alphabetic(std::string_view text);
bool is_alphanumeric(std::string_view text);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);  ///< first character in upper case, the others in lower case
std::string title(std::string_view text);       ///< so for every run of letters

enum class Side { Left, Right, Both };
/// Takes white space off, or any of the characters of `chars`.
std::string_view strip(std::string_view text, Side side);
std::string_view strip(std::string_view text, Side side, std::string_view chars);

/// At white space; `limit` < 0 cuts everywhere.
std::vector<std::string_view> split(std::string_view text, std::int64_t limit, bool from_right);
std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t limit, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

/// At most `limit` replacements; all if it is negative.
std::string replace(std::string_view text, std::string_view old_part, std::string_view new_part, std::int64_t limit);
/// Not overlapping; one more than the characters for an empty part.
std::int64_t count_parts(std::string_view text, std::string_view part);
/// In characters; -1 if there is none.
std::int64_t find_part(std::string_view text, std::string_view part, bool from_right);

std::string repr(std::string_view text);  ///< quoted as Python does
void append_json_string(std::string& out, std::string_view text, bool ascii_only);
std::string escape_html(std::string_view text);

}  // namespace calandra::jinja
