#include "text/unicode.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <span>

namespace calandra {
namespace {

bool is_in(std::span<const CodePointRange> ranges, char32_t code_point) {
  return std::ranges::any_of(ranges, [&](CodePointRange range) { return range.first <= code_point && code_point <= range.last; });
}

std::uint8_t byte_at(std::string_view bytes, std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); }

/// How many bytes follow a lead byte, and what the first of them may be.
struct Lead {
  std::uint8_t num_following, low, high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};  // lower ones are overlong
  if (byte == 0xED) return {2, 0x80, 0x9F};  // higher ones are surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};  // higher ones are beyond U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Unit first_utf8_unit(std::string_view bytes) {
  using enum Utf8Unit::Kind;
  const std::uint8_t first = byte_at(bytes, 0);
  if (first < 0x80) return {Complete, 1};
  auto [num_following, low, high] = lead_of(first);
  if (num_following == 0) return {IllFormed, 1};
  for (std::uint8_t i = 1; i <= num_following; ++i) {
    if (i == bytes.size()) return {Incomplete, i};
    if (byte_at(bytes, i) < low || byte_at(bytes, i) > high) return {IllFormed, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Complete, static_cast<std::uint8_t>(num_following + 1)};
}

char32_t decode_utf8(std::string_view unit) {
  const char32_t first = byte_at(unit, 0);
  if (unit.size() == 1) return first;
  char32_t code_point = first & (0x7Fu >> unit.size());
  for (std::size_t i = 1; i < unit.size(); ++i) code_point = code_point << 6 | (byte_at(unit, i) & 0x3Fu);
  return code_point;
}

void append_utf8(char32_t code_point, std::string& out) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
}

bool is_valid_utf8(std::string_view bytes) { return simdjson::validate_utf8(bytes.data(), bytes.size()); }

std::size_t append_lossy_utf8(std::string_view bytes, std::string& out) {
  std::size_t copied = 0;  // bytes before this are in `out`
  std::size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Unit unit = first_utf8_unit(bytes.substr(i));
    if (unit.kind == Utf8Unit::Kind::Incomplete) break;
    i += unit.size;
    if (unit.kind == Utf8Unit::Kind::IllFormed) {
      out.append(bytes.substr(copied, i - unit.size - copied)).append(kReplacementCharacter);
      copied = i;
    }
  }
  out.append(bytes.substr(copied, i - copied));
  return i;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string text;
  if (append_lossy_utf8(bytes, text) < bytes.size()) text.append(kReplacementCharacter);
  return text;
}

bool is_white_space(char32_t code_point) { return is_in(kWhiteSpace, code_point); }

bool is_word_character(char32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  // Join_Control, then the symbols that are Alphabetic: circled, squared and negative letters.
  constexpr std::array<CodePointRange, 5> kOthers{
      {{0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}}};
  return is_in(kOthers, code_point);
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const Utf8Unit unit = first_utf8_unit(text.substr(size));
    if (!is_white_space(decode_utf8(text.substr(size, unit.size)))) break;
    size += unit.size;
  }
  return size;
}

std::size_t trailing_white_space(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view last = last_character(rest);
    if (!is_white_space(decode_utf8(last))) break;
    rest.remove_suffix(last.size());
  }
  return text.size() - rest.size();
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (byte_at(text, begin) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

}  // namespace calandra
