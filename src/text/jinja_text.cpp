#include "text/jinja_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

namespace calandra::jinja {
namespace {

/// Bytes of the character at `position`; a byte that begins none is one by itself.
std::size_t character_size(std::string_view text, std::size_t position) {
  if (static_cast<unsigned char>(text[position]) < 0x80) return 1;
  utf8proc_int32_t code = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + position),
                                     static_cast<utf8proc_ssize_t>(text.size() - position), &code);
  return size > 0 ? static_cast<std::size_t>(size) : 1;
}

std::size_t last_character_size(std::string_view text) {
  const std::size_t most = std::min<std::size_t>(4, text.size());
  for (std::size_t size = 2; size <= most; ++size) {
    if (character_size(text, text.size() - size) == size) return size;
  }
  return 1;
}

template <class Map>
std::string map_characters(std::string_view text, Map&& map) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_size(text, i);
    const auto character = text.substr(i, size);
    const std::int32_t code = code_point(character);
    if (code < 0) {
      out += character;
    } else {
      append_utf8(out, map(code));
    }
    i += size;
  }
  return out;
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
bool is_digit_code(std::int32_t code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_ND; }

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
  for (const auto character : characters(text)) {
    const std::int32_t code = code_point(character);
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
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), static_cast<utf8proc_ssize_t>(character.size()),
                   &code);
  return code;
}

void append_utf8(std::string& text, std::int32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(code, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
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
bool is_alphanumeric(std::string_view text) {
  return all_characters(text, [](std::int32_t code) {
    const auto category = utf8proc_category(code);
    return is_letter(code) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
  });
}

std::string upper(std::string_view text) { return map_characters(text, utf8proc_toupper); }
std::string lower(std::string_view text) { return map_characters(text, utf8proc_tolower); }

std::string capitalize(std::string_view text) {
  bool first = true;
  return map_characters(text, [&](std::int32_t code) {
    const std::int32_t mapped = first ? utf8proc_totitle(code) : utf8proc_tolower(code);
    first = false;
    return mapped;
  });
}

std::string title(std::string_view text) {
  bool inside_word = false;
  return map_characters(text, [&](std::int32_t code) {
    const std::int32_t mapped = inside_word ? utf8proc_tolower(code) : utf8proc_totitle(code);
    inside_word = is_cased(code);
    return mapped;
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
  for (const auto character : characters(text)) {
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
