#pragma once
// What Python knows of a character's case and value beyond the simple mappings of utf8proc.

#include <cstdint>
#include <string_view>

namespace calandra::jinja {

/// What becomes of a character that upper or title case makes several of, as ß becomes SS; empty for all others.
std::u16string_view special_upper(std::int32_t code);
std::u16string_view special_title(std::int32_t code);

/// Digits of str.isdigit that are no decimal digits, such as ².
bool is_special_digit(std::int32_t code);
/// Letters of str.isnumeric that stand for a number, such as 三.
bool is_number_letter(std::int32_t code);

}  // namespace calandra::jinja
