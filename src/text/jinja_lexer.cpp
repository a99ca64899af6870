// Cuts a template into tokens. White space follows Hugging Face's settings: a newline after a block or comment tag is
// dropped (trim_blocks), blanks between a line's begin and such a tag too (lstrip_blocks); - and + at a tag overrule.

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "text/jinja_syntax.h"
#include "text/jinja_text.h"
#include "text/unicode.h"

namespace calandra::jinja {
namespace {

constexpr std::array<std::string_view, 27> kSymbols = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
                                                       "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_begin(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<signed char>(c) < 0;
}
bool is_name_part(char c) { return is_name_begin(c) || is_digit(c); }

/// One newline character for all kinds of line ends; the last one of the template does not count.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where) : source_(normalize_newlines(source)), where_(where) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) lex_text_and_tag();
    add(TokenKind::End, "end of template");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void reject(std::string_view what) const { fail("{}:{}: {}", where_, line_, what); }

  std::string_view rest() const { return std::string_view(source_).substr(position_); }
  char at(std::size_t ahead) const { return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0'; }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), {}, line_}); }

  void advance(std::size_t size) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(position_ + size), '\n'));
    position_ += size;
  }

  void skip_blanks() {
    const auto text = rest();
    if (!text.empty()) advance(text.size() - strip(text, Side::Left).size());
  }

  std::size_t find_tag() const {
    for (std::size_t i = source_.find('{', position_); i != std::string::npos && i + 1 < source_.size();
         i = source_.find('{', i + 1)) {
      if (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#') return i;
    }
    return std::string::npos;
  }

  void lex_text_and_tag() {
    const std::size_t begin = position_;
    const std::size_t tag = find_tag();
    if (tag == std::string::npos) {
      add(TokenKind::Text, source_.substr(begin));
      position_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    text = text_before_tag(text, kind, sign, begin == 0 || source_[begin - 1] == '\n');
    if (!text.empty()) add(TokenKind::Text, std::string(text));
    advance(tag - begin + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') {
      lex_comment();
    } else if (kind == '{') {
      lex_inside(TokenKind::BeginOutput, TokenKind::EndOutput, "}}");
    } else if (!lex_raw()) {
      lex_inside(TokenKind::BeginBlock, TokenKind::EndBlock, "%}");
    }
  }

  static std::string_view text_before_tag(std::string_view text, char kind, char sign, bool begins_line) {
    if (sign == '-') return strip(text, Side::Right);
    if (sign == '+' || kind == '{') return text;
    const std::size_t line_begin = text.rfind('\n') + 1;
    if (line_begin == 0 && !begins_line) return text;
    return is_space(text.substr(line_begin)) ? text.substr(0, line_begin) : text;
  }

  void lex_comment() {
    const std::size_t end = rest().find("#}");
    if (end == std::string_view::npos) reject("comment is not closed");
    const char sign = end > 0 ? rest()[end - 1] : '\0';
    advance(end + 2);
    after_tag(sign);
  }

  /// What a closing block or comment tag takes with it.
  void after_tag(char sign) {
    if (sign == '-') {
      skip_blanks();
    } else if (sign != '+' && at(0) == '\n') {
      advance(1);
    }
  }

  /// After "{%": a raw block up to its end, if it is one.
  bool lex_raw() {
    std::size_t i = 0;
    const auto skip = [&] {
      while (is_blank(at(i))) ++i;
    };
    const auto accept = [&](std::string_view word) {
      if (rest().substr(std::min(i, rest().size())).substr(0, word.size()) != word) return false;
      i += word.size();
      return true;
    };
    skip();
    if (!accept("raw")) return false;
    skip();
    const bool strips = accept("-%}");
    if (!strips && !accept("%}")) return false;
    advance(i);
    if (strips) skip_blanks();
    lex_raw_body();
    return true;
  }

  void lex_raw_body() {
    const std::size_t begin = position_;
    for (std::size_t tag = source_.find("{%", begin); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      std::size_t i = tag + 2;
      const auto skip = [&] {
        while (i < source_.size() && is_blank(source_[i])) ++i;
      };
      const char sign = i < source_.size() ? source_[i] : '\0';
      if (sign == '-' || sign == '+') ++i;
      skip();
      if (source_.compare(i, 6, "endraw") != 0) continue;
      i += 6;
      skip();
      const char end_sign = i < source_.size() ? source_[i] : '\0';
      if (end_sign == '-' || end_sign == '+') ++i;
      if (source_.compare(i, 2, "%}") != 0) continue;
      std::string_view text = std::string_view(source_).substr(begin, tag - begin);
      text = text_before_tag(text, '%', sign, begin == 0 || source_[begin - 1] == '\n');
      if (!text.empty()) add(TokenKind::Text, std::string(text));
      advance(i + 2 - position_);
      after_tag(end_sign);
      return;
    }
    reject("raw block is not closed");
  }

  void lex_inside(TokenKind begin_kind, TokenKind end_kind, std::string_view end) {
    add(begin_kind, begin_kind == TokenKind::BeginOutput ? "{{" : "{%");
    std::string open;  // brackets; inside of them an end tag is none
    while (true) {
      skip_blanks();
      if (position_ >= source_.size()) reject(fmt::format("tag is not closed, expected '{}'", end));
      const bool signed_end = at(0) == '-' || (at(0) == '+' && end == "%}");
      if (open.empty() && rest().substr(signed_end ? 1 : 0, 2) == end) {
        add(end_kind, std::string(end));
        const char sign = signed_end ? at(0) : '\0';
        advance(signed_end ? 3 : 2);
        if (end == "%}" || sign == '-') after_tag(sign);
        return;
      }
      lex_token(open);
    }
  }

  void lex_token(std::string& open) {
    const char c = at(0);
    if (is_name_begin(c)) {
      std::size_t size = 1;
      while (is_name_part(at(size))) ++size;
      add(TokenKind::Name, std::string(rest().substr(0, size)));
      advance(size);
    } else if (is_digit(c)) {
      lex_number();
    } else if (c == '\'' || c == '"') {
      lex_string();
    } else {
      lex_symbol(open);
    }
  }

  void lex_symbol(std::string& open) {
    const auto symbol = std::find_if(kSymbols.begin(), kSymbols.end(), [&](auto s) { return rest().substr(0, s.size()) == s; });
    if (symbol == kSymbols.end()) reject(fmt::format("unexpected character '{}'", characters(rest().substr(0, 4)).front()));
    const char c = symbol->front();
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) reject(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(TokenKind::Symbol, std::string(*symbol));
    advance(symbol->size());
  }

  void lex_number() {
    std::size_t size = 0;
    std::string digits;
    const auto take_digits = [&] {
      while (is_digit(at(size)) || (at(size) == '_' && is_digit(at(size + 1)))) {
        if (at(size) != '_') digits += at(size);
        ++size;
      }
    };
    int base = 10;
    if (at(0) == '0') base = (at(1) | 32) == 'x' ? 16 : (at(1) | 32) == 'o' ? 8 : (at(1) | 32) == 'b' ? 2 : 10;
    if (base != 10) {
      for (size = 2; is_name_part(at(size)); ++size) {
        if (at(size) != '_') digits += at(size);
      }
      add_integer(digits, base, size);
      return;
    }
    take_digits();
    // After a dot a number is an index, as in a.0.1
    const bool is_index = !tokens_.empty() && tokens_.back().text == "." && tokens_.back().kind == TokenKind::Symbol;
    bool is_real = false;
    if (!is_index && at(size) == '.' && is_digit(at(size + 1))) {
      is_real = true;
      digits += at(size++);
      take_digits();
    }
    const std::size_t sign = at(size + 1) == '+' || at(size + 1) == '-' ? 1 : 0;
    if (!is_index && (at(size) | 32) == 'e' && is_digit(at(size + 1 + sign))) {
      is_real = true;
      digits.append(rest().substr(size, 1 + sign));
      size += 1 + sign;
      take_digits();
    }
    if (!is_real) {
      add_integer(digits, 10, size);
      return;
    }
    add(TokenKind::Number, std::string(rest().substr(0, size)));
    tokens_.back().number = std::strtod(digits.c_str(), nullptr);
    advance(size);
  }

  void add_integer(const std::string& digits, int base, std::size_t size) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error == std::errc::result_out_of_range && base == 10) {
      const std::string significant = digits.substr(digits.find_first_not_of('0'));
      add(TokenKind::Number, std::string(rest().substr(0, size)));
      tokens_.back().number = BigInteger{std::make_shared<const std::string>(significant)};
      advance(size);
      return;
    }
    if (error != std::errc{} || end != digits.data() + digits.size()) {
      reject(fmt::format("'{}' is no integer of 64 bits", rest().substr(0, std::min<std::size_t>(size, 40))));
    }
    add(TokenKind::Number, std::string(rest().substr(0, size)));
    tokens_.back().number = value;
    advance(size);
  }

  void lex_string() {
    const char quote = at(0);
    std::size_t end = 1;
    while (position_ + end < source_.size() && at(end) != quote) end += at(end) == '\\' ? 2 : 1;
    if (position_ + end >= source_.size()) reject("string is not closed");
    add(TokenKind::String, unescape(rest().substr(1, end - 1)));
    advance(end + 1);
  }

  std::string unescape(std::string_view text) const {
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      if (const std::size_t name = kNames.find(c); name != std::string_view::npos) {
        out += kValues[name];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code(out, text.substr(i + 1, digits), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        std::size_t digits = 1;
        while (digits < 3 && i + digits < text.size() && text[i + digits] >= '0' && text[i + digits] <= '7') ++digits;
        append_code(out, text.substr(i, digits), digits, 8);
        i += digits - 1;
      } else if (c != '\n') {
        (out += '\\') += c;
      }
    }
    return out;
  }

  void append_code(std::string& out, std::string_view digits, std::size_t expected, int base) const {
    std::int32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    const bool complete = digits.size() == expected && error == std::errc{} && end == digits.data() + digits.size();
    if (!complete || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) reject("string has a bad escape");
    append_utf8(static_cast<char32_t>(code), out);
  }

  const std::string source_;
  const std::string& where_;
  std::size_t position_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) { return Lexer(source, where).run(); }

}  // namespace calandra::jinja
