#pragma once
// UTF-8 and the few character classes the tokenizer needs. Pure functions; nothing here fails.
//
// Ill-formed bytes are read as the WHATWG Encoding Standard and the Unicode Standard (3.9, "substitution of maximal
// subparts") say: each longest prefix of a well-formed sequence, or else each single byte, becomes one U+FFFD.
// So a lone continuation byte, each byte of an overlong form or of a surrogate, and a truncated tail give one each.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace calandra {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// What stands at the start of some bytes: a character, bytes that are part of none, or the beginning of a character
/// whose rest is missing.
struct Utf8Unit {
  enum class Kind : std::uint8_t { Complete, IllFormed, Incomplete };
  Kind kind;
  std::uint8_t size;  // bytes, 1 to 4
};

/// `bytes` must not be empty.
Utf8Unit first_utf8_unit(std::string_view bytes);

/// The code point of a complete unit.
char32_t decode_utf8(std::string_view unit);

void append_utf8(char32_t code_point, std::string& out);

bool is_valid_utf8(std::string_view bytes);

/// Appends `bytes` as well-formed UTF-8 and returns how many were used: all but an incomplete character at the end.
std::size_t append_lossy_utf8(std::string_view bytes, std::string& out);

/// All of `bytes` as well-formed UTF-8.
std::string lossy_utf8(std::string_view bytes);

struct CodePointRange {
  char32_t first, last;
};

/// Unicode's White_Space, ascending.
inline constexpr std::array<CodePointRange, 10> kWhiteSpace{{{0x09, 0x0D},
                                                             {0x20, 0x20},
                                                             {0x85, 0x85},
                                                             {0xA0, 0xA0},
                                                             {0x1680, 0x1680},
                                                             {0x2000, 0x200A},
                                                             {0x2028, 0x2029},
                                                             {0x202F, 0x202F},
                                                             {0x205F, 0x205F},
                                                             {0x3000, 0x3000}}};

bool is_white_space(char32_t code_point);

/// A character of a word as regular expressions see it: Alphabetic, Mark, Decimal_Number, Connector_Punctuation, Join_Control.
bool is_word_character(char32_t code_point);

/// Bytes of white space at the start and at the end of well-formed `text`.
std::size_t leading_white_space(std::string_view text);
std::size_t trailing_white_space(std::string_view text);

/// The last character of well-formed, non-empty `text`.
std::string_view last_character(std::string_view text);

}  // namespace calandra
