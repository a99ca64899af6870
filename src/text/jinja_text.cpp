#include "text/jinja_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "text/jinja_characters.h"
#include "text/unicode.h"

namespace calandra::jinja {
namespace {

/// Bytes of the character at `position`; a byte that begins none is one by itself.
std::size_t character_size(std::string_view text, std::size_t position) {
  const Utf8Unit unit = first_utf8_unit(text.substr(position));
  return unit.kind == Utf8Unit::Kind::Complete ? unit.size : 1;
}

std::size_t last_character_size(std::string_view text) {
  const std::size_t most = std::min<std::size_t>(4, text.size());
  for (std::size_t size = 2; size <= most; ++size) {
    if (character_size(text, text.size() - size) == size) return size;
  }
  return 1;
}

/// `map` appends to `out` what becomes of the character with a code at a place.
template <class Map>
std::string map_characters(std::string_view text, Map&& map) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0, size = 0; i < text.size(); i += size) {
    size = character_size(text, i);
    const auto character = text.substr(i, size);
    const std::int32_t code = code_point(character);
    if (code < 0) {
      out += character;
    } else {
      map(out, code, i);
    }
  }
  return out;
}

void append_code(std::string& out, std::int32_t code) { append_utf8(static_cast<char32_t>(code), out); }

void append_upper(std::string& out, std::int32_t code) {
  const std::u16string_view several = special_upper(code);
  for (const char16_t unit : several) append_utf8(unit, out);
  if (several.empty()) append_code(out, utf8proc_toupper(code));
}

void append_title(std::string& out, std::int32_t code) {
  const std::u16string_view several = special_title(code);
  for (const char16_t unit : several) append_utf8(unit, out);
  if (several.empty()) append_code(out, utf8proc_totitle(code));
}

bool is_space_code(std::int32_t code) {
  if (code < 0x80) return (code >= 9 && code <= 13) || (code >= 28 && code <= 32);
  const auto category = utf8proc_category(code);
  return code == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_letter(std::int32_t code) {
  const auto category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_upper_code(std::int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower_code(std::int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_LL; }
bool is_cased(std::int32_t code) {
  return is_upper_code(code) || is_lower_code(code) || utf8proc_category(code) == UTF8PROC_CATEGORY_LT;
}
bool is_digit_code(std::int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_ND || is_special_digit(code); }
bool is_numeric_code(std::int32_t code) {
  const auto category = utf8proc_category(code);
  return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) || is_number_letter(code);
}

/// Passed over when the letters around a sigma are looked for: marks, formats, modifiers, and what may stand in a word.
bool is_case_ignorable(std::int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
  }
  constexpr std::int32_t kInWords[] = {'\'',   '.',    ':',    0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                       0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
  return std::find(std::begin(kInWords), std::end(kInWords), code) != std::end(kInWords);
}

/// How many characters are looked at for the letters around a sigma: a bound on the work that no word reaches.
constexpr int kMaxSigmaContext = 100;

/// A capital sigma at `position` ends a word: a letter comes before it and none after it.
bool is_final_sigma(std::string_view text, std::size_t position) {
  std::string_view before = text.substr(0, position), after = text.substr(position + 2);
  bool follows_letter = false, precedes_letter = false;
  for (int i = 0; i < kMaxSigmaContext && !before.empty(); ++i) {
    const auto character = before.substr(before.size() - last_character_size(before));
    const std::int32_t code = code_point(character);
    before.remove_suffix(character.size());
    if (code >= 0 && is_case_ignorable(code)) continue;
    follows_letter = code >= 0 && is_cased(code);
    break;
  }
  for (int i = 0; i < kMaxSigmaContext && !after.empty(); ++i) {
    const auto character = after.substr(0, character_size(after, 0));
    const std::int32_t code = code_point(character);
    after.remove_prefix(character.size());
    if (code >= 0 && is_case_ignorable(code)) continue;
    precedes_letter = code >= 0 && is_cased(code);
    break;
  }
  return follows_letter && !precedes_letter;
}

void append_lower(std::string& out, std::int32_t code, std::string_view text, std::size_t position) {
  constexpr std::int32_t kCapitalSigma = 0x3A3, kFinalSigma = 0x3C2, kDottedI = 0x130;
  if (code == kCapitalSigma && is_final_sigma(text, position)) {
    append_code(out, kFinalSigma);
  } else if (code == kDottedI) {
    out += "i\xCC\x87";  // the only one that becomes two
  } else {
    append_code(out, utf8proc_tolower(code));
  }
}

template <class Check>
bool all_characters(std::string_view text, Check&& check) {
  if (text.empty()) return false;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_size(text, i);
    const std::int32_t code = code_point(text.substr(i, size));
    if (code < 0 || !check(code)) return false;
    i += size;
  }
  return true;
}

/// Some character has the case and none the other one.
bool has_only_case(std::string_view text, bool (*wanted)(std::int32_t), bool (*other)(std::int32_t)) {
  bool found = false;
  for (std::size_t i = 0, size = 0; i < text.size(); i += size) {
    size = character_size(text, i);
    const std::int32_t code = code_point(text.substr(i, size));
    if (code < 0) continue;
    if (other(code)) return false;
    found = found || wanted(code);
  }
  return found;
}

template <class Taken>
std::string_view strip_if(std::string_view text, Side side, Taken&& taken) {
  if (side != Side::Right) {
    while (!text.empty()) {
      const std::size_t size = character_size(text, 0);
      if (!taken(text.substr(0, size))) break;
      text.remove_prefix(size);
    }
  }
  if (side != Side::Left) {
    while (!text.empty()) {
      const std::size_t size = last_character_size(text);
      if (!taken(text.substr(text.size() - size))) break;
      text.remove_suffix(size);
    }
  }
  return text;
}

bool is_printable(std::int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code == ' ';
    default: return true;
  }
}

}  // namespace

std::int32_t code_point(std::string_view character) {
  if (character.empty()) return -1;
  const Utf8Unit unit = first_utf8_unit(character);
  if (unit.kind != Utf8Unit::Kind::Complete) return -1;
  return static_cast<std::int32_t>(decode_utf8(character.substr(0, unit.size)));
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_size(text, i);
    result.push_back(text.substr(i, size));
    i += size;
  }
  return result;
}

std::string_view character_at(std::string_view text, std::int64_t index) {
  std::size_t place = 0;
  for (; index > 0; --index) place += character_size(text, place);
  return text.substr(place, character_size(text, place));
}

std::int64_t count_characters(std::string_view text) {
  std::int64_t number = 0;
  for (std::size_t i = 0; i < text.size(); i += character_size(text, i)) ++number;
  return number;
}

bool is_space(std::string_view text) { return all_characters(text, is_space_code); }
bool is_upper(std::string_view text) { return has_only_case(text, is_upper_code, is_lower_code); }
bool is_lower(std::string_view text) { return has_only_case(text, is_lower_code, is_upper_code); }
bool is_digits(std::string_view text) { return all_characters(text, is_digit_code); }
bool is_alphabetic(std::string_view text) { return all_characters(text, is_letter); }
bool is_decimals(std::string_view text) {
  return all_characters(text, [](std::int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_ND; });
}
bool is_numeric(std::string_view text) { return all_characters(text, is_numeric_code); }
bool is_alphanumeric(std::string_view text) {
  return all_characters(text, [](std::int32_t code) { return is_letter(code) || is_numeric_code(code); });
}

std::string upper(std::string_view text) {
  return map_characters(text, [](std::string& out, std::int32_t code, std::size_t) { append_upper(out, code); });
}

std::string lower(std::string_view text) {
  return map_characters(text,
                        [&](std::string& out, std::int32_t code, std::size_t place) { append_lower(out, code, text, place); });
}

std::string capitalize(std::string_view text) {
  return map_characters(text, [&](std::string& out, std::int32_t code, std::size_t place) {
    if (place == 0) {
      append_title(out, code);
    } else {
      append_lower(out, code, text, place);
    }
  });
}

std::string title(std::string_view text) {
  bool inside_word = false;
  return map_characters(text, [&](std::string& out, std::int32_t code, std::size_t place) {
    if (inside_word) {
      append_lower(out, code, text, place);
    } else {
      append_title(out, code);
    }
    inside_word = is_cased(code);
  });
}

std::string_view strip(std::string_view text, Side side) { return strip_if(text, side, is_space); }

std::string_view strip(std::string_view text, Side side, std::string_view chars) {
  return strip_if(text, side, [&](std::string_view character) { return chars.find(character) != chars.npos; });
}

std::vector<std::string_view> split(std::string_view text, std::int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  const Side near = from_right ? Side::Right : Side::Left;
  text = strip(text, near);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    std::size_t size = 0;
    if (from_right) {
      while (size < text.size()) {
        const std::size_t step = last_character_size(text.substr(0, text.size() - size));
        if (is_space(text.substr(text.size() - size - step, step))) break;
        size += step;
      }
      parts.push_back(text.substr(text.size() - size));
      text.remove_suffix(size);
    } else {
      while (size < text.size()) {
        const std::size_t step = character_size(text, size);
        if (is_space(text.substr(size, step))) break;
        size += step;
      }
      parts.push_back(text.substr(0, size));
      text.remove_prefix(size);
    }
    text = strip(text, near);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, std::int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == text.npos) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_size(text, i);
    const std::int32_t code = code_point(text.substr(i, size));
    const bool ends =
        (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 || code == 0x2028 || code == 0x2029;
    std::size_t next = i + size;
    if (ends) {
      if (code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view old_part, std::string_view new_part, std::int64_t limit) {
  std::string out;
  std::size_t position = 0;
  for (std::int64_t done = 0; limit < 0 || done < limit; ++done) {
    const std::size_t at = text.find(old_part, position);
    if (at == text.npos) break;
    out.append(text.substr(position, at - position)).append(new_part);
    position = at + old_part.size();
    if (old_part.empty()) {
      if (position == text.size()) return out;
      const std::size_t size = character_size(text, position);
      out.append(text.substr(position, size));
      position += size;
    }
  }
  return out.append(text.substr(position));
}

std::int64_t count_parts(std::string_view text, std::string_view part) {
  if (part.empty()) return count_characters(text) + 1;
  std::int64_t number = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++number;
  return number;
}

std::int64_t find_part(std::string_view text, std::string_view part, bool from_right) {
  const std::size_t at = from_right ? text.rfind(part) : text.find(part);
  return at == text.npos ? -1 : count_characters(text.substr(0, at));
}

std::string repr(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  const auto is_plain = [&](char c) { return c >= ' ' && c < 0x7F && c != quote && c != '\\'; };
  for (std::size_t i = 0, size = 0; i < text.size(); i += size) {
    size = 0;
    while (i + size < text.size() && is_plain(text[i + size])) ++size;
    if (size > 0) {  // most of it, and at once
      out.append(text.substr(i, size));
      continue;
    }
    size = character_size(text, i);
    const auto character = text.substr(i, size);
    const std::int32_t code = code_point(character);
    if (code == quote || code == '\\') {
      out.append(1, '\\').append(character);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (code < 0 || is_printable(code)) {
      out += character;
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

void append_json_string(std::string& out, std::string_view text, bool ascii_only) {
  out += '"';
  std::size_t plain = 0;  // what lies between here and i needs no escape
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool wide = byte >= 0x80;
    if (byte >= 0x20 && byte != '"' && byte != '\\' && !(wide && ascii_only)) {
      ++i;
      continue;
    }
    out.append(text.substr(plain, i - plain));
    const std::size_t size = character_size(text, i);
    std::int32_t code = wide ? code_point(text.substr(i, size)) : byte;
    if (code < 0) code = 0xFFFD;
    i += size;
    plain = i;
    switch (code) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (code < 0x10000) {
          out += fmt::format("\\u{:04x}", code);
        } else {
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
        }
    }
  }
  out.append(text.substr(plain)).append(1, '"');
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace calandra::jinja
