#include "text/grammar_pattern.h"

#include "base/error.h"
#include "text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <string>

namespace calandra::grammar {
namespace {

constexpr int kMaxGroups = 100;             // inside each other
constexpr std::uint32_t kMaxCount = 5'000;  // of a repetition; the automaton has a limit of its own

CharacterSet pattern_digits() { return {{'0', '9'}}; }
CharacterSet pattern_word_characters() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharacterSet pattern_line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }

/// WhiteSpace and LineTerminator of ECMA-262: Unicode's, with the byte order mark and without U+0085.
CharacterSet pattern_spaces() {
  CharacterSet set = {{0xFEFF, 0xFEFF}};
  for (const CodePointRange range : kWhiteSpace) {
    if (range.first != 0x85) set.push_back({range.first, range.last});
  }
  return normalize(set);
}

/// Those of utf8proc_category_string, in the order of its numbers.
constexpr std::array<std::string_view, 30> kCategories = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                                          "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                                          "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

using Categories = std::array<CharacterSet, kCategories.size()>;

/// One walk over all code points, some 10 ms.
Categories find_categories() {
  Categories sets;
  for (char32_t c = 0; c <= kLastCodePoint; ++c) {
    CharacterSet& set = sets[static_cast<std::size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(c)))];
    if (!set.empty() && set.back().last + 1 == c) {
      set.back().last = c;
    } else {
      set.push_back({c, c});
    }
  }
  return sets;
}

/// The characters of a general category such as L or Lu.
std::optional<CharacterSet> category(std::string_view name) {
  static const Categories sets = find_categories();
  CharacterSet set;
  bool known = false;
  for (std::size_t i = 0; i < kCategories.size(); ++i) {
    if (name.empty() || !kCategories[i].starts_with(name)) continue;
    known = true;
    set.insert(set.end(), sets[i].begin(), sets[i].end());
  }
  if (!known) return std::nullopt;
  return normalize(std::move(set));
}

class PatternParser {
 public:
  PatternParser(std::string_view pattern, std::string_view where, Budget& budget)
      : pattern_(code_points(pattern)), where_(where), budget_(budget) {
    if (!is_valid_utf8(pattern)) fail("{}: found a pattern that is not UTF-8", where);
  }

  /// Alternatives of the whole pattern, each with or without anchors.
  Expression parse() {
    std::vector<Expression> alternatives;
    do {
      const bool from_start = accept('^');
      anchored_end_ = false;
      Expression alternative = parse_sequence(0);
      std::vector<Expression> parts;
      if (!from_start) parts.push_back(anything());
      parts.push_back(std::move(alternative));
      if (!anchored_end_) parts.push_back(anything());
      alternatives.push_back(Expression::sequence(std::move(parts)));
    } while (accept('|'));
    if (!at_end()) reject("an unmatched )");
    return Expression::choice(std::move(alternatives));
  }

 private:
  [[noreturn]] void reject(std::string_view what) const {
    fail("{}: pattern at character {}: {} is not supported", where_, place_ + 1, what);
  }
  bool at_end() const { return place_ == pattern_.size(); }
  bool is(char32_t c) const { return !at_end() && pattern_[place_] == c; }
  bool accept(char32_t c) { return is(c) && ++place_ > 0; }
  bool accept_text(std::u32string_view text) {
    if (std::u32string_view(pattern_).substr(place_, text.size()) != text) return false;
    place_ += text.size();
    return true;
  }
  char32_t take() {
    if (at_end()) reject("a pattern that ends here");
    return pattern_[place_++];
  }

  /// Sets may have hundreds of ranges for the few characters that ask for them.
  CharacterSet counted(CharacterSet set) {
    budget_.spend(1 + set.size(), where_);
    return set;
  }

  static Expression anything() { return Expression::repeat(Expression::one_of(complement({})), 0, kNoLimit); }

  Expression parse_group(int depth) {
    if (depth > kMaxGroups) reject("so deep a nesting");
    std::vector<Expression> alternatives;
    do alternatives.push_back(parse_sequence(depth));
    while (accept('|'));
    if (!accept(')')) reject("a ( without its )");
    return Expression::choice(std::move(alternatives));
  }

  Expression parse_sequence(int depth) {
    std::vector<Expression> parts;
    while (!at_end() && !is('|') && !is(')')) {
      if (accept('$')) {
        if (depth > 0 || !(at_end() || is('|'))) reject("$ inside a pattern");
        anchored_end_ = true;
        break;
      }
      parts.push_back(parse_quantifier(parse_atom(depth)));
    }
    return Expression::sequence(std::move(parts));
  }

  Expression parse_atom(int depth) {
    const char32_t c = take();
    switch (c) {
      case '(':
        if (accept_text(U"?:")) return parse_group(depth + 1);
        if (is('?')) reject("(?");
        return parse_group(depth + 1);
      case '[': return Expression::one_of(counted(parse_class()));
      case '.': return Expression::one_of(complement(pattern_line_ends()));
      case '\\': return Expression::one_of(counted(parse_escape(false)));
      case '^': --place_; reject("^ inside a pattern");
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']': --place_; reject("a bare one of *+?{}]");
      default: return Expression::one_of(counted({{c, c}}));
    }
  }

  Expression parse_quantifier(Expression atom) {
    std::uint32_t min = 0, max = kNoLimit;
    if (accept('*')) {
    } else if (accept('+')) {
      min = 1;
    } else if (accept('?')) {
      max = 1;
    } else if (accept('{')) {
      min = max = parse_count();
      if (accept(',')) max = is('}') ? kNoLimit : parse_count();
      if (!accept('}')) reject("a { without its }");
      if (min > max) reject("a count whose end is before its start");
    } else {
      return atom;
    }
    accept('?');  // lazy: the same language
    return Expression::repeat(std::move(atom), min, max);
  }

  std::uint32_t parse_count() {
    std::uint32_t count = 0;
    if (at_end() || pattern_[place_] < '0' || pattern_[place_] > '9') reject("a { without a number");
    while (!at_end() && pattern_[place_] >= '0' && pattern_[place_] <= '9') {
      count = count * 10 + static_cast<std::uint32_t>(take() - '0');
      if (count > kMaxCount) reject(fmt::format("a count above {}", kMaxCount));
    }
    return count;
  }

  CharacterSet parse_class() {
    const bool negated = accept('^');
    CharacterSet set;
    while (!accept(']')) {
      const CharacterSet from = parse_class_atom();
      const bool is_range = is('-') && place_ + 1 < pattern_.size() && pattern_[place_ + 1] != ']';
      if (!is_range) {
        set.insert(set.end(), from.begin(), from.end());
        continue;
      }
      take();
      const CharacterSet to = parse_class_atom();
      const auto is_single = [](const CharacterSet& s) { return s.size() == 1 && s[0].first == s[0].last; };
      if (!is_single(from) || !is_single(to) || from[0].first > to[0].last) reject("such a range");
      set.push_back({from[0].first, to[0].last});
    }
    set = normalize(std::move(set));
    return negated ? complement(set) : set;
  }

  CharacterSet parse_class_atom() {
    const char32_t c = take();
    return counted(c == '\\' ? parse_escape(true) : CharacterSet{{c, c}});
  }

  char32_t parse_hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = take();
      const auto digit = std::u32string_view(U"0123456789abcdef").find(c >= 'A' && c <= 'F' ? c + 32 : c);
      if (digit == std::u32string_view::npos) reject("such a hexadecimal number");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  char32_t parse_code_unit() {
    if (accept('{')) {
      int digits = 0;
      while (place_ + static_cast<std::size_t>(digits) < pattern_.size() && digits < 7 &&
             pattern_[place_ + static_cast<std::size_t>(digits)] != '}') {
        ++digits;
      }
      const char32_t value = parse_hex(digits);
      if (digits == 0 || value > kLastCodePoint || !accept('}')) reject("such a \\u{");
      return value;
    }
    const char32_t first = parse_hex(4);
    if (first < 0xD800 || first > 0xDBFF) return first;
    if (!accept_text(U"\\u")) reject("half a surrogate pair");
    const char32_t second = parse_hex(4);
    if (second < 0xDC00 || second > 0xDFFF) reject("half a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  CharacterSet parse_escape(bool in_class) {
    const char32_t c = take();
    const auto one = [](char32_t of) { return CharacterSet{{of, of}}; };
    switch (c) {
      case 'd': return pattern_digits();
      case 'D': return complement(pattern_digits());
      case 'w': return pattern_word_characters();
      case 'W': return complement(pattern_word_characters());
      case 's': return pattern_spaces();
      case 'S': return complement(pattern_spaces());
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'x': return one(parse_hex(2));
      case 'u': return one(parse_code_unit());
      case 'p':
      case 'P': return parse_property(c == 'P');
      case '0':
        if (at_end() || pattern_[place_] < '0' || pattern_[place_] > '9') return one(0);
        break;
      case 'c': {
        const char32_t letter = take();
        if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')) return one(letter % 32);
        break;
      }
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        if (std::u32string_view(U"^$\\.*+?()[]{}|/").find(c) != std::u32string_view::npos) return one(c);
        // With the flag u only these; patterns in the wild escape other punctuation as well, and mean it itself.
        if (c < 0x80 && std::u32string_view(U"-_ !\"#%&',:;<=>@`~").find(c) != std::u32string_view::npos) return one(c);
    }
    std::string name;
    append_utf8(c, name);
    reject(fmt::format("\\{}", printable(name)));
  }

  CharacterSet parse_property(bool negated) {
    if (!accept('{')) reject("\\p without {");
    std::string name;
    while (!is('}')) append_utf8(take(), name);
    take();
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLongNames = {{{"Letter", "L"},
                                                                                          {"Lowercase_Letter", "Ll"},
                                                                                          {"Uppercase_Letter", "Lu"},
                                                                                          {"Number", "N"},
                                                                                          {"Decimal_Number", "Nd"},
                                                                                          {"Punctuation", "P"}}};
    std::string_view shorter = name;
    for (const auto& [long_name, short_name] : kLongNames) {
      if (name == long_name) shorter = short_name;
    }
    const std::optional<CharacterSet> set = category(shorter);
    if (!set) reject(fmt::format("\\p{{{}}}", printable(name)));
    return negated ? complement(*set) : *set;
  }

  std::u32string pattern_;
  std::string_view where_;
  Budget& budget_;
  std::size_t place_ = 0;
  bool anchored_end_ = false;
};

}  // namespace

Expression pattern_expression(std::string_view pattern, std::string_view where, Budget& budget) {
  return PatternParser(pattern, where, budget).parse();
}

}  // namespace calandra::grammar
